"""Verifies a data directory: reads everything in it and reports all damage, without changing a byte.

    with open_for_reading(files, path) as directory:            # `read_only.py`
        verification = Verification(files, directory, expect)
        for finding in verification.run(): ...
        verification.totals

Order: snapshots, the log, then each topic. Each step uses the results of the one before: the snapshots say which part
of the log is needed; snapshot and log together say which batches unsealed segments must hold, and which records are
live. The caller's `expect` computes the last, since this layer does not know what batches mean.

These are not damage: bytes past the end of the log that were never acknowledged, segment ranges that the next open
fills from the log, debris of replacements, files of deleted topics. Those that a person may want to know are notes.
`docs/format.md` lists the bytes that carry no information.

It opens files read-only and creates nothing, not even the lock. It holds the lock, so the content cannot change.
Damage, or an unreadable sector, ends at most the reading of its file.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from seawall import limits
from seawall.core.types import Position, Seq, TopicId
from seawall.errors import CorruptionError
from seawall.io.disk.files import REPLACEMENT_SUFFIX, read_exactly
from seawall.io.interfaces import Files
from seawall.storage.directory import BALLAST_NAME, DIRECTORY_NAMES, DataDirectory
from seawall.storage.findings import Finding, Totals
from seawall.storage.inspect import is_zero
from seawall.storage.preface import DATA_START
from seawall.storage.segments.batch_index import BatchIndex, Entries, load_sidecar
from seawall.storage.segments.delete_sidecar import load_deletes
from seawall.storage.segments.names import (
    SealedName,
    active_name,
    deletes_name,
    index_name,
    sort_names,
    topic_directory_name,
)
from seawall.storage.segments.scan import SegmentDamage, find_damage, scan_segment
from seawall.storage.segments.segment import SealedSegment
from seawall.storage.segments.topic_directory import TopicDirectory, read_segment_preface
from seawall.storage.snapshots import Snapshot, snapshot_name
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.files import PREALLOCATED_NAME, wal_addresses, wal_path
from seawall.storage.wal.reader import RESTORE, Damage, WalBatch, WalRun, read_runs

__all__ = ["ExpectedBatches", "KnownTopic", "Verification"]

_RESTORE: Final = "restore the file from a copy"
_REBUILT: Final = "nothing is lost: it is rebuilt from the segment at the next use of its topic"
_REWRITTEN: Final = "nothing is lost: the log knows what was deleted, and the next checkpoint stores it again"
_AROUND: Final = f"the bytes before and after it are readable; {_RESTORE} to get this back"
_LOG: Final = f"what was only in it is lost; {_RESTORE} before the directory is opened again"
_OLDER: Final = "nothing is lost: the next opening uses the snapshot before it, and more of the log"
_WHOLE_LOG: Final = "nothing is lost: the log reaches back to its beginning, and the next opening reads all of it"
_NO_SNAPSHOT: Final = f"no other snapshot is whole, and the log does not reach back to its beginning; {_RESTORE}"


@dataclass(frozen=True, slots=True)
class ExpectedBatches:
    """The batches that belong in an unsealed segment; those in `waiting` may still be unflushed, in the log alone."""

    entries: Entries
    unflushed: frozenset[int]


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """What snapshot and log say about a topic: its unsealed segments by first seq, and its live ranges of seqs."""

    segments: Mapping[Seq, ExpectedBatches]
    live: tuple[tuple[Seq, Seq], ...]


#: Returns every topic, given the snapshot that an open would use. Raises `CorruptionError` if that fails.
Expect: TypeAlias = Callable[[Snapshot | None], Mapping[TopicId, KnownTopic]]


class Verification:
    """One verification of a whole directory."""

    def __init__(self, files: Files, directory: DataDirectory, expect: Expect) -> None:
        self._files = files
        self._directory = directory
        self._expect = expect
        self.totals = Totals()
        #: Valid snapshots, newest first.
        self._snapshots: list[Snapshot] = []
        #: None if the end of the log is unknown.
        self._topics: Mapping[TopicId, KnownTopic] | None = None

    def run(self) -> Iterator[Finding]:
        """Each damage, as it is found."""
        for finding in self._steps():
            self.totals.damage_count += 1
            yield finding

    def _steps(self) -> Iterator[Finding]:
        self._check_names()
        yield from self._verify_snapshots()
        yield from self._verify_log()
        # A topic that never had records has no directory.
        known = (topic_directory_name(topic_id) for topic_id, topic in (self._topics or {}).items() if topic.live)
        for name in sorted({*self._files.list(self._directory.topics), *known}):
            yield from self._verify_topic(name)

    def _check_names(self) -> None:
        """Note unknown names in the directory, and missing ballast."""
        path = self._directory.path
        names = self._files.list(path)
        for name in names:
            if name not in DIRECTORY_NAMES:
                self._note_name(f"{path}/{name}")
        if BALLAST_NAME not in names or not _size(self._files, f"{path}/{BALLAST_NAME}"):
            self.totals.notes.append(f"{path}/{BALLAST_NAME}: no space is reserved; the next opening does it if it can")

    # --- snapshots -----------------------------------------------------------------------------------------------

    def _verify_snapshots(self) -> Iterator[Finding]:
        damaged: list[tuple[str, int, str]] = []
        for name in reversed(self._files.list(self._directory.meta)):
            path = f"{self._directory.meta}/{name}"
            digits = name.removeprefix("snapshot-").removesuffix(".meta")
            if not digits.isdecimal() or name != snapshot_name(Position(int(digits))):
                self._note_name(path)
                continue
            size = self._count(path)
            try:
                self._snapshots.append(self._read_snapshot(path, size, Position(int(digits))))
            except (CorruptionError, OSError) as error:
                damaged.append((path, size, _trouble(error)))
        without = _WHOLE_LOG if 0 in wal_addresses(self._files, self._directory.wal) else _NO_SNAPSHOT
        for path, size, what in damaged:
            yield Finding(path, 0, size, what, _OLDER if self._snapshots else without)

    def _read_snapshot(self, path: str, size: int, position: Position) -> Snapshot:
        if size > limits.SNAPSHOT_SIZE_MAX:
            raise CorruptionError(f"{path}: {size} bytes, a snapshot has at most {limits.SNAPSHOT_SIZE_MAX}")
        file = self._files.open(path, read_only=True)
        try:
            data = read_exactly(file, size, 0)
        finally:
            file.close()
        snapshot = Snapshot.parse(data, directory_id=self._directory.directory_id, path=path)
        if snapshot.position != position:
            raise CorruptionError(f"{path}: holds the snapshot at position {snapshot.position}")
        return snapshot

    # --- the log -------------------------------------------------------------------------------------------------

    def _verify_log(self) -> Iterator[Finding]:
        """Verify every epoch, including those that the newest snapshot does not need."""
        directory = self._directory.wal
        starts = wal_addresses(self._files, directory)
        for first_at in starts:
            self._count(wal_path(directory, first_at))
        for name in self._files.list(directory):
            if name != PREALLOCATED_NAME and f"{directory}/{name}" not in {wal_path(directory, at) for at in starts}:
                self._note_name(f"{directory}/{name}")
        needed = [snapshot.wal_from_at for snapshot in self._snapshots[: limits.SNAPSHOTS_KEPT]] or [0]
        from_at = min(*needed, starts[0]) if starts else min(needed)
        reached = yield from self._walk_log(WalAddress(from_at), starts)
        if reached is not None and reached < max(needed):
            # The walk took this for the end, but the newest snapshot proves that the log was durable up to its address.
            durable_at = WalAddress(max(needed))
            yield self._log_finding(reached, durable_at, "nothing valid, though a snapshot was taken after it", starts)
            reached = yield from self._walk_log(durable_at, starts)
        if reached is None:
            return
        self._note_tail(reached, starts)
        try:
            self._topics = self._expect(self._snapshots[0] if self._snapshots else None)
        except (CorruptionError, OSError) as error:
            yield Finding(self._directory.path, 0, 0, _trouble(error), "restore the directory from a copy")

    def _walk_log(self, from_at: WalAddress, starts: list[WalAddress]) -> Generator[Finding, None, WalAddress | None]:
        """Read the log from an address; returns its end, or None if that is unknown."""
        reached: WalAddress | None = None
        try:
            for item in read_runs(self._files, self._directory.wal, self._directory.directory_id, from_at):
                if isinstance(item, WalRun):
                    self.totals.logged_batches += len(item.rows)
                elif isinstance(item, WalBatch):
                    self.totals.logged_batches += 1
                elif isinstance(item, Damage):
                    yield self._log_finding(item.from_at, item.to_at, item.reason, starts)
                else:
                    reached = item.at
        except (CorruptionError, OSError) as error:
            path = wal_path(self._directory.wal, starts[-1]) if starts else self._directory.wal
            what = _trouble(error).removesuffix(f"; {RESTORE}")
            yield Finding(path, 0, DATA_START, what, f"the directory cannot be opened; {_RESTORE}")
        return reached

    def _note_tail(self, end_at: WalAddress, starts: list[WalAddress]) -> None:
        """Note bytes past the end of the log: an interrupted write, or damage of the last write."""
        if not starts or end_at < starts[-1]:
            return
        file = self._files.open(wal_path(self._directory.wal, starts[-1]), read_only=True)
        try:
            from_at = DATA_START + end_at - starts[-1]
            if not is_zero(file, from_at, file.size()):
                self.totals.notes.append(
                    f"{file.path}: bytes from {from_at} on are an interrupted write, or damage of the last write; "
                    "they were never confirmed, and the next open clears them"
                )
        finally:
            file.close()

    def _log_finding(self, from_at: WalAddress, to_at: WalAddress, what: str, starts: list[WalAddress]) -> Finding:
        """The finding for a range of addresses, as bytes of the file that holds the first one."""
        index = bisect_right(starts, from_at) - 1
        if index < 0:
            return Finding(self._directory.wal, 0, 0, f"addresses {from_at} to {to_at} are missing: {what}", _LOG)
        start = DATA_START - starts[index]
        return Finding(wal_path(self._directory.wal, starts[index]), start + from_at, start + to_at, what, _LOG)

    # --- topics --------------------------------------------------------------------------------------------------

    def _verify_topic(self, name: str) -> Iterator[Finding]:
        path = f"{self._directory.topics}/{name}"
        topic_id = _topic_id(name)
        if topic_id is None:
            self._note_name(path)
            return
        known = None if self._topics is None else self._topics.get(topic_id)
        home = TopicDirectory(self._files, path, self._directory.directory_id, topic_id)
        listed = self._list_topic(home)
        if self._topics is not None and known is None:
            if listed:
                self.totals.notes.append(f"{path}: files of a topic that was deleted or lost; they were not read")
            return
        names = sort_names(listed)
        for unknown in names.unknown:
            self._note_name(home.path(unknown))
        for sealed in names.sealed:
            yield from self._guarded(home.path(str(sealed)), sealed.first_seq, self._verify_sealed(home, sealed))
        sealed_seqs = {sealed.first_seq for sealed in names.sealed}
        unsealed = (
            {} if known is None else {seq: each for seq, each in known.segments.items() if seq not in sealed_seqs}
        )
        for first_seq in sorted({*names.active, *unsealed} - sealed_seqs):
            active = self._verify_active(home, first_seq, unsealed.get(first_seq), first_seq in names.active)
            yield from self._guarded(home.path(active_name(first_seq)), first_seq, active)
        for first_seq in names.deletes:
            yield from self._verify_deletes(home, first_seq)
        yield from _overlaps(home, names.sealed)
        if known is not None:
            yield from _missing(home, known, names.sealed, unsealed.values())

    def _list_topic(self, home: TopicDirectory) -> list[str]:
        """The names in the directory of a topic; none if there is no directory."""
        if not self._files.exists(home.directory):
            self.totals.notes.append(f"{home.directory}: the directory of a topic with records is missing")
        return home.names()

    def _verify_sealed(self, home: TopicDirectory, name: SealedName) -> Iterator[Finding]:
        path = home.path(index_name(name.first_seq))
        size = 0
        self._count(home.path(str(name)))
        try:
            size = self._count(path)
            load_sidecar(self._files, path, home.preface(name.first_seq))
        except (CorruptionError, FileNotFoundError) as error:
            yield Finding(path, 0, size, str(error), _REBUILT, name.first_seq, name.last_seq)
        except OSError as error:
            # Verify the data without the index, as an open does.
            yield Finding(path, 0, size, _trouble(error), f"remove it; {_REBUILT}", name.first_seq, name.last_seq)
            yield from self._scan(home, home.path(str(name)), name.first_seq)
            return
        segment = SealedSegment(home, name)
        try:
            for damage in segment.verify():
                yield _segment_finding(damage)
            self._count_batches(segment.load_index())
        finally:
            segment.close()

    def _verify_active(
        self, home: TopicDirectory, first_seq: Seq, expected: ExpectedBatches | None, exists: bool
    ) -> Iterator[Finding]:
        path = home.path(active_name(first_seq))
        if not exists:
            if expected is not None and len(expected.unflushed) < len(expected.entries):
                what = "the segment is missing, and not all of its batches are in the log"
                yield Finding(path, 0, 0, what, _RESTORE, first_seq, BatchIndex(expected.entries).last_seq)
            return
        self._count(path)
        if self._topics is None:
            # Without the log the expected batches are unknown.
            yield from self._scan(home, path, first_seq)
        elif expected is None:
            self.totals.notes.append(f"{path}: created and never used; the next open removes it")
        else:
            yield from self._verify_expected(home, path, first_seq, expected)

    def _verify_expected(
        self, home: TopicDirectory, path: str, first_seq: Seq, expected: ExpectedBatches
    ) -> Iterator[Finding]:
        file = self._files.open(path, read_only=True)
        try:
            if read_segment_preface(file, home, first_seq) is None and len(expected.entries):
                what = "the preface is damaged; no record is lost by it"
                yield Finding(path, 0, DATA_START, what, _RESTORE, first_seq, Seq(first_seq - 1))
            flushed = np.ones(len(expected.entries), np.bool_)
            flushed[list(expected.unflushed)] = False
            for damage in find_damage(file, expected.entries[flushed], home.topic_id):
                yield _segment_finding(damage)
        finally:
            file.close()
        self._count_batches(BatchIndex(expected.entries))

    def _scan(self, home: TopicDirectory, path: str, first_seq: Seq) -> Iterator[Finding]:
        """Verify a segment by its bytes alone; zeros in it may belong to unflushed batches."""
        file = self._files.open(path, read_only=True)
        try:
            scan = scan_segment(file, home.topic_id, first_seq)
            for damage in scan.damages:
                if not is_zero(file, damage.from_at, damage.to_at):
                    yield _segment_finding(damage)
        finally:
            file.close()
        self._count_batches(scan.index)

    def _verify_deletes(self, home: TopicDirectory, first_seq: Seq) -> Iterator[Finding]:
        path = home.path(deletes_name(first_seq))
        size = self._count(path)
        try:
            load_deletes(self._files, path, home.preface(first_seq))
        except (CorruptionError, OSError) as error:
            yield Finding(path, 0, size, _trouble(error), _REWRITTEN, first_seq)

    # --- helpers -------------------------------------------------------------------------------------------------

    def _guarded(self, path: str, first_seq: Seq, findings: Iterator[Finding]) -> Iterator[Finding]:
        """The findings of one file, and one more if reading it fails."""
        try:
            yield from findings
        except (CorruptionError, OSError) as error:
            yield Finding(path, 0, _size(self._files, path), _trouble(error), _AROUND, first_seq)

    def _count(self, path: str) -> int:
        size = _size(self._files, path)
        self.totals.file_count += 1
        self.totals.byte_count += size
        return size

    def _count_batches(self, index: BatchIndex) -> None:
        self.totals.batch_count += len(index)
        self.totals.record_count += index.record_count

    def _note_name(self, path: str) -> None:
        if not path.endswith(REPLACEMENT_SUFFIX):
            self.totals.notes.append(f"{path}: not a file of Seawall; it was not read")


def _overlaps(home: TopicDirectory, sealed: tuple[SealedName, ...]) -> Iterator[Finding]:
    """Sealed segments that overlap the one before them."""
    for before, after in pairwise(sealed):
        if after.first_seq <= before.last_seq:
            last_seq = min(before.last_seq, after.last_seq)
            what = f"claims seqs of {before}"
            remedy = "keep the one that is right, and move the other out of the directory"
            yield Finding(home.path(str(after)), 0, 0, what, remedy, after.first_seq, last_seq)


def _missing(
    home: TopicDirectory, known: KnownTopic, sealed: tuple[SealedName, ...], unsealed: Iterable[ExpectedBatches]
) -> Iterator[Finding]:
    """Live seqs that no segment covers."""
    indexes = [BatchIndex(expected.entries) for expected in unsealed if len(expected.entries)]
    covered = sorted(
        [*((each.first_seq, each.last_seq) for each in sealed), *((each.first_seq, each.last_seq) for each in indexes)]
    )
    for first, last in known.live:
        reached = first
        for covered_first, covered_last in (*covered, (Seq(last + 1), last)):
            uncovered_last = Seq(min(covered_first - 1, last))
            if reached <= uncovered_last:
                what = "no segment holds these records"
                remedy = "restore the segment from a copy"
                yield Finding(home.directory, 0, 0, what, remedy, reached, uncovered_last)
            reached = max(reached, Seq(covered_last + 1))


def _segment_finding(damage: SegmentDamage) -> Finding:
    loses_nothing = damage.last_seq is not None and damage.last_seq < damage.first_seq
    what = "damaged; no record is lost by it" if loses_nothing else "damaged"
    return Finding(damage.path, damage.from_at, damage.to_at, what, _AROUND, damage.first_seq, damage.last_seq)


def _topic_id(name: str) -> TopicId | None:
    """The topic whose directory has this name, or None."""
    try:
        topic_id = TopicId(int(name, 16))
    except ValueError:
        return None
    return topic_id if topic_directory_name(topic_id) == name else None


def _size(files: Files, path: str) -> int:
    file = files.open(path, read_only=True)
    try:
        return file.size()
    finally:
        file.close()


def _trouble(error: CorruptionError | OSError) -> str:
    """The text of an error about stored bytes; raises any other error again."""
    if isinstance(error, OSError) and error.errno not in (errno.EIO, errno.ENOENT):
        raise error
    return str(error)
