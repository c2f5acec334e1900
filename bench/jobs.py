"""Costs of jobs: real cgroups with real processes in them, and agents that read them.

`job-cost`: CPU and ticks of the agent with all metrics of one job and of ten, beside a bare loop of the same reads.
`job-many`: CPU, memory and descriptors of an agent with many concurrent jobs at an ordinary rate.
`job-reconfigure`: from the request for another interval to the first sample at it, over the agent's socket and through the server.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

from harness import BenchError, Http, Json, aim, line, time_text, timestamp_ns, wait_until, write_result
from installation import Installation, cpu_s, rss_kb
from load import ChildWithLines
from monitors.base import ours
from monitors.processes import Process

# The metrics of a job, except those that are summed over its processes, which are read at the agent's default.
METRICS = '["cpu/**", "memory/**", "io/**", "pids/**", "pressure/**", "perf/**"]'
TASKS_EVERY = "10s"
# Intervals that are asked for in turn, ms: no multiple of each other, so that a sample shows which it is of.
INTERVALS_MS, METRIC = (10, 14), "cpu/usage"
CHANGE_MAX_S, LOOK_S = 20.0, 0.005


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wholegrain-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    cost = commands.add_parser("job-cost")
    cost.add_argument("--seconds", type=float, default=8.0, help="length of each measuring window")
    cost.add_argument("--rounds", type=int, default=5, help="windows of each of the two, in turn")
    cost.add_argument("--interval-ms", default="1,10", help="ticks, with commas")
    cost.add_argument("--jobs", default="1,10", help="numbers of concurrent jobs, with commas")
    cost.add_argument("--idle", action="store_true", help="the jobs' processes sleep; otherwise each uses a core")
    many = commands.add_parser("job-many")
    many.add_argument("--jobs", type=int, default=200, help="concurrent jobs")
    many.add_argument("--interval-ms", type=int, default=1000, help="how often all metrics of each are read")
    many.add_argument("--seconds", type=float, default=60.0, help="length of the measurement")
    changed = commands.add_parser("job-reconfigure")
    changed.add_argument("--changes", type=int, default=100, help="measured changes")
    changed.add_argument("--jobs", type=int, default=10, help="jobs on the node; the changes are of one of them")
    changed.add_argument("--nodes", type=int, default=3, help="nodes of the job for the changes through the server: agents on this machine")
    options = parser.parse_args(arguments)
    run = {"job-cost": job_cost, "job-many": job_many, "job-reconfigure": job_reconfigure}[options.command]
    try:
        write_result(options.command, run(options))
    except (BenchError, OSError) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    return 0


class SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("agent", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self.path))


class Jobs(Installation):
    """An installation on a machine with jobs, each with one process."""

    def __init__(self, count: int, busy: bool) -> None:
        super().__init__()
        self.count = count
        self._cgroups = ChildWithLines([os.environ["WHOLEGRAIN_BENCH"], "job-group", "--jobs", str(count), *(["--busy"] if busy else [])])
        self.processes.helpers.add(self._cgroups.pid)
        self.about: Json = json.loads(self._cgroups.line())
        self.server = self.start_server()

    def __exit__(self, *_: object) -> None:
        # The agents end before the cgroups.
        self.processes.stop()
        self._cgroups.__exit__()
        super().__exit__()


class JobAgent:
    """An agent that reads all metrics of every job at one interval."""

    def __init__(self, site: Jobs, name: str, interval: str) -> None:
        self.site, self.name, folder = site, name, site.folder
        site.issue_certificate(name)
        self.config, self.socket = folder / f"{name}.toml", folder / f"{name}.sock"
        self.config.write_text(f"""name = "{name}"
[roots]
cgroup = "{site.about["root"]}"
[mqtt]
url = "mqtts://localhost:{site.mqtt_port}"
ca = "{folder}/ca.pem"
cert = "{folder}/agents/{name}.pem"
key = "{folder}/agents/{name}.key"
send_interval = "1s"
queue_bytes_max = "4MiB"
[spool]
dir = "{folder}/{name}-spool"
[cache]
duration = "5min"
bytes_max = "2MiB"
[api]
socket = "{self.socket}"
[sources.agent]
enabled = false
[sources.cgroup]
[sources.perf]
[sources.tasks]
[jobs]
dir = "{folder}/{name}-jobs"
socket = "{folder}/{name}-users.sock"
hooks = "{folder}/{name}-hooks"
hierarchies = {json.dumps(site.about["links"])}
rescan = "1s"
[[jobs.rule]]
metrics = {METRICS}
every = "{interval}"
[[jobs.rule]]
metrics = ["tasks/**"]
every = "{TASKS_EVERY}"
""")
        self.http = Http(SocketConnection(self.socket), {"Content-Type": "application/json"})

    def get(self, path: str, parameters: Sequence[tuple[str, str]] = ()) -> Json:
        answer: Json = json.loads(self.http.get(path, parameters))
        return answer

    def start(self) -> Process:
        """Starts the agent and waits until it samples every job and the server has readings and records."""
        processes = self.site.processes
        processes.start(self.name, False, [ours("wholegrain-agent"), "--config", str(self.config)], self.site.folder / f"{self.name}.log")
        agent = processes.all[-1]
        processes.wait_until("the agent samples every job", self.samples_every_job)
        readings = ("query", f"/{self.name}/job/**", "--from", "-1m", "--limit", "1")
        wait_until(lambda: self.site.run(*readings).returncode == 0, "the first readings on the server")
        wait_until(lambda: len(json.loads(self.site.http.get("/api/v1/jobs?limit=10000"))["jobs"]) >= self.site.count, "the server knows every job")
        return agent

    def samples_every_job(self) -> bool:
        jobs = self.get("/v1/jobs")["jobs"]
        return len(jobs) == self.site.count and all(job["metrics"] > 0 for job in jobs)

    def metrics(self) -> list[str]:
        """Metrics of the first job that are read."""
        return [row["name"] for row in self.get("/v1/jobs/1")["metrics"] if row["interval_ns"] is not None]

    def ticks(self) -> tuple[int, int]:
        """Samples made and ticks missed."""
        status = self.get("/v1/status")
        return status["samples"], status["missed_ticks"]


def open_files(process: Process) -> list[Path]:
    found = []
    for link in Path(f"/proc/{process.child.pid}/fd").iterdir():
        with suppress(OSError):
            found.append(Path(os.readlink(link)))
    return found


def perf_count(files: Sequence[Path]) -> int:
    return sum("[perf_event]" in str(file) for file in files)


def reads_of(site: Jobs, agent: JobAgent, process: Process) -> list[str]:
    """The reads of an agent for the jobs in each tick, as lines for `bare-jobs`: its open files and counters."""
    files = open_files(process)
    # The reader of processes reads the members of a cgroup, not every tick.
    reads = sorted({f"file\t{file}" for file in files if "/job_" in str(file) and file.is_file() and file.name not in ("cgroup.procs", "tasks")})
    if not reads:
        raise BenchError("the agent holds no file of a job open")
    if perf_count(files):
        names = (name.removeprefix("perf/").replace("_", "-") for name in agent.metrics() if name.startswith("perf/"))
        events = ",".join(name for name in names if name in site.about["events"])
        reads += [f"perf\t{folder}\t{cpu}\t{events}" for folder in site.about["v2"] for cpu in range(len(os.sched_getaffinity(0)))]
    return reads


def job_cost(options: argparse.Namespace) -> Json:
    print(f"agent: all metrics of jobs, beside a bare loop of the same reads ({options.rounds} x {options.seconds:g} s each)")
    intervals = [int(word) for word in options.interval_ms.split(",")]
    cases = [compare(options, int(count), interval_ms) for count in options.jobs.split(",") for interval_ms in intervals]
    return {"cases": cases, "seconds": options.seconds, "rounds": options.rounds}


def compare(options: argparse.Namespace, count: int, interval_ms: int) -> Json:
    with Jobs(count, not options.idle) as site:
        agent = JobAgent(site, "node1", f"{interval_ms}ms")
        process = agent.start()
        reads, metrics, file = reads_of(site, agent, process), len(agent.metrics()), site.folder / "reads.txt"
        site.stop(process)
        file.write_text("".join(f"{read}\n" for read in reads))
        bares, agents = [], []
        for round_ in range(options.rounds):
            print(f"  {count} jobs at {interval_ms} ms: round {round_ + 1} of {options.rounds}", file=sys.stderr)
            bares.append(bare_window(options.seconds, interval_ms, site, file))
            agents.append(agent_window(options.seconds, interval_ms, agent))
        timed = bare_window(options.seconds, interval_ms, site, file, "--time")
    ratios = [ours_["us"] / bare["us"] for ours_, bare in zip(agents, bares)]
    bare_us, agent_us = (median(window["us"] for window in windows) for windows in (bares, agents))
    bare_made, made = (median(window["made"] for window in windows) for windows in (bares, agents))
    rss = max(window["rss_kb"] for window in agents)
    memory_us, perf_us, other_us = timed["kinds_us"]
    print(f" {count} jobs at {interval_ms} ms: {metrics} metrics each, {len(reads)} reads a tick in all")
    line("bare loop, us of CPU a tick", f"{bare_us:.1f}")
    for what, us in (("memory.stat", memory_us), ("perf", perf_us), ("other files", other_us)):
        line(f"  of it {what}, us", f"{us:.1f}")
    line("agent, us of CPU a tick", f"{agent_us:.1f}")
    line("agent, % of a core", f"{agent_us / interval_ms / 10:.1f}")
    aim("ratio, median of pairs (goal 1.25)", median(ratios), 2, at_most=1.5)
    line("ticks made by the bare loop, %", f"{bare_made * 100:.3f}")
    line("ticks made by the agent, %", f"{made * 100:.3f}", "every tick")
    line("agent's resident memory, MB", f"{rss / 1e3:.1f}")
    return {
        "jobs": count, "interval_ms": interval_ms, "metrics": metrics, "reads": len(reads), "bare_us": bare_us, "agent_us": agent_us, "ratios": ratios,
        "ticks_made": made, "bare_ticks_made": bare_made, "rss_kb": rss, "memory_stat_us": memory_us, "perf_us": perf_us, "other_us": other_us,
    }  # fmt: skip


def bare_window(seconds: float, interval_ms: int, site: Jobs, reads: Path, *words: str) -> Json:
    log = site.folder / "bare.log"
    log.unlink(missing_ok=True)
    command = [os.environ["WHOLEGRAIN_BENCH"], "bare-jobs", "--interval-ms", str(interval_ms), "--reads", str(reads), *words]
    site.processes.start("bare", False, command, log)
    bare = site.processes.all[-1]
    time.sleep(1)
    used = cpu_s(bare)
    time.sleep(seconds)
    used = cpu_s(bare) - used
    site.kill(bare)
    made, missed, *kinds_ns = map(int, log.read_text().splitlines()[-1].split())
    return {"us": us_per_tick(used, seconds, interval_ms), "made": made / max(made + missed, 1), "kinds_us": [ns / 1e3 / max(made, 1) for ns in kinds_ns]}


def agent_window(seconds: float, interval_ms: int, agent: JobAgent) -> Json:
    process = agent.start()
    time.sleep(1)
    before, used = agent.ticks(), cpu_s(process)
    time.sleep(seconds)
    used, after, rss = cpu_s(process) - used, agent.ticks(), rss_kb(process)
    agent.site.stop(process)
    made, missed = (now - then for now, then in zip(after, before))
    return {"us": us_per_tick(used, seconds, interval_ms), "made": made / max(made + missed, 1), "rss_kb": rss}


def us_per_tick(used_s: float, seconds: float, interval_ms: int) -> float:
    return used_s * 1e6 / (seconds * 1e3 / interval_ms)


def job_many(options: argparse.Namespace) -> Json:
    print(f"agent: {options.jobs} concurrent jobs every {options.interval_ms} ms for {options.seconds:g} s")
    # Sleeping processes: hundreds of busy ones would measure the scheduler.
    with Jobs(options.jobs, busy=False) as site:
        agent = JobAgent(site, "node1", f"{options.interval_ms}ms")
        process = agent.start()
        metrics = len(agent.metrics())
        time.sleep(2)
        before, used = agent.ticks(), [cpu_s(process), cpu_s(site.server)]
        time.sleep(options.seconds)
        cpu, server_cpu = ((cpu_s(of) - then) / options.seconds * 100 for of, then in zip((process, site.server), used))
        samples, missed = (now - then for now, then in zip(agent.ticks(), before))
        rss, files = rss_kb(process), open_files(process)
        infos = Path(f"/proc/{process.child.pid}/fdinfo").iterdir()
        watches = sum(info.read_text().count("inotify wd:") for info in infos)
    line("metrics of each job", metrics)
    line("readings a second, about", f"{options.jobs * metrics * 1e3 / options.interval_ms:.0f}")
    line("agent's CPU, % of a core", f"{cpu:.2f}")
    line("  of it a job, us a tick", f"{cpu * options.interval_ms * 10 / options.jobs:.1f}")
    line("server's CPU, % of a core", f"{server_cpu:.2f}")
    line("agent's resident memory, MB", f"{rss / 1e3:.1f}")
    line("  of it a job, kB", f"{rss / options.jobs:.0f}")
    line("agent's descriptors, of them perf events", f"{len(files)} {perf_count(files)}")
    line("inotify watches", watches)
    line("samples, and ticks missed", f"{samples} {missed}")
    return {
        "jobs": options.jobs, "interval_ms": options.interval_ms, "metrics": metrics, "cpu_percent": cpu, "server_cpu_percent": server_cpu, "rss_kb": rss,
        "descriptors": len(files), "perf_descriptors": perf_count(files), "watches": watches, "samples": samples, "missed_ticks": missed,
    }  # fmt: skip


def job_reconfigure(options: argparse.Namespace) -> Json:
    print(f"reconfiguration: {options.changes} changes of one of {options.jobs} jobs, of one agent and of {options.nodes} through the server")
    results: Json = {"changes": options.changes, "jobs": options.jobs, "nodes": options.nodes}
    with Jobs(options.jobs, busy=False) as site:
        agents = [JobAgent(site, f"node{number}", "1s") for number in range(1, options.nodes + 1)]
        for agent in agents:
            agent.start()
        names = {agent.name for agent in agents}
        wait_until(lambda: names <= nodes_of(site), "the server knows the job on every node")
        ways: tuple[tuple[str, Callable[[JobAgent, str], object], list[JobAgent]], ...] = (
            ("socket", ask_agent, agents[:1]), ("server", ask_server, agents),
        )  # fmt: skip
        for way, ask, asked in ways:
            first_ms, answer_ms = [], []
            for change in range(options.changes):
                first, answered = ask_and_wait(asked, INTERVALS_MS[change % 2], ask)
                first_ms.append(first)
                answer_ms.append(answered)
            print(f" by the {way}, {len(asked)} agents")
            line("until it is answered, median, ms", f"{median(answer_ms):.1f}")
            line("first sample at the new rate on the last node, median, ms", f"{median(first_ms):.1f}")
            aim("first sample at the new rate on the last node, slowest, ms", max(first_ms), 1, at_most=1000)
            results[way] = {"first_sample_ms": first_ms, "answer_ms": answer_ms}
    return results


def nodes_of(site: Jobs) -> set[str]:
    """The nodes on which the server knows the first job."""
    try:
        return {record["node"] for record in json.loads(site.http.get("/api/v1/jobs/1"))["allocations"]}
    except BenchError:
        return set()


def ask_agent(agent: JobAgent, every: str) -> None:
    rule = {"metrics": [METRIC], "jobs": "1", "every": every, "for": "10m"}
    with agent.http.open("/v1/rules", method="POST", body=json.dumps(rule).encode()):
        pass


def ask_server(agent: JobAgent, every: str) -> None:
    agent.site.answer("jobs", "boost", "1", "--metrics", METRIC, "--every", every, "--for", "10m")


def ask_and_wait(agents: Sequence[JobAgent], interval_ms: int, ask: Callable[[JobAgent, str], object]) -> tuple[float, float]:
    """Makes one change; ms from before the request to the first sample at the new rate of the last agent, and to the answer."""
    asked = time.time_ns()
    ask(agents[0], f"{interval_ms}ms")
    answered = time.time_ns()
    last = asked
    for agent in agents:
        last = max(last, first_since(agent, asked, interval_ms * 10**6))
        # Only the newest rule stays.
        for number in own_rules(agent.get("/v1/rules"))[:-1]:
            with agent.http.open(f"/v1/rules/{number}", method="DELETE"):
                pass
    return (last - asked) / 1e6, (answered - asked) / 1e6


def own_rules(answer: Json) -> list[int]:
    """Numbers of the rules that somebody asked for, ascending."""
    return sorted(row["id"] for row in answer["rules"] if row.get("until") is not None)


def first_since(agent: JobAgent, asked: int, interval_ns: int) -> int:
    """The first sample at an interval since a time."""
    deadline = time.monotonic() + CHANGE_MAX_S
    while time.monotonic() < deadline:
        found = agent.get("/v1/history", [("pattern", f"job/1/{METRIC}"), ("from", time_text(asked))])["readings"]
        first = first_at(sorted(timestamp_ns(row["time"]) for row in found), interval_ns)
        if first is not None:
            return first
        time.sleep(LOOK_S)
    raise BenchError(f"no sample every {interval_ns // 10**6} ms within {CHANGE_MAX_S:g} s")


def first_at(times: Sequence[int], interval_ns: int) -> int | None:
    """The first of two neighbours that are this far apart, within a tenth."""
    return next((before for before, after in pairwise(times) if abs(after - before - interval_ns) <= interval_ns / 10), None)


if __name__ == "__main__":
    sys.exit(main())
