"""Segments: files with the stored batches of one topic, contiguous from byte 4,096, in seq order.

A batch gets its *segment position* (segment, file position) when it is appended: the end of the active segment. Its
bytes are written later, in any order and maybe more than once: large batches are written directly, small ones are
flushed from the write-ahead log, and replay repeats either. Every write puts the same bytes at the same position.

States, distinguished by the file name (`segments/names.py`)
    active    preallocated past its end, with zeros there; the log holds what is not flushed yet
    sealed    truncated after its last batch, synced, and never changed again

Sealing: truncate, sync the data, store the index, rename, sync the directory. A crash before the rename leaves an
active segment, with or without an index, which is not used; sealing it again repeats the steps. A crash after the
rename leaves a sealed one. There is no visible state in between, because the name is the state.

Invariants
- A file position is assigned once, and only after its disk space was reserved, so that a full disk is found before
  anything is acknowledged.
- INV-SEALED-WHOLE: a segment is sealed only when its index covers all of its batches, and after every earlier segment
  of its topic.
- INV-READ-VERIFIED: what is read from a segment is delivered as whole batches whose checksums were verified. Bytes that
  do not match their index entry are not delivered (`segments/scan.py`).

Objects here are not thread-safe. A reader without the owner's lock reads from a file that it pinned under that lock
(`shared_file.py`). This module must not know the write-ahead log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.checks import check
from seawall.core.types import Seq, TimestampNs
from seawall.errors import ConflictError, CorruptionError, DiskFullError, InvalidInputError
from seawall.io.disk.files import NO_SPACE, write_all
from seawall.io.disk.unreadable import UNREADABLE
from seawall.io.interfaces import File, ReadableBuffer
from seawall.storage.preface import DATA_START, Preface
from seawall.storage.segments.batch_index import BatchIndex, Entries, IndexEnds, load_sidecar, write_sidecar
from seawall.storage.segments.index_cache import INDEXES
from seawall.storage.segments.limits import reserve_target
from seawall.storage.segments.names import SealedName, active_name, index_name
from seawall.storage.segments.scan import SegmentDamage, damage_between, find_damage, read_batches, scan_segment
from seawall.storage.segments.topic_directory import TopicDirectory, read_segment_preface
from seawall.storage.shared_file import SharedFile

__all__ = [
    "SealedSegment",
    "SegmentWriter",
]


class SegmentWriter:
    """The writer of an active segment. Made by `create`, or by recovery with the index of its batches."""

    def __init__(
        self,
        home: TopicDirectory,
        preface: Preface,
        file: File,
        index: BatchIndex,
        *,
        read_only: bool = False,
        is_synced: bool = False,
    ) -> None:
        self._home = home
        self._preface = preface
        #: The file; pin it to read it later, or to write batches asynchronously.
        self.shared: Final = SharedFile(file, home.open_files, read_only=read_only, is_synced=is_synced)
        self._reserved = file.size()
        self._sealed: SealedSegment | None = None
        #: True if the file may have another name than the one it was opened with, and is pinned therefore.
        self._is_renamed = False
        self._end = index.end
        #: The batches that have a position; the caller of `place` adds the entry.
        self.index = index

    @classmethod
    def create(
        cls,
        home: TopicDirectory,
        first_seq: Seq,
        created_ns: TimestampNs,
        *,
        reserve: int = limits.SEGMENT_RESERVE_SIZE_MIN,
    ) -> SegmentWriter:
        """Create the file durably, with `reserve` bytes preallocated, or the minimum if the disk is nearly full.

        After an error there is no file.
        """
        path = home.path(active_name(first_seq))
        preface = home.preface(first_seq, created_ns)
        try:
            file = home.open_segment(active_name(first_seq), exclusive=True)
        except FileNotFoundError:
            home.make_directory()
            file = home.open_segment(active_name(first_seq), exclusive=True)
        try:
            _reserve_about(file, reserve, limits.SEGMENT_RESERVE_SIZE_MIN)
            write_all(file, [preface.encode()], 0)
            file.sync()
            home.files.sync_directory(home.directory)
        except (OSError, DiskFullError):
            file.close()
            # The error being raised matters more; recovery removes an incomplete segment.
            with contextlib.suppress(OSError):
                home.files.unlink(path)
            raise
        return cls(home, preface, file, BatchIndex(), is_synced=True)

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.shared.path

    @property
    def first_seq(self) -> Seq:
        """First seq of the segment."""
        return Seq(self._preface.first)

    @property
    def end(self) -> int:
        """File position of the next batch."""
        return self._end

    @property
    def reserved(self) -> int:
        """File position up to which space is reserved."""
        return self._reserved

    @property
    def size(self) -> int:
        """Bytes of all batches that have a position."""
        return self._end - DATA_START

    def allocate(self, length: int) -> int:
        """Assign the next `length` bytes to a batch; returns their file position.

        `DiskFullError` if the disk has no space for them: then nothing was assigned.
        """
        if length < limits.BATCH_HEADER_SIZE:
            raise InvalidInputError(
                f"{self.path}: a batch of {length} bytes; it has at least {limits.BATCH_HEADER_SIZE}"
            )
        self.reserve(length)
        at = self._end
        self._end += length
        return at

    def reserve(self, length: int) -> None:
        """Reserve disk space for `length` more bytes; `DiskFullError` if the disk has none."""
        if self._end + length > self._reserved:
            self._grow(self._end + length)

    def write_at(self, at: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Write a batch from memory to its position; durable after `sync`."""
        self._require_assigned(at, sum(memoryview(buffer).nbytes for buffer in buffers))
        with self.shared.writing() as file:
            write_all(file, buffers, at)

    def copy_from(self, source: File, source_at: int, at: int, length: int) -> None:
        """Copy contiguous batches from another file, inside the kernel, to their position; durable after `sync`."""
        self._require_assigned(at, length)
        done = 0
        with self.shared.writing() as file:
            while done < length:
                copied = self._home.files.copy_range(source, source_at + done, file, at + done, length - done)
                if not copied:
                    raise CorruptionError(
                        f"{source.path}: ends {length - done} bytes before the end of the range to copy to {self.path}"
                    )
                done += copied

    def sync(self) -> None:
        """Make everything written so far durable; `SyncError` is fatal."""
        self.shared.sync()

    def read(self, first_entry: int, last_entry: int) -> memoryview:
        """Batches `first_entry` up to, not including, `last_entry`, verified; they must have been written."""
        with self.shared.reading() as file:
            return read_batches(file, self.index.slice(first_entry, last_entry), self._home.topic_id)

    def seal(self) -> SealedSegment:
        """Seal the segment. All its batches must have been written. After an error it may be called again."""
        self.finish()
        return self.finished()

    def finish(self) -> None:
        """The file operations of `seal`; reads continue meanwhile. Call `finished` afterwards."""
        check(self.index.end == self._end, "INV-SEALED-WHOLE", f"index ends at {self.index.end}, data at {self._end}")
        index, home = self.index, self._home
        name = SealedName.covering(self.first_seq, index.last_seq, index.first_timestamp_ns, index.last_timestamp_ns)
        if home.files.exists(home.path(str(name))):
            # A rename would replace that file, and a sealed segment must never be overwritten.
            raise ConflictError(f"{self.path}: cannot be sealed, there is a {name} already; move one of them away")
        if not self._is_renamed:
            # Keep the descriptor from here on: the old path will not exist after the rename.
            self.shared.pin_to_write()
            self._is_renamed = True
        if self._reserved != self._end:
            self.shared.file.truncate(self._end)
            self._reserved = self._end
        self.shared.sync()
        write_sidecar(home.files, home.path(index_name(self.first_seq)), index, self._preface)
        if not home.files.exists(self.path):
            self._restore_name()
        home.files.rename(self.path, home.path(str(name)))
        home.files.sync_directory(home.directory)
        self._sealed = SealedSegment(home, name)

    def finished(self) -> SealedSegment:
        """Close this writer and return the sealed segment that `finish` has made."""
        assert self._sealed is not None, "finish comes first"
        self.close()
        return self._sealed

    def close(self) -> None:
        """Close the file; syncs nothing. Closing twice is fine."""
        if self._is_renamed:
            self._is_renamed = False
            self.shared.unpin()
        self.shared.close()

    def _restore_name(self) -> None:
        """Copy the file to its old path, from which another process has removed it; the open handle still has it."""
        copy = self._home.files.open(self.path, exclusive=True)
        try:
            done = 0
            while copied := self._home.files.copy_range(self.shared.file, done, copy, done, self._end - done):
                done += copied
            copy.sync()
        finally:
            copy.close()

    def _grow(self, needed: int) -> None:
        """Preallocate more; only what is needed if the disk is nearly full."""
        with self.shared.writing() as file:
            self._reserved = _reserve_about(file, reserve_target(self._reserved, needed), needed)

    def _require_assigned(self, at: int, length: int) -> None:
        if at < DATA_START or at + length > self._end:
            raise InvalidInputError(
                f"{self.path}: bytes {at} to {at + length} were never assigned; batches end at {self._end}"
            )


class SealedSegment:
    """A segment that never changes again. It opens file and index on first use."""

    def __init__(self, home: TopicDirectory, name: SealedName) -> None:
        self._home = home
        self._shared: SharedFile | None = None
        self._ends: IndexEnds | None = None
        self._preface: Preface | None = None
        self._checked = False
        self._rebuilt = False
        self.name = name
        #: Path of the file.
        self.path: Final = home.path(str(name))

    def load_index(self) -> BatchIndex:
        """The stored index, or one rebuilt from the data if that is missing or damaged.

        It has no entries if the data file is missing too, or is another segment: readers then get a gap with all the
        seqs in its name.

        It is loaded if it is not in the cache of the process (`index_cache.py`).
        """
        index = INDEXES.get(self)
        if index is None:
            index = self._read_index()
            INDEXES.put(self, index)
        return index

    @property
    def index_size(self) -> int:
        """Bytes of memory of its index; 0 if it is not in the cache."""
        index = INDEXES.peek(self)
        return 0 if index is None else index.memory_size

    def load_ends(self) -> IndexEnds:
        """The part of the index that a search over many segments needs; kept when the cache drops the index."""
        if self._ends is None:
            self._ends = IndexEnds.of(self.load_index())
        return self._ends

    def read(self, first_entry: int, last_entry: int) -> memoryview:
        """Batches `first_entry` up to, not including, `last_entry`, with one read, verified.

        Damage raises `SegmentDamageError`, which tells the seq where reading can continue.
        """
        with self.open_file().reading() as file:
            return read_batches(file, self.load_index().slice(first_entry, last_entry), self._home.topic_id)

    def open_file(self) -> SharedFile:
        """The file, checked when it is first opened; pin it to read it later."""
        if self._shared is None:
            file = self._home.open_segment(str(self.name), read_only=True)
            try:
                if not self._checked:
                    self._preface = self._read_preface(file)
            except BaseException:
                file.close()
                raise
            self._checked = True
            self._shared = SharedFile(file, self._home.open_files, read_only=True)
        return self._shared

    def damages(self) -> list[SegmentDamage]:
        """The damage that is known without reading the batches: preface, ranges without a batch, a missing end."""
        entries = self.load_index().entries
        with self.open_file().reading() as file:
            inside = entries["at"] + entries["length"] <= file.size()
        return self._damages(entries[np.count_nonzero(inside) :])

    def verify(self) -> list[SegmentDamage]:
        """All damage, found by reading the whole file."""
        return self._damages(self.load_index().entries)

    def repair_index(self) -> bool:
        """Store the index if it had to be rebuilt; true if it did."""
        # Opening the file checks its preface: a file that is another segment must not get the index of this one.
        with self.open_file().reading():
            index = self.load_index()
        rebuilt, self._rebuilt = self._rebuilt, False
        if rebuilt:
            preface = self._preface or self._home.preface(self.name.first_seq)
            write_sidecar(self._home.files, self._home.path(index_name(self.name.first_seq)), index, preface)
        return rebuilt

    def close(self) -> None:
        """Close the file and drop the index; the next use opens them again."""
        if self._shared is not None:
            self._shared.close()
        self._shared = None
        INDEXES.discard(self)
        self._ends = None
        self._checked = False

    def _read_preface(self, file: File) -> Preface | None:
        """The preface of the file; None if it is damaged or unreadable, which loses no record."""
        try:
            return read_segment_preface(file, self._home, self.name.first_seq)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None

    def _read_index(self) -> BatchIndex:
        try:
            return self._stored_index()
        except (FileNotFoundError, CorruptionError):
            pass
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        try:
            with self.open_file().reading() as file:
                self._rebuilt = True
                return scan_segment(file, self._home.topic_id, self.name.first_seq).index
        except (FileNotFoundError, CorruptionError):
            return BatchIndex()

    def _stored_index(self) -> BatchIndex:
        home, first_seq = self._home, self.name.first_seq
        path = home.path(index_name(first_seq))
        index = load_sidecar(home.files, path, home.preface(first_seq))
        if len(index) and (index.first_seq < first_seq or index.last_seq > self.name.last_seq):
            raise CorruptionError(f"{path}: seqs {index.first_seq} to {index.last_seq} are not those of {self.path}")
        return index

    def _damages(self, entries: Entries) -> list[SegmentDamage]:
        """Damage of the preface, between batches, and of the given entries."""
        with self.open_file().reading() as file:
            found = [*self._unindexed(file.size()), *find_damage(file, entries, self._home.topic_id)]
        if self._preface is None:
            # It loses no record; a last seq before the first one expresses that.
            found.append(SegmentDamage(self.path, 0, DATA_START, self.name.first_seq, Seq(self.name.first_seq - 1)))
        return sorted(found, key=lambda damage: damage.from_at)

    def _unindexed(self, size: int) -> list[SegmentDamage]:
        """Ranges before, between and after the entries that belong to none of them."""
        index, name = self.load_index(), self.name
        if not len(index):
            return [SegmentDamage(self.path, DATA_START, size, name.first_seq, name.last_seq)]
        entries = index.entries
        found: list[SegmentDamage] = []
        if int(entries["at"][0]) > DATA_START:
            last_seq = Seq(index.first_seq - 1)
            found.append(SegmentDamage(self.path, DATA_START, int(entries["at"][0]), name.first_seq, last_seq))
        gaps = np.flatnonzero(entries["at"][1:] != (entries["at"] + entries["length"])[:-1]) + 1
        found.extend(damage_between(self.path, entries, int(gap)) for gap in gaps)
        if index.end < size or index.last_seq < name.last_seq:
            end = max(size, index.end)
            found.append(SegmentDamage(self.path, index.end, end, Seq(index.last_seq + 1), name.last_seq))
        return found


def _reserve_about(file: File, wanted: int, needed: int) -> int:
    """Reserve `wanted` bytes or, if the disk has less, `needed`; returns how many are reserved."""
    try:
        return _reserve(file, wanted)
    except DiskFullError:
        return _reserve(file, needed)


def _reserve(file: File, length: int) -> int:
    """Reserve the first `length` bytes in whole pages; returns how many are reserved."""
    pages = -(-length // limits.PAGE_SIZE) * limits.PAGE_SIZE
    try:
        file.allocate(pages)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise DiskFullError(f"{file.path}: no space to reserve {pages} bytes; free some space on its disk") from error
    return pages
