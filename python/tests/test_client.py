"""The client against a real server."""

from __future__ import annotations

import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import BASE_S, Write, wait_until

import wholegrain
from wholegrain import Client

Series = dict[str, list[tuple[int, float]]]
START = datetime.fromtimestamp(BASE_S, UTC)
END = START + timedelta(minutes=10)


def rows(table: pa.Table) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    times = table["time"].cast(pa.int64()).to_pylist()
    for path, at, value in zip(table["sensor"].to_pylist(), times, table["value"].to_pylist(), strict=True):
        found.setdefault(path, []).append((at, value))
    return found


def test_sensors(client: Client, series: Series) -> None:
    found = client.sensors("/py/n1/*")
    assert [sensor.path for sensor in found] == sorted(series)
    power = next(sensor for sensor in found if sensor.path.endswith("power"))
    assert (power.unit, power.kind, power.type) == ("W", "gauge", "float")
    assert power.last_time is not None and power.last_time.tzinfo is not None
    assert client.sensors("/nowhere/**") == []
    assert len(client.sensors()) >= 3
    assert {sensor.path for sensor in client.sensors(["/py/n1/a", "b"])} >= {"/py/n1/a", "/py/n1/b"}


def test_newest(client: Client, series: Series) -> None:
    found = {reading.path: reading for reading in client.newest("/py/n1/*")}
    for path, known in series.items():
        assert (found[path].time_ns, found[path].value) == known[-1]
        assert found[path].time.tzinfo is UTC
    assert found["/py/n1/power"].unit == "W"


def test_a_query_gives_what_was_written(client: Client, series: Series) -> None:
    with client.query("/py/n1/*", START, END) as result:
        assert result.sensors == 3
        table = result.to_arrow()
    assert rows(table) == series
    assert table.schema.field("time").type == pa.timestamp("ns", tz="UTC")
    assert result.units == {"/py/n1/a": "1", "/py/n1/b": "1", "/py/n1/power": "W"}
    # The end is exclusive.
    at = datetime.fromtimestamp(BASE_S + 10, UTC)
    some = client.query("/py/n1/a", at, at + timedelta(seconds=2)).to_arrow()
    assert some["value"].to_pylist() == [10 / 8, 11 / 8]
    assert client.query("/py/n1/power", START, END).unit == "W"


def test_batches_stream_and_only_once(client: Client, series: Series) -> None:
    with client.query("/py/n1/*", START, END) as result:
        total = sum(batch.num_rows for batch in result)
        assert total == sum(map(len, series.values()))
        with pytest.raises(RuntimeError, match="already read"):
            next(iter(result))
    with client.query("/py/n1/*", START, END) as result:
        assert result.to_arrow() is result.to_arrow()
        assert sum(batch.num_rows for batch in result) == total
    with client.query("/nowhere", START, END) as result:
        assert result.sensors == 0 and result.to_arrow().num_rows == 0


def test_windows_operations_and_limits(client: Client, series: Series) -> None:
    values = dict(series["/py/n1/a"])
    result = client.query("/py/n1/a", START, END, every=timedelta(minutes=1), agg="max")
    assert result.every == "1min"
    found = rows(result.to_arrow())["/py/n1/a"]
    assert len(found) == 10
    for at, value in found:
        assert value == max(v for t, v in values.items() if at <= t < at + 60 * 10**9)
    assert client.query("/py/n1/b", START, END, agg="count").to_arrow()["value"].to_pylist() == [300]
    derived = client.query("/py/n1/b", START, END, op="derivative", agg="mean").to_arrow()["value"].to_pylist()
    assert derived == [pytest.approx(1 / 8)]
    assert client.query("/py/n1/b", START, END, limit=5).to_arrow().num_rows == 5
    assert client.query("/py/n1/b", START, END, points=5).to_arrow().num_rows in range(3, 9)


def test_frames(client: Client, series: Series) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    long = client.query("/py/n1/*", START, END).to_pandas()
    assert list(long.columns) == ["sensor", "time", "value"] and str(long["time"].dt.tz) == "UTC"
    assert len(long) == sum(map(len, series.values()))
    result = client.query("/py/n1/*", START, END)
    wide = result.to_pandas(wide=True)
    assert list(wide.columns) == sorted(series) and wide.index.name == "time" and str(wide.index.dtype).endswith("UTC]")
    for path, known in series.items():
        column = wide[path].dropna()
        assert list(column) == [value for _, value in known]
        assert list(pandas.DatetimeIndex(column.index).as_unit("ns").astype("int64")) == [at for at, _ in known]
    assert wide.attrs["units"]["/py/n1/power"] == "W"
    again = result.to_polars(wide=True)
    assert again.columns == ["time", *sorted(series)] and again["time"].dtype == polars.Datetime("ns", "UTC")
    assert again["/py/n1/b"].null_count() == len(wide) - 300
    assert client.query("/py/n1/a", START, END).to_polars()["value"].sum() == sum(v for _, v in series["/py/n1/a"])
    assert isinstance(pandas.DataFrame(wide), pandas.DataFrame)
    empty = client.query("/nowhere", START, END).to_pandas(wide=True)
    assert len(empty) == 0 and list(empty.columns) == []


def test_refusals_are_typed_and_say_what_the_server_says(client: Client, tmp_path: Path) -> None:
    with pytest.raises(wholegrain.BadRequest, match="every") as raised:
        client.query("/py/**", "-1h", every="soon")
    assert raised.value.status == 400
    with pytest.raises(wholegrain.BadRequest, match="median"):
        client.query("/py/**", agg="median")
    with pytest.raises(wholegrain.BadRequest, match="`to`"):
        client.query("/py/**", END, START)
    with pytest.raises(wholegrain.BadRequest, match="pattern"):
        client.sensors("/a//b")
    with pytest.raises(wholegrain.NotFound, match="no job"):
        client.job("no-such/job")
    with pytest.raises(ValueError, match="no pattern"):
        client.sensors([])
    with pytest.raises(wholegrain.NotAuthorized, match="token"):
        wholegrain.connect(token="wrong").sensors()
    with pytest.raises(wholegrain.Unreachable, match="is the server running"):
        wholegrain.connect(url="https://localhost:1").sensors()
    stranger = tmp_path / "ca.pem"
    stranger.write_text("no certificate")
    with pytest.raises(wholegrain.ConfigError, match="CA certificate"):
        wholegrain.connect(ca=stranger)


def test_another_ca_is_not_trusted(target: object, tmp_path: Path) -> None:
    import subprocess

    key, other = tmp_path / "key.pem", tmp_path / "other.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x", "-days", "1"]
    subprocess.run([*make, "-keyout", key, "-out", other], check=True, capture_output=True)
    with pytest.raises(wholegrain.Unreachable, match="TLS"):
        wholegrain.connect(ca=other).sensors()


def test_an_answer_left_early_is_closed(client: Client, write: Write) -> None:
    at = (BASE_S - 3600) * 10**9
    write("".join(f"many,cluster=py,hostname=n2,type=node value={i}.0 {at + i * 10**6}\n" for i in range(100_000)))
    with client.query("/py/n2/many", START - timedelta(hours=2), END) as result:
        first = next(iter(result))
        assert 0 < first.num_rows < 100_000
    with pytest.raises(wholegrain.BrokenAnswer, match="closed"):
        result._answer.read()
    assert client.query("/py/n2/many", START - timedelta(hours=2), END).to_arrow().num_rows == 100_000


def test_watch(client: Client, write: Write) -> None:
    def send(index: int) -> None:
        write(f"live,cluster=py,hostname=n3,type=node value={index}.5 {time.time_ns()}\n")

    send(0)
    with client.watch("/py/n3/*") as watch:
        assert watch.sensors == 1
        for index in range(1, 4):
            send(index)
        found = []
        for reading in watch:
            found.append(reading.value)
            if len(found) == 3:
                break
    assert found == [1.5, 2.5, 3.5]
    heard: list[float | int | None] = []
    with client.watch("/py/n3/*", lambda reading: heard.append(reading.value)) as subscription:
        send(9)
        wait_until("a call", lambda: heard == [9.5])
        assert subscription.running
    assert not subscription.running
    with pytest.raises(wholegrain.BadRequest):
        client.watch("/a//b")


def test_an_error_in_a_callback_is_reported(client: Client, write: Write) -> None:
    def fail(_: object) -> None:
        raise KeyError("mine")

    subscription = client.watch("/py/n3/*", fail)
    write(f"live,cluster=py,hostname=n3,type=node value=1.0 {time.time_ns()}\n")
    wait_until("its end", lambda: not subscription.running)
    with pytest.raises(KeyError, match="mine"):
        subscription.stop()


def test_a_watch_can_be_closed_from_another_thread(client: Client) -> None:
    watch = client.watch("/py/quiet/**")
    heard: list[object] = []
    thread = threading.Thread(target=lambda: heard.extend(watch))
    thread.start()
    watch.close()
    thread.join(30)
    assert not thread.is_alive() and heard == []


def test_a_watch_comes_back(client: Client, write: Write) -> None:
    write(f"live,cluster=py,hostname=n4,type=node value=0.0 {time.time_ns()}\n")
    with client.watch("/py/n4/*") as watch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch._answer.abort()  # as a network that goes away
        found: list[float | int | None] = []
        thread = threading.Thread(target=lambda: found.extend(reading.value for reading in watch))
        thread.start()
        wait_until("it is there again", lambda: watch.reconnects == 1)
        write(f"live,cluster=py,hostname=n4,type=node value=5.0 {time.time_ns()}\n")
        wait_until("the reading", lambda: found == [5.0])
        watch.close()
        thread.join(30)
    assert any("interrupted" in str(one.message) for one in caught)


def test_jobs_of_nobody(client: Client) -> None:
    assert client.jobs(user="nobody-here") == []
    assert client.jobs(state="ended", limit=5, start="-1h", end="now", node="n*") == []
    with pytest.raises(wholegrain.BadRequest, match="running or ended"):
        client.jobs(state="sleeping")
