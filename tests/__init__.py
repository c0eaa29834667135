"""Tests of the engine, the demo data and the workbench; `python -m tests` runs checks and tests."""
