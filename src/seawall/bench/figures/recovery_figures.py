"""Figures of recovery: replaying a write-ahead log into state, against reading its files.

Each figure makes its own log of 1 KiB records, without checkpoints. The baseline reads the same files completely into
one reused buffer. Both sides read from the page cache and count all bytes of the files, including the empty part of the
last one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from seawall.bench.harness import Baseline, Measurement, Run, rate
from seawall.bench.results import Better, Goal
from seawall.engine.api.open_log import open_log
from seawall.engine.store.replay import replay
from seawall.engine.store.settings import StoreSettings
from seawall.io.disk.files import OsFiles
from seawall.limits import GIB, KIB, MIB, WAL_READ_SIZE
from seawall.storage.directory import open_directory
from seawall.topics.config import Durability

TOPIC: Final = "bench"
#: Records per batch, and bytes of records in the log to recover.
LOG_SIZES: Final = {1: 64 * MIB, 16: 256 * MIB, 60: 256 * MIB}
#: Records per batch of the figure that has a goal.
GOAL_RECORDS: Final = 16
_NO_CHECKPOINT: Final = StoreSettings(checkpoint_size=1_024 * GIB)


def recovery_figures(directory: Path) -> Iterator[Measurement]:
    """List the figures of recovery."""
    for records, log_size in LOG_SIZES.items():
        yield _recovery(directory, log_size, records)


def _recovery(directory: Path, log_size: int, records: int) -> Measurement:
    log = _Log(directory, log_size, records)
    return Measurement(
        f"recovery scan, batches of {records} KiB",
        "B/s",
        Better.HIGHER,
        log.recovering,
        baseline=Baseline("read the log's files", log.reading),
        goal=Goal.ratio_at_least(0.5) if records == GOAL_RECORDS else None,
        note=f"{log_size // MIB} MiB of 1 KiB records in the page cache",
    )


class _Log:
    """A log to recover, shared by both sides of a figure: made when the first opens, removed when the last closes."""

    def __init__(self, directory: Path, log_size: int, records: int) -> None:
        self._parent = directory
        self._batches = max(1, log_size // (records * KIB))
        self._records = records
        self._path = directory
        self._users = 0

    @contextmanager
    def recovering(self) -> Iterator[Run]:
        """Replay the whole log: verify every checksum, rebuild the state of every topic and every segment position."""
        files = OsFiles()
        with (
            self._opened() as paths,
            open_directory(
                files, str(self._path), pid=os.getpid(), now_ns=0, random_bytes=os.urandom, create=False
            ) as directory,
        ):

            def recover() -> None:
                (topic,) = replay(files, directory, None, mapped=True).catalog
                assert topic.live_records == self._batches * self._records

            yield rate(recover, sum(path.stat().st_size for path in paths))

    @contextmanager
    def reading(self) -> Iterator[Run]:
        """Read the same files without looking at their content."""
        buffer = memoryview(bytearray(WAL_READ_SIZE))
        with self._opened() as paths, ExitStack() as stack:
            files = [stack.enter_context(path.open("rb", buffering=0)) for path in paths]

            def read() -> None:
                for file in files:
                    at = 0
                    while received := os.preadv(file.fileno(), [buffer], at):
                        at += received

            yield rate(read, sum(path.stat().st_size for path in paths))

    @contextmanager
    def _opened(self) -> Iterator[list[Path]]:
        """Make the log if needed; yields its files."""
        if not self._users:
            self._path = Path(tempfile.mkdtemp(prefix="seawall-bench-", dir=self._parent))
        self._users += 1
        try:
            if self._users == 1:
                self._fill()
            yield sorted((self._path / "wal").glob("wal-*.wal"))
        finally:
            self._users -= 1
            if not self._users:
                shutil.rmtree(self._path, ignore_errors=True)

    def _fill(self) -> None:
        values = [os.urandom(KIB) for _ in range(self._records)]
        with open_log(self._path, _NO_CHECKPOINT) as log:
            log.create_topic(TOPIC, durability=Durability.MEMORY)
            for _ in range(self._batches):
                log.publish(TOPIC, values)
