"""Tests of the project as others meet it: README, command line, common mistakes."""
