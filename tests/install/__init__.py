"""Tests of the installed project: README, distributions, command line, common mistakes."""
