"""Table of small files of many kinds: drafted attributes, counts and rejected columns."""
