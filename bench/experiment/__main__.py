"""Summarises an experiment's folder: prints a row for each setting and writes the Parquet files for the report.

    PYTHONPATH=bench .venv/bin/python -m experiment summary target/bench/quick [--json | --quiet]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from . import folder
from .summary import Json

UNITS = (("d", 86_400 * 10**9), ("h", 3600 * 10**9), ("min", 60 * 10**9), ("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="experiment", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["summary"])
    parser.add_argument("dir", type=Path, help="the folder of an experiment's results, finished or not")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="one JSON object")
    output.add_argument("--quiet", action="store_true", help="only write the files")
    options = parser.parse_args(arguments)
    try:
        found = folder.write(options.dir)
    except (folder.FolderError, OSError) as error:
        print(f"experiment: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(found))
    elif not options.quiet:
        print(report(found), end="")
    return 0


def report(found: Json) -> str:
    """The table for people."""
    about = found["experiment"]
    lines = [f"{about['name']}: {about['runs_made']} of {about['runs_planned']} runs made, {about['runs_failed']} of them failed, seed {about['seed']}"]
    if about["runs_not_quiet"]:
        lines.append(f"before {about['runs_not_quiet']} of them other processes used more than {about['not_quiet_percent']} % of a core")
    lines.append(
        f"  {'workload':<20} {'monitor':<26} {'period':<7} {'runs':>6} {'mean s':>9} {'95 % interval':^22} {'ratio':>7} {'95 % interval':^18} {'adjusted p':>11}"
        f" {'CPU %':>8} {'RSS MB':>8}"
    )
    lines += [_line(row) for row in found["rows"]]
    lines.append("  *: differs from no monitor (Holm over all settings, 5 %); intervals of ratios by Fieller, paired by round")
    lines += [f"  left out: {e['monitor']} {e['configuration']} {interval_name(e['interval_ns'])}: {e['reason']}" for e in found["left_out"]]
    return "\n".join(lines) + "\n"


def _line(row: Json) -> str:
    def number(value: float | None, width: int, digits: int, scale: float = 1.0) -> str:
        return f"{'-':>{width}}" if value is None else f"{value * scale:>{width}.{digits}f}"

    hosts = f" on {row['hosts']}" if row["hosts"] > 1 else ""
    workload = f"{row['workload']} {row['size']} x{row['ranks']}{hosts}"
    monitor = f"{row['monitor']} {row['configuration']}"
    failed = f" ({row['failed']} failed)" if row["failed"] else ""
    return (
        f"  {workload:<20} {monitor:<26} {interval_name(row['interval_ns']):<7} {row['runs']:>6} {number(row['mean_s'], 9, 3)}"
        f" {number(row['ci_low_s'], 9, 3)} to {number(row['ci_high_s'], 9, 3)} {number(row['ratio'], 7, 4)}"
        f" {number(row['ratio_low'], 7, 4)} to {number(row['ratio_high'], 7, 4)} {number(row['p_adjusted'], 9, 4)}{' *' if row['significant'] else '  '}"
        f" {number(row['node_cpu_share'], 8, 3, 100)} {number(row['rss_kb'], 8, 1, 1 / 1024)}{failed}"
    )


def interval_name(ns: int | None) -> str:
    """A period as configurations have it: 1ms, 90s."""
    if ns is None:
        return ""
    return next(f"{ns // size}{unit}" for unit, size in UNITS if ns % size == 0)


if __name__ == "__main__":
    sys.exit(main())
