"""Prints columns and some sums of an experiment's Parquet files, read with DuckDB, as JSON."""

import json
import pathlib
import sys

import duckdb

folder = pathlib.Path(sys.argv[1])
found = {}
for name in ["results", "histogram", "summary"]:
    table = duckdb.read_parquet(str(folder / f"{name}.parquet"))
    found[name] = {
        "columns": {column: str(kind) for column, kind in zip(table.columns, table.types)},
        "rows": [list(row.values()) for row in table.fetch_arrow_table().to_pylist()],
    }
print(json.dumps(found, default=str))
