"""Something for the machine to do while it is recorded: computing, memory, files, sockets and new processes, in turns of random length, so that the
values of /proc change as on a node in use."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TURN_S = (0.2, 4.0)
MEMORY_BYTES_MAX, FILE_BYTES, MESSAGE_BYTES = 256 << 20, 4 << 20, 16 << 10


def main() -> None:
    """Works until it is killed, with files in the folder of its argument."""
    file = Path(sys.argv[1]) / "work"
    near, far = socket.socketpair()
    while True:
        end = time.monotonic() + random.uniform(*TURN_S)
        turn = random.choice((compute, remember, write, talk, spawn, rest))
        turn(lambda: time.monotonic() < end, file, near, far)


GoesOn = Callable[[], bool]


def rest(goes_on: GoesOn, *_: object) -> None:
    while goes_on():
        time.sleep(0.01)


def compute(goes_on: GoesOn, *_: object) -> None:
    while goes_on():
        sum(step * step for step in range(10_000))


def remember(goes_on: GoesOn, *_: object) -> None:
    memory = bytearray(os.urandom(1)) * random.randrange(1 << 20, MEMORY_BYTES_MAX)
    while goes_on():
        memory.count(0)
        time.sleep(0.005)


def write(goes_on: GoesOn, file: Path, *_: object) -> None:
    while goes_on():
        with file.open("wb") as out:
            out.write(bytes(FILE_BYTES))
            os.fdatasync(out.fileno())
        time.sleep(0.02)


def talk(goes_on: GoesOn, _: Path, near: socket.socket, far: socket.socket) -> None:
    while goes_on():
        near.sendall(bytes(MESSAGE_BYTES))
        far.recv(MESSAGE_BYTES, socket.MSG_WAITALL)
        time.sleep(0.0005)


def spawn(goes_on: GoesOn, *_: object) -> None:
    while goes_on():
        subprocess.run(["true"])
        time.sleep(0.01)


if __name__ == "__main__":
    main()
