"""The server of the tests: the harness starts one and sets WHOLEGRAIN_CLIENT, and WHOLEGRAIN_STORE for its store."""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from ssl import create_default_context

import pytest

import wholegrain
from wholegrain import _config

#: How long anything may take before a test says that it will not happen, s.
DEADLINE_S = 60.0


@pytest.fixture(scope="session")
def target() -> _config.Target:
    """Address, CA certificate and token of the server."""
    if "WHOLEGRAIN_CLIENT" not in os.environ:
        pytest.fail("WHOLEGRAIN_CLIENT names no client.toml; `cargo test -p wholegrain-testing --test python_package` starts a server")
    return _config.find(None, None, None, None)


@pytest.fixture(scope="session")
def client() -> wholegrain.Client:
    """A client of the server."""
    return wholegrain.connect()


@pytest.fixture(scope="session")
def folder() -> Path:
    """The store directory."""
    return Path(os.environ["WHOLEGRAIN_STORE"])


Write = Callable[[str], None]


@pytest.fixture(scope="session")
def write(target: _config.Target) -> Write:
    """Writes ClusterCockpit lines with timestamps in ns; the readings are durable on return."""
    context = create_default_context(cafile=str(target.ca))

    def send(lines: str) -> None:
        request = urllib.request.Request(
            f"{target.url}/api/v1/write/clustercockpit?precision=ns",
            data=lines.encode(),
            headers={"Authorization": f"Bearer {target.token}"},
        )
        with urllib.request.urlopen(request, context=context, timeout=60) as answer:
            assert answer.status == 200

    return send


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Waits for a condition with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited {DEADLINE_S:.0f} s in vain: {what}"
        time.sleep(0.05)


#: A whole second, some hours ago.
BASE_S = (int(time.time()) - 6 * 3600) // 60 * 60


@pytest.fixture(scope="session")
def series(write: Write) -> dict[str, list[tuple[int, float]]]:
    """Writes known readings: (time in ns, value) by path. Sensor ``a`` has an interval of 1 s, ``b`` of 2 s; ``power`` has the unit W."""
    known: dict[str, list[tuple[int, float]]] = {}
    lines = []
    for name, every, unit in (("a", 1, ""), ("b", 2, ""), ("power", 1, "W")):
        path = f"/py/n1/{name}"
        known[path] = []
        for step in range(0, 600, every):
            if name == "a" and 100 <= step < 120:
                continue  # a hole
            at = (BASE_S + step) * 1_000_000_000 + 7
            value = step / 8 + (1000 if name == "power" else 0)
            known[path].append((at, value))
            lines.append(f"{name},cluster=py,hostname=n1,type=node{',unit=' + unit if unit else ''} value={value!r} {at}")
    write("\n".join(lines) + "\n")
    return known


@pytest.fixture(autouse=True)
def _no_figures_left() -> Iterator[None]:
    yield
    try:
        from matplotlib import pyplot
    except ImportError:
        return
    pyplot.close("all")
