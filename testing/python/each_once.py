"""Runs the SQL at the top of store/FORMAT.md on a store's blocks with DuckDB only. Prints the rows of the plain files, then each row of the answer."""

import re
import sys
from pathlib import Path

import duckdb

store, page = sys.argv[1], Path(sys.argv[2]).read_text()
sql = re.search(r"```sql\n(.*?)```", page, re.S)
assert sql, "the page has no SQL"
print(duckdb.sql(f"select count(*) from read_parquet('{store}/blocks/**/*.parquet', union_by_name = true)").fetchone()[0])
once = sql[1].replace("'blocks/", f"'{store}/blocks/")
for sensor, time, value in duckdb.sql(f"select sensor, epoch_ns(time), value from ({once}) order by all").fetchall():
    print(sensor, time, value)
