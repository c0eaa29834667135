"""Tables of Ibis and DataFrames of Spark and Dask, counted where they are: only counts travel.

To touch: `recoding` says when a value belongs to which cell, as `encoding` does; `grouped` asks the questions; `named`
reads the settings that give tables names.
"""

from engine.release.records.database.dask import count_partitions, is_dask_frame
from engine.release.records.database.grouped import count_there, explained, fit_there, is_table, some_values
from engine.release.records.database.named import named_sources, named_table
from engine.release.records.database.recoding import as_text
from engine.release.records.database.spark import is_spark_frame, is_spark_table, spark_batches, spark_table

__all__ = [
    "as_text",
    "count_partitions",
    "count_there",
    "explained",
    "fit_there",
    "is_dask_frame",
    "is_spark_frame",
    "is_spark_table",
    "is_table",
    "named_sources",
    "named_table",
    "some_values",
    "spark_batches",
    "spark_table",
]
