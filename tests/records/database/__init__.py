"""Tests of named database tables and Dask partitions."""
