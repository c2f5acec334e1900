"""Queries of the embedded store, without a server, beside DuckDB on the same Parquet files with as many threads.

`query-speed`: 1,000 sensors over an hour at 1 s as one series, a quarter of them over six hours of a day, and a month of one sensor in 1,000 points.
`virtual`: a virtual sensor that adds up 512 sensors over 24 h at 1 s: the first query, which computes it, and the same again from the result cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import duckdb

from harness import BenchError, Json, aim, line, write_result
from load import ChildWithLines
from monitors.base import output_of

DAY_S = 86_400
# A day on which windows of a month of whole days begin, s since the Unix epoch.
START_S = 20_000 * DAY_S
# Nodes of a rack, and nodes in the store of a month.
RACK, MONTH_NODES = 50, 10
ACROSS_MS_MAX, POINTS_MS_MAX = 150, 50
THREADS = min(os.cpu_count() or 1, 4)
VIRTUAL = "/lab/power"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wholegrain-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("query-speed")
    speed.add_argument("--runs", type=int, default=25, help="of each query; a fifth of them more before those that count")
    speed.add_argument("--sensors", type=int, default=1000, help="that become one series")
    speed.add_argument("--days", type=int, default=30, help="of the one sensor")
    computed = commands.add_parser("virtual")
    computed.add_argument("--nodes", type=int, default=512, help="whose power is added up")
    computed.add_argument("--hours", type=int, default=24, help="at 1 s")
    computed.add_argument("--runs", type=int, default=5, help="first queries, each after an opening of the store without results")
    computed.add_argument("--again", type=int, default=10, help="the same query again after each of them")
    computed.add_argument("--gaps", action="store_true", help="one of 1,000 readings of every second node is a gap")
    for command in (speed, computed):
        command.add_argument("--keep-in", type=Path, help="a folder in which the data stay for the next time")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder:
            begun, base = time.monotonic(), options.keep_in or Path(folder)
            run = {"query-speed": query_speed, "virtual": virtual}[options.command]
            write_result(options.command, run(options, Stores(base, begun)))
    except (BenchError, OSError, duckdb.Error) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    return 0


class Stores:
    """Stores that are made once."""

    def __init__(self, base: Path, begun: float) -> None:
        self.base, self.begun = base, begun

    def make(self, name: str, nodes: int, seconds: int, *, rack: int = RACK, batch: int = 600, seal_s: int = 3600, words: Sequence[str] = ("--over",)) -> Path:
        folder, part = self.base / name, self.base / f"{name}.part"
        if not folder.exists():
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            numbers = {"nodes": nodes, "rack": min(rack, nodes), "start-s": START_S, "seconds": seconds, "batch": batch, "seal-s": seal_s}
            sizes = [word for key, number in numbers.items() for word in (f"--{key}", str(number))]
            output_of([os.environ["WHOLEGRAIN_BENCH"], "make-power", "--dir", part, *sizes, *words])
            part.rename(folder)
        return folder

    def made(self) -> None:
        line("making the data, s", f"{time.monotonic() - self.begun:.0f}")


class Embedded(ChildWithLines):
    """A process that has a store open and answers queries."""

    def __init__(self, folder: Path, *words: str) -> None:
        super().__init__([os.environ["WHOLEGRAIN_BENCH"], "query-power", "--dir", str(folder), *words])

    def query(self, pattern: str, from_s: int, to_s: int, runs: int, **more: Any) -> Json:
        request = {"pattern": pattern, "from_s": from_s, "to_s": to_s, "runs": runs, "sum": False} | more
        answer: Json = json.loads(self.ask(json.dumps(request)))
        return answer


def duck() -> duckdb.DuckDBPyConnection:
    """A connection whose caches stay between queries."""
    connection = duckdb.connect()
    for setting in (f"threads = {THREADS}", "parquet_metadata_cache = true", "enable_external_file_cache = true", "enable_progress_bar = false"):
        connection.execute(f"SET {setting}")
    return connection


def ask_duck(connection: duckdb.DuckDBPyConnection, sql: str, runs: int) -> tuple[list[float], int, float]:
    """The time of each run, ms; rows; sum of the last column."""
    ms = []
    for _ in range(runs):
        begun = time.perf_counter()
        table = connection.execute(sql).fetch_arrow_table()
        ms.append((time.perf_counter() - begun) * 1e3)
    return ms, table.num_rows, math.fsum(value for value in table.column(table.num_columns - 1).to_pylist() if value is not None)


def files(folder: Path) -> str:
    return f"read_parquet('{folder}/blocks/**/*.parquet')"


def query_speed(options: argparse.Namespace, stores: Stores) -> Json:
    quarter = -(-options.sensors // 4)
    print(
        f"query-speed: {options.sensors} sensors over 1 h at 1 s as one series, {quarter} over six hours of a day, one over {options.days} days in "
        f"1,000 points, {options.runs} runs each"
    )
    hour = {"batch": 60, "seal_s": 60}
    ints = stores.make("ints", options.sensors, 3600, **hour, words=())
    floats = stores.make("floats", options.sensors, 3600, **hour, words=("--floats",))
    day = stores.make("day", quarter, DAY_S)
    month = stores.make("month", MONTH_NODES, options.days * DAY_S, seal_s=6 * 3600)
    stores.made()
    compared = Comparison(options.runs)
    for name, folder in (("integers", ints), ("floats", floats)):
        with Embedded(folder) as store:
            compared.hour(name, folder, store, options.sensors)
    with Embedded(day) as store:
        compared.day(day, store, quarter)
    with Embedded(month) as store:
        compared.month(month, store, options.days)
    line("memory at its peak, MiB", f"{compared.peak_kb / 1024:.0f}")
    return {"queries": compared.rows, "peak_mib": compared.peak_kb / 1024}


class Comparison:
    def __init__(self, runs: int) -> None:
        self.runs, self.connection = runs, duck()
        self.rows: list[Json] = []
        self.peak_kb = 0

    def case(self, what: str, store: Embedded, query: tuple[str, int, int], sql: str, most_ms: float, **more: Any) -> None:
        """One query, asked both in turn, so that both meet the same neighbours."""
        warm_up, half = -(-self.runs // 5), -(-self.runs // 2)
        ours: list[float] = []
        theirs: list[float] = []
        print(f" {what}")
        for _ in range(2):
            answer = store.query(*query, warm_up + half, **more)
            ms, rows, total = ask_duck(self.connection, sql, warm_up + half)
            ours += answer["ms"][warm_up:]
            theirs += ms[warm_up:]
            self.peak_kb = max(self.peak_kb, answer["peak_kb"])
            if rows != answer["rows"] or not math.isclose(total, answer["sum"], rel_tol=1e-9):
                raise BenchError(f"{what}: {answer['rows']} rows and the sum {answer['sum']} here, {rows} and {total} in DuckDB")
        aim("median, ms (warm)", median(ours), 1, at_most=most_ms)
        line("slowest, ms", f"{max(ours):.1f}")
        line(f"DuckDB, {THREADS} threads, median, ms", f"{median(theirs):.1f}")
        ratio = median(ours) / median(theirs)
        aim("of DuckDB's", ratio, 2, at_most=1)
        self.rows.append({"what": what, "ms": ours, "duckdb_ms": theirs, "ratio": ratio, "threads": THREADS, "rows": rows})

    def hour(self, name: str, folder: Path, store: Embedded, sensors: int) -> None:
        what, query = f"{sensors} sensors ({name})", ("/lab/**/power", START_S, START_S + 3600)
        sql = f"SELECT time, sum(value) FROM {files(folder)} GROUP BY time ORDER BY time"
        self.case(f"{what}, the sum at each second", store, query, sql, ACROSS_MS_MAX, sum=True)
        for seconds, origin in ((7, "from readings"), (10, "from a tier where there is one")):
            sql = sum_of_means(folder, seconds)
            self.case(f"{what}, the sum of the means of each {seconds} s, {origin}", store, query, sql, ACROSS_MS_MAX, sum=True, every_s=seconds)

    def day(self, folder: Path, store: Embedded, sensors: int) -> None:
        # As for the last hours until now: no window begins or ends with the range.
        begin, end = START_S + 15 * 3600 + 7, START_S + 21 * 3600 + 11
        sql = sum_of_means(folder, 300, f"WHERE epoch_us(time) >= {begin}000000 AND epoch_us(time) < {end}000000")
        what = f"{sensors} sensors, six hours of a day that begin and end within a window of 5 min"
        self.case(what, store, ("/lab/**/power", begin, end), sql, ACROSS_MS_MAX, sum=True, every_s=300)

    def month(self, folder: Path, store: Embedded, days: int) -> None:
        sensor = "/lab/rack00/n05/power"
        query = (sensor, START_S, START_S + days * DAY_S)

        def sql(seconds: int) -> str:
            means = f"SELECT epoch_us(time) // {seconds}000000 AS bucket, avg(value) FROM {files(folder)}"
            return f"{means} WHERE sensor = '{sensor}' GROUP BY 1 ORDER BY 1"

        tier = store.query(*query, 1, points=1000)["every_s"]
        what = f"one sensor over {days} days in 1,000 points, as it is asked for (from a tier)"
        self.case(what, store, query, sql(tier), POINTS_MS_MAX, points=1000)
        # A width of no tier: 2,592 s for 30 days.
        width = days * DAY_S // 1000
        self.case(f"the same in windows of {width} s, from readings", store, query, sql(width), POINTS_MS_MAX, every_s=width)


def sum_of_means(folder: Path, seconds: int, where: str = "") -> str:
    """Faster in DuckDB than its time_bucket."""
    means = f"SELECT sensor, epoch_us(time) // {seconds}000000 AS bucket, avg(value) AS mean FROM {files(folder)} {where} GROUP BY 1, 2"
    return f"SELECT bucket, sum(mean) FROM ({means}) GROUP BY 1 ORDER BY 1"


def virtual(options: argparse.Namespace, stores: Stores) -> Json:
    print(f"virtual: the sum of {options.nodes} sensors over {options.hours} h at 1 s")
    words = ["--floats", "--later", "--over", *(["--gaps"] if options.gaps else [])]
    name = f"power-{options.nodes}-{options.hours}h{'-gaps' if options.gaps else ''}"
    folder = stores.make(name, options.nodes, options.hours * 3600, rack=32, words=words)
    stores.made()
    end_s = START_S + options.hours * 3600
    first_s, again_ms, peaks_mib = [], [], []
    for _ in range(options.runs):
        with Embedded(folder, "--define", VIRTUAL, "--expression", "sum(</lab/*/*/power>)") as store:
            first, again = (store.query(VIRTUAL, START_S, end_s, runs) for runs in (1, options.again))
        if (again["rows"], again["sum"]) != (first["rows"], first["sum"]) or not again["cache_hits"]:
            raise BenchError(f"not the same answer from the result cache: {first}, {again}")
        first_s.append(first["ms"][0] / 1e3)
        again_ms += again["ms"]
        peaks_mib.append((first["peak_kb"] - first["before_kb"]) / 1024)
    sql = (
        f"SELECT time, sum(value) / 1000 FROM {files(folder)} WHERE epoch_us(time) >= {START_S}000000 AND epoch_us(time) < {end_s}000000 "
        "GROUP BY time ORDER BY time"
    )
    duckdb_ms, rows, total = ask_duck(duck(), sql, options.runs)
    if rows != first["rows"] or not (options.gaps or math.isclose(total, first["sum"], rel_tol=1e-9)):
        raise BenchError(f"{first['rows']} rows and the sum {first['sum']} here, {rows} and {total} in DuckDB")
    ratio = median(first_s) * 1e3 / median(duckdb_ms)
    aim("first query, median, s", median(first_s), 2, at_most=3)
    aim("the same again, median, ms", median(again_ms), 1, at_most=100)
    line("slowest of each", f"{max(first_s):.2f} s, {max(again_ms):.1f} ms")
    line("memory that the first query took at its peak, MiB", f"{max(peaks_mib):.0f}")
    line(f"DuckDB, {THREADS} threads, median, s", f"{median(duckdb_ms) / 1e3:.2f}")
    line("the first query beside it", f"{ratio:.2f}")
    return {"first_s": first_s, "again_ms": again_ms, "peak_mib": max(peaks_mib), "rows": rows, "duckdb_ms": duckdb_ms, "ratio": ratio}


if __name__ == "__main__":
    sys.exit(main())
