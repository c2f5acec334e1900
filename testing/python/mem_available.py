"""Prints count and types of MemAvailable in a store's blocks, read with DuckDB only."""

import sys

import duckdb

blocks = f"{sys.argv[1]}/blocks/**/*-int.parquet"
print(
    *duckdb.sql(
        f"select count(*), any_value(typeof(value)), any_value(typeof(time)) from '{blocks}'"
        " where sensor like '%/meminfo/MemAvailable'"
    ).fetchone()
)
