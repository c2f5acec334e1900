"""The parts of monitors that start no monitor. `bench/tests/monitors.rs` starts every one that is installed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import BenchError, children_cpu_ns, cpu_ns, stat_fields, wait_until

from . import base, cost, ganglia, likwid, netdata, node_exporter, pcp, rezolus, wholegrain
from .processes import PART, Process, Processes


class Nothing(base.Monitor):
    name, configurations, shortest_ns = "nothing", ("own",), 1


def test_nodes_find_the_server(tmp_path: Path) -> None:
    node, server = Nothing("node", "own", 10**9, tmp_path), Nothing("server", "own", 10**9, tmp_path)
    with pytest.raises(BenchError, match="--role server"):
        node.address()
    assert server.announce(mqtt=12_345) == node.address() == {"host": socket.gethostname(), "ports": {"mqtt": 12_345}}
    assert node.node_path("etc/x").parent.is_dir()


def test_missed_ticks_are_those_that_samples_lack(tmp_path: Path) -> None:
    monitor = Nothing("node", "own", 10**9, tmp_path)
    assert monitor.ticks() is None
    monitor.counts(time.monotonic() - 10, lambda: 4)
    assert monitor.ticks() == (4, 6)
    monitor.counts(time.monotonic() - 10, lambda: 10**6)
    assert monitor.ticks() == (10**6, 0)


@pytest.mark.parametrize(("text", "version"), [
    ("Usage: collectd [OPTIONS]\n  -h\n\ncollectd 5.12.0.git, http://x.org/", "5.12.0.git"), ("gmond 3.7.2\n", "3.7.2"),
    ("node_exporter, version 1.5.0 (branch: x)", "1.5.0"), ("tool v2.1", "2.1"), ("no version", None),
])  # fmt: skip
def test_a_version_is_found_in_the_output_of_programs(text: str, version: str | None) -> None:
    assert base.version_in(text) == version


def test_a_missing_program_is_reported_with_its_package() -> None:
    with pytest.raises(BenchError, match="bench/prepare does it, or apt-get install a-package"):
        base.installed("no-such-monitor", "a-package")


def test_a_shell_runs_the_command_that_was_left() -> None:
    script = base.pull_script(["printf", "%s|", "it's", "two words", "$HOME", "x"], {"A": "b c"})
    assert subprocess.run(["sh", "-c", script], capture_output=True, text=True).stdout == "it's|two words|$HOME|x|"


@pytest.mark.parametrize("script", [
    # Children that ended, and processes that lost their parent.
    "while :; do sh -c 'i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'; done",
    "sh -c 'sh -c \"while :; do :; done\" &'; sleep 1000; :",
])  # fmt: skip
def test_the_time_of_others_in_a_tree_is_counted(script: str) -> None:
    tree = Processes()
    child = subprocess.Popen(["sh", "-c", script], env=dict(os.environ) | {PART: "0"}, process_group=0)
    tree.all.append(Process("tree", False, child, Path("/dev/null")))
    try:
        wait_until(lambda: tree.usage()[0]["cpu_ns"] - cpu_ns(child.pid) > 50_000_000, "the time of other processes is counted")
        used = tree.usage()[0]
        assert 0 < used["pss_kb"] <= used["rss_kb"]
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        tree.stop()


def test_a_name_with_parentheses_does_not_shift_the_fields() -> None:
    fields = stat_fields(os.getpid())
    assert int(fields[1]) == os.getppid() and children_cpu_ns(fields) >= 0
    with contextlib.suppress(ProcessLookupError):
        assert stat_fields(2**22 + 1) == []


def test_comments_are_no_samples() -> None:
    assert node_exporter.samples('# HELP a b\n# TYPE a gauge\na 1\n\na{b="#"} 2\npromhttp_x 1\n') == 2


def test_metrics_are_those_of_the_host() -> None:
    text = (
        '<CLUSTER><HOST NAME="a" IP="x"><METRIC NAME="1"/><METRIC NAME="2"/></HOST><HOST NAME="ab"><METRIC NAME="1"/></HOST></CLUSTER>'
    )
    assert [ganglia.metrics_of(text, host) for host in ("a", "ab", "c")] == [2, 1, 0]


def test_a_machine_without_counters_is_left_out_with_the_words_of_likwid() -> None:
    text = "ERROR - [./src/perfmon.c:perfmon_init_maps:1427] Unsupported Processor\nThis architecture has 0 counters.\n"
    assert likwid.refusal(text) == "Unsupported Processor"
    assert likwid.refusal("This architecture has 0 counters.\n") == "This architecture has 0 counters."
    assert likwid.refusal("This architecture has 52 counters.\nCounter tags(name, type<, options>):\n") is None


def test_lines_of_values_differ_from_messages(tmp_path: Path) -> None:
    # The layout of the manual: group, number of values, number of threads, time, the values.
    (tmp_path / "lines").write_text("--------\nCPU clock:\t2.6 GHz\n1 2 2 1.0003 10 11 0.5 nan\n1 2 2 2.0004 10 11 0.5 0.25\n1 2 2 3.")
    assert likwid.counted(tmp_path / "lines") == (2, 4)


def test_values_of_netdata_are_those_of_all_charts() -> None:
    assert netdata.dimensions('{"charts":{"a":{"dimensions":{"x":{},"y":{}}},"b":{"dimensions":{"z":{}}}}}') == 3
    with pytest.raises(ValueError):
        netdata.dimensions("This netdata does not maintain a database for host: a")
    assert netdata.rows("time,free,used\n2026-01-01 00:00:02,1,2\n2026-01-01 00:00:01,null,null\n\n") == 1


def test_a_histogram_is_one_value() -> None:
    assert rezolus.values('{"counters":[{"value":0},{"value":1}],"gauges":[{}],"histograms":[{"value":{"buckets":[0,0,0]}}]}') == 4


def test_a_snapshot_counts_once_wherever_a_piece_ends() -> None:
    recording = rezolus.SNAPSHOT * 5
    for cut in range(len(recording)):
        assert rezolus.snapshots(iter([recording[:cut], recording[cut:]])) == 5, cut
    one = b"\x96\x82\xa7version\xa55.4.0" + rezolus.SNAPSHOT + b"\xdc\x00"
    pieces: Iterator[bytes] = iter([one, one, one[:-5]])
    assert rezolus.snapshots(pieces) == 2


def test_a_cached_snapshot_is_younger_than_a_period() -> None:
    assert 'ttl = "10000us"' in rezolus.settings("default", "127.0.0.1:1", 10**9)
    assert 'ttl = "1000us"' in rezolus.settings("default", "127.0.0.1:1", 2 * 10**6)
    assert "enabled = false\n[samplers.memory_meminfo]\nenabled = true" in rezolus.settings("same", "x", 10**7)


def archive_record(*words: int) -> bytes:
    length = len(words) * 4 + 8
    return struct.pack(f">I{len(words)}iI", length, *words, length)


def sample(instances: int) -> bytes:
    """A sample of two metrics: one with instances, one that failed."""
    values = itertools.chain.from_iterable((instance, 42) for instance in range(instances))
    return archive_record(1_700_000_000, 5, 2, 77, instances, 0, *values, 78, -12)


def test_values_of_all_instances_count_and_records_of_few_values_are_no_samples(tmp_path: Path) -> None:
    label = archive_record(pcp.TAG, 0, 0, 0, 0)
    (tmp_path / "node.0").write_bytes(label + sample(2) + sample(10) + sample(9))
    (tmp_path / "node.1").write_bytes(label + sample(10) + sample(10)[:30])
    assert pcp.counted(tmp_path / "node") == (10, 3)
    assert pcp.record_values(b"") == []
    for wrong in (archive_record(0x5003, 0), archive_record(pcp.TAG, 0) + archive_record(1, 2, 9, 3, 1, 0), archive_record(pcp.TAG, 0)[:-1] + b"\x63"):
        with pytest.raises(ValueError):
            pcp.record_values(wrong)


def test_an_earlier_archive_is_removed_and_another_nodes_is_not(tmp_path: Path) -> None:
    for name in ("n1.0", "n1.meta", "n1.log", "n10.0"):
        (tmp_path / name).write_text("x")
    pcp.remove_archive(tmp_path / "n1")
    assert [path.name for path in tmp_path.iterdir()] == ["n10.0"]


def test_agents_are_selected_by_name_and_access_stays() -> None:
    packaged = '# Name\tId\nroot\t1\tpipe\tbinary\t/x/pmdaroot\nlinux\t60\tpipe\tbinary\t/x/pmdalinux\n\n[access]\ndisallow ".*" : store;\n'
    assert pcp.agents_table(packaged, ()) == packaged.split("\n", 1)[1]
    assert pcp.agents_table(packaged, ("linux",)) == 'linux\t60\tpipe\tbinary\t/x/pmdalinux\n\n[access]\ndisallow ".*" : store;\n'
    assert [pcp.agent_of(line) for line in ("linux 60 pipe", "[access]", "allow x : all;")] == ["linux", None, None]


def test_the_shipped_configuration_differs_in_paths_and_period_only() -> None:
    text = wholegrain.without_comments(wholegrain.default_settings("n1", "10ms", Path("/d/a.sock"), Path("/d/j.sock")))
    shipped = wholegrain.without_comments(wholegrain.SHIPPED.read_text()).splitlines()
    assert sorted(line for line in text.splitlines() if line not in shipped) == sorted([
        'name = "n1"', 'interval = "10ms"', 'socket = "/d/a.sock"', "[sources.agent]", 'interval = "10ms"', 'dir = "/d/j.records"', 'hooks = ""',
        'socket = "/d/j.sock"',
    ])  # fmt: skip


def test_a_metric_costs_the_use_of_the_node_over_the_ticks_that_were_made() -> None:
    def process(server: bool, cpu_ns: int, kb: int) -> dict[str, object]:
        return {"name": "p", "server": server, "cpu_ns": cpu_ns, "rss_kb": kb, "pss_kb": kb // 2}

    ready = {"version": "1", "interval_ns": 10**7, "metrics": 100}
    used = {"window_ns": 10**9, "processes": [process(False, 30_000_000, 10), process(False, 20_000_000, 20), process(True, 10**6, 99)], "samples": 50, "missed": 50}
    found = cost.cost(ready, used)
    # 50 ms for 50 ticks of 100 values.
    assert found["us_per_metric"] == pytest.approx(10.0)
    assert (found["cpu_share"], found["server_cpu_share"], found["missed_share"]) == (0.05, 0.001, 0.5)
    assert (found["rss_kb"], found["pss_kb"]) == (30, 15)
    unknown = used | {"samples": None, "missed": None}
    assert cost.cost(ready, unknown)["us_per_metric"] == pytest.approx(5.0)
    assert cost.cost(ready | {"metrics": 0}, unknown)["us_per_metric"] is None
