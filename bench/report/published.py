"""Writes docs/figures.md from the published figures, which are committed in published.json.

    PYTHONPATH=bench .venv/bin/python -m report.published [--dir target/bench]

A row has a text with references to figures, `{benchmark/figure:format}`. With `--dir` the figures of a row are taken from the results there, if the
row's command made them; date and machine of the row change with them. Other rows keep their figures and their dates. The format is Python's, with `k`
or `M` behind it for thousands or millions.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import CHECKOUT, Json

ROWS = Path(__file__).with_name("published.json")
PAGE = CHECKOUT / "docs/figures.md"
TEXT = """# Figures

Measured on shared virtual machines, each row on the date and machine of its last column, by `make bench-all` unless a row names another command. Commands
in parentheses are subcommands of `target/release/wholegrain-bench`; `target/bench/*.json` holds the results of your machine. `make figures` writes this page
from `bench/report/published.json` and those results.

Resident memory counts file pages that the kernel maps ahead and that programs share; the proportional figure divides shared pages, and the anonymous one is
the memory of the program alone. Only the first was measured for the other monitors.

| what | here | aim | measured |
|---|---|---|---|
"""
SCALES = {"": 1.0, "k": 1e3, "M": 1e6}
REFERENCE = re.compile(r"\{([^{}:]+):([^{}]*?[f%])([kM]?)\}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, help="take figures from the results in this folder")
    options = parser.parse_args(arguments)
    rows: list[Json] = json.loads(ROWS.read_text())
    if options.dir:
        for what in update(rows, results(options.dir)):
            print(f"updated: {what}")
        ROWS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(rows))
    return 0


def results(folder: Path) -> dict[str, Json]:
    """The results of all benchmarks in a folder, by name."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    return {name: result for name, result in found.items() if isinstance(result, dict) and "figures" in result}


def update(rows: Sequence[Json], found: dict[str, Json]) -> list[str]:
    """Takes newer figures into the rows that their commands made; the rows that changed."""
    changed = []
    for row in rows:
        name = row.get("command", "").split(" ")[0]
        result = found.get(name)
        if result is None or result["command"] not in commands(row) or result["date"][:10] < row["date"]:
            continue
        values: dict[str, float] = {}
        for figure in result["figures"]:
            values |= {f"{name}/{figure['name']}": figure["value"], f"{name}/{figure['name']}.max": figure["spread"][1]}
        if all(reference in values for reference in row["figures"]):
            row["figures"] = {reference: values[reference] for reference in row["figures"]}
            row |= {"date": result["date"][:10], "machine": f"{result['machine']['cores']} cores, {result['machine']['memory_gib']} GB"}
            changed.append(row["what"])
    return changed


def commands(row: Json) -> set[str]:
    """The commands that make a row's figures: `all` runs benchmarks without options."""
    command = row["command"]
    return {f"wholegrain-bench {command}"} | ({"wholegrain-bench all"} if " " not in command else set())


def page(rows: Sequence[Json]) -> str:
    return TEXT + "".join(f"| {row['what']} | {text(row)} | {row['aim']} | {row['date']}, {row['machine']} |\n".replace("|  |", "| |") for row in rows)


def text(row: Json) -> str:
    """The row's text with its figures."""
    return REFERENCE.sub(lambda found: format(row["figures"][found[1]] / SCALES[found[3]], found[2]).replace("%", " %"), row["here"])


if __name__ == "__main__":
    sys.exit(main())
