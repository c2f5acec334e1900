"""Converts a CSV file to Parquet with DuckDB in two threads; prints rows and seconds. Usage: csv_to_parquet.py FILE OUT"""

import sys
import time

import duckdb

source, target = sys.argv[1:]
connection = duckdb.connect()
connection.execute("SET threads = 2")
begun = time.perf_counter()
copy = f"COPY (SELECT * FROM read_csv('{source}', header = true)) TO '{target}' (FORMAT parquet, COMPRESSION zstd)"
rows = connection.execute(copy).fetchone()[0]
print(rows, time.perf_counter() - begun)
