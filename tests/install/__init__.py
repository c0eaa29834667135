"""Tests of the project as others meet it: README, packages, command line, common mistakes."""
