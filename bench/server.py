"""A real server and what its users wait for.

`restart`: from `kill -9` with a large journal that is not sealed to serving again.
`range-query`: how soon the answer to a query of one sensor over a day begins, while readings are taken in.
`import`: CSV from the file to durable blocks, the real command and the server on the same cores, beside DuckDB's `read_csv` to Parquet.
`lists`: lists of sensors, newest readings and searches for names over very many sensors; CPU after the client has closed the connection.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl
import pyarrow as pa

from harness import CHECKOUT, BenchError, Http, Json, aim, bytes_below, cpu_ns, line, memory_kb, quantile, time_text, wait_until, write_result
from installation import Installation, cpu_s
from load import SIZES, LoadGenerator, interval_ns
from monitors.base import output_of
from monitors.processes import Process

# The files of `import` and `lists` begin at 2026-01-31T00:00:00Z.
BEGIN_S = 1_769_817_600
SEALED_MAX_S = 600
# MQTT 5, clean start, keep-alive 600 s.
CONNECT = b"\x10\x16\x00\x04MQTT\x05\x02\x02\x58\x00\x00\x09restarted"
CONNACK = 0x20


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wholegrain-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    started = commands.add_parser("restart")
    started.add_argument("--bytes", type=int, default=1 << 30, help="of the journal")
    started.add_argument("--seal-after", default="60s", help="the server's setting `seal_after`")
    ranges = commands.add_parser("range-query")
    ranges.add_argument("--queries", type=int, default=200, help="in each of the two formats")
    ranges.add_argument("--sensors", type=int, default=1000, help="that are preloaded at 1 s")
    ranges.add_argument("--hours", type=int, default=24, help="of them, up to now")
    ranges.add_argument("--rate", type=float, default=200_000, help="readings a second that are taken in meanwhile")
    imported = commands.add_parser("import")
    imported.add_argument("--readings", type=int, default=10_000_000, help="of each file")
    imported.add_argument("--rounds", type=int, default=5, help="imports of each file, each below a prefix of its own; the median counts")
    imported.add_argument("--cores", type=int, default=2, help="that the command and the server share; 0 for all")
    listed = commands.add_parser("lists")
    listed.add_argument("--sensors", type=int, default=1_000_000, help="of the store")
    listed.add_argument("--rounds", type=int, default=5, help="requests of each kind; the median counts")
    options = parser.parse_args(arguments)
    run = {"restart": restart, "range-query": range_query, "import": import_csv, "lists": lists}[options.command]
    if options.command == "import" and options.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])
    try:
        with Installation() as site:
            write_result(options.command, run(options, site))
    except (BenchError, OSError) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def restart(options: argparse.Namespace, site: Installation) -> Json:
    print(f"restart: kill -9 with {options.bytes >> 20} MiB of journal that is not sealed")
    port, store = site.open_plain_port(), site.folder / "server/store"
    site.configure("store", seal_after=f'"{options.seal_after}"')
    acknowledged = crash(options.bytes, site, store)
    journal, begun = bytes_below(store / "journal"), time.monotonic()
    server = site.launch_server()

    def seconds_until(what: str, condition: Callable[[], bool]) -> float:
        site.processes.wait_until(what, condition, SEALED_MAX_S)
        return time.monotonic() - begun

    connected_s = seconds_until("CONNECT is accepted", lambda: accepts_connect(port))
    healthy_s = seconds_until("the server responds", lambda: bool(site.http.get("/healthz")))
    used_s, rss_mb = cpu_s(server), memory_kb(server.child.pid, "status", "VmHWM") / 1e3
    with LoadGenerator(port, 1, [250], samples=10, interval_ns=1_000_000, window=1) as load:
        load.connect()
        load.run(0.05)
        load.drain()
        stored_s = time.monotonic() - begun
        load.close()
        new = sum(sums[1] for sums in load.sums().values())
    sealed_s = seconds_until("the journal is sealed", lambda: site.metric("journal_bytes") == 0)
    rows, rss_sealed_mb = int(site.metric("store_block_rows")), memory_kb(server.child.pid, "status", "VmHWM") / 1e3
    site.stop(server)
    line("journal, MB", f"{journal / 1e6:.0f}")
    line("readings acknowledged in it, at least", acknowledged)
    aim("to an accepted CONNECT, s", connected_s, 2, at_most=5)
    aim("to a healthy /healthz, s", healthy_s, 2, at_most=5)
    aim("to the first acknowledged batch of a new agent, s", stored_s, 2, at_most=5)
    line("CPU of the start, s", f"{used_s:.2f}")
    line("resident memory then, largest, MB", f"{rss_mb:.0f}")
    line("to a journal that is all sealed, s", f"{sealed_s:.1f}")
    line("resident memory until then, largest, MB", f"{rss_sealed_mb:.0f}")
    # Batches that were written and not yet acknowledged may or may not be there.
    beyond = rows - acknowledged - new
    line("rows in the blocks beyond those acknowledged", beyond, f"nothing lost: {'reached' if beyond >= 0 else 'MISSED'}")
    return {
        "journal_bytes": journal, "acknowledged": acknowledged, "connected_s": connected_s, "healthy_s": healthy_s, "stored_s": stored_s,
        "sealed_s": sealed_s, "cpu_s": used_s, "rss_mb": rss_mb, "rss_sealed_mb": rss_sealed_mb, "rows": rows,
    }  # fmt: skip


def crash(size: int, site: Installation, store: Path) -> int:
    """Fills the journal and kills the program that does: the last record is torn as likely as not. How many readings were acknowledged at least."""
    log = site.folder / "fill.log"
    site.processes.start("fill-journal", False, [os.environ["WHOLEGRAIN_BENCH"], "fill-journal", "--dir", str(store), "--bytes", str(size)], log)
    filler = site.processes.all[-1]
    site.processes.wait_until("the journal is filled", lambda: log.read_text().startswith("full ") and log.read_text().endswith("\n"), SEALED_MAX_S)
    site.kill(filler)
    return int(log.read_text().split()[1])


def accepts_connect(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(CONNECT)
        return connection.recv(1) == bytes([CONNACK])


def range_query(options: argparse.Namespace, site: Installation) -> Json:
    print(
        f"range-query: one sensor of {options.sensors} over {options.hours} h at 1 s, {options.queries} queries in each format, "
        f"beside {options.rate:.0f} readings/s"
    )
    port, nodes, begun = site.open_plain_port(), 4, time.monotonic()
    store = str(site.folder / "server/store")
    words = ["preload", "--dir", store, "--nodes", str(nodes), "--sensors", str(options.sensors), "--hours", str(options.hours)]
    start = int(output_of([os.environ["WHOLEGRAIN_BENCH"], *words]))
    line("preloading, s", f"{time.monotonic() - begun:.0f}")
    server, api, rows = site.start_server(), site.api(), options.hours * 3600
    window = [("from", time_text(start)), ("to", time_text(start + rows * 10**9))]
    timings: dict[str, list[tuple[float, float]]] = {"json": [], "arrow": []}
    warm_up, stop = 20, threading.Event()
    with LoadGenerator(port, 12, SIZES, samples=10, interval_ns=interval_ns(12, SIZES, max(options.rate, 1000))) as load:
        load.connect()
        publisher = threading.Thread(target=lambda: publish(load, stop))
        publishing = time.monotonic()
        if options.rate > 0:
            publisher.start()
        try:
            for round_ in range(warm_up + options.queries):
                for form, found in timings.items():
                    sensor = random.randrange(options.sensors // nodes)
                    path = f"/bench/day{random.randrange(nodes)}/g{sensor // 250}/s{sensor:05}"
                    timing = one_query(api, [("pattern", path), ("format", form), *window], rows)
                    if round_ >= warm_up:
                        found.append(timing)
        finally:
            stop.set()
            if options.rate > 0:
                publisher.join()
        published = load.drain()["readings"] / (time.monotonic() - publishing)
    blocks = site.metric("store_blocks")
    site.stop(server)
    line("blocks, and MB of them", f"{blocks:.0f} {bytes_below(Path(store)) >> 20}")
    line("readings a second taken in meanwhile", f"{published:.0f}")
    results: Json = {"sensors": options.sensors, "hours": options.hours, "rate": published, "blocks": blocks}
    for form, found in timings.items():
        first, whole = ([timing[at] for timing in found] for at in (0, 1))
        print(f" {form}")
        line("first row, median, ms", f"{median(first):.1f}")
        aim("first row, 99th percentile, ms", quantile(first, 0.99), 1, at_most=20)
        line("first row, slowest, ms", f"{max(first):.1f}")
        line("whole answer, median and 99th percentile, ms", f"{median(whole):.1f} {quantile(whole, 0.99):.1f}")
        results[form] = {"first_row_ms": first, "whole_ms": whole}
    return results


def publish(load: LoadGenerator, stop: threading.Event) -> None:
    while not stop.is_set():
        load.run(5)


def one_query(api: Http, parameters: Sequence[tuple[str, str]], rows: int) -> tuple[float, float]:
    """The time to the first row and to the end of the answer, ms; all rows have to come."""
    begun = time.perf_counter()
    with api.open("/api/v1/query", parameters) as response:
        if ("format", "arrow") in parameters:
            reader = pa.ipc.open_stream(response)
            count = reader.read_next_batch().num_rows
            first = time.perf_counter()
            count += sum(batch.num_rows for batch in reader)
        else:
            count = int(response.readline().endswith(b"\n"))
            first = time.perf_counter()
            count += response.read().count(b"\n")
    if count != rows:
        raise BenchError(f"{parameters}: {count} rows came, {rows} are there")
    return (first - begun) * 1e3, (time.perf_counter() - begun) * 1e3


def import_csv(options: argparse.Namespace, site: Installation) -> Json:
    print(f"import of CSV: {options.readings} readings a file, {options.rounds} rounds, {options.cores} cores")
    server, results = site.start_server(), Json()
    for name, write in (("wide", write_wide), ("long", write_long)):
        file = site.folder / f"{name}.csv"
        write(file, columns(options.readings))
        seconds, duckdb_s, used_s = [], [], []
        for round_ in range(options.rounds):
            used, begun = cpu_s(server), time.monotonic()
            output = site.answer("import", "csv", str(file), "--prefix", f"/bench/{name}/{round_}", "--yes", "--json")
            seconds.append(time.monotonic() - begun)
            used_s.append(cpu_s(server) - used)
            counts = json.loads(output.splitlines()[-1])
            if [counts[key] for key in ("readings", "readings_there_before", "refused_lines")] != [options.readings, 0, 0]:
                raise BenchError(f"not every reading was imported: {counts}")
            # Without the interpreter's start.
            script = CHECKOUT / "testing/python/csv_to_parquet.py"
            duckdb_s.append(float(output_of([sys.executable, script, file, site.folder / "peer.parquet"]).split()[1]))
        rate, ratio = options.readings / median(seconds), median(seconds) / median(duckdb_s)
        line(f"{name}: size of the file, MB", f"{file.stat().st_size / 1e6:.0f}")
        aim(f"{name}: readings a second, from the file to durable blocks", rate, 0, at_least=1e6)
        line(f"{name}: CPU of the server, s", f"{median(used_s):.2f}")
        line(f"{name}: time beside DuckDB's read_csv to Parquet", f"{ratio:.2f}", "a ratio")
        results[name] = {
            "readings_per_s": rate, "seconds": seconds, "duckdb_s": duckdb_s, "duckdb_ratio": ratio, "server_cpu_s": used_s,
            "megabytes": file.stat().st_size / 1e6,
        }  # fmt: skip
    site.stop(server)
    return results


def columns(readings: int, sensors: int = 100) -> dict[str, pl.Series]:
    """The values of each sensor: powers with one decimal and counters, which both walk up."""
    rng, found = np.random.default_rng(1), {}
    for sensor in range(sensors):
        walk = pl.Series(rng.integers(0, 40, readings // sensors).cumsum())
        power = (200 + walk % 97).cast(pl.String) + "." + (walk % 10).cast(pl.String)
        found[f"rack{sensor // 10}/node{sensor}/power"] = power if sensor % 2 == 0 else walk.cast(pl.String)
    return found


def times(values: dict[str, pl.Series]) -> pl.Series:
    return BEGIN_S + pl.int_range(len(next(iter(values.values()))), eager=True)


def write_wide(path: Path, values: dict[str, pl.Series]) -> None:
    pl.DataFrame({"time": times(values)} | values).write_csv(path, quote_style="never")


def write_long(path: Path, values: dict[str, pl.Series]) -> None:
    time_ = times(values)
    frames = [pl.DataFrame({"sensor": name, "time": time_, "value": series}) for name, series in values.items()]
    pl.concat(frames).sort("time", maintain_order=True).write_csv(path, quote_style="never")


# Name, path and parameters of a request.
REQUESTS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("names: the levels below a place", "names", [("begin", "/bench/")]),
    ("names: a beginning without /", "names", [("begin", "m1")]),
    ("names: nearest, the last level of a path", "names", [("near", "/bench/n00042/m01x")]),
    ("names: nearest, a last level below all nodes", "names", [("near", "/bench/n*/m01x")]),
    ("names: nearest, below nodes that are not there", "names", [("near", "/bench/*x/m017")]),
    ("names: nearest, without /", "names", [("near", "m0x7")]),
    ("sensors: the first page (10,000)", "sensors", []),
    ("sensors: a page from the middle", "sensors", [("after", "/bench/n02000/")]),
    ("sensors: one metric of all nodes", "sensors", [("pattern", "/bench/*/m017")]),
    ("sensors: a pattern that matches none", "sensors", [("pattern", "/bench/**/none")]),
    ("newest: the first page (10,000)", "newest", [("pattern", "/**")]),
    ("newest: a page of 100,000", "newest", [("pattern", "/**"), ("limit", "100000")]),
]
# A client closes the connection after this time without a response; the server's CPU is counted for some time after that.
CLIENT_TIMEOUT_S, AFTER_S = 0.02, 5.0


def lists(options: argparse.Namespace, site: Installation) -> Json:
    print(f"lists: {options.sensors} sensors, {options.rounds} requests of each kind")
    server, file = site.start_server(), site.folder / "sensors.csv"
    at = pl.int_range(options.sensors, eager=True).alias("value")
    paths = pl.format("n{}/m{}", (at // 250).cast(pl.String).str.zfill(5), (at % 250).cast(pl.String).str.zfill(3))
    pl.DataFrame(at).select(paths.alias("sensor"), pl.lit(BEGIN_S).alias("time"), "value").write_csv(file)
    begun = time.monotonic()
    site.answer("import", "csv", str(file), "--prefix", "/bench", "--yes")
    line("import of one reading of each, s", f"{time.monotonic() - begun:.1f}")
    config = str(site.folder / "server/server.toml")
    user = site.answer("auth", "token", "create", "alice", "--role", "user", "--server-config", config).strip()
    results: Json = {"sensors": options.sensors}
    for role, api in (("admin", site.api()), ("user", site.api(user))):
        # The server reads its file of tokens once a second.
        wait_until(lambda: accepts_token(api), "the token counts")
        print(f" with a token of role {role}: median time, ms; CPU of the server, ms; size, kB")
        results[role] = {name: list_requests(options.rounds, server, api, name, f"/api/v1/{path}", words) for name, path, words in REQUESTS}
    site.stop(server)
    return results


def accepts_token(api: Http) -> bool:
    with contextlib.suppress(BenchError):
        return bool(api.get("/api/v1/names", [("begin", "/bench/")]))
    return False


def list_requests(rounds: int, server: Process, api: Http, name: str, path: str, words: list[tuple[str, str]]) -> Json:
    ms, cpu_ms, size = [], [], 0
    for _ in range(rounds):
        used, begun = cpu_ns(server.child.pid), time.monotonic()
        size = len(api.get(path, words))
        ms.append((time.monotonic() - begun) * 1e3)
        cpu_ms.append((cpu_ns(server.child.pid) - used) / 1e6)
    line(name, f"{median(ms):.1f} {median(cpu_ms):.1f} {size / 1e3:.1f}")
    found: Json = {"ms": ms, "server_cpu_ms": cpu_ms, "bytes": size}
    if median(ms) >= 2 * CLIENT_TIMEOUT_S * 1e3:
        used, timeout = cpu_ns(server.child.pid), api.connection.timeout
        api.connection.close()
        api.connection.timeout = CLIENT_TIMEOUT_S
        with contextlib.suppress(OSError, http.client.HTTPException):
            api.get(path, words)
        api.connection.close()
        api.connection.timeout = timeout
        time.sleep(AFTER_S)
        found["closed_cpu_ms"] = (cpu_ns(server.child.pid) - used) / 1e6
        line(f"    of them when the client closes after {CLIENT_TIMEOUT_S * 1e3:g} ms: CPU, ms", f"{found['closed_cpu_ms']:.1f}")
    return found


if __name__ == "__main__":
    sys.exit(main())
