"""Confidence intervals and tests: means, ratios of paired means, and many tests at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95

Interval = tuple[float, float]


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The 95 % interval of the mean by Student's distribution; None with fewer than two values."""
    if len(values) < 2:
        return None
    half = _quantile(len(values) - 1) * math.sqrt(float(np.var(values, ddof=1)) / len(values))
    mean = float(np.mean(values))
    return mean - half, mean + half


@dataclass(frozen=True)
class Ratio:
    """The ratio of the means of pairs, second over first."""

    mean: float
    # None where pairs are too few or too noisy.
    interval: Interval | None
    # Two-sided p-value of the paired t-test for a ratio of 1; None with fewer than two pairs.
    p: float | None


def paired_ratio(pairs: Sequence[Interval]) -> Ratio | None:
    """The ratio of pairs (without, with), each of one round, so that a drift from round to round cancels.

    The interval is Fieller's for pairs ("Some problems in interval estimation", Journal of the Royal Statistical Society B 16, 1954): all
    ratios r for which the paired t-test finds no difference between `with` and `r * without`. It is an interval of the ratio of means, not of a
    mean of ratios or of logarithms, and excludes 1 exactly when that test rejects a ratio of 1.
    """
    without, beside = ([pair[side] for pair in pairs] for side in (0, 1))
    if not pairs or float(np.mean(without)) <= 0:
        return None
    a, b = float(np.mean(without)), float(np.mean(beside))
    if len(pairs) < 2:
        return Ratio(b / a, None, None)
    # Variances and the covariance of the two means.
    (xx, xy), (_, yy) = np.cov(without, beside) / len(pairs)
    quantile = _quantile(len(pairs) - 1)
    # r is in the interval while (b - r a)^2 <= t^2 (yy - 2 r xy + r^2 xx): between the roots of a quadratic.
    square, linear, constant = a * a - quantile**2 * xx, a * b - quantile**2 * xy, b * b - quantile**2 * yy
    root = math.sqrt(max(linear * linear - square * constant, 0.0))
    interval = ((linear - root) / square, (linear + root) / square) if square > 0 else None
    error = math.sqrt(max(xx + yy - 2 * xy, 0.0))
    p = 2 * float(student.sf(abs(b - a) / error, len(pairs) - 1)) if error > 0 else float(b == a)
    return Ratio(b / a, interval, p)


def holm(values: Sequence[float]) -> list[float]:
    """P-values adjusted by Holm ("A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6, 1979), in the
    order given: the chance of even one false rejection below 5 % stays below 5 %."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = min(max(largest, values[index] * (len(values) - rank)), 1.0)
        adjusted[index] = largest
    return adjusted


def _quantile(freedom: float) -> float:
    return float(student.ppf((1 + CONFIDENCE) / 2, freedom))
