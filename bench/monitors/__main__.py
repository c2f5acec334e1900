"""Runs one monitor, or lists all.

`run` prints {"ready": ...} when the monitor samples; on SIGTERM, SIGINT or the end of standard input it stops it and prints {"used": ...}.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness import BenchError, Json, interval_name, parse_interval

from . import ALL, find
from .base import ROLES, Monitor, node_name

EXAMPLES = """examples:
  wholegrain-bench monitor run collectd --interval 10ms --dir /tmp/m
  wholegrain-bench monitor list --json
  srun --nodes=1 --ntasks=1 --nodelist=n1 wholegrain-bench monitor run collectd --interval 1s --role server --dir /shared/m
  srun --nodes=1 --ntasks=1 --nodelist=n2 wholegrain-bench monitor run collectd --interval 1s --role node --dir /shared/m
      one server, and one launch for each node, because launchers give standard input to one process only"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="wholegrain-bench monitor", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start one until it is stopped")
    run.add_argument("name", help="see `monitor list`")
    run.add_argument("--configuration", help="one of its configurations; default: the first")
    run.add_argument("--interval", default="1s", help="sampling period, such as 1ms, 1s (default: %(default)s)")
    run.add_argument("--role", choices=ROLES, default="both", help="the part of it that runs here")
    run.add_argument("--dir", type=Path, required=True, help="for its files; with `--role node` the folder of `--role server`")
    listing = commands.add_parser("list", help="version or why it cannot run here, configurations, shortest period")
    listing.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args(arguments)
    try:
        if options.command == "list":
            list_all(options.json)
        else:
            run_one(options)
    except (BenchError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def list_all(as_json: bool) -> None:
    rows = []
    for monitor in ALL:
        version, missing = version_or_reason(monitor)
        if not as_json:
            print(f"{monitor.name:<14} {', '.join(monitor.configurations):<34} from {interval_name(monitor.shortest_ns)}; {version or missing}")
        rows.append({
            "monitor": monitor.name, "version": version, "missing": missing, "configurations": monitor.configurations,
            "shortest_interval_ns": monitor.shortest_ns,
        })  # fmt: skip
    if as_json:
        print(json.dumps(rows))


def version_or_reason(monitor: type[Monitor]) -> tuple[str | None, str | None]:
    """The version, or why the monitor cannot run here."""
    try:
        return monitor.version(), None
    except BenchError as error:
        return None, str(error)


def run_one(options: argparse.Namespace) -> None:
    kind = find(options.name)
    configuration = options.configuration or kind.configurations[0]
    if configuration not in kind.configurations:
        raise BenchError(f"{kind.name} has no configuration {configuration}; there are {', '.join(kind.configurations)}")
    interval_ns = parse_interval(options.interval)
    if interval_ns < kind.shortest_ns:
        raise BenchError(f"{kind.name} does not accept a period of {options.interval}; {interval_name(kind.shortest_ns)} is its shortest")
    kind.check_interval(interval_ns)
    version = kind.version()
    # Before anything is started: a signal meanwhile waits until there is something to stop.
    signals = signal_pipe()
    monitor = kind(options.role, configuration, interval_ns, options.dir)
    try:
        monitor.start()
        ready = {
            "monitor": kind.name, "configuration": configuration, "version": version, "interval_ns": interval_ns, "metrics": monitor.metrics,
            "host": node_name(), "configured": monitor.configured, "job": monitor.job,
        }  # fmt: skip
        used = measure(monitor, ready, signals)
    finally:
        monitor.stop()
    print(json.dumps({"used": used}), flush=True)


def measure(monitor: Monitor, ready: Json, signals: int) -> Json:
    """What was used from the line `ready` to the word to stop."""
    ended = {os.pidfd_open(process.child.pid): process.name for process in monitor.processes.all}
    ticks = monitor.ticks()
    print(json.dumps({"ready": ready}), flush=True)
    before, start = monitor.processes.usage(), time.monotonic_ns()
    poll = select.poll()
    for descriptor in (signals, sys.stdin.fileno(), *ended):
        poll.register(descriptor, select.POLLIN)
    reason = wait_for_stop(poll, signals, ended)
    window_ns = time.monotonic_ns() - start
    used = monitor.processes.usage()
    if reason:
        raise BenchError(reason)
    for own, earlier in zip(used, before):
        own["cpu_ns"] = max(own["cpu_ns"] - earlier["cpu_ns"], 0)
    now = monitor.ticks()
    made, missed = (max(b - a, 0) for a, b in zip(ticks, now)) if ticks and now else (None, None)
    return {"window_ns": window_ns, "processes": used, "samples": made, "missed": missed}


def wait_for_stop(poll: select.poll, signals: int, ended: dict[int, str]) -> str | None:
    """Sleeps until a signal or the end of standard input; why not, when a process of the monitor ended before."""
    while True:
        ready = [descriptor for descriptor, _ in poll.poll()]
        if gone := next((ended[descriptor] for descriptor in ready if descriptor in ended), None):
            return f"{gone} ended while it was measured; its log is in the folder given with --dir"
        if signals in ready or (sys.stdin.fileno() in ready and not os.read(sys.stdin.fileno(), 256)):
            return None


def signal_pipe() -> int:
    """SIGTERM and SIGINT as bytes of a pipe."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return reader


if __name__ == "__main__":
    sys.exit(main())
