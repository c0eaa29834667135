"""True privacy costs of random plans, compared with their charges."""
