"""Tests of recovery from a crash during a release."""
