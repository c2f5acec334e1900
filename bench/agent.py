"""Costs of one agent that pushes with QoS 1 over TLS to a real server.

`agent-cost`: CPU a tick for meminfo + vmstat + stat beside a bare loop of the same reads, pair by pair; ticks made; memory; size of the binary.
`throughput`: CPU and memory with many synthetic sensors, and the server's CPU a reading.
`latency`: from the read to a client that watches the server's live cache.
`bytes`: Parquet bytes per stored reading of this machine's /proc, sealed once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from statistics import median

from harness import CHECKOUT, BenchError, Json, bytes_below, line, quantile, timestamp_ns, wait_until, write_result
from installation import Installation, cpu_s, rss_kb
from monitors.bare import read_counts
from monitors.base import ours, output_of
from monitors.processes import Process

SAME = '[sources.procfs]\ngroups = ["meminfo", "vmstat", "stat"]\n'
# The agent's cache, which must be full before its memory is measured.
CACHE_S = 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wholegrain-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    cost = commands.add_parser("agent-cost")
    cost.add_argument("--seconds", type=float, default=8.0, help="length of each measuring window")
    cost.add_argument("--rounds", type=int, default=5, help="windows of each of the two, in turn")
    cost.add_argument("--interval-ms", default="1,10", help="ticks, with commas")
    throughput_ = commands.add_parser("throughput")
    throughput_.add_argument("--seconds", type=float, default=30.0, help="length of the measuring window")
    throughput_.add_argument("--sensors", type=int, default=10_000)
    throughput_.add_argument("--interval-ms", type=int, default=100, help="sampling interval")
    throughput_.add_argument("--shape", default="noise", help="of the values: counter, noise, sine, ramp or constant")
    late = commands.add_parser("latency")
    late.add_argument("--count", type=int, default=2000, help="readings to look at")
    late.add_argument("--interval-ms", type=int, default=20, help="sampling interval")
    late.add_argument("--send-ms", type=int, default=200, help="sending interval: the oldest reading of a batch has waited so long")
    stored = commands.add_parser("bytes")
    stored.add_argument("--seconds", type=float, default=120.0, help="of /proc to record")
    stored.add_argument("--interval-ms", type=int, default=1000, help="sampling interval; a shorter one records values that change less")
    options = parser.parse_args(arguments)
    run = {"agent-cost": agent_cost, "throughput": throughput, "latency": latency, "bytes": bytes_per_reading}[options.command]
    try:
        with Installation() as site:
            write_result(options.command, run(options, site))
    except (BenchError, OSError) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def agent_cost(options: argparse.Namespace, site: Installation) -> Json:
    print(f"agent: meminfo + vmstat + stat, beside a bare loop of the same reads ({options.rounds} x {options.seconds:g} s each)")
    site.start_server()
    results: Json = {}
    for interval_ms in map(int, options.interval_ms.split(",")):
        pairs = [(bare_window(options, interval_ms, site), agent_window(options, interval_ms, site)) for _ in range(options.rounds)]
        ratios = [agent["us_per_tick"] / bare["us_per_tick"] for bare, agent in pairs]
        bare, agent = ({key: median(pair[side][key] for pair in pairs) for key in pairs[0][0]} for side in (0, 1))
        rss = max(pair[1]["rss_kb"] for pair in pairs)
        print(f" at {interval_ms} ms")
        line("bare loop, us of CPU a tick", f"{bare['us_per_tick']:.1f}")
        line("agent, us of CPU a tick", f"{agent['us_per_tick']:.1f}")
        line("ratio, median of pairs", f"{median(ratios):.2f}", "at most 1.5, goal 1.25")
        line("ticks made by the bare loop, %", f"{bare['made'] * 100:.3f}")
        line("ticks made by the agent, %", f"{agent['made'] * 100:.3f}", "at least 99.9")
        line("resident memory, MB", f"{rss / 1e3:.1f}", "at most 8, goal 5")
        results[f"{interval_ms}ms"] = {
            "bare_us": bare["us_per_tick"], "agent_us": agent["us_per_tick"], "ratios": ratios, "ticks_made": agent["made"],
            "bare_ticks_made": bare["made"], "rss_kb": rss,
        }  # fmt: skip
    results["binary_bytes"] = os.path.getsize(ours("wholegrain-agent"))
    line("binary, MB", f"{results['binary_bytes'] / 1e6:.2f}", "at most 8, goal 4")
    return results


def window(process: Process, options: argparse.Namespace, interval_ms: int, ticks: tuple[float, float], after: tuple[float, float], used: float) -> Json:
    made, missed = after[0] - ticks[0], after[1] - ticks[1]
    us_per_tick = used * 1e6 / (options.seconds * 1e3 / interval_ms)
    return {"us_per_tick": us_per_tick, "made": made / max(made + missed, 1), "rss_kb": rss_kb(process)}


def bare_window(options: argparse.Namespace, interval_ms: int, site: Installation) -> Json:
    counts = site.folder / "counts"
    command = [os.environ["WHOLEGRAIN_BENCH"], "bare", "--interval-ms", str(interval_ms), "--counts", str(counts)]
    site.processes.start("bare", False, command, site.folder / "bare.log")
    bare = site.processes.all[-1]
    time.sleep(1)
    before, used = read_counts(counts), cpu_s(bare)
    time.sleep(options.seconds)
    used = cpu_s(bare) - used
    found = window(bare, options, interval_ms, before, read_counts(counts), used)
    site.kill(bare)
    return found


def agent_window(options: argparse.Namespace, interval_ms: int, site: Installation) -> Json:
    agent = site.start_agent(f'{SAME}interval = "{interval_ms}ms"\n')

    def ticks() -> tuple[float, float]:
        status = site.status()
        return status["samples"], status["missed_ticks"]

    time.sleep(1)
    before, used = ticks(), cpu_s(agent)
    time.sleep(options.seconds)
    used = cpu_s(agent) - used
    found = window(agent, options, interval_ms, before, ticks(), used)
    site.stop(agent)
    return found


def throughput(options: argparse.Namespace, site: Installation) -> Json:
    rate = options.sensors * 1e3 / options.interval_ms
    print(f"agent: {options.sensors} tester sensors ({options.shape}) at {options.interval_ms} ms, {rate:.0f} readings a second")
    server = site.start_server()
    agent = site.start_agent(
        f'[cache]\nduration = "{CACHE_S}s"\nbytes_max = "64MiB"\n[sources.tester]\nsensors = {options.sensors}\nshape = "{options.shape}"\n'
        f'interval = "{options.interval_ms}ms"\n'
    )
    time.sleep(CACHE_S + 2)
    before = cpu_s(agent), cpu_s(server)
    time.sleep(options.seconds)
    agent_cpu, server_cpu = ((cpu_s(process) - used) / options.seconds for process, used in zip((agent, server), before))
    status = site.status()
    results = {
        "readings_per_s": rate, "agent_cpu": agent_cpu, "agent_rss_kb": rss_kb(agent), "server_ns_per_reading": server_cpu * 1e9 / rate,
        "server_rss_kb": rss_kb(server), "missed_ticks": status["missed_ticks"], "dropped_batches": status["dropped_batches"],
    }  # fmt: skip
    line("agent, % of one core", f"{agent_cpu * 100:.2f}", "at most 3")
    line("agent, resident memory, MB", f"{results['agent_rss_kb'] / 1e3:.1f}", "at most 60")
    line("missed ticks and dropped batches", f"{status['missed_ticks']} {status['dropped_batches']}", "0 0")
    line("server, ns of CPU a reading", f"{results['server_ns_per_reading']:.0f}")
    line("server, resident memory, MB", f"{results['server_rss_kb'] / 1e3:.1f}")
    return results


def latency(options: argparse.Namespace, site: Installation) -> Json:
    print(f"latency: sampled every {options.interval_ms} ms, sent every {options.send_ms} ms, {options.count} readings")
    site.start_server()
    sources = f'[sources.procfs]\ngroups = ["loadavg"]\ninterval = "{options.interval_ms}ms"\n'
    site.start_agent(sources, f'send_interval = "{options.send_ms}ms"\n')
    late_ms: list[float] = []
    with subprocess.Popen([ours("wholegrain"), "watch", "/probe/loadavg/*", "--format", "json"], env=site.client_env, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout
        for text in watch.stdout:
            now = time.time_ns()
            late_ms.append((now - timestamp_ns(json.loads(text)["time"])) / 1e6)
            if len(late_ms) >= options.count:
                break
        watch.kill()
    beyond = {name: quantile(late_ms, q) - options.send_ms for name, q in (("p99", 0.99), ("largest", 1.0))}
    line("median, ms", f"{median(late_ms):.1f}")
    line("99th percentile beyond the sending interval, ms", f"{beyond['p99']:.1f}", "at most 20")
    line("largest beyond the sending interval, ms", f"{beyond['largest']:.1f}")
    return {"interval_ms": options.interval_ms, "send_ms": options.send_ms, "late_ms": late_ms, "p99_ms": quantile(late_ms, 0.99)}


def bytes_per_reading(options: argparse.Namespace, site: Installation) -> Json:
    print(f"bytes: every /proc group at {options.interval_ms} ms for {options.seconds:g} s, sealed once")
    # One block of the whole recording, as a merge makes it.
    site.configure("store", seal_after=f'"{int(options.seconds) + 3600}s"')
    server = site.start_server()
    agent = site.start_agent(f'[sources.procfs]\ninterval = "{options.interval_ms}ms"\n')
    time.sleep(options.seconds)
    site.stop(agent)
    site.stop(server)
    site.configure("store", seal_after='"100ms"')
    server = site.start_server()
    wait_until(lambda: site.metric("journal_bytes") == 0, "the journal is sealed")
    site.stop(server)
    store = site.folder / "server/store"
    size = bytes_below(store / "blocks")
    readings = int(output_of([sys.executable, CHECKOUT / "testing/python/count_rows.py", store]).split()[0])
    line("readings stored", readings)
    line("bytes of Parquet a reading", f"{size / readings:.3f}", "at most 0.5")
    return {"seconds": options.seconds, "interval_ms": options.interval_ms, "readings": readings, "bytes": size, "bytes_per_reading": size / readings}


if __name__ == "__main__":
    sys.exit(main())
