"""The directories of a run of the demo: one for its files, and one in shared memory for its server.

    DIRECTORY/seawall-demo.lock    locked while a demo runs here; the operating system releases it however the demo ends
    DIRECTORY/run-…/               data of the server, checkpoints, Parquet files, and the log of all processes

A run removes the directories of earlier runs, also in shared memory. Processes of a run that was killed may still be
exiting then; they write into their own directory only.
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
class RunDirectory:
    """The directory of a run, and the one for the shared memory of its server."""

    directory: Path
    fabric: Path

    @property
    def output(self) -> Path:
        """The log of all processes."""
        return self.directory / "demo.log"

    @property
    def data(self) -> Path:
        """The data directory of the server."""
        return self.directory / "data"


@contextmanager
def run_directory(parent: Path) -> Iterator[RunDirectory]:
    """Create the directories of a run below `parent`, which only demos use; removes the shared memory at the end."""
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
            yield RunDirectory(directory, fabric)
        finally:
            shutil.rmtree(fabric, ignore_errors=True)
            shutil.rmtree(directory / "spark", ignore_errors=True)


def _fabric_directory(parent: Path, directory: Path) -> Path:
    """The directory for shared memory; the same for each run in a parent, so that the next run finds and removes it."""
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        return directory / "fabric"
    return SHARED_MEMORY / f"seawall-demo-{os.getuid()}-{crc32(os.fsencode(parent)):08x}"
