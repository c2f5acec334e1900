"""Runs the programs of the overhead experiment one at a time."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import BenchError

from . import CATALOGUE, hpcc, program

EXAMPLES = """examples:
  wholegrain-bench workload list
  wholegrain-bench workload build
  wholegrain-bench workload run wavefront --size W --ranks 2
  wholegrain-bench workload run hpl --size 6000 --ranks 16 --launcher 'srun --mpi=pmix -n {ranks}' --dir /shared/workloads"""


def main(arguments: Sequence[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="wholegrain-bench workload", description=__doc__, epilog=EXAMPLES, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="all, with their sizes")
    listing.add_argument("--json", action="store_true", help="a line of JSON each: name, about, size, sizes")
    run = commands.add_parser("run", help="run one and print its outcome as one line of JSON; compiles it first if needed")
    run.add_argument("name", help="see `workload list`")
    run.add_argument("--size", default="quick", help="how much it does: a name or number of `workload list`")
    run.add_argument("--ranks", type=int, default=2, help="processes")
    run.add_argument("--launcher", help="the words that start processes; `{ranks}` is replaced (default: mpirun on this machine)")
    run.add_argument("--binding", choices=("auto", "core", "none"), default="auto", help="each rank on a core of its own, by the default launcher")
    run.add_argument("--timeout-s", type=float, default=3600, help="after it a run is stopped and counts as failed")
    build = commands.add_parser("build", help="compile all, and calibrate the noise loop once; run it before anything is measured")
    build.add_argument("--recalibrate", action="store_true", help="calibrate the noise loop again; earlier runs are not comparable with later ones")
    for command in (run, build):
        command.add_argument("--dir", type=Path, default=Path("target/bench/workloads"), help="for compiled programs; every node must see it")
        command.add_argument("--include", help="a folder with mpi.h, where the compiler does not find it itself")
        command.add_argument("--cflags", default="", help="further flags of the compiler, as --cflags=-O3")
    given = list(sys.argv[1:] if arguments is None else arguments)
    # A value that begins with a hyphen would be taken for an option.
    if "--cflags" in given[:-1]:
        at = given.index("--cflags")
        given[at : at + 2] = [f"--cflags={given[at + 1]}"]
    options = parser.parse_args(given)
    try:
        if options.command == "list":
            list_all(options.json)
            return 0
        build_options = program.Build(options.dir, options.include, options.cflags)
        if options.command == "build":
            build_all(build_options, options.recalibrate)
            return 0
        print(json.dumps(program.run(options.name, options.size, options.ranks, options.launcher, options.binding, build_options, options.timeout_s)))
    except (BenchError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def build_all(build: program.Build, recalibrate: bool) -> None:
    for name, workload in CATALOGUE.items():
        if not workload.is_hpcc:
            print(f"{name}: {program.compile_program(name, build)}", file=sys.stderr)
    print(f"noise: {program.noise_units(build, recalibrate):g} units of work a millisecond", file=sys.stderr)
    try:
        print(f"hpcc: {hpcc.version()}", file=sys.stderr)
    except BenchError as error:
        print(f"hpcc and its parts cannot be run: {error}", file=sys.stderr)


def list_all(as_json: bool) -> None:
    for name, workload in CATALOGUE.items():
        if as_json:
            print(json.dumps({"name": name, "about": workload.about, "size": workload.size, "sizes": dict(workload.sizes)}))
        else:
            print(f"{name:<14} {workload.about}\n{'':<14} size: {workload.size}; {', '.join(f'{n} = {s}' for n, s in workload.sizes.items())}")


if __name__ == "__main__":
    sys.exit(main())
