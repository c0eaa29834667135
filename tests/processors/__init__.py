"""Files of one processor read on another."""
