"""Tables of Ibis, counted where they are: recoding and grouping in the database, and only counts travel.

To touch: `recoding` says when a value belongs to which cell, as `encoding` does; `grouped` asks the questions.
"""

from engine.release.records.database.grouped import count_there, is_table

__all__ = ["count_there", "is_table"]
