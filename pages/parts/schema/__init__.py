"""Forms and views of the page Schema."""
