"""The server under batches of simulated agents: sockets, journal, seal and merge included.

`server-ingest`: CPU a reading at a rate, until acknowledged, sealed and merged; memory each second; that each reading is stored once.
`dcdb-messages`: one reading of 16 bytes a message, as DCDB's pushers send them: CPU a message.
`connections`: ten thousand agents with a small batch a second each: CPU, memory a connection, latency.
`fan-in`: the same with 15,000 agents of 467 metrics every 20 s, after their sensors have been sealed once.

Ten thousand nodes with 250 metrics each second, each sample sent when it is taken (2.5 million readings a second):
  wholegrain-bench connections --connections 10000 --sensors 250 --security plain --seconds 20
Connections are opened from one process: 200 more open files than connections must be allowed.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import BenchError, Json, aim, bytes_below, cpu_ns, free_port, line, parse_interval, wait_until, write_result
from installation import Installation, rss_kb
from load import SIZES, ChildWithLines, LoadGenerator, Memory, check_stored, interval_ns, show_acknowledgements, stored_sums
from monitors.base import output_of

# Readings a second that give agents their interval where they send as fast as batches are acknowledged.
RATE_MAX = 200e6
# Seconds of the slowest stretch.
STRETCH_S = 10
# Pause after the start of the server, and after the connections, before memory is measured.
REST_S = 5.0
CONNECTION_KB_MAX, FAN_IN_CORES_MAX = 20.0, 0.25


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wholegrain-bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    ingest = commands.add_parser("server-ingest")
    ingest.add_argument("--seconds", type=int, default=60, help="length of the load; the published figure is of 300")
    ingest.add_argument("--rate", type=float, default=2e6, help="readings a second; 0 sends whenever a window has room")
    ingest.add_argument("--agents", type=int, default=48, help=f"simulated agents, with groups of {SIZES} sensors in turn")
    ingest.add_argument("--sensors", type=int, help="sensors of every agent's group instead")
    ingest.add_argument("--samples", type=int, default=10, help="samples of a batch")
    ingest.add_argument("--window", type=int, default=64, help="batches of one agent that wait for their acknowledgement")
    ingest.add_argument("--seal-after", default="60s", help="the server's setting `seal_after`")
    ingest.add_argument("--bare", action="store_true", help="the same load on a program that only reads and acknowledges publishes: the cost of sockets")
    dcdb = commands.add_parser("dcdb-messages")
    dcdb.add_argument("--seconds", type=float, default=15.0, help="of each of the four loads: quality of service 0 and 1, one connection and many")
    dcdb.add_argument("--connections", type=int, default=50, help="the larger number of connections")
    dcdb.add_argument("--window", type=int, default=1000, help="unacknowledged messages of a connection; the server's inflight_max is set to it")
    dcdb.add_argument("--rate", type=float, default=0.0, help="messages a second of all connections; 0 sends as fast as the server accepts them")
    for name, agents, sensors, interval, seconds, warm_up, security in (
        ("connections", 10_000, 20, "1s", 60, 0, "plain,tls,certificates"), ("fan-in", 15_000, 467, "20s", 120, 80, "plain"),
    ):  # fmt: skip
        many = commands.add_parser(name)
        many.add_argument("--connections", type=int, default=agents, help="simulated agents, a connection each")
        many.add_argument("--sensors", type=int, default=sensors, help="sensors of each agent")
        many.add_argument("--interval", type=parse_interval, default=interval, help="from sample to sample, each a batch of its own")
        many.add_argument("--seconds", type=int, default=seconds, help="length of the load")
        many.add_argument("--warm-up", type=int, default=warm_up, help="seconds of load before, in which new sensors are sealed once")
        many.add_argument("--security", default=security, help="plain, tls, certificates: each of these in turn")
        many.add_argument("--seal-after", default="10s" if name == "connections" else "60s", help="the server's setting `seal_after`")
    options = parser.parse_args(arguments)
    try:
        run = {"server-ingest": server_ingest, "dcdb-messages": dcdb_messages}.get(options.command, connections)
        run(options)
    except (BenchError, OSError) as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return 1
    return 0


def server_ingest(options: argparse.Namespace) -> None:
    sizes = [options.sensors] if options.sensors else SIZES
    at_clock, rate = options.rate > 0, options.rate or RATE_MAX
    pace = f"{rate:.0f} readings/s" if at_clock else "as fast as acknowledged"
    print(f"server-ingest: {options.agents} agents, batches of {options.samples} samples, {pace}, {options.seconds} s, then until sealed and merged")

    def load_on(port: int) -> LoadGenerator:
        interval = interval_ns(options.agents, sizes, rate)
        return LoadGenerator(
            port, options.agents, sizes, samples=options.samples, interval_ns=interval, window=options.window, handshakes=16, as_acknowledged=not at_clock
        )

    with Installation() as site:
        if options.bare:
            write_result("server-ingest-bare", bare_ingest(options, site, load_on))
            return
        site.configure("store", seal_after=f'"{options.seal_after}"')
        port = site.open_plain_port()
        server = site.start_server()
        with load_on(port) as load:
            load.connect()
            memory, begun, used = Memory(server), time.monotonic(), cpu_ns(server.child.pid)
            generator_ns = -load.run(0)["cpu_ns"]
            each_second = load.run(options.seconds, memory.look)["readings_each_second"]
            totals = load.drain()
            length_s, acknowledged_ns = time.monotonic() - begun, cpu_ns(server.child.pid) - used
            generator_ns += totals["cpu_ns"]
            load.close()
            expected = load.sums()
        idle_s = site.wait_until_idle(server)
        sealed_ns = cpu_ns(server.child.pid) - used
        threads, merges = cpu_by_thread(server.child.pid), site.metric("store_merges_total")
        site.stop(server)
        blocks = site.folder / "server/store/blocks"
        open_bytes, day_ns = bytes_below(blocks), merge_days(site)
        readings, stored = totals["readings"], bytes_below(blocks)
        results = {
            "agents": options.agents, "sizes": list(sizes), "samples": options.samples, "rate_wanted": options.rate, "seconds": options.seconds,
            "readings": readings, "batches": totals["batches"], "readings_per_s": readings / length_s,
            "readings_per_s_slowest": slowest([0, *each_second]), "ns_per_reading_acknowledged": acknowledged_ns / readings,
            "ns_per_reading_sealed": sealed_ns / readings, "ns_per_reading_day": day_ns / readings, "generator_ns_per_reading": generator_ns / readings,
            "merges": merges, "payload_bytes_per_reading": totals["bytes"] / readings, "bytes_per_reading": stored / readings,
            "bytes_before_day_merge": open_bytes, "acks_ms": totals["acks_ms"], "cpu_by_thread": threads,
        }  # fmt: skip
        line("batches acknowledged", totals["batches"])
        aim("readings a second, acknowledged", results["readings_per_s"], 0, at_least=0.99 * 2e6)
        line(f"the same in the slowest {STRETCH_S} s", f"{results['readings_per_s_slowest']:.0f}")
        line("server, ns of CPU a reading until acknowledged", f"{results['ns_per_reading_acknowledged']:.1f}")
        line("  with all sealed, and merged as in service", f"{results['ns_per_reading_sealed']:.1f}")
        aim("  and with the merge of the days that are over (goal 100)", (sealed_ns + day_ns) / readings, 1, at_most=250)
        line("sealed and merged after the last reading, s", f"{idle_s:.0f}")
        line("generator, ns of CPU a reading", f"{results['generator_ns_per_reading']:.1f}")
        for name, seconds in threads.items():
            if seconds > 0.05:
                line(f"  threads {name}, s of CPU", f"{seconds:.1f}")
        show_acknowledgements(totals)
        results["memory"] = memory.show()
        line("bytes of payload a reading", f"{results['payload_bytes_per_reading']:.3f}")
        line("bytes of Parquet a reading", f"{results['bytes_per_reading']:.3f}")
        if at_clock and readings < 0.99 * rate * options.seconds:
            line("the rate was not reached: the last reading came late by, s", f"{length_s - options.seconds:.1f}")
        results["checked"] = check_stored(site, expected)
    write_result("server-ingest" if at_clock else "server-ingest-window", results)


def bare_ingest(options: argparse.Namespace, site: Installation, load_on: Callable[[int], LoadGenerator]) -> Json:
    """The same load on a program that only reads publishes and acknowledges them."""
    port = free_port()
    site.processes.start("broker", False, [os.environ["WHOLEGRAIN_BENCH"], "bare-broker", "--port", str(port)], site.folder / "broker.log")
    broker = site.processes.all[-1]
    wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, "the bare broker listens")
    with load_on(port) as load:
        load.connect()
        used = cpu_ns(broker.child.pid)
        load.run(options.seconds)
        totals = load.drain()
    used = cpu_ns(broker.child.pid) - used
    site.kill(broker)
    line("bare broker, us of CPU a batch", f"{used / 1e3 / totals['batches']:.1f}")
    line("bare broker, ns of CPU a reading", f"{used / totals['readings']:.1f}")
    return {"batches": totals["batches"], "readings": totals["readings"], "ns_per_reading": used / totals["readings"]}


def merge_days(site: Installation) -> float:
    """Merges the days as the store does when they are over; the CPU time of that, ns."""
    return float(output_of([os.environ["WHOLEGRAIN_BENCH"], "merge-days", "--dir", site.folder / "server/store"]))


def slowest(acknowledged: Sequence[int]) -> float:
    """Readings a second in the slowest stretch, of the totals at each second."""
    window = max(min(STRETCH_S, len(acknowledged) - 1), 1)
    rates = [(after - before) / window for before, after in zip(acknowledged, acknowledged[window:])]
    return min(rates, default=0.0)


def cpu_by_thread(pid: int) -> dict[str, float]:
    """CPU time of a process's living threads by their names, s."""
    used: dict[str, float] = {}
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        fields = rest.split()
        used[name] = used.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def dcdb_messages(options: argparse.Namespace) -> None:
    pace = f"{options.rate:.0f} a second" if options.rate else "as fast as accepted"
    print(f"dcdb-messages: one reading of 16 bytes a message, {pace}, {options.seconds:g} s each, then until sealed")
    runs = []
    for count in sorted({1, options.connections}):
        for qos in (0, 1):
            with Installation() as site:
                runs.append({"qos": qos, "connections": count} | push_dcdb(options, count, qos, site))
    write_result("dcdb-messages", {"seconds": options.seconds, "window": options.window, "rate": options.rate, "runs": runs})


def push_dcdb(options: argparse.Namespace, count: int, qos: int, site: Installation) -> Json:
    """One of the four loads. The blocks must have as many rows as there were messages."""
    site.configure("store", seal_after='"5s"')
    site.configure("mqtt.limits", inflight_max=str(options.window))
    port = site.open_plain_port()
    server = site.start_server()
    memory, numbers = Memory(server), {"port": port, "connections": count, "qos": qos} | {key: getattr(options, key) for key in ("seconds", "window", "rate")}
    words = [word for key, number in numbers.items() for word in (f"--{key}", str(number))]
    with ChildWithLines([os.environ["WHOLEGRAIN_BENCH"], "push-dcdb", *words]) as pusher:
        pusher.line()
        used, begun = cpu_ns(server.child.pid), time.monotonic()
        totals = json.loads(pusher.ask("run", memory.look))
        # With quality of service 0 the server alone knows when it has taken the last.
        wait_until(lambda: site.metric("publishes_total") >= totals["messages"], "the server has taken all messages")
        seconds, server_ns = time.monotonic() - begun, cpu_ns(server.child.pid) - used
    site.wait_until_idle(server)
    sealed_ns = cpu_ns(server.child.pid) - used
    site.stop(server)
    messages, rows = totals["messages"], sum(sums[0] for sums in stored_sums(site).values())
    results: Json = {
        "messages": messages, "rows": rows, "messages_per_s": messages / seconds, "us_per_message": server_ns / 1e3 / messages,
        "us_per_message_sealed": sealed_ns / 1e3 / messages, "generator_us": totals["cpu_ns"] / 1e3 / messages, "acks_ms": totals["acks_ms"],
    }  # fmt: skip
    print(f" quality of service {qos}, {count} connections")
    line("messages a second", f"{results['messages_per_s']:.0f}")
    aim("server, us of CPU a message, journal included (goal 1)", results["us_per_message"], 2, at_most=3)
    aim("  with all sealed", results["us_per_message_sealed"], 2, at_most=3)
    line("generator, us of CPU a message", f"{results['generator_us']:.2f}")
    line("rows in the blocks, of messages", f"{rows} of {messages}", f"all there, once: {'reached' if rows == messages else 'MISSED'}")
    if qos:
        show_acknowledgements(totals)
    return results | {"memory": memory.show()}


def connections(options: argparse.Namespace) -> None:
    print(
        f"{options.command}: {options.connections} agents with {options.sensors} sensors every {options.interval / 1e9:g} s for {options.seconds} s, "
        "quality of service 1"
    )
    runs = []
    for security in options.security.split(","):
        print(f" {security}")
        with Installation() as site:
            runs.append({"security": security} | connections_with(options, security, site))
    write_result(options.command, {"runs": runs} if options.command == "connections" else runs[0])


def tls_options(options: argparse.Namespace, security: str, site: Installation) -> list[str | Path]:
    if security not in ("plain", "tls", "certificates"):
        raise BenchError(f"--security {security}: write plain, tls or certificates")
    words: list[str | Path] = [] if security == "plain" else ["--ca", site.folder / "ca.pem"]
    if security == "certificates":
        for index in range(options.connections):
            site.issue_certificate(f"n{index:05}")
        words += ["--certificates", site.folder / "agents"]
    return words


def connections_with(options: argparse.Namespace, security: str, site: Installation) -> Json:
    count, seconds = options.connections, options.seconds
    site.configure("store", seal_after=f'"{options.seal_after}"')
    site.configure("mqtt.limits", connections_max=str(count + 100))
    plain = site.open_plain_port()
    tls = tls_options(options, security, site)
    port = plain if security == "plain" else site.mqtt_port
    with LoadGenerator(port, count, [options.sensors], samples=1, interval_ns=options.interval, tls=tls) as load:
        # The sensors become known once, so that later only connections are measured and not the memory of new sensors.
        server = site.start_server()
        begun = time.monotonic()
        first = load.connect()
        first_s = time.monotonic() - begun
        load.close()
        wait_until(lambda: site.metric("connections") == 0, "the connections are gone")
        site.stop(server)

        server = site.start_server()
        time.sleep(REST_S)
        alone_kb, begun, used = rss_kb(server), time.monotonic(), cpu_ns(server.child.pid)
        connected = load.connect()
        connect_s, connect_ns = time.monotonic() - begun, cpu_ns(server.child.pid) - used
        time.sleep(REST_S)
        idle_kb, before = rss_kb(server), load.run(options.warm_up)
        memory, used = Memory(server), cpu_ns(server.child.pid)
        after = load.run(seconds, memory.look)
        used_ns, busy_kb, live_bytes = cpu_ns(server.child.pid) - used, rss_kb(server), site.metric("store_live_bytes")
        totals = load.drain()
        load.close()
        expected = load.sums()
    site.wait_until_idle(server)
    sealed_ns = cpu_ns(server.child.pid) - used
    site.stop(server)
    batches, readings = (max(totals[name] - before[name], 1) for name in ("batches", "readings"))
    results: Json = {
        "connections": count, "seconds": seconds, "sensors": options.sensors, "interval_ns": options.interval, "first_connect_s": first_s,
        "first_schemas_ms": first["schemas_ms"], "connect_s": connect_s, "connect_us": connect_ns / 1e3 / count, "connects_ms": connected["connects_ms"],
        "alone_kb": alone_kb, "idle_kb_per_connection": (idle_kb - alone_kb) / count, "busy_kb_per_connection": (busy_kb - alone_kb) / count,
        "live_bytes": live_bytes, "cores": used_ns / 1e9 / seconds, "generator_cores": (after["cpu_ns"] - before["cpu_ns"]) / 1e9 / seconds,
        "ns_per_reading_acknowledged": used_ns / readings, "ns_per_reading_sealed": sealed_ns / readings, "batches": totals["batches"],
        "readings": totals["readings"], "acks_ms": totals["acks_ms"],
    }  # fmt: skip
    line("first connection of all with new schemas, s", f"{first_s:.1f}")
    line("connecting all again, s", f"{connect_s:.1f}")
    line("  server's CPU, us a connection with its known schema", f"{results['connect_us']:.0f}")
    line("  to CONNACK, median and 99th percentile, ms", f"{connected['connects_ms']['p50']:.2f} {connected['connects_ms']['p99']:.2f}")
    line("server's resident memory without connections, MB", f"{alone_kb / 1e3:.0f}")
    aim("  kB more a connection, idle", results["idle_kb_per_connection"], 1, at_most=CONNECTION_KB_MAX)
    aim("  kB more a connection, publishing", results["busy_kb_per_connection"], 1, at_most=CONNECTION_KB_MAX)
    line("    of that the payload that is not sealed yet, kB", f"{live_bytes / 1e3 / count:.1f}")
    line("readings acknowledged a second", f"{readings / seconds:.0f}")
    if options.command == "fan-in":
        aim("server, cores", results["cores"], 3, at_most=FAN_IN_CORES_MAX)
    else:
        line("server, cores", f"{results['cores']:.3f}")
    line("  us of CPU a batch", f"{used_ns / 1e3 / batches:.1f}")
    line("  ns of CPU a reading, until acknowledged; with all sealed", f"{used_ns / readings:.1f} {sealed_ns / readings:.1f}")
    line("generator, cores", f"{results['generator_cores']:.3f}")
    show_acknowledgements(totals)
    results["memory"] = memory.show()
    results["checked"] = check_stored(site, expected)
    made = sum(sums[0] for sums in expected.values())
    if made != totals["batches"]:
        raise BenchError(f"{made} batches were made, {totals['batches']} acknowledged")
    return results


if __name__ == "__main__":
    sys.exit(main())
