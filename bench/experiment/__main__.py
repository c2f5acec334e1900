"""The overhead experiment: workloads beside monitors, in random order and many times, resumable; on one machine or a cluster."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import BenchError, Json, interval_name

from . import plan, session
from .launcher import Site

EXAMPLES = """examples:
  wholegrain-bench experiment plan bench/experiments/full.toml --seed 1 --json | jq .left_out
  wholegrain-bench experiment run bench/experiments/quick.toml --dir target/bench/quick
  wholegrain-bench experiment run mine.toml --dir results --retry-failed
  wholegrain-bench experiment summary target/bench/quick --json | jq '.rows[] | select(.significant)'"""
# The exit code of a program that a signal ended is its number above this.
SIGNALLED = 128


def main(arguments: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="wholegrain-bench experiment", description=__doc__, epilog=EXAMPLES, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="make the runs that are not made yet", description="Each run is on disk as soon as it is finished. After a Ctrl-C or a crash the same "
        "command goes on; it refuses when the file, the seed, a program or a monitor's version changed.",
    )  # fmt: skip
    run.add_argument("file", type=Path, help="the experiment's TOML file; bench/experiment/README.md describes it")
    run.add_argument("--dir", type=Path, required=True, help="the folder of its results; on a cluster one that all nodes see")
    fresh = run.add_mutually_exclusive_group()
    fresh.add_argument("--fresh", action="store_true", help="move the old results aside and start again")
    fresh.add_argument("--fresh-when-changed", action="store_true", help="the same, but only when the folder is another experiment's or another build's")
    run.add_argument("--retry-failed", action="store_true", help="make failed runs again; their failures stay in the results")
    planned = commands.add_parser("plan", help="print the order of the runs, their estimated time, and what is left out and why")
    planned.add_argument("file", type=Path, help="the experiment's TOML file")
    planned.add_argument("--seed", type=int, help="where the file has none; without it one is drawn, and `run` draws another")
    planned.add_argument("--json", action="store_true", help="one JSON object")
    summary = commands.add_parser("summary", help="print a row for each setting, and write the Parquet files again")
    summary.add_argument("dir", type=Path, help="the folder of an experiment's results, finished or not")
    summary.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args(arguments)
    try:
        return {"run": run_all, "plan": print_plan, "summary": print_summary}[options.command](options)
    except (BenchError, OSError) as error:
        print(f"experiment: {error}", file=sys.stderr)
        return 1


def run_all(options: argparse.Namespace) -> int:
    own = session.Session(options.file, options.dir, options.fresh, options.fresh_when_changed, options.retry_failed)
    stopped = None
    try:
        stopped = own.run()
    finally:
        # The finished runs are summarised, whatever ended the others.
        found = summarise(own.folder)
    if stopped is not None:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return SIGNALLED + stopped
    print(report(found), end="")
    return 0


def print_plan(options: argparse.Namespace) -> int:
    experiment, _ = session.read(options.file)
    hosts = len(Site(experiment.launcher).hosts)
    seed = next((seed for seed in (experiment.seed, options.seed) if seed is not None), None)
    seed = session.draw_seed() if seed is None else seed
    made = plan.make(experiment, seed, session.offers(experiment), hosts)
    seconds = session.estimate(experiment, made, [], made.runs)
    if options.json:
        runs = [{"run": p.run, "round": p.round, "warm_up": p.warm_up, "condition": made.conditions[p.condition]} for p in made.runs]
        print(json.dumps({"name": experiment.name, "seed": seed, "estimated_s": seconds, "runs": runs, "left_out": made.left_out}))
        return 0
    for p in made.runs:
        print(f"  {p.run + 1:>6}  round {p.round + 1:>3}{' (warm-up)' if p.warm_up else ''}  {plan.describe(made.conditions[p.condition])}")
    print(f"{experiment.name}: {len(made.runs)} runs, {len(made.conditions)} settings, seed {seed}, about {session.minutes(seconds)}")
    for line in _left_out(made.left_out):
        print(line)
    return 0


def print_summary(options: argparse.Namespace) -> int:
    found = summarise(options.dir)
    print(json.dumps(found) if options.json else report(found), end="\n" if options.json else "")
    return 0


def summarise(path: Path) -> Json:
    # SciPy and polars take seconds to load, which a run that is not at its end does not need.
    from . import folder

    return folder.write(path)


def _left_out(entries: Sequence[Json]) -> list[str]:
    return [f"  left out: {e['monitor']} {e['configuration']} {interval_name(e['interval_ns'])}: {e['reason']}" for e in entries]


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
    return "\n".join([*lines, *_left_out(found["left_out"])]) + "\n"


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


if __name__ == "__main__":
    sys.exit(main())
