"""Files of the page Start."""
