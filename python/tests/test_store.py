"""Reads a store directory while its server runs."""

from __future__ import annotations

import base64
import shutil
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import BASE_S, Write, wait_until
from test_client import END, START, Series, rows

import wholegrain
from wholegrain import Client, _blocks, _store


def sealed(folder: Path, pattern: str, count: int, start: datetime = START, end: datetime = END) -> wholegrain.Store:
    """Waits until the store has this number of readings in blocks."""
    store: list[wholegrain.Store] = []

    def there() -> bool:
        if not (folder / "blocks").is_dir():
            return False
        store[:] = [wholegrain.open_store(folder)]
        return bool(store[0].query(pattern, start, end).to_arrow().num_rows >= count)

    wait_until(f"{count} readings of {pattern} in blocks", there)
    return store[0]


def test_the_folder_gives_what_the_server_gives(client: Client, folder: Path, series: Series) -> None:
    store = sealed(folder, "/py/n1/*", sum(map(len, series.values())))
    result = store.query("/py/n1/*", START, END)
    assert rows(result.to_arrow()) == series
    assert result.to_arrow().equals(client.query("/py/n1/*", START, END).to_arrow().cast(result.schema))
    theirs, own = client.sensors("/py/n1/*"), store.sensors("/py/n1/*")
    assert [(s.path, s.unit, s.kind, s.type, s.scale) for s in own] == [(s.path, s.unit, s.kind, s.type, s.scale) for s in theirs]
    part = store.query("/py/n1/a", START + timedelta(seconds=1), START + timedelta(seconds=3)).to_arrow()
    assert part["value"].to_pylist() == [1 / 8, 2 / 8]
    assert list(store.query("/py/n1/*", START, END).to_pandas(wide=True).columns) == sorted(series)
    assert store.query("/nowhere", START, END).to_arrow().num_rows == 0
    assert store.query("/py/n1/*", END, START).to_arrow().num_rows == 0


def test_integers_scales_and_types(client: Client, folder: Path, write: Write) -> None:
    at = BASE_S * 10**9
    write("".join(f"count,cluster=py,hostname=i1,type=node value={2**60 + i}i {at + i}\n" for i in range(10)))
    write(f"count,cluster=py,hostname=i1,type=node value=2.5 {at + 10}\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wholegrain.DataWarning)
        store = sealed(folder, "/py/i1/count", 11)
    # A decimal makes a float of a sensor of integers: none is a gap, and numbers above 2^53 are the nearest floats.
    table = store.query("/py/i1/count", START, END).to_arrow()
    assert table["value"].to_pylist() == [*(float(2**60 + i) for i in range(10)), 2.5]
    with pytest.warns(wholegrain.DataNote, match="10 integers beyond 2\\^53 are rounded"):
        answer = client.query("/py/i1/count", START, END).to_arrow()
    assert table["value"].to_pylist() == answer["value"].to_pylist()
    for scale, raw, wanted in ((0.1, 3.0, 0.3), (1e-6, 262_143_328_850.0, 262_143.328_85), (1024.0, 3.0, 3072.0), (-0.01, 7.0, -0.07)):
        factor, divisor = _store._scale(scale)
        assert raw * factor / divisor == wanted


def test_the_later_of_two_readings_of_one_time_counts(client: Client, folder: Path, write: Write) -> None:
    at = BASE_S * 10**9
    line = "twice,cluster=py,hostname=n5,type=node value={} {}\n"
    write("".join(line.format(1.0, at + i) for i in range(5)))
    store = sealed(folder, "/py/n5/twice", 5)
    write("".join(line.format(2.0, at + i) for i in range(2, 8)))
    wanted = [1.0, 1.0, *[2.0] * 6]
    wait_until("both in blocks", lambda: store.query("/py/n5/twice", START, END).to_arrow().num_rows == 8)
    assert store.query("/py/n5/twice", START, END).to_arrow()["value"].to_pylist() == wanted
    assert client.query("/py/n5/twice", START, END).to_arrow()["value"].to_pylist() == wanted
    with_both = [batch for batch in store.query("/py/n5/twice", START, END)]
    assert sum(batch.num_rows for batch in with_both) == 8


def block(folder: Path, number: int, segments: str | None, value: float) -> None:
    """Writes a block of one reading in the format of FORMAT.md."""
    import pyarrow.parquet as pq

    def varint(value: int) -> bytes:
        low = bytes([value & 0x7F | (0x80 if value > 0x7F else 0)])
        return low + varint(value >> 7) if value > 0x7F else low

    name, at = b"/a", 10**18
    index = b"".join((varint(1), varint(0), varint(len(name)), name, varint(1), varint(2 * at), varint(0), b"\0\0\0\0"))
    packed = base64.b64encode(pa.Codec("zstd").compress(index, asbytes=True)).rstrip(b"=")
    metadata = {b"wholegrain.version": b"1", b"wholegrain.index": b"%d:%s" % (len(index), packed)}
    if segments is not None:
        metadata[b"wholegrain.segments"] = segments.encode()
    columns = {"sensor": pa.array(["/a"]), "time": pa.array([at], pa.timestamp("ns", tz="UTC")), "value": pa.array([value])}
    day = folder / "blocks" / "2001" / "09" / "09"
    day.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns).replace_schema_metadata(metadata)
    pq.write_table(table, day / f"{at}-{number}-float.parquet", write_page_checksum=True)
    (folder / "sensors.csv").write_text('sensor,unit,kind,type,scale,wraps_at,interval_ns,description\n/a,"W",gauge,float,1,,0,""\n')


def test_a_rank_is_the_segment_and_not_the_files_number(tmp_path: Path) -> None:
    """A merge that began before a seal has the lower segment and may have the higher number."""
    for name, blocks, wanted in (
        ("merge", [(7, "1-5", 1.0), (6, "6-6", 2.0)], 2.0),
        ("same segment", [(7, "1-5", 1.0), (8, "2-5", 2.0)], 2.0),
        ("earlier release", [(8, None, 1.0), (7, None, 2.0)], 1.0),
    ):
        for number, segments, value in blocks:
            block(tmp_path / name, number, segments, value)
        table = wholegrain.open_store(tmp_path / name).query("/a", "2001-09-09", "2001-09-10").to_arrow()
        assert table["value"].to_pylist() == [wanted], name


def test_the_servers_blocks_say_their_segments(folder: Path, series: Series) -> None:
    store = sealed(folder, "/py/n1/power", 600)
    assert all(footer.rank[0] > 0 for footer in store._retried(folder / "blocks", 1 << 62))


def test_reading_goes_on_while_the_server_merges(folder: Path, write: Write) -> None:
    at = (BASE_S + 100) * 10**9
    stop = threading.Event()
    written = [0]

    def go_on() -> None:
        while not stop.is_set():
            first = written[0]
            write("".join(f"busy,cluster=py,hostname=n6,type=node value={i}.0 {at + i}\n" for i in range(first, first + 20)))
            written[0] = first + 20
            time.sleep(0.02)

    def files() -> set[Path]:
        return set(_blocks.listed(folder / "blocks"))

    write(f"busy,cluster=py,hostname=n6,type=node value=-1.0 {at - 1}\n")
    store = sealed(folder, "/py/n6/busy", 1)
    thread = threading.Thread(target=go_on)
    thread.start()
    seen, least, merged = files(), 0, 0
    try:
        end = time.monotonic() + 60
        while merged < 3:
            assert time.monotonic() < end, "the server merges"
            values = store.query("/py/n6/busy", START, END).to_arrow()["value"].to_pylist()
            # Every reading up to the last one, once: a merge neither loses nor duplicates any.
            assert values == [float(i) for i in range(-1, len(values) - 1)]
            assert len(values) >= least
            least = len(values)
            now = files()
            merged += bool(seen - now)
            seen = now
    finally:
        stop.set()
        thread.join()
    assert least > 1


def test_tiers(client: Client, folder: Path, write: Write) -> None:
    day = (int(time.time()) // 86_400 - 3) * 86_400
    start, end = datetime.fromtimestamp(day, UTC), datetime.fromtimestamp(day + 7200, UTC)
    write(
        "".join(
            f"old,cluster=py,hostname=n7,type=node,unit=W value={(i * 7) % 100 / 4} {(day + i * 5) * 10**9}\n" for i in range(1440)
        )
    )
    store = sealed(folder, "/py/n7/old", 1440, start, end)
    wait_until("a tier of 5 min", lambda: "5min" in store.resolutions())
    wait_until("its windows", lambda: store.windows("/py/n7/old", "5min", start, end).to_arrow().num_rows == 24)
    with pytest.raises(wholegrain.StoreError, match="it has 10s, 5min, 1h"):
        store.windows("/py/n7/old", "7min", start, end)

    def same() -> None:
        mine = store.windows("/py/n7/old", timedelta(minutes=5), start, end).to_arrow()
        for agg in ("min", "max", "sum", "count", "first", "last"):
            theirs = client.query("/py/n7/old", start, end, every="5min", agg=agg).to_arrow()
            assert mine["time"].equals(theirs["time"])
            assert [float(v) for v in mine[agg].to_pylist()] == pytest.approx([float(v) for v in theirs["value"].to_pylist()]), agg

    same()
    # A part of the same day again: until a merge joins both blocks, their windows must not be added.
    write("".join(f"old,cluster=py,hostname=n7,type=node,unit=W value=50.0 {(day + i * 5) * 10**9}\n" for i in range(100, 200)))
    wait_until(
        "the second part in blocks",
        lambda: pc.max(store.query("/py/n7/old", start, end).to_arrow()["value"]).as_py() == 50.0,
    )
    wait_until("its tier", lambda: 50.0 in store.windows("/py/n7/old", "5min", start, end).to_arrow()["max"].to_pylist())
    same()


def test_overlapping_windows_are_found() -> None:
    def entry(first: int, last: int) -> _blocks.Entry:
        return _blocks.Entry("/a", 0, 1, first, last)

    assert _store._doubtful([entry(0, 99), entry(100, 150)], 10) == []
    assert _store._doubtful([entry(0, 104), entry(100, 150)], 10) == [(100, 110)]
    assert _store._doubtful([entry(0, 500), entry(105, 150), entry(149, 160), entry(600, 700)], 10) == [(100, 170)]


def test_damage_is_named_and_the_rest_served(folder: Path, series: Series, tmp_path: Path) -> None:
    sealed(folder, "/py/n1/*", sum(map(len, series.values())))
    copy = tmp_path / "store"
    for path in _blocks.listed(folder / "blocks"):
        try:
            target = copy / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        except FileNotFoundError:
            pass  # merged meanwhile
    shutil.copy(folder / "sensors.csv", copy)
    store = wholegrain.open_store(copy)
    whole = store.query("/py/**", START - timedelta(days=10), END).to_arrow().num_rows
    holder = None
    for path in _blocks.listed(copy / "blocks"):
        file = _blocks.File(path)
        if any(entry.path == "/py/n1/power" for entry in file.entries()):
            holder = path
        file.close()
    assert holder is not None
    data = bytearray(holder.read_bytes())
    data[len(data) // 8] ^= 0x10
    holder.write_bytes(data)
    with pytest.warns(wholegrain.DataWarning, match=holder.name):
        rest = wholegrain.open_store(copy).query("/py/**", START - timedelta(days=10), END).to_arrow().num_rows
    assert 0 <= rest < whole
    holder.write_bytes(data[: len(data) // 2])
    with pytest.warns(wholegrain.DataWarning, match=holder.name):
        wholegrain.open_store(copy).query("/py/n1/power", START, END).to_arrow()
    with pytest.raises(wholegrain.StoreError, match="no directory blocks"):
        wholegrain.open_store(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    blocks = tmp_path / "blocks" / "2026" / "01" / "31"
    blocks.mkdir(parents=True)
    schema = pa.schema([("sensor", pa.string())], metadata={"wholegrain.version": "9"})
    pq.write_table(schema.empty_table(), blocks / "5-1-int.parquet")
    (tmp_path / "sensors.csv").write_text(
        'sensor,unit,kind,type,scale,wraps_at,interval_ns,description\n/a,"W",gauge,int,1,,0,"what, ""it"" is"\n'
    )
    store = wholegrain.open_store(tmp_path)
    assert store.sensors()[0].description == 'what, "it" is'
    with pytest.raises(wholegrain.StoreError, match="version 9"):
        store.query("/a", "1970-01-01", "now").to_arrow()
    (tmp_path / "sensors.csv").write_text("sensor,unit\n/a\n")
    with pytest.raises(wholegrain.StoreError, match=r"sensors\.csv"):
        store.sensors()
