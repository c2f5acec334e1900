"""The parts of workloads that start no program. `bench/tests/workloads.rs` compiles and runs each."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from harness import BenchError

from . import CATALOGUE, arguments, hpcc
from .program import launch_words, parse_output

# A real run: Debian's hpcc 1.5.0-3, two ranks, order 1000, without the machine's name.
RECORDED = (Path(__file__).parent / "fixtures/hpccoutf.txt").read_text()
SPANS = {section: 0.5 for sections in hpcc.SECTIONS.values() for section in sections}


def of(name: str, size: str) -> list[str]:
    return arguments(name, size, lambda: 1000.0)


def test_sizes_become_arguments() -> None:
    assert of("ep", "A") == ["A", "1"]
    assert of("cg", "Bx3") == ["B", "3"]
    assert of("noise", "500") == ["run", "100", "500", "100"]
    assert of("noise", "500x2ms") == ["run", "2000", "500", "100"]
    assert of("wavefront", "9x7x2") == ["9", "7", "2", "0"]
    assert of("memory", "5") == ["5", "64"]


@pytest.mark.parametrize(("name", "size"), [("ep", "C"), ("ep", "Ax0"), ("noise", "5x1h"), ("wavefront", "33"), ("compute", "-1"), ("memory", ""), ("ep", "Ax1x1")])
def test_a_wrong_size_is_refused(name: str, size: str) -> None:
    with pytest.raises(BenchError):
        of(name, size)


def test_every_named_size_is_one() -> None:
    for name, workload in CATALOGUE.items():
        for size in workload.sizes.values():
            size = workload.sizes.get(size, size)
            assert size.isdigit() if workload.is_hpcc else of(name, size), (name, size)


def test_a_recorded_run_is_understood() -> None:
    result = hpcc.parse(RECORDED, SPANS, "hpl")
    assert result["verified"] and result["seconds"] == 0.562617
    figures = result["figures"]
    assert [figures[name] for name in ("hpl_gflops", "triad_gb_s", "random_access_gups", "ring_latency_us")] == [1.18761, 64.5857, 0.0037175, 0.340143]
    for part, seconds in (("stream", 1.0), ("fft", 1.5), ("ptrans", 0.5), ("random_access", 3.0), ("dgemm", 1.0), ("hpcc", 7.562617), ("latency", 0.340143)):
        assert hpcc.parse(RECORDED, SPANS, part)["seconds"] == pytest.approx(seconds)


@pytest.mark.parametrize(("right", "wrong"), [
    ("Success=1", "Success=0"), ("0.0072510 ...... PASSED", "72510.0 ...... FAILED"),
    ("MPIRandomAccess_ErrorsFraction=0", "MPIRandomAccess_ErrorsFraction=0.02"), ("Node(s) with error 0", "Node(s) with error 1"),
    ("MPIFFT_maxErr=1.29948e-15", "MPIFFT_maxErr=1.3"), ("PTRANS_residual=0", "PTRANS_residual=17"),
    ("0 tests completed and failed residual checks.", "1 tests completed and failed residual checks."),
])  # fmt: skip
def test_a_wrong_result_is_not_verified(right: str, wrong: str) -> None:
    assert right in RECORDED
    assert not hpcc.parse(RECORDED.replace(right, wrong, 1), SPANS, "hpl")["verified"]


def test_half_a_run_is_an_error() -> None:
    for text, spans in ((RECORDED[: len(RECORDED) // 2], SPANS), (RECORDED, {k: v for k, v in SPANS.items() if k != "StarSTREAM"})):
        with pytest.raises(BenchError):
            hpcc.parse(text, spans, "stream")


def test_a_part_that_was_too_short_has_no_time() -> None:
    short = {section: 0.0 if "STREAM" in section else seconds for section, seconds in SPANS.items()}
    with pytest.raises(BenchError, match="stream was too short"):
        hpcc.parse(RECORDED, short, "stream")
    assert "stream_s" not in hpcc.parse(RECORDED, short, "hpcc")["figures"]


def test_work_that_was_cut_short_counts_as_if_it_were_whole() -> None:
    half = RECORDED.replace("MPIRandomAccess_ExeUpdates=2097152", "MPIRandomAccess_ExeUpdates=1048576")
    result = hpcc.parse(half, SPANS, "random_access")
    assert (result["seconds"], result["figures"]["random_access_made_share"]) == (3.5, 0.5)


@pytest.mark.parametrize(("ranks", "high", "wide"), [(1, 1, 1), (2, 1, 2), (4, 2, 2), (6, 2, 3), (7, 1, 7), (12, 3, 4)])
def test_ranks_form_a_rectangle(ranks: int, high: int, wide: int) -> None:
    lines = hpcc.input_text(100, ranks).splitlines()
    assert (lines[5], lines[10], lines[11]) == (f"{100:<12} Ns", f"{high:<12} Ps", f"{wide:<12} Qs")


def test_sections_are_timed_wherever_the_text_is_cut(tmp_path: Path) -> None:
    marks = hpcc.Marks(tmp_path / "out")
    marks.add("hello\nBegin of A sec", 0)
    marks.add("tion.\nfigures\n", 1)
    marks.add("End of A section.\nBegin of B section.\n", 3)
    marks.add("End of B section.\nBegin of C section.\n", 7)
    assert marks.seconds == {"A": 2.0, "B": 4.0}
    marks.close()


def test_the_kernel_reports_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    marks = hpcc.Marks(path)
    marks.update()
    for text in ("Begin of A section.\n", "Begin of A section.\nEnd of A section.\n"):
        path.write_text(text)
        assert select.select([marks.descriptor], [], [], 60)[0]
        marks.update()
    assert "A" in marks.seconds
    marks.close()


def test_the_words_of_a_launcher() -> None:
    assert launch_words("srun  --mpi=pmix -n {ranks}", "auto", 12) == ["srun", "--mpi=pmix", "-n", "12"]
    with pytest.raises(BenchError):
        launch_words("mpirun -np 2", "auto", 2)
    # Ranks are bound unless they are more than the cores.
    assert launch_words(None, "auto", 1)[-4:] == ["--bind-to", "core", "-np", "1"]
    assert launch_words(None, "auto", 100_000)[-4:] == ["--bind-to", "none", "-np", "100000"]
    assert ("--allow-run-as-root" in launch_words(None, "none", 1)) == (os.geteuid() == 0)


def test_lines_become_values() -> None:
    outcome = parse_output("hello\nseconds 1.5\nverified yes\nfigure a_us 2\nbin 100 3\nbin 200 1\nsum 0a\n")
    assert outcome == {"seconds": 1.5, "verified": True, "figures": {"a_us": 2.0}, "histogram": [(100, 3), (200, 1)]}
    assert parse_output("seconds 1\nverified no\n")["verified"] is False
    both = "seconds 1\nverified yes\n"
    for text in ("", "seconds 1\n", "verified yes\n", "seconds nan\nverified yes\n", "seconds 0\nverified no\n", "seconds x\n", f"{both}bin 200 1\nbin 100 1\n"):
        with pytest.raises(BenchError):
            parse_output(text)
