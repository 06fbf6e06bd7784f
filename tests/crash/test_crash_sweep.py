"""A sample of the crash sweep, and proof that it finds bugs: each planted one is caught within so many cases.

`python tests/crash/run.py` does the same for as many images as one likes.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from crash_history import BrokenPromiseError
from crash_sweep import case_of, run_case

from seawall.engine import opening, replay
from seawall.engine.appends import Commit
from seawall.engine.topic_log import TopicLog
from seawall.errors import SeawallError
from seawall.io.files import write_all
from seawall.kernels import epochs
from seawall.kernels.epochs import WalRows
from seawall.kernels.memory import Bytes
from seawall.sequencer.frontier import TopicNumbers
from seawall.storage import segments, wal, wal_reader
from seawall.storage.epoch_write import EpochWrite
from seawall.storage.segments import ActiveSegment
from seawall.storage.snapshots import Snapshot, SnapshotStore
from seawall.storage.wal import WalWriter
from seawall.storage.wal_files import WalEnd
from seawall.testing import SimDisk

Plant = Callable[[pytest.MonkeyPatch], None]

SAMPLE_SEED = 1
SAMPLE_CASES = 350
PLANTED_CASES_MAX = 200


@pytest.mark.parametrize("part", range(7))
def test_no_crash_breaks_a_promise(part: int) -> None:
    cases = range(part * SAMPLE_CASES // 7, (part + 1) * SAMPLE_CASES // 7)
    images = sum(run_case(SAMPLE_SEED, number) for number in cases)
    assert images >= 130


def test_a_case_is_always_the_same() -> None:
    assert case_of(3, 4) == case_of(3, 4)
    assert case_of(3, 4) != case_of(3, 5)


# --- planted bugs -------------------------------------------------------------------------------------------------


def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    def sync(self: WalWriter) -> int:
        self._synced_through = self._at
        return self._at

    real = EpochWrite.carry_out
    patch.setattr(WalWriter, "sync", sync)
    patch.setattr(EpochWrite, "carry_out", lambda self, **_: real(self, durable=False))


def names_not_synced(part: str) -> Plant:
    """No sync of the directories whose path contains a word."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = SimDisk.sync_directory

        def sync_directory(self: SimDisk, path: str) -> None:
            if part not in path:
                real(self, path)

        patch.setattr(SimDisk, "sync_directory", sync_directory)

    return plant


def checksum_skipped(patch: pytest.MonkeyPatch) -> None:
    """Replay believes the header of an epoch and looks at no checksum of its batches."""

    def verify_epoch(
        data: Bytes, start: int, end: int, shift: int, position: int, count: int, rows: WalRows, first_row: int
    ) -> int:
        at = start
        for index in range(first_row, first_row + count):
            size = 44 + int.from_bytes(bytes(data[at + 32 : at + 36]), "little") if index < count - 1 else end - at
            epochs._list_batch(data, at, at + shift, size, rows, index)
            at += size
        return count

    patch.setattr(wal_reader, "verify_epoch", verify_epoch)


def rotation_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A new file that says it begins one byte later than it does."""
    real = wal.wal_path
    patch.setattr(wal, "wal_path", lambda directory, first_at: real(directory, first_at + 1 if first_at else first_at))


def sealed_before_data(patch: pytest.MonkeyPatch) -> None:
    """A segment is given its index and its final name though its data was never synced."""
    patch.setattr(ActiveSegment, "sync", _nothing)
    real = segments.ActiveSegment.seal

    def seal(self: ActiveSegment) -> object:
        file = self._file
        self._file = Unsynced(file)
        try:
            return real(self)
        finally:
            self._file = file

    patch.setattr(ActiveSegment, "seal", seal)


class Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, file: object) -> None:
        self._file = file

    def sync(self) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def reference_before_data(patch: pytest.MonkeyPatch) -> None:
    """The log refers to a large batch that was written and not synced."""

    def carry_out(self: Commit) -> None:
        for place in self.places:
            write_all(place.file, place.buffers, place.at)
        if self.epoch is not None:
            self.epoch.carry_out(durable=self.durable)

    patch.setattr(Commit, "carry_out", carry_out)


def ceiling_ignored(patch: pytest.MonkeyPatch) -> None:
    """After a crash numbering goes on behind the last record that survived."""
    real = opening._numbers_of

    def numbers_of(topic: object) -> TopicNumbers:
        numbers = real(topic)
        return TopicNumbers(numbers.topic_id, numbers.next_seq, numbers.next_offset, numbers.next_seq)

    patch.setattr(opening, "_numbers_of", numbers_of)


def snapshot_skips_log(patch: pytest.MonkeyPatch) -> None:
    """Replay begins later than the snapshot ends."""
    real = SnapshotStore.write

    def write(self: SnapshotStore, snapshot: Snapshot) -> None:
        real(self, Snapshot(snapshot.position, snapshot.wal_from_at + 300, snapshot.created_ns, snapshot.sections))

    patch.setattr(SnapshotStore, "write", write)


def log_dropped_too_early(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint cuts the log before the snapshot is there."""
    real = SnapshotStore.write

    def write(self: SnapshotStore, snapshot: Snapshot) -> None:
        log = self._files.list("/data/wal")
        for name in log[:-1]:
            self._files.unlink(f"/data/wal/{name}")
        self._files.sync_directory("/data/wal")
        real(self, snapshot)

    patch.setattr(SnapshotStore, "write", write)


def places_not_filled(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint forgets the batches that wait in the log, and copies none."""

    def fill(self: TopicLog, locate: object) -> None:
        for filling in self.filling:
            filling.waiting.clear()

    patch.setattr(TopicLog, "fill", fill)


def roll_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """Replay takes the batches of a new segment for batches of the old one."""
    patch.setattr(replay, "SegmentRoll", type("Never", (), {}))


def clean_mark_always(patch: pytest.MonkeyPatch) -> None:
    """Replay takes every end of the log for a clean close."""
    real = wal_reader._Walk._end

    def ended(self: object, at: int) -> WalEnd:
        end = real(self, at)
        return WalEnd(end.at, end.epoch, end.position, True, end.synced_through, end.timestamp_ns)

    patch.setattr(wal_reader._Walk, "_end", ended)


PLANTED: dict[str, Plant] = {
    "ack before sync": ack_before_sync,
    "names of the log not synced": names_not_synced("/wal"),
    "names of segments not synced": names_not_synced("/topics/"),
    "names of snapshots not synced": names_not_synced("/meta"),
    "checksum skipped at replay": checksum_skipped,
    "off by one at rotation": rotation_off_by_one,
    "sealed before data is synced": sealed_before_data,
    "reference before data": reference_before_data,
    "ceiling ignored": ceiling_ignored,
    "snapshot skips log": snapshot_skips_log,
    "log dropped too early": log_dropped_too_early,
    "places not filled": places_not_filled,
    "roll not replayed": roll_not_replayed,
    "every end is clean": clean_mark_always,
}


def _nothing(self: object) -> None:
    pass


def cases_until_caught(limit: int) -> int | None:
    """How many cases it takes until the sweep complains."""
    for number in range(limit):
        try:
            run_case(SAMPLE_SEED, number)
        except (BrokenPromiseError, SeawallError, OSError, AssertionError, ValueError, IndexError):
            return number + 1
    return None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    assert cases_until_caught(PLANTED_CASES_MAX) is not None
