"""Compiles, starts and times one workload."""

from __future__ import annotations

import hashlib
import math
import os
import re
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import BenchError, Json
from monitors.processes import die_with_parent, exit_status

from . import CATALOGUE, arguments, find, hpcc

SOURCES = Path(__file__).parent
# Known results hold only where a product and a sum are rounded apart.
FLAGS = ("-O2", "-ffp-contract=off")
# A folder that is shared with other machines is read so often; on this machine the kernel reports changes.
REMOTE_POLL_S = 0.1
# A launcher has so long after SIGTERM to stop its ranks.
STOP_S = 5.0
RANKS = "{ranks}"


@dataclass(frozen=True)
class Build:
    """How and where programs are compiled; every node must see the folder."""

    folder: Path
    # A folder with mpi.h, where the compiler does not find it itself.
    include: str | None = None
    # Further flags of the compiler.
    cflags: str = ""


def compile_program(name: str, build: Build) -> Path:
    """The path of a program, compiled once for each source, compiler and flags."""
    build.folder.mkdir(parents=True, exist_ok=True)
    folder, source = build.folder.resolve(), SOURCES / f"{name}.c"
    command = [*(["cc", "-I", build.include] if build.include else ["mpicc"]), FLAGS[0], *build.cflags.split(), FLAGS[1], *CATALOGUE[name].flags]
    needs = f"compiling {name} needs mpicc and mpi.h: install libopenmpi-dev, or say --include with the folder of its mpi.h"
    try:
        compiler = subprocess.run([command[0], "--version"], capture_output=True, text=True).stdout.split("\n", 1)[0]
    except OSError as error:
        raise BenchError(f"{needs}: {error}") from error
    key = hashlib.blake2b(f"{source.read_text()}{command}{compiler}".encode(), digest_size=8).hexdigest()
    program = folder / f"{name}-{key}"
    if program.is_file():
        return program
    libraries = ["-l:libmpi.so.40", "-lm"] if build.include else ["-lm"]
    # Put in place in one step: another run may compile the same now.
    with tempfile.TemporaryDirectory(prefix="compile", dir=folder) as aside:
        output = Path(aside) / name
        result = subprocess.run([*command, "-o", str(output), str(source), *libraries], capture_output=True, text=True)
        if result.returncode:
            raise BenchError(f"{name} cannot be compiled: {needs}\n{result.stderr}")
        output.rename(program)
    return program


def noise_units(build: Build, recalibrate: bool = False) -> float:
    """Units of the noise loop's work in a millisecond of this idle machine: kept in a file, so that every run does the same work, on every node."""
    program = compile_program("noise", build)
    file = build.folder.resolve() / "noise.units"
    if recalibrate or not file.is_file():
        # A single process of Open MPI needs no mpirun, but root must say that it is intended.
        env = dict(os.environ) | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        result = subprocess.run([str(program), "calibrate", "1000000"], env=env, capture_output=True, text=True)
        found = re.search(r"^units (\S+)$", result.stdout, re.MULTILINE)
        if result.returncode or not found:
            raise BenchError(f"calibrating the noise loop: {result.stderr.strip() or 'it printed no units'}")
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as aside:
            aside.write(f"{found[1]}\n")
        Path(aside.name).rename(file)
    try:
        units = float(file.read_text())
    except ValueError:
        units = 0.0
    if not units > 0:
        raise BenchError(f"{file} has no number: remove it and run `wholegrain-bench workload build`")
    return units


def launch_words(template: str | None, binding: str, ranks: int) -> list[str]:
    """The words before the program: the user's launcher, or mpirun on this machine."""
    if template is not None:
        if RANKS not in template:
            raise BenchError(f"the launcher {template!r} does not contain {RANKS}: as in `mpirun -np {RANKS}`")
        return [word.replace(RANKS, str(ranks)) for word in template.split()]
    bound = {"auto": ranks <= len(os.sched_getaffinity(0)), "core": True, "none": False}[binding]
    words = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe"]
    return words + (["--map-by", "core", "--bind-to", "core"] if bound else ["--bind-to", "none"]) + ["-np", str(ranks)]


def run(name: str, size: str, ranks: int, launcher: str | None, binding: str, build: Build, timeout_s: float) -> Json:
    """The outcome of one run. What the program writes to its standard error goes to ours."""
    workload = find(name)
    if ranks < 1:
        raise BenchError(f"{name} with no ranks: say --ranks 2")
    # These names stand for sizes that differ between workloads; outcomes have the size itself.
    if size in ("quick", "long"):
        size = workload.sizes[size]
    meaning = workload.sizes.get(size, size)
    words = launch_words(launcher, binding, ranks)
    build.folder.mkdir(parents=True, exist_ok=True)
    own: Json = {"workload": name, "size": size, "ranks": ranks}
    with tempfile.TemporaryDirectory(prefix="run", dir=build.folder.resolve()) as folder:
        if not workload.is_hpcc:
            program = str(compile_program(name, build))
            command = [*words, program, *arguments(name, meaning, lambda: noise_units(build))]
            return own | parse_output(execute(command, Path(folder), timeout_s, f"{name} of size {size}", None, False))
        hpcc.version()
        if not meaning.isdigit():
            raise BenchError(f"the size {size} of {name}: say the order of HPL's matrix")
        (Path(folder) / "hpccinf.txt").write_text(hpcc.input_text(int(meaning), ranks))
        result = Path(folder) / "hpccoutf.txt"
        marks = hpcc.Marks(result)
        try:
            output = execute([*words, "hpcc"], Path(folder), timeout_s, f"{name} of size {size}", marks, launcher is not None)
            marks.update()
        finally:
            marks.close()
        if not result.exists():
            raise BenchError(f"hpcc wrote no results; it printed: {output}")
        return own | {"histogram": []} | hpcc.parse(result.read_text(errors="replace"), marks.seconds, name)


def execute(command: Sequence[str], folder: Path, timeout_s: float, what: str, marks: hpcc.Marks | None, remote: bool) -> str:
    """Runs a launcher to its end, with the marks kept up to date meanwhile; its output. A launcher that takes too long is stopped with its ranks."""
    try:
        # Should this process be killed, the launcher stops its ranks.
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, preexec_fn=lambda: die_with_parent(signal.SIGTERM)
        )
    except OSError as error:
        raise BenchError(f"starting {command[0]}: {error}; install openmpi-bin, or say --launcher") from error
    assert process.stdout
    deadline, text = time.monotonic() + timeout_s, b""
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    if marks:
        poll.register(marks.descriptor, select.POLLIN)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise BenchError(f"{what} was not done after {timeout_s:g} s and was stopped: say a smaller size or a longer --timeout-s")
            wait = min(left, REMOTE_POLL_S) if marks and remote else left
            ready = {descriptor for descriptor, _ in poll.poll(wait * 1000 + 1)}
            if marks and (remote or marks.descriptor in ready):
                marks.update()
            if process.stdout.fileno() in ready:
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    break
                text += piece
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    output = text.decode(errors="replace")
    if status:
        raise BenchError(f"{what} failed ({exit_status(status)}): {output}")
    return output


def parse_output(text: str) -> Json:
    """The lines of our own programs: `seconds N`, `verified yes|no`, `figure NAME N`, `bin LOWER_EDGE_NS COUNT`; others are for people."""
    seconds, verified = math.nan, None
    figures: dict[str, float] = {}
    histogram: list[tuple[int, int]] = []
    for line in text.splitlines():
        try:
            match line.split():
                case ["seconds", value]:
                    seconds = float(value)
                case ["verified", "yes" | "no" as word]:
                    verified = word == "yes"
                case ["figure", name, value]:
                    figures[name] = float(value)
                case ["bin", edge, count]:
                    histogram.append((int(edge), int(count)))
        except ValueError as error:
            raise BenchError(f"in the line {line!r}: {error}") from error
    if verified is None or "seconds " not in text:
        raise BenchError(f"the program did not print its seconds and whether its result is right; it printed:\n{text}")
    if not (math.isfinite(seconds) and seconds > 0):
        raise BenchError(f"the program reports a time of {seconds} s")
    if any(a[0] >= b[0] for a, b in zip(histogram, histogram[1:])):
        raise BenchError("the histogram's bins are not in order")
    return {"seconds": seconds, "verified": verified, "figures": figures, "histogram": histogram}
