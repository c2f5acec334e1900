"""Virtual sensors and properties, with a real server."""

from __future__ import annotations

import pytest
from conftest import BASE_S, Write
from test_client import END, START, Series, rows

import wholegrain
from wholegrain import Client


def test_a_virtual_sensor_from_its_definition_to_its_end(client: Client, series: Series) -> None:
    path = "/py/n1/double"
    virtual = client.virtual
    virtual.check(path, "<power> * 2", "kW", interval="1s")
    assert [one for one in virtual.list() if one.path == path] == []
    virtual.define(path, "<power> * 2", "kW", description="twice", interval="1s")
    (found,) = (one for one in virtual.list() if one.path == path)
    assert (found.expression, found.unit, found.description, found.interval) == ("<power> * 2", "kW", "twice", "1s")
    (sensor,) = client.sensors(path)
    assert sensor.unit == "kW" and sensor.type == "float"
    known = series["/py/n1/power"]
    values = rows(client.query(path, START, END).to_arrow())[path]
    # Readings are 7 ns after the second, values at the second: interpolated between two readings.
    assert len(values) >= 598
    by_second = {at // 10**9: value for at, value in known}
    for at, value in values:
        assert at % 10**9 == 0
        if value is not None and at // 10**9 in by_second:
            assert value == pytest.approx(by_second[at // 10**9] * 2 / 1000, rel=1e-6)
    assert sum(value is not None for _, value in values) >= 590
    assert virtual.list("/py/n1/double") == [found] and virtual.list("/nowhere/**") == []
    virtual.remove(path)
    assert client.sensors(path) == []
    with pytest.raises(wholegrain.BadRequest):
        virtual.remove(path)


def test_what_is_wrong_with_an_expression_is_marked(client: Client, series: Series) -> None:
    for expression, unit, said in (
        ("<power> +", "W", r"\^"),
        ("<power> * 2", "K", "(?s)W.*K|K.*W|power.*temperature"),
        ("<no_such_sensor_here> * 2", "W", "no_such_sensor_here"),
        ("(" * 5_000 + "1" + ")" * 5_000, "1", "nested more than [0-9]+ deep"),
    ):
        for attempt in (client.virtual.check, client.virtual.define):
            with pytest.raises(wholegrain.BadRequest, match=said):
                attempt("/py/n1/wrong", expression, unit)
    assert client.sensors("/py/n1/wrong") == []


def test_units_at_query_time(client: Client, series: Series) -> None:
    result = client.query("/py/n1/power", START, END, unit="kW")
    values = rows(result.to_arrow())["/py/n1/power"]
    assert [at for at, _ in values] == [at for at, _ in series["/py/n1/power"]]
    assert [value for _, value in values] == pytest.approx([value / 1000 for _, value in series["/py/n1/power"]])
    assert result.unit == "kW"
    with pytest.raises(wholegrain.BadRequest, match="(?s)W.*K"):
        client.query("/py/n1/power", START, END, unit="K")


def test_properties(client: Client, write: Write) -> None:
    write(f"plain,cluster=py,hostname=p1,type=node value=20.0 {BASE_S * 10**9}\n")
    pattern = "/py/p1/*"
    client.properties.set(pattern, unit="Cel", description="of the room")
    (sensor,) = client.sensors("/py/p1/plain")
    assert (sensor.unit, sensor.description) == ("Cel", "of the room")
    assert client.query("/py/p1/plain", START, END, unit="K").to_arrow()["value"].to_pylist() == [293.15]
    (row,) = client.properties.show(pattern)
    assert row["unit"]["value"] == "Cel" and row["unit"]["pattern"] == pattern
    assert {one["property"] for one in client.properties.settings() if one["pattern"] == pattern} == {"unit", "description"}
    assert client.properties.unset(pattern, "description") == 1
    assert client.properties.unset(pattern) == 1
    assert client.sensors("/py/p1/plain")[0].unit == "1"
    assert len(client.properties.history(pattern)) == 4
    with pytest.raises(wholegrain.BadRequest, match="unit"):
        client.properties.set(pattern, unit="no unit at all")


def test_several_sensors_as_one_series(client: Client, series: Series) -> None:
    a, b = dict(series["/py/n1/a"]), dict(series["/py/n1/b"])
    result = client.query(["/py/n1/a", "/py/n1/b"], START, END, across="sum")
    ((name, found),) = rows(_quiet(result)).items()
    assert name == "/py/n1/sum(*)"
    for at, value in found:
        assert value == pytest.approx(a.get(at, 0.0) + b.get(at, 0.0))
    apart = rows(_quiet(client.query(["/py/n1/a", "/py/n1/b"], START, END, across="count", levels=2, every="1h")))
    assert list(apart) == ["/py/n1/count(*)"]


def _quiet(result: wholegrain.Result) -> object:
    """Ignores the note that some rows aggregate fewer sensors than others."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wholegrain.DataNote)
        return result.to_arrow()
