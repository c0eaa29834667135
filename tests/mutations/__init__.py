"""Planted privacy bugs: patches of the engine that a named test must detect.

    python -m tests.mutations [--only NAME ...] [--jobs 2]

The patches are in `bugs`; `planting` copies the project, patches it and runs tests.
"""
