"""CPU and memory of the agent against its sensor rate, with the linear fit of DCDB (SC'19, section 6.3).

The paper varies sensors and interval of its tester plugin and fits a line through CPU load over readings a second, so that the load of any configuration
follows from two that were measured. Ours does not follow from readings alone, because a tick has a cost whatever the number of sensors; so beside the
paper's line there is a fit with ticks and readings.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np

from harness import BenchError, Json, figure, write_result
from installation import Installation, cpu_s, rss_kb

# The paper's figures for its best machine: share of a core and MB, by readings a second and by sensors, with the cache of its default.
PAPER = {"cpu_share_at_1000": 0.01, "cpu_share_at_100000": 0.03, "mb_up_to_1000_sensors": 50.0, "mb_at_100000": 350.0}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="wholegrain-bench sensor-rate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=numbers, default=[100, 1000, 10_000], help="numbers of sensors, each measured at each interval")
    parser.add_argument("--interval-ms", type=numbers, default=[1000, 100, 10], help="sampling intervals")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each measuring window")
    parser.add_argument("--cache-s", type=int, default=3, help="what the agent's cache holds; it is full before anything is measured")
    parser.add_argument("--shape", default="noise", help="of the values: counter, noise, sine, ramp or constant")
    options = parser.parse_args(arguments)
    try:
        points = measure_all(options)
    except BenchError as error:
        print(f"sensor-rate: {error}", file=sys.stderr)
        return 1
    fits = fit_all(points)
    details = {"seconds": options.seconds, "cache_s": options.cache_s, "shape": options.shape, "points": points, "fit": fits, "paper": PAPER}
    figures = [figure(name, value, "") for name, value in fits.items() if value is not None]
    write_result("sensor-rate", details, figures + print_aims(points, fits))
    return 0


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def measure_all(options: argparse.Namespace) -> list[Json]:
    points = []
    print(f"  {'sensors':>8} {'interval':>9} {'readings/s':>12} {'CPU %':>8} {'RSS MB':>9} {'missed':>8}")
    with Installation() as site:
        site.start_server()
        for interval_ms in options.interval_ms:
            for sensors in options.sensors:
                p = measure(options, site, sensors, interval_ms)
                print(f"  {sensors:>8} {interval_ms:>6} ms {p['rate_per_s']:>12.0f} {p['cpu_share'] * 100:>8.3f} {p['rss_kb'] / 1e3:>9.1f} {p['missed']:>8}")
                points.append(p)
    return points


def measure(options: argparse.Namespace, site: Installation, sensors: int, interval_ms: int) -> Json:
    agent = site.start_agent(
        f'[cache]\nduration = "{options.cache_s}s"\nbytes_max = "256MiB"\n[sources.tester]\nsensors = {sensors}\nshape = "{options.shape}"\n'
        f'interval = "{interval_ms}ms"\n'
    )
    time.sleep(options.cache_s + 0.5)
    before, used = site.status(), cpu_s(agent)
    time.sleep(options.seconds)
    used, after, rss = cpu_s(agent) - used, site.status(), rss_kb(agent)
    site.stop(agent)
    return {
        "sensors": sensors, "interval_ns": interval_ms * 10**6, "rate_per_s": sensors * 1e3 / interval_ms, "cpu_share": used / options.seconds,
        "rss_kb": rss, "missed": after["missed_ticks"] - before["missed_ticks"], "dropped": after["dropped_batches"] - before["dropped_batches"],
    }  # fmt: skip


def fit(points: Sequence[Json], values: Sequence[float], columns: Sequence[Callable[[Json], float]]) -> tuple[list[float], float] | None:
    """The value at zero and the slopes that fit best by least squares, and the share of the variance that they explain; None when the points do not
    determine them."""
    rows = np.array([[1.0, *(column(point) for column in columns)] for point in points])
    if len(points) <= rows.shape[1]:
        return None
    # The columns differ by orders of magnitude.
    scale = np.abs(rows).max(axis=0)
    found = np.array(values, dtype=float)
    solution, _, rank, _ = np.linalg.lstsq(rows / scale, found, rcond=1e-9)
    if rank < rows.shape[1]:
        return None
    left, total = ((found - rows / scale @ solution) ** 2).sum(), ((found - found.mean()) ** 2).sum()
    return [float(value) for value in solution / scale], float(1 - left / total) if total > 0 else 1.0


def rate(point: Json) -> float:
    return float(point["rate_per_s"])


def ticks(point: Json) -> float:
    return 1e9 / float(point["interval_ns"])


def fit_all(points: Sequence[Json]) -> Json:
    shares, memory = [p["cpu_share"] for p in points], [p["rss_kb"] for p in points]
    nothing: tuple[list[float | None], float | None] = ([None, None, None], None)
    (zero, slope, *_), r2 = fit(points, shares, [rate]) or nothing
    (_, tick, reading), r2_with_ticks = fit(points, shares, [ticks, rate]) or nothing
    (rss, sensor, per_rate), rss_r2 = fit(points, memory, [lambda p: float(p["sensors"]), rate]) or nothing
    return {
        "cpu_share_per_rate": slope, "cpu_share_at_zero": zero, "r2": r2, "cpu_us_per_tick": None if tick is None else tick * 1e6,
        "cpu_ns_per_reading": None if reading is None else reading * 1e9, "r2_with_ticks": r2_with_ticks, "rss_kb_at_zero": rss,
        "rss_kb_per_sensor": sensor, "rss_kb_per_rate": per_rate, "rss_r2": rss_r2,
    }  # fmt: skip


def print_aims(points: Sequence[Json], fits: Json) -> list[Json]:
    """Prints the fits, and the largest measured values beside the paper's."""
    for name, value in fits.items():
        print(f"  {name:<58} {'-' if value is None else f'{value:.6g}':>12}")
    rows: list[tuple[str, list[float], str]] = [
        ("cpu_share_at_1000", [p["cpu_share"] for p in points if rate(p) <= 1e3], "share of a core up to 1,000 readings/s"),
        ("cpu_share_at_100000", [p["cpu_share"] for p in points if rate(p) <= 1e5], "share of a core up to 100,000 readings/s"),
        ("mb_up_to_1000_sensors", [p["rss_kb"] / 1e3 for p in points if p["sensors"] <= 1e3 and rate(p) <= 1e5], "MB up to 1,000 sensors"),
        ("mb_at_100000", [p["rss_kb"] / 1e3 for p in points if rate(p) <= 1e5], "MB up to 100,000 readings/s"),
    ]
    figures = []
    for name, values, what in rows:
        if values:
            verdict = "reached" if max(values) <= PAPER[name] else "MISSED"
            print(f"  {what:<58} {max(values):>12.4g}   at most DCDB's {PAPER[name]:g}: {verdict}")
            figures.append(figure(name, max(values), "MB" if name.startswith("mb") else "core"))
    print(f"  {'batches dropped':<58} {sum(p['dropped'] for p in points):>12}   0")
    return figures


if __name__ == "__main__":
    sys.exit(main())
