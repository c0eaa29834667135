"""Answers as files, under the name that other programs call."""
