"""Figures of recovery: how fast the log is read, verified and made into state again, against reading its files.

Each figure works on a log of its own, of records of 1 KiB, which no checkpoint has shortened. The baseline reads the
same files, whole, into one buffer that is used again. Both sides find the files in the page cache and count their
bytes, the part of the last file that is still empty included.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from seawall.bench.harness import Baseline, Measurement, Run, rate
from seawall.bench.results import Better, Goal
from seawall.engine.embedded import open_log
from seawall.engine.replay import replay
from seawall.engine.settings import StoreSettings
from seawall.io.files import OsFiles
from seawall.limits import GIB, KIB, MIB, WAL_READ_SIZE
from seawall.storage.directory import open_directory
from seawall.topics.config import Durability

TOPIC: Final = "bench"
#: Bytes of records in the log that is recovered.
LOG_SIZE: Final = 256 * MIB
#: Records of 1 KiB in a batch; the bar is for the second.
BATCH_RECORDS: Final = (1, 16, 60)
BAR_RECORDS: Final = 16
#: Commits of the log; no checkpoint may be due before the last.
_NO_CHECKPOINT: Final = StoreSettings(checkpoint_size=1_024 * GIB)


def figures(directory: Path, log_size: int = LOG_SIZE) -> Iterator[Measurement]:
    """The figures of recovery, each on a log of about so many bytes."""
    for records in BATCH_RECORDS:
        yield _recovery(directory, log_size, records)


def _recovery(directory: Path, log_size: int, records: int) -> Measurement:
    log = _Log(directory, log_size, records)
    return Measurement(
        f"recovery scan, batches of {records} KiB",
        "B/s",
        Better.HIGHER,
        log.recovering,
        baseline=Baseline("read the log's files", log.reading),
        goal=Goal.ratio_at_least(0.5) if records == BAR_RECORDS else None,
        note=f"{log_size // MIB} MiB of 1 KiB records, page cache warm",
    )


class _Log:
    """A log to recover. Made when its recovery is opened; the baseline reads the same files while that is open."""

    def __init__(self, directory: Path, log_size: int, records: int) -> None:
        self._parent = directory
        self._log_size = log_size
        self._records = records
        self._path = directory

    @contextmanager
    def recovering(self) -> Iterator[Run]:
        """Replay of the whole log: every checksum, every topic's state, every place."""
        self._path = Path(tempfile.mkdtemp(prefix="seawall-bench-", dir=self._parent))
        try:
            count = self._fill()
            files = OsFiles()
            with open_directory(
                files, str(self._path), pid=os.getpid(), now_ns=0, random_bytes=os.urandom, create=False
            ) as opened:

                def recover() -> None:
                    (topic,) = replay(files, opened, None).catalog
                    assert topic.live_records == count

                yield rate(recover, sum(path.stat().st_size for path in self._files()))
        finally:
            shutil.rmtree(self._path, ignore_errors=True)

    @contextmanager
    def reading(self) -> Iterator[Run]:
        """The bytes of the same files."""
        buffer = memoryview(bytearray(WAL_READ_SIZE))
        descriptors = [os.open(path, os.O_RDONLY) for path in self._files()]
        try:
            size = sum(os.fstat(descriptor).st_size for descriptor in descriptors)

            def read() -> None:
                for descriptor in descriptors:
                    at = 0
                    while got := os.preadv(descriptor, [buffer], at):
                        at += got

            yield rate(read, size)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fill(self) -> int:
        """Publish the records, in batches of one size; how many there are."""
        values = [os.urandom(KIB) for _ in range(self._records)]
        batches = max(1, self._log_size // (self._records * KIB))
        with open_log(self._path, _NO_CHECKPOINT) as log:
            log.create_topic(TOPIC, durability=Durability.MEMORY)
            for _ in range(batches):
                log.publish(TOPIC, values)
        return batches * self._records

    def _files(self) -> list[Path]:
        return sorted((self._path / "wal").glob("wal-*.wal"))
