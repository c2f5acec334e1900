"""A Python application that a test runs as a job's process: marks, and reads of its own values."""

import os
import statistics
import sys
import threading
import time
from typing import List

import wholegrain_runtime as wg


@wg.region("py/decorated")
def decorated() -> None:
    wg.value("py/value", 2.5, "s")


def marks() -> None:
    with wg.region("py/outer"):
        threads = [threading.Thread(target=decorated) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    try:
        with wg.region("py/failing"):
            raise KeyError("out of the region")
    except KeyError:
        pass
    child = os.fork()
    if child == 0:
        wg.value("py/child", 1)
        os._exit(0 if wg.counts() == (1, 0, True) else 1)
    assert os.waitpid(child, 0)[1] == 0, "the child has counts of its own"
    wg.value("py/integer", 7)
    wg.value("py/nan", float("nan"))
    counts = wg.counts()
    assert (counts.dropped, counts.connected) == (0, True), counts
    for wrong in ("a b", "", "a\nbegin b", "x" * 129, "\ud800"):
        wg.begin(wrong)
    wg.end("never begun")
    assert wg.counts().dropped == 6, wg.counts()


def reading() -> None:
    own = {reading.path.split("/app/")[1]: reading for reading in wg.newest("@/app/py/*")}
    assert own["py/value"].value == 2.5 and own["py/value"].unit == "s", own
    assert own["py/nan"].value is None and own["py/nan"].time_ns, own
    with wg.Watch("@/app/py/value", "@/app/py/later") as watch:
        assert len(watch.paths) == 1
        wg.value("py/later", 1)
        deadline = time.monotonic() + 60
        while len(watch.get()) != 2 or watch.get()[1].value != 1.0:
            assert time.monotonic() < deadline, "the selection does not follow"
            time.sleep(0.005)
        assert watch.paths[0].endswith("/app/py/value"), watch.paths
        for wrong in ("a//b", "x" * 513, "a\nb", "/no/such"):
            try:
                wg.newest(wrong)
            except wg.Refused:
                continue
            raise AssertionError(f"{wrong!r} was answered")


def latency(patterns: List[str], count: int) -> None:
    took = []
    with wg.Watch(*patterns) as watch:
        for _ in range(count):
            time.sleep(0.001)
            start = time.perf_counter_ns()
            values = watch.values()
            took.append((time.perf_counter_ns() - start) / 1e3)
    took.sort()
    print(
        f"Python: {count} reads of {len(values)} sensors, one each 1000 us: p50 {statistics.median(took):.1f} us, "
        f"p99 {took[-1 - count // 100]:.1f} us, max {took[-1]:.1f} us"
    )


if sys.argv[1] == "latency":
    latency(sys.argv[3:], int(sys.argv[2]))
elif sys.argv[1] == "refused":
    for pattern in sys.argv[2:]:
        try:
            print(wg.newest(pattern))
        except wg.Refused as error:
            print(f"refused: {error}")
else:
    marks()
    reading()
    print("done")
