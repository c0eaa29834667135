"""Planted privacy bugs: small patches of the engine, each of which a named test must detect.

    python -m tests.mutations [--only NAME ...] [--jobs 2]

The patches are in `bugs`; `planting` copies the project, patches it and runs tests.
"""
