"""hpcc of Debian: its input, and the times of its parts.

hpcc always runs all of its parts. HPL reports the time of one piece of fixed work; others report the best of ten passes (STREAM) or a rate over
milliseconds (FFT), in which the cost of monitoring does not show. So the time of a part is that of its whole sections, by the marks that hpcc writes at
their begin and end; HPL's is its own.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import BenchError

# The parts of fixed work and their sections.
SECTIONS = {
    "stream": ("StarSTREAM", "SingleSTREAM"),
    "fft": ("MPIFFT", "StarFFT", "SingleFFT"),
    "ptrans": ("PTRANS",),
    "random_access": (
        "MPIRandomAccess", "StarRandomAccess", "SingleRandomAccess", "MPIRandomAccess_LCG", "StarRandomAccess_LCG", "SingleRandomAccess_LCG",
    ),
    "dgemm": ("StarDGEMM", "SingleDGEMM"),
}  # fmt: skip
# hpcc cuts these sections short when it expects them to take longer than a minute.
LIMITED = ("MPIRandomAccess", "MPIRandomAccess_LCG")
# Messages whose time is that of `latency`.
LATENCY_MESSAGES = 1e6
# Figures of hpcc's summary, our names, and factors.
FIGURES = (
    ("HPL_Tflops", "hpl_gflops", 1e3), ("StarSTREAM_Triad", "triad_gb_s", 1.0), ("MPIFFT_Gflops", "fft_gflops", 1.0), ("PTRANS_GBs", "ptrans_gb_s", 1.0),
    ("MPIRandomAccess_GUPs", "random_access_gups", 1.0), ("StarDGEMM_Gflops", "dgemm_gflops", 1.0),
    ("RandomlyOrderedRingLatency_usec", "ring_latency_us", 1.0), ("RandomlyOrderedRingBandwidth_GBytes", "ring_gb_s", 1.0),
    ("AvgPingPongLatency_usec", "ping_pong_latency_us", 1.0),
)  # fmt: skip
ERRORS_MAX, RESIDUAL_MAX, FFT_ERROR_MAX = 0.01, 16.0, 1e-10
_IN_MODIFY, _IN_CREATE = 0x2, 0x100
_LIBC = ctypes.CDLL(None, use_errno=True)


class Marks:
    """When hpcc wrote the begin and the end of each section: the kernel wakes this process a few dozen times in a run, and nothing is polled."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, ""
        self._begun: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        # Readable when something in the folder changed.
        self.descriptor = _LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0 or _LIBC.inotify_add_watch(self.descriptor, os.fsencode(path.parent), _IN_MODIFY | _IN_CREATE) < 0:
            raise BenchError(f"watching {path.parent}: {os.strerror(ctypes.get_errno())}")

    def update(self) -> None:
        """Reads what was written since the last time."""
        now = time.monotonic()
        try:
            while os.read(self.descriptor, 4096):
                pass
        except BlockingIOError:
            pass
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                piece = file.read()
        except FileNotFoundError:
            return
        self._offset += len(piece)
        self.add(piece.decode(errors="replace"), now)

    def add(self, text: str, now: float) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if mark := re.fullmatch(r"(Begin|End) of (\S+) section\.", line.strip()):
                if mark[1] == "Begin":
                    self._begun[mark[2]] = now
                else:
                    self.seconds[mark[2]] = now - self._begun.pop(mark[2], now)

    def close(self) -> None:
        os.close(self.descriptor)


def parse(text: str, spans: Mapping[str, float], part: str) -> dict[str, Any]:
    """The time of a part, whether all results are right, and figures. `spans` has the seconds of each section."""
    _, begin, summary = text.partition("Begin of Summary section.")
    if not begin:
        raise BenchError("hpcc did not come to its end: its output has no summary")
    values = {name: float(value) for name, value in re.findall(r"^(\w+)=([-+0-9.eE]+)$", summary, re.MULTILINE)}

    def value(name: str) -> float:
        if name not in values:
            raise BenchError(f"hpcc's summary has no {name}")
        return values[name]

    figures = {ours: value(theirs) * factor for theirs, ours, factor in FIGURES}
    total = figures["hpl_s"] = value("HPL_time")
    figures["latency_s"] = value("RandomlyOrderedRingLatency_usec") * 1e-6 * LATENCY_MESSAGES
    for name, sections in SECTIONS.items():
        if missing := [section for section in sections if section not in spans]:
            raise BenchError(f"hpcc's output has no marks around the section {missing[0]}")
        seconds = sum(spans[section] / _share_done(section, values) for section in sections)
        total += seconds
        # Begin and end were seen together: too short to be measured, which is not a time of 0.
        if seconds > 0:
            figures[f"{name}_s"] = seconds
    figures["random_access_made_share"] = min(1.0, *(_share_done(section, values) for section in LIMITED))
    figures["hpcc_s"] = total
    seconds = figures.get(f"{part}_s", 0.0)
    if not seconds > 0:
        raise BenchError(f"{part} was too short to be timed: say a larger size")
    return {"seconds": seconds, "verified": _is_right(text, values), "figures": figures}


def _share_done(section: str, values: Mapping[str, float]) -> float:
    """The share of a section's work that was done: updates, of four for each word of the table."""
    made, words = values.get(f"{section}_ExeUpdates"), values.get(f"{section}_N")
    return max(made / (4 * words), 1e-300) if section in LIMITED and made is not None and words else 1.0


def _is_right(text: str, values: Mapping[str, float]) -> bool:
    """hpcc's own verdict, the residuals of HPL and PTRANS, RandomAccess' table (of which its rules allow a hundredth to be wrong), the error of the
    Fourier transform and its inverse, and the verdict of each rank."""
    limits = {
        "PTRANS_residual": RESIDUAL_MAX, "MPIRandomAccess_ErrorsFraction": ERRORS_MAX, "MPIRandomAccess_LCG_ErrorsFraction": ERRORS_MAX,
        "MPIFFT_maxErr": FFT_ERROR_MAX,
    }  # fmt: skip
    failed = re.findall(r"^\s*(\d+) tests completed and failed residual checks[.,]\s*$|^\s*Node\(s\) with error\s+(\d+)\s*$", text, re.MULTILINE)
    return (
        values.get("Success") == 1
        and all(values.get(name, math.inf) <= limit for name, limit in limits.items())
        and "1 tests completed and passed residual checks," in text
        and all((tests or nodes) == "0" for tests, nodes in failed)
        and "FAILED" not in text
    )


def input_text(order: int, ranks: int) -> str:
    """One matrix of this order over all ranks."""
    # As square as the ranks allow, wider than high, as HPL's documentation advises.
    high = max(rows for rows in range(1, math.isqrt(ranks) + 1) if ranks % rows == 0)
    return INPUT.format(order=order, high=high, wide=ranks // high)


def version() -> str:
    """The version as Debian numbers it."""
    path = shutil.which("hpcc")
    if path is None:
        raise BenchError("there is no hpcc: install the package hpcc")
    result = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "hpcc"], capture_output=True, text=True)
    return result.stdout if result.returncode == 0 else path


INPUT = """HPLinpack benchmark input file
one problem
HPL.out      output file name (if any)
8            device out (6=stdout,7=stderr,file)
1            # of problems sizes (N)
{order:<12} Ns
1            # of NBs
80           NBs
0            PMAP process mapping (0=Row-,1=Column-major)
1            # of process grids (P x Q)
{high:<12} Ps
{wide:<12} Qs
16.0         threshold
1            # of panel fact
2            PFACTs (0=left, 1=Crout, 2=Right)
1            # of recursive stopping criterium
4            NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
1            # of recursive panel fact.
1            RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
1            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
1            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
"""
