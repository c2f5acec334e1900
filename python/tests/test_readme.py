"""Runs the marked examples of the README."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from test_client import Series
from test_store import sealed

README = Path(__file__).parent.parent / "README.md"


def test_examples_run(series: Series, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sealed(folder, "/py/n1/*", sum(map(len, series.values())))
    examples = re.findall(r"<!-- run -->\n```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 6
    # The examples rely on the default paths of client.toml.
    client = os.environ["WHOLEGRAIN_CLIENT"]
    monkeypatch.setenv("WHOLEGRAIN_CLIENT", str(Path(client).resolve()))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for example in examples:
        exec(compile(example, str(README), "exec"), names)
    assert names["rows"] and len(names["long"]) == 30 and len(names["wide"]) == 10  # type: ignore[arg-type]
