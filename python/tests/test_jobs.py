"""Jobs that ran. The harness runs these tests if it ran jobs, and names one in WHOLEGRAIN_JOB."""

from __future__ import annotations

import os

import pyarrow.compute as pc
import pytest

import wholegrain
from wholegrain import Client

if "WHOLEGRAIN_JOB" not in os.environ:
    pytest.skip("no job has run on this server", allow_module_level=True)


@pytest.fixture(scope="module")
def job(client: Client) -> wholegrain.Job:
    return client.job(os.environ["WHOLEGRAIN_JOB"])


def test_lists(client: Client, job: wholegrain.Job) -> None:
    rows = client.jobs(state="ended")
    assert job.row in rows and len(rows) >= 5
    assert client.jobs(limit=2) == rows[:2]
    assert client.jobs(limit=None) == rows
    assert client.jobs(end=rows[-1].start) == []


def test_one(job: wholegrain.Job) -> None:
    assert job.end is not None and job.end > job.start and job.row.state == "ended"
    assert job.nodes == list(job.row.node_names) == ["node1"]
    assert job.summary["totals"]["cpu/usage"]["sum"] > 0
    names = [sensor.path for sensor in job.sensors(["cpu/*"])]
    assert names == sorted(names) and any(name.endswith("/cpu/usage") for name in names)
    usage = job.query("cpu/usage").to_arrow()["value"].drop_null()
    # The counter's last value is the one in the record.
    assert pc.max(usage).as_py() == pytest.approx(job.summary["totals"]["cpu/usage"]["sum"], rel=0.05)


def test_plots(job: wholegrain.Job) -> None:
    figure = job.plot()
    assert [axis.get_title(loc="left") for axis in figure.axes][:2] == ["CPUs in use", "memory"]
    assert all(len(axis.lines[0].get_xdata()) > 3 for axis in figure.axes)  # type: ignore[arg-type]
    assert len(job.plot(["cpu/user", "cpu/system"]).axes) == 2
    with pytest.raises(ValueError, match=r"job\.sensors\(\)"):
        job.plot(["no/such/metric"])


def test_a_query_restricted_to_it(client: Client, job: wholegrain.Job) -> None:
    own = {sensor.path for sensor in job.sensors()}
    restricted = {sensor.path for sensor in client.sensors("/**", job=job.id)}
    assert own <= restricted
    assert not any("/job/" in path for path in restricted - own)
    same = job.query_nodes("cpu/usage").to_arrow()
    mine = [path for path in own if path.endswith("/cpu/usage")]
    assert set(same["sensor"].to_pylist()) == set(mine)
    low, high = job.range_ns
    assert all(low <= at < high for at in same["time"].cast("int64").to_pylist())
    with pytest.raises(wholegrain.Refused, match="no-such"):
        client.query("cpu/usage", job="no-such")


def test_statistics_and_energy(job: wholegrain.Job) -> None:
    assert "cpu/usage" in str(job.statistics("cpu/usage"))
    # Without a power meter the server refuses, or returns the energy without it.
    try:
        assert isinstance(job.energy(), dict)
    except wholegrain.Refused as refused:
        assert "power" in str(refused)
