"""Preview page: budget, errors, error targets and variance breakdown of a plan."""
