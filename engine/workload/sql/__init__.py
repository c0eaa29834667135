"""Workloads written as SQL: text to statements, conditions on public cells, and GROUP BY to query groups.

To touch: what a WHERE may say is in `conditions`, what GROUP BY may say in `grouping`; no SQL is ever run.
"""

from engine.workload.sql.text import example
from engine.workload.sql.translate import sql_readings, workload_from_sql

__all__ = [
    "example",
    "sql_readings",
    "workload_from_sql",
]
