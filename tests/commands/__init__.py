"""Tests of the room `engine.commands`."""
