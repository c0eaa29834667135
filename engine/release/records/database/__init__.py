"""Tables of Ibis and DataFrames of Spark, counted where they are: recoded and grouped there, and only counts travel.

To touch: `recoding` says when a value belongs to which cell, as `encoding` does; `grouped` asks the questions.
"""

from engine.release.records.database.grouped import count_there, explained, is_table
from engine.release.records.database.spark import is_spark_frame, is_spark_table, spark_batches, spark_table

__all__ = [
    "count_there",
    "explained",
    "is_spark_frame",
    "is_spark_table",
    "is_table",
    "spark_batches",
    "spark_table",
]
