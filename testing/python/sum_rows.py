"""Sums the values of a store's blocks with DuckDB only: for each third level of the paths (`/bench/<name>/...`) a line with its name, rows,
the sum of the times in ns, the sum of the integers, and the sum of the floats in eighths."""

import sys

import duckdb

sums: dict[str, list[int]] = {}
for kind, place in (("int", 2), ("float", 3)):
    blocks = f"{sys.argv[1]}/blocks/**/*-{kind}.parquet"
    if not duckdb.sql(f"select 1 from glob('{blocks}') limit 1").fetchone():
        continue
    value = "sum(value)" if kind == "int" else "sum(value * 8)"
    rows = duckdb.sql(
        f"""
        select split_part(sensor, '/', 3), sum(rows), sum(times), sum(added) from (
            select sensor, count(*) as rows, sum(epoch_ns(time)) as times, {value} as added
            from read_parquet('{blocks}') group by sensor
        ) group by all
        """
    ).fetchall()
    for name, count, times, added in rows:
        sum_of = sums.setdefault(name, [0, 0, 0, 0])
        sum_of[0] += int(count)
        sum_of[1] += int(times)
        sum_of[place] += int(added or 0)
for name, numbers in sorted(sums.items()):
    print(name, *numbers)
