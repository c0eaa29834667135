"""Tests of engine.ledger."""
