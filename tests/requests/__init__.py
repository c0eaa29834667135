"""Random requests: every request ends in a plan that keeps its promises, or in an error of the engine."""
