"""Tests of counting in databases: DuckDB, PostgreSQL, SQLite, Spark and Dask."""
