"""Two people on one server with neighbouring tables: whether anything of one reaches the other, or a place for all.

`python -m tests.isolation --actions 1000`
"""
