"""Tests without a server: times, patterns, files, truncated lists."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import wholegrain
from wholegrain import _config, _http, _times
from wholegrain._pattern import Matcher


def test_times_keep_their_ns() -> None:
    at = 1_769_860_800_123_456_789
    assert _times.text_of(at) == "2026-01-31T12:00:00.123456789Z"
    for text in ("2026-01-31T12:00:00.123456789Z", "2026-01-31T13:00:00.123456789+01:00", "@1769860800.123456789"):
        assert _times.time_ns(text) == at, text
    assert _times.time_ns("2026-01-31") == at // 10**9 * 10**9 - 12 * 3600 * 10**9
    assert _times.time_ns("1969-12-31T23:59:59.5Z") == -500_000_000
    assert _times.text_of(-500_000_000) == "1969-12-31T23:59:59.500000000Z"


def test_times_of_all_kinds() -> None:
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    aware = datetime(2026, 1, 31, 12, tzinfo=UTC)
    wanted = 1_769_860_800_000_000_000
    there = aware.astimezone(timezone(timedelta(hours=5)))
    for value in (aware, there, numpy.datetime64("2026-01-31T12:00:00"), pandas.Timestamp(aware)):
        assert _times.time_ns(value) == wanted, repr(value)
    assert _times.time_ns(pandas.Timestamp("2026-01-31T12:00:00.000000001Z")) == wanted + 1
    assert abs(_times.time_ns(-timedelta(hours=1)) - (_times.now_ns() - 3600 * 10**9)) < 10 * 10**9
    for naive in (datetime(2026, 1, 31), pandas.Timestamp("2026-01-31")):
        with pytest.raises(ValueError, match="time zone"):
            _times.time_ns(naive)
    for odd in ("yesterday", "2026-13-01", "@x", "-", "-5", ""):
        with pytest.raises(ValueError):
            _times.time_ns(odd)
    with pytest.raises(TypeError):
        _times.time_ns(5)


def test_intervals() -> None:
    for text, ns in (("10s", 10**10), ("1h30m", 5400 * 10**9), ("500ms", 5 * 10**8), ("1.5d", 129_600 * 10**9)):
        assert _times.interval_ns(text) == ns
    assert _times.interval_text(timedelta(milliseconds=20)) == "20000000ns"
    for odd in ("", "10", "s", "10 s", "1y"):
        with pytest.raises(ValueError):
            _times.interval_ns(odd)


def test_patterns() -> None:
    paths = ["/a", "/a/b", "/a/b/c", "/x/a", "/x/ab/c", "/x/y/z/a"]
    for pattern, chosen in (
        ("/**", paths),
        ("/a", ["/a"]),
        ("a", ["/a", "/x/a", "/x/y/z/a"]),
        ("/a/**", ["/a", "/a/b", "/a/b/c"]),
        ("/*/a*/c", ["/x/ab/c"]),
        ("/**/a", ["/a", "/x/a", "/x/y/z/a"]),
        ("/x/**/a", ["/x/a", "/x/y/z/a"]),
        ("b/c", ["/a/b/c"]),
    ):
        assert Matcher(pattern).choose(paths) == chosen, pattern
    assert Matcher(["/a", "/x/a"]).choose(paths) == ["/a", "/x/a"]
    for odd in ("/a//b", "/a/**b", "/a/+", "#", "a b", "/"):
        with pytest.raises(ValueError, match="pattern"):
            Matcher(odd)


def test_client_toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHOLEGRAIN_CLIENT", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(wholegrain.ConfigError, match="no client.toml; tried"):
        _config.find(None, None, None, None)
    file = tmp_path / "var" / "client.toml"
    file.parent.mkdir()
    (file.parent / "token").write_text("# mine\n\n secret \n")
    file.write_text('url = "https://h:1/"\ntoken_file = "token"\nca = "ca.pem"\n')
    found = _config.find(None, None, None, None)
    assert (found.url, found.token, found.ca) == ("https://h:1", "secret", Path("var/ca.pem"))
    other = tmp_path / "other.toml"
    monkeypatch.setenv("WHOLEGRAIN_CLIENT", str(other))
    for text, said in (
        ('url = "http://h"\nca = "c"', "not an address"),
        ('url = "https://h"', "no ca"),
        ('ca = "c"', "no url"),
        ('urk = "x"', "unknown key `urk`"),
        ("url = 5", "must be text"),
        ("url =", "other.toml"),
        ('url = "https://h"\nca = "c"\ntoken_file = "none"', "cannot read the token"),
    ):
        other.write_text(text)
        with pytest.raises(wholegrain.ConfigError, match=said):
            _config.find(None, None, None, None)
    # With all arguments no file is read.
    assert _config.find(None, "https://h", "t", "c").token == "t"


def test_lists_may_be_cut_anywhere() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    rows = [{"path": f"/é/{i}\n", "n": [i, {"x": None}]} for i in range(50)]
    for separator in (",\n", ","):
        data = ('{"sensors":[' + separator.join(json.dumps(row, ensure_ascii=False) for row in rows) + "]}\n").encode()
        for _ in range(50):
            cuts = sorted(chance.randrange(len(data)) for _ in range(5))
            pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            assert list(_http._elements(iter(pieces), "sensors")) == rows
        for broken in (data[:-3], data[: len(data) // 2], b"", b'{"error":"no"}\n'):
            with pytest.raises(wholegrain.BrokenAnswer):
                list(_http._elements(iter([broken]), "sensors"))
