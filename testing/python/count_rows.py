"""Prints the number of rows and of distinct (sensor, time) in a store's blocks, read with DuckDB only."""

import sys

import duckdb

blocks = f"{sys.argv[1]}/blocks/**/*.parquet"
rows, distinct = duckdb.sql(
    f"select count(*), count(distinct (sensor, time)) from read_parquet('{blocks}', union_by_name = true)"
).fetchone()
print(rows, distinct)
