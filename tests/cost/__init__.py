"""CPU seconds of tests, including every process that they start."""
