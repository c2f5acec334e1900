"""What the comparison with other stores computes by itself; `bench/tests` runs it with the real programs."""

from __future__ import annotations

import pytest

from harness import time_text

from .__main__ import differing, systems
from .systems import MS_NS, Span, Sums, range_text, seconds


@pytest.mark.parametrize(("found", "count"), [
    ({"a_b": (2, 1e15 + 1e5), "c": (1, 5.0)}, 0), ({"a/b": (1, 1e15), "c": (1, 5.0)}, 1), ({"a/b": (2, 1e15), "c": (1, 5.1)}, 1), ({}, 2),
    ({"a_b": (2, 1e15), "c": (1, 5.0), "d": (1, 1.0)}, 1),
])  # fmt: skip
def test_sums_that_differ_are_counted(found: Sums, count: int) -> None:
    assert differing({"a/b": (2, 1e15), "c": (1, 5.0)}, found) == count


@pytest.mark.parametrize(("from_ns", "to_ns", "expected"), [
    (5 * MS_NS, 9 * MS_NS, "5ms"), (5 * MS_NS + 999_999, 9 * MS_NS, "5ms"), (5 * MS_NS, 9 * MS_NS + 999_999, "5ms"), (7, 8, "1ms"),
])  # fmt: skip
def test_a_range_begins_before_the_millisecond_of_the_first_reading(from_ns: int, to_ns: int, expected: str) -> None:
    assert range_text(Span(from_ns, to_ns)) == expected


def test_times_have_the_resolution_of_the_system() -> None:
    assert (seconds(1_700_000_000_123_456_789), time_text(1_700_000_000_123_456_789)) == ("1700000000.123", "2023-11-14T22:13:20.123456789Z")


def test_unknown_systems_are_refused() -> None:
    with pytest.raises(Exception, match="there are wholegrain, wholegrain-singles, victoriametrics, prometheus"):
        systems("wholegrain,other")
