"""Tests of engine.mechanisms.hdmm."""
