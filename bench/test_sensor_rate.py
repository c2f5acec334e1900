"""The fit of the sensor rate finds the lines that the points were made from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness import Json, figure
from sensor_rate import fit, fit_all, rate, ticks


def points(share: Callable[[float, float], float]) -> tuple[list[Json], list[float]]:
    grid = [(sensors, interval) for sensors in (100, 1000, 10_000) for interval in (1000, 100, 10)]
    found: list[Json] = [{"sensors": s, "interval_ns": i * 10**6, "rate_per_s": s * 1e3 / i, "cpu_share": 0.0, "rss_kb": 0.0} for s, i in grid]
    return found, [share(ticks(point), rate(point)) for point in found]


def test_a_line_is_found_again() -> None:
    found = fit(*points(lambda _, readings: 0.002 + readings * 3e-7), [rate])
    assert found
    assert found[0] == pytest.approx([0.002, 3e-7]) and found[1] == pytest.approx(1.0)


def test_ticks_and_readings_have_slopes_of_their_own() -> None:
    of, shares = points(lambda tick, readings: 0.001 + tick * 2e-4 + readings * 1e-8)
    both, single = fit(of, shares, [ticks, rate]), fit(of, shares, [rate])
    assert both and single
    assert both[0][1:] == pytest.approx([2e-4, 1e-8]) and single[1] < 0.95 < both[1]


def test_a_fit_that_is_not_determined_is_none() -> None:
    of, shares = points(lambda _, readings: readings)
    assert fit(of[:2], shares[:2], [rate]) is None
    assert fit([of[0]] * 6, [1.0] * 6, [ticks, rate]) is None
    assert fit_all(of[:2])["r2"] is None


def test_a_figure_is_the_median_with_the_range() -> None:
    assert figure("a", [3, 1, 2], "s") == {"name": "a", "value": 2, "unit": "s", "spread": [1, 3]}
