"""Small programs with different loads, for `application_ratio.py`: `python applications.py NAME SECONDS`."""

from __future__ import annotations

import mmap
import os
import random
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator


def multiply() -> Iterator[None]:
    """Matrix products: all data in the caches, no system calls."""
    size = 60
    a = [[random.random() for _ in range(size)] for _ in range(size)]
    columns = list(zip(*a, strict=True))
    while True:
        a = [[sum(x * y for x, y in zip(row, column, strict=True)) / size for column in columns] for row in a]
        yield


def compress() -> Iterator[None]:
    """Compresses blocks of text, each into new memory."""
    text = " ".join(str(random.randrange(10_000)) for _ in range(100_000)).encode()
    while True:
        zlib.compress(text, 6)
        yield


def allocate() -> Iterator[None]:
    """Allocates memory, writes a byte into each page, and frees it: page faults."""
    while True:
        # Idle phases follow busy ones, as in a program that initializes repeatedly.
        for _ in range(random.randrange(2, 12)):
            with mmap.mmap(-1, 16 << 20) as memory:
                for page in range(0, len(memory), mmap.PAGESIZE):
                    memory[page] = 1
        sum(i * i for i in range(random.randrange(20_000, 400_000)))
        yield


def converse() -> Iterator[None]:
    """Two processes that exchange a byte: context switches."""
    there, back = os.pipe(), os.pipe()
    if os.fork() == 0:
        os.close(there[1])
        while byte := os.read(there[0], 1):
            os.write(back[1], byte)
        os._exit(0)
    os.close(there[0])
    while True:
        for _ in range(500):
            os.write(there[1], b"x")
            os.read(back[0], 1)
        yield


def files() -> Iterator[None]:
    """Writes, reads and removes small files."""
    with tempfile.TemporaryDirectory() as folder:
        while True:
            for index in range(20):
                path = os.path.join(folder, str(index))
                with open(path, "wb") as file:
                    file.write(os.urandom(64 << 10))
                with open(path, "rb") as file:
                    file.read()
                os.remove(path)
            yield


APPLICATIONS: dict[str, Callable[[], Iterator[None]]] = {
    "multiply": multiply,
    "compress": compress,
    "allocate": allocate,
    "converse": converse,
    "files": files,
}


if __name__ == "__main__":
    end = time.monotonic() + float(sys.argv[2])
    for _ in APPLICATIONS[sys.argv[1]]():
        if time.monotonic() > end:
            break
