"""Tests of engine.release.ledger."""
