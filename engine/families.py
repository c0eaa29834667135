"""Query families, under the name that other programs call."""
