"""Planted privacy bugs: small patches of the engine, each of which a named test must notice.

    python -m tests.mutations [--only NAME ...] [--jobs 2]

To touch: the patches are in `bugs`; `planting` copies the project, patches it and runs tests.
"""
