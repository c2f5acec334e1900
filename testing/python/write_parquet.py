"""Writes Parquet files with the defaults of pandas, pyarrow and DuckDB into the directory of the argument."""

import decimal, pathlib, sys
import duckdb, pandas, pyarrow, pyarrow.parquet

folder = pathlib.Path(sys.argv[1])
times = pandas.date_range("2026-01-31T12:00:00Z", periods=4, freq="1s")
wide = pandas.DataFrame({"power": [1.5, 2.5, 3.5, 4.5]}, index=pandas.Index(times, name="time"))
wide.to_parquet(folder / "pandas.parquet")
for codec in ["none", "snappy", "gzip", "lz4", "brotli", "zstd"]:
    table = pyarrow.table({"time": times, "power": [1.5, 2.5, 3.5, 4.5]})
    pyarrow.parquet.write_table(table, folder / f"{codec}.parquet", compression=codec)
long = pandas.DataFrame({
    "time": times, "sensor": pandas.Categorical(["a", "b", "a", "b"]), "value": [1, 2, 3, 4],
})
long.to_parquet(folder / "categorical.parquet")
duckdb.sql(f"""copy (
    select timestamptz '2026-01-31 12:00:00+00' + interval 1 second * i as time, (i + 1) * 1.1::decimal(18, 3) as amount,
           (2::hugeint ** 63 + i * 2048)::ubigint as large, i % 2 = 0 as open
    from range(4) t(i)) to '{folder / "duckdb.parquet"}' (format parquet)""")
