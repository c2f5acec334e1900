"""Writes random series to a server by remote write 2.0, queries them, and compares with sums made by numpy from docs/sums.md.

Arguments: URL of the server, file with a token, file of the CA, seed. Prints the numbers of series, samples and compared rows.
"""

import json
import random
import ssl
import struct
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from datetime import datetime

import numpy as np

url, token_file, ca, seed = sys.argv[1:]
rng = random.Random(int(seed))
with open(token_file, encoding="utf-8") as file:
    token = file.read().strip()
context = ssl.create_default_context(cafile=ca)
STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
COUNTER, GAUGE = 1, 2
LOOK_BACK_MS = 300_000
DAY_MS = 86_400_000
Rows = dict[int, float | None]
FOLDS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean,
    "sample_mean": np.mean,
    "sum": np.sum,
    "min": np.min,
    "max": np.max,
    "count": len,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}


def request(path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    call = urllib.request.Request(url + path, body, {"authorization": f"Bearer {token}", **(headers or {})})
    try:
        with urllib.request.urlopen(call, context=context, timeout=60) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise SystemExit(f"seed {seed}: {path}: {error}: {error.read()!r}") from error


# Protobuf, and snappy of one literal, by their descriptions.
def varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(out) + bytes([number])


def field(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def snappy(body: bytes) -> bytes:
    return varint(len(body)) + bytes([63 << 2]) + struct.pack("<I", len(body) - 1) + body


def write(batch: list[tuple[str, int, int, float]]) -> None:
    """Writes (metric, type, time in ms, value), each as a series of its own, as Prometheus does."""
    symbols = [""]
    series = b""
    for name, kind, at, value in batch:
        references = b""
        for text in ("__name__", name, "job", "j", "instance", seed):
            if text not in symbols:
                symbols.append(text)
            references += varint(symbols.index(text))
        sample = b"\x09" + struct.pack("<d", value) + b"\x10" + varint(at)
        metadata = b"\x08" + varint(kind)
        series += field(5, field(1, references) + field(2, sample) + field(5, metadata))
    body = b"".join(field(4, symbol.encode()) for symbol in symbols) + series
    headers = {"content-type": "application/x-protobuf;proto=io.prometheus.write.v2.Request", "content-encoding": "snappy"}
    request("/api/v1/write", snappy(body), headers)


def make(kind: int, base: int) -> list[tuple[int, float]]:
    """A random series: jitter, holes, changes of the interval, stale markers; a counter restarts now and then."""
    at, value, rows = base + rng.randrange(60_000), rng.uniform(-50, 50) if kind == GAUGE else float(rng.randrange(1000)), []
    interval = rng.choice([1_000, 5_000, 15_000, 60_000, 400_000])
    for _ in range(rng.choice([1, 2, 3, 50, 300])):
        if kind == GAUGE:
            value += rng.gauss(0, 3)
        elif rng.random() < 0.04:
            value = float(rng.randrange(20))
        else:
            value += rng.choice([0, 1, 7, 0.25, 1e6])
        rows.append((at, STALE if rng.random() < 0.04 else value))
        if rng.random() < 0.02:
            interval = rng.choice([1_000, 15_000, 200_000, 400_000])
        jitter = rng.choice([0, 0, 0, rng.randrange(interval), rng.randrange(1_000_000) if rng.random() < 0.1 else 0])
        at += interval + jitter
    return rows


class Series:
    def __init__(self, kind: int, rows: list[tuple[int, float]]) -> None:
        self.kind = kind
        self.times = np.array([at for at, _ in rows], dtype=np.int64)
        self.values = np.array([value for _, value in rows])
        spaces = np.diff(self.times).astype(float)
        joined = spaces <= LOOK_BACK_MS
        for at, space in enumerate(spaces):
            for first in range(max(0, at - 2), min(at, len(spaces) - 3) + 1):
                three = spaces[first : first + 3]
                if len(three) == 3 and space <= 100 * DAY_MS and np.all((three / space >= 2 / 3) & (three / space <= 1.5)):
                    joined[at] = True
        # The pairs of neighbours that belong together and have values, by the index of the later one.
        has = ~np.isnan(self.values)
        self.pair = np.concatenate([[False], joined & has[1:] & has[:-1]]) if len(rows) else np.array([], dtype=bool)
        old, new = self.values[:-1], self.values[1:]
        # A stale marker is a signalling NaN, of which numpy warns.
        with np.errstate(invalid="ignore"):
            step = new - old
        if kind == COUNTER:
            step = np.where(step < 0, new, step)
        self.step = np.where(self.pair, np.concatenate([[np.nan], step]), np.nan)
        self.seconds = np.concatenate([[np.nan], spaces / 1000])

    def within(self, begin: int, end: int) -> np.ndarray:
        return np.flatnonzero((self.times >= begin) & (self.times < end))

    def area(self, begin: int, end: int) -> tuple[float, float] | None:
        """The area below the lines between two times, and the seconds that they cover."""
        total, covered = 0.0, 0.0
        for at in np.flatnonzero(self.pair):
            t0, t1 = self.times[at - 1], self.times[at]
            low, high = max(t0, begin), min(t1, end)
            if low < high:
                line = np.interp([low, high], [t0, t1], self.values[at - 1 : at + 1])
                total += line.mean() * (high - low) / 1000
                covered += (high - low) / 1000
        return (total, covered) if covered else None

    def expected(self, parameters: dict[str, str], begin: int, end: int, every: int | None) -> Rows:
        op, agg = parameters.get("op"), parameters.get("agg")
        rated = op in ("rate", "derivative")
        values = self.values if op is None else self.step / self.seconds if rated else self.step
        if every is None:
            return {int(self.times[at]): none_if_nan(values[at]) for at in self.within(begin, end)}
        rows: Rows = {}
        for start in range(begin // every * every, end, every):
            first, last = max(start, begin), min(start + every, end)
            inside = self.within(first, last)
            own = values[inside][~np.isnan(values[inside])]
            if op == "integral":
                area = self.area(first, last)
                rows[start] = area[0] if area else None
            elif not len(own):
                rows[start] = None
            elif agg == "mean" and rated:
                steps = inside[~np.isnan(self.step[inside])]
                rows[start] = self.step[steps].sum() / self.seconds[steps].sum()
            elif agg == "mean" and op is None and self.kind == GAUGE:
                area = self.area(first, last)
                rows[start] = float(own.mean()) if len(own) == 1 or area is None else area[0] / area[1]
            else:
                rows[start] = float(FOLDS[agg or "last"](own))
        return rows


def none_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def answered(path: str, parameters: dict[str, str], begin: int, end: int) -> Rows:
    # Times are parsed as they are printed: with nine decimals.
    text = {"pattern": path, "from": f"@{begin / 1000:.3f}", "to": f"@{end / 1000:.3f}", "format": "json", **parameters}
    rows: Rows = {}
    for line in request(f"/api/v1/query?{urllib.parse.urlencode(text)}").decode().splitlines():
        row = json.loads(line)
        if "time" not in row:
            # A note.
            continue
        at = datetime.fromisoformat(row["time"][:26].rstrip("Z") + "+00:00")
        rows[round(at.timestamp() * 1000)] = row["value"]
    return rows


def compare(name: str, series: Series, parameters: dict[str, str], begin: int, end: int, every: int | None) -> int:
    found = answered(f"/j/{seed}/{name}", parameters, begin, end)
    expected = series.expected(parameters, begin, end, every)
    if every is not None or "op" in parameters:
        # A row without a value says the same as none.
        found = {at: value for at, value in found.items() if value is not None}
        expected = {at: value for at, value in expected.items() if value is not None}
    largest = max((abs(value) for value in expected.values() if value is not None), default=0.0)

    def differs(at: int) -> bool:
        one, other = found.get(at, "no row"), expected.get(at, "no row")
        if isinstance(one, (int, float)) and isinstance(other, (int, float)):
            return abs(one - other) > 1e-9 * (1 + largest)
        return one is not other and one != other

    wrong = [at for at in sorted({*found, *expected}) if differs(at)]
    if wrong:
        at = wrong[0]
        near = [(int(t) - at, float(v)) for t, v in zip(series.times, series.values) if abs(int(t) - at) <= 1_500_000]
        raise SystemExit(
            f"seed {seed}: {name} {parameters} from {begin} to {end}: {len(wrong)} rows differ; at {at}: "
            f"found {found.get(at, 'no row')}, expected {expected.get(at, 'no row')}\nsamples near it, in ms: {near}"
        )
    return len(expected)


base = int(time.time()) * 1000 - 2 * DAY_MS
every_series = {}
for number in range(24):
    kind = COUNTER if number % 2 else GAUGE
    every_series[f"s{number}_total" if kind == COUNTER else f"s{number}"] = (kind, make(kind, base))
samples = [(name, kind, at, value) for name, (kind, rows) in every_series.items() for at, value in rows]
# Late, in any order, and some of them twice.
sent = samples + rng.sample(samples, len(samples) // 10)
if rng.random() < 0.5:
    sent.sort(key=lambda sample: sample[2])
else:
    rng.shuffle(sent)
while sent:
    size = rng.choice([1, 100, 1000])
    write(sent[:size])
    sent = sent[size:]

rows = 0
for name, (kind, made) in every_series.items():
    series = Series(kind, made)
    ops = ["delta", "rate"] if kind == COUNTER else ["delta", "derivative", "integral"]
    first, last = made[0][0], made[-1][0] + 1
    for _ in range(3):
        begin = rng.choice([first, rng.randrange(first - 10_000, last)])
        end = rng.choice([last, rng.randrange(begin + 1, last + 10_000)])
        rows += compare(name, series, {}, begin, end, None)
        for op in ops:
            if op != "integral":
                rows += compare(name, series, {"op": op}, begin, end, None)
            every = rng.choice([7_000, 60_000, 600_000, 3_600_000])
            agg = "sum" if op == "integral" else rng.choice(["mean", "sum", "min", "max", "count", "sample_mean"])
            parameters = {"op": op, "agg": agg, "every": f"{every}ms"}
            rows += compare(name, series, parameters, begin, end, every)
        agg, every = rng.choice(["mean", "mean", "min", "max", "count", "first", "last"]), rng.choice([60_000, 600_000, 3_600_000])
        rows += compare(name, series, {"agg": agg, "every": f"{every}ms"}, begin, end, every)
print(len(every_series), len(samples), rows)
