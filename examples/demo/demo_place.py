"""Where a run of the demo keeps its things: a directory of its own for each run, and memory for its server.

    DIRECTORY/seawall-demo.lock    held while a demo runs here: the system lets it go however that ends
    DIRECTORY/run-…/               data of the server, checkpoints, Parquet files, and the log of all processes

A run removes what the ones before it have left, theirs in shared memory too. What is left of one that was killed may
still be ending then, and writes into its own directory only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zlib import crc32

from demo_children import DemoError

LOCK = "seawall-demo.lock"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of a run, and of its server's shared memory."""

    directory: Path
    fabric: Path

    @property
    def output(self) -> Path:
        """What all processes have to say."""
        return self.directory / "demo.log"

    @property
    def data(self) -> Path:
        """The data directory of the server."""
        return self.directory / "data"


@contextmanager
def place_in(parent: Path) -> Iterator[Place]:
    """Make a place below a directory that demos have for themselves; its shared memory goes at the end."""
    parent = parent.absolute()
    parent.mkdir(parents=True, exist_ok=True)
    if any(parent.iterdir()) and not (parent / LOCK).exists():
        raise DemoError(f"{parent} is not empty and not of a demo: name another directory")
    with (parent / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DemoError(f"another demo runs in {parent}: wait for it, or name another directory") from error
        for left in parent.glob("run-*"):
            shutil.rmtree(left, ignore_errors=True)
        directory = parent / f"run-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{os.getpid()}"
        (directory / "spark").mkdir(parents=True)
        fabric = _fabric_directory(parent, directory)
        shutil.rmtree(fabric, ignore_errors=True)
        fabric.mkdir()
        try:
            yield Place(directory, fabric)
        finally:
            shutil.rmtree(fabric, ignore_errors=True)
            shutil.rmtree(directory / "spark", ignore_errors=True)


def _fabric_directory(parent: Path, directory: Path) -> Path:
    """Always the same for a parent, so that the next run finds it."""
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return directory / "fabric"
    return SHARED_MEMORY / f"seawall-demo-{os.getuid()}-{crc32(os.fsencode(parent)):08x}"
