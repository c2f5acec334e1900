"""docs/figures.md is written by the command alone; figures that are not measured again keep their date."""

from __future__ import annotations

import copy
import json

import pytest

from harness import Json

from . import published

ROWS: list[Json] = json.loads(published.ROWS.read_text())


def test_the_page_is_as_the_command_writes_it() -> None:
    assert published.PAGE.read_text() == published.page(ROWS), "docs/figures.md is written by `make figures`: change bench/report/published.json or published.py"


def test_every_reference_has_its_figure_and_every_figure_its_reference() -> None:
    for row in ROWS:
        references = {found[1] for found in published.REFERENCE.finditer(row["here"])}
        assert references == set(row.get("figures", {})), row["what"]
        assert references <= {r for r in references if r.startswith(row.get("command", "").split(" ")[0] + "/")}, row["what"]


def result(command: str, date: str, **figures: float) -> Json:
    of = [{"name": name, "value": value, "unit": "s", "spread": [value, 2 * value]} for name, value in figures.items()]
    return {"command": f"wholegrain-bench {command}", "date": f"{date}T10:00:00Z", "machine": {"cores": 4, "memory_gib": 8}, "figures": of}


def row(command: str, here: str = "{bench/a_s:.1f} s, {bench/a_s.max:.0f}") -> Json:
    references = {found[1]: 1.0 for found in published.REFERENCE.finditer(here)}
    return {"what": "w", "here": here, "aim": "", "date": "2026-02-02", "machine": "2 cores, 24 GB", "command": command, "figures": references}


@pytest.mark.parametrize(("command", "made_by", "date", "changed"), [
    ("bench", "bench", "2026-02-03", True), ("bench", "all", "2026-02-03", True), ("bench --long", "bench --long", "2026-02-03", True),
    ("bench --long", "bench", "2026-02-03", False), ("bench --long", "all", "2026-02-03", False), ("bench", "bench", "2026-02-01", False),
    ("other", "bench", "2026-02-03", False),
])  # fmt: skip
def test_a_row_takes_newer_figures_of_its_own_command(command: str, made_by: str, date: str, changed: bool) -> None:
    rows = [row(command)]
    before = copy.deepcopy(rows)
    assert bool(published.update(rows, {"bench": result(made_by, date, a_s=3.25)})) == changed
    if changed:
        assert published.text(rows[0]) == "3.2 s, 6"
        assert (rows[0]["date"], rows[0]["machine"]) == (date, "4 cores, 8 GB")
    else:
        assert rows == before


def test_a_result_without_a_figure_changes_nothing() -> None:
    assert published.update([row("bench")], {"bench": result("bench", "2026-02-03", b_s=1.0)}) == []


def test_formats_have_scales() -> None:
    rows = [row("bench", "{bench/x:.1fM} MB, {bench/y:.0fk} MB, {bench/z:.2%}") | {"figures": {"bench/x": 5.4e6, "bench/y": 36e3, "bench/z": 0.999}}]
    assert published.text(rows[0]) == "5.4 MB, 36 MB, 99.90 %"
