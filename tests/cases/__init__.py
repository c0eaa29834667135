"""Small files of many kinds: what is drafted from each, counted and left out, as a table."""
