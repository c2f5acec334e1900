"""Programs whose run time shows the cost of monitoring, and the meaning of their sizes. The programs themselves are C, in this folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness import BenchError

# Width of the noise loop's bins.
BIN_NS = 100
CLASSES = ("S", "W", "A", "B")
# Known sums of the wavefront's sizes; for others rank 0 does the work again alone.
WAVEFRONT_SUMS = {"12x50": "835a4901588a5143", "33x1500": "46c432cc1b4cc7d4", "64x500": "dfdfa9937e3fdc71"}
_HPCC_SIZE = "order of HPL's matrix, from which hpcc derives the sizes of all parts"
_CLASS = "class of NAS (S, W, A, B), times how often it is done: Ax8"


@dataclass(frozen=True)
class Workload:
    # For people, in a line each.
    about: str
    size: str
    # Names of sizes: `S` for tests, `quick` for a few seconds on two ordinary cores, `long` for steadier figures.
    sizes: Mapping[str, str]
    is_hpcc: bool = False
    flags: Sequence[str] = field(default=())


def _hpcc(about: str) -> Workload:
    return Workload(about, _HPCC_SIZE, {"S": "500", "quick": "2000", "long": "5000"}, is_hpcc=True)


CATALOGUE = {
    "hpl": _hpcc("HPL of hpcc: dense linear equations"),
    "stream": _hpcc("STREAM of hpcc: memory bandwidth"),
    "fft": _hpcc("FFT of hpcc: discrete Fourier transform"),
    "ptrans": _hpcc("PTRANS of hpcc: parallel matrix transpose"),
    "random_access": _hpcc("RandomAccess of hpcc: updates of random words"),
    "dgemm": _hpcc("DGEMM of hpcc: matrix multiplication"),
    "latency": _hpcc("b_eff of hpcc: latency of small messages in a ring"),
    "hpcc": _hpcc("all parts of hpcc in one run, each with its seconds among the figures"),
    "ep": Workload("NAS EP: Gaussian deviates, no messages", _CLASS, {"quick": "A", "long": "B"}),
    "cg": Workload("NAS CG: sparse conjugate gradients", _CLASS, {"quick": "Ax3", "long": "B"}),
    "noise": Workload(
        "fixed work again and again: the time of each turn",
        "turns, times the quantum if not 100us: 100000, 10000x1ms",
        {"S": "2000x10us", "quick": "50000", "long": "600000"},
        flags=("-DUSE_MPI",),
    ),
    "wavefront": Workload(
        "sweeps through a grid, ranks waiting for each other at each plane, as NAS LU",
        "points of an edge x steps, x sweeps over each point's block if more than 1: 33x1500, 33x1500x2",
        {"S": "12x50", "W": "33x1500", "A": "64x500", "quick": "W", "long": "A"},
    ),
    "compute": Workload("compute-bound blocks of 3 ms, ranks meet after each", "blocks", {"S": "20", "quick": "1500", "long": "10000"}),
    "memory": Workload(
        "passes over arrays that no cache holds, ranks meet after each",
        "passes, times MiB of each of a rank's three arrays if not 64: 400, 400x16",
        {"S": "5x4", "quick": "400", "long": "2500"},
    ),
}


def find(name: str) -> Workload:
    if name not in CATALOGUE:
        raise BenchError(f"there is no workload called {name}; there are {', '.join(CATALOGUE)}")
    return CATALOGUE[name]


def arguments(name: str, size: str, units_per_ms: Callable[[], float]) -> list[str]:
    """The arguments of a program of our own for a size; only the noise loop asks for its units."""
    first, *rest = size.split("x")

    def positive(text: str) -> str:
        if not re.fullmatch(r"[0-9]+", text) or int(text) == 0:
            raise BenchError(f"the size {size} of {name}: {text!r} is not a number above 0")
        return str(int(text))

    match name, rest:
        case "ep" | "cg", [] | [_]:
            if first not in CLASSES:
                raise BenchError(f"{size}: the classes of {name} are S, W, A and B")
            return [first, positive(rest[0] if rest else "1")]
        case "noise", [] | [_]:
            units = max(round(units_per_ms() * _nanoseconds(rest[0] if rest else "100us") / 1e6), 1)
            return ["run", str(units), positive(first), str(BIN_NS)]
        case "wavefront", [steps] | [steps, _]:
            sweeps = positive(rest[1] if len(rest) > 1 else "1")
            return [positive(first), positive(steps), sweeps, WAVEFRONT_SUMS.get(size, "0")]
        case "compute", []:
            return [positive(first)]
        case "memory", [] | [_]:
            return [positive(first), positive(rest[0] if rest else "64")]
    raise BenchError(f"{name} has no size {size}; see `wholegrain-bench workload list`")


def _nanoseconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]+)(ns|us|ms)", text)
    ns = int(found[1]) * {"ns": 1, "us": 1000, "ms": 10**6}[found[2]] if found else 0
    if not 1000 <= ns <= 10**9:
        raise BenchError(f"the quantum {text}: say 100us or 1ms")
    return ns
