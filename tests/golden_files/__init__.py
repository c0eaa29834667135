"""Files that an earlier version wrote, and that they can still be read."""
