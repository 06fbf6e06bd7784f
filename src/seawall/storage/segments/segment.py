"""Segments: the stored batches of one topic, back to back from byte 4,096 of a file, in seq order.

A batch has its *place* (segment, file position) from the moment it is appended: the running end of the active segment.
Bytes get there later, in any order and more than once: large batches are written at once, small ones copied out of the
write-ahead log, and replay repeats either. Each fills the same place with the same bytes.

States, told apart by name (`segment_names.py`)
    active    preallocated ahead of its end, zeros behind; the log vouches for what is missing
    sealed    cut at the end of its last batch, synced, and never changed again

Sealing: cut, sync the data, store the index, rename, sync the directory. A crash before the rename leaves an active
segment, with or without an index that nobody reads; sealing again does the same to it. A crash after it leaves a sealed
one. Nothing in between can be seen, because the name is the state.

Invariants
- A file position is handed out once, and only after its disk space was reserved, so that a full disk is found before
  anything is promised.
- INV-SEALED-WHOLE: a segment is sealed only when its index covers all of its batches, and after every earlier segment
  of its topic.
- INV-READ-VERIFIED: what is read from a segment is delivered as whole batches whose checksums were verified. What is
  not as its index entry says is left out (`segment_scan.py`).

One owner at a time for each object: nothing here takes a lock. What is read without the owner's lock is read from a
file that was pinned under it (`shared_file.py`). This module must not know the write-ahead log.
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
    """A segment that is written. Made by `create`, or by recovery with the index of what is in it."""

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
        #: The file, to be pinned by whoever reads it later, or fills places without waiting.
        self.shared: Final = SharedFile(file, home.open_files, read_only=read_only, is_synced=is_synced)
        self._reserved = file.size()
        self._sealed: SealedSegment | None = None
        #: Whether its file may have another name than the one it was opened by, and is pinned therefore.
        self._is_renamed = False
        self._end = index.end
        #: The batches placed so far; whoever places one adds its entry.
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
        """Make the file, durably, with space reserved: so much, or near the end of the disk, some.

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
            # The failure on its way out matters more; recovery removes a segment that was never finished.
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
        """Seq the segment starts at."""
        return Seq(self._preface.first)

    @property
    def end(self) -> int:
        """File position the next batch gets."""
        return self._end

    @property
    def reserved(self) -> int:
        """File position up to which space is reserved."""
        return self._reserved

    @property
    def size(self) -> int:
        """Bytes of all batches placed so far."""
        return self._end - DATA_START

    def place(self, length: int) -> int:
        """Hand out the next `length` bytes; returns their file position.

        `DiskFullError` if the disk has no room for them: then nothing was handed out.
        """
        if length < limits.BATCH_HEADER_SIZE:
            raise InvalidInputError(f"{self.path}: no place of {length} bytes; a batch has {limits.BATCH_HEADER_SIZE}")
        self.reserve(length)
        at = self._end
        self._end += length
        return at

    def reserve(self, length: int) -> None:
        """Make sure that `length` more bytes can be placed; `DiskFullError` if the disk has no room for them."""
        if self._end + length > self._reserved:
            self._grow(self._end + length)

    def write_at(self, at: int, buffers: Sequence[ReadableBuffer]) -> None:
        """Fill a place with a batch that is in memory; durable after `sync`."""
        self._require_place(at, sum(memoryview(buffer).nbytes for buffer in buffers))
        with self.shared.writing() as file:
            write_all(file, buffers, at)

    def copy_from(self, source: File, source_at: int, at: int, length: int) -> None:
        """Fill a place, or several in a row, with bytes of another file, inside the kernel; durable after `sync`."""
        self._require_place(at, length)
        done = 0
        with self.shared.writing() as file:
            while done < length:
                copied = self._home.files.copy_range(source, source_at + done, file, at + done, length - done)
                if not copied:
                    raise CorruptionError(
                        f"{source.path}: ends {length - done} bytes before the end of what is to be copied to "
                        f"{self.path}"
                    )
                done += copied

    def sync(self) -> None:
        """Make everything filled so far durable; `SyncError` is fatal."""
        self.shared.sync()

    def read(self, first_entry: int, last_entry: int) -> memoryview:
        """Batches `first_entry` up to, not including, `last_entry`, verified; their places must have been filled."""
        with self.shared.reading() as file:
            return read_batches(file, self.index.slice(first_entry, last_entry), self._home.topic_id)

    def seal(self) -> SealedSegment:
        """Make it a sealed segment. Every place must have been filled. After an error it may be called again."""
        self.finish()
        return self.finished()

    def finish(self) -> None:
        """What `seal` does to the files; reads go on. `finished` follows."""
        check(self.index.end == self._end, "INV-SEALED-WHOLE", f"index ends at {self.index.end}, places at {self._end}")
        index, home = self.index, self._home
        name = SealedName.covering(self.first_seq, index.last_seq, index.first_timestamp_ns, index.last_timestamp_ns)
        if home.files.exists(home.path(str(name))):
            # Renaming would replace it, and whoever made it meant it to last.
            raise ConflictError(f"{self.path}: cannot be sealed, there is a {name} already; move one of them away")
        if not self._is_renamed:
            # It keeps its descriptor from here on: its old path leads nowhere soon.
            self.shared.pin_to_write()
            self._is_renamed = True
        if self._reserved != self._end:
            self.shared.file.truncate(self._end)
            self._reserved = self._end
        self.shared.sync()
        write_sidecar(home.files, home.path(index_name(self.first_seq)), index, self._preface)
        if not home.files.exists(self.path):
            self._name_again()
        home.files.rename(self.path, home.path(str(name)))
        home.files.sync_directory(home.directory)
        self._sealed = SealedSegment(home, name)

    def finished(self) -> SealedSegment:
        """The sealed segment that `finish` has made, in place of this one."""
        assert self._sealed is not None, "finish comes first"
        self.close()
        return self._sealed

    def close(self) -> None:
        """Give the file back; syncs nothing. Twice is fine."""
        if self._is_renamed:
            self._is_renamed = False
            self.shared.unpin()
        self.shared.close()

    def _name_again(self) -> None:
        """Somebody has removed the name of the file: all of it is still there behind the handle, and is copied."""
        copy = self._home.files.open(self.path, exclusive=True)
        try:
            done = 0
            while copied := self._home.files.copy_range(self.shared.file, done, copy, done, self._end - done):
                done += copied
            copy.sync()
        finally:
            copy.close()

    def _grow(self, needed: int) -> None:
        """Reserve ahead; near the end of the disk, only what is needed."""
        with self.shared.writing() as file:
            self._reserved = _reserve_about(file, reserve_target(self._reserved, needed), needed)

    def _require_place(self, at: int, length: int) -> None:
        if at < DATA_START or at + length > self._end:
            raise InvalidInputError(
                f"{self.path}: bytes {at} to {at + length} were never placed; places end at {self._end}"
            )


class SealedSegment:
    """A segment that never changes again. File and index are opened when they are first needed."""

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

    @property
    def index(self) -> BatchIndex:
        """The stored index, or one made from the data if that is missing or damaged.

        It has no entries if the file is gone too, or is another segment: readers are told a gap as long as its name.

        It is read when it is not in the cache of the process (`index_cache.py`).
        """
        index = INDEXES.get(self)
        if index is None:
            index = self._load_index()
            INDEXES.put(self, index)
        return index

    @property
    def index_size(self) -> int:
        """Bytes of memory that its index takes now; 0 if it is not in the cache."""
        index = INDEXES.peek(self)
        return 0 if index is None else index.memory_size

    @property
    def ends(self) -> IndexEnds:
        """What a search over many segments needs of the index; kept when the index is not."""
        if self._ends is None:
            self._ends = IndexEnds.of(self.index)
        return self._ends

    def read(self, first_entry: int, last_entry: int) -> memoryview:
        """Batches `first_entry` up to, not including, `last_entry`, by one read, verified.

        Damage raises `SegmentDamageError`, which says from which seq on reading can continue.
        """
        with self.shared.reading() as file:
            return read_batches(file, self.index.slice(first_entry, last_entry), self._home.topic_id)

    @property
    def shared(self) -> SharedFile:
        """The file, checked when it is first opened, to be pinned by whoever reads it later."""
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
        """What is known to be damaged without reading the batches: preface, stretches without a batch, a lost end."""
        entries = self.index.entries
        with self.shared.reading() as file:
            inside = entries["at"] + entries["length"] <= file.size()
        return self._damages(entries[np.count_nonzero(inside) :])

    def verify(self) -> list[SegmentDamage]:
        """Everything that is damaged, found by reading all of it."""
        return self._damages(self.index.entries)

    def repair_index(self) -> bool:
        """Store the index if it had to be made again; whether that was so."""
        # One that says it is another segment must not get an index of this one.
        with self.shared.reading():
            index = self.index
        rebuilt, self._rebuilt = self._rebuilt, False
        if rebuilt:
            preface = self._preface or self._home.preface(self.name.first_seq)
            write_sidecar(self._home.files, self._home.path(index_name(self.name.first_seq)), index, preface)
        return rebuilt

    def close(self) -> None:
        """Give file and index back; the next use opens them again."""
        if self._shared is not None:
            self._shared.close()
        self._shared = None
        INDEXES.discard(self)
        self._ends = None
        self._checked = False

    def _read_preface(self, file: File) -> Preface | None:
        """The preface of the file; None if it is damaged or the disk does not give it back, which costs no record."""
        try:
            return read_segment_preface(file, self._home, self.name.first_seq)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None

    def _load_index(self) -> BatchIndex:
        try:
            return self._stored_index()
        except (FileNotFoundError, CorruptionError):
            pass
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        try:
            with self.shared.reading() as file:
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
        with self.shared.reading() as file:
            found = [*self._unindexed(file.size()), *find_damage(file, entries, self._home.topic_id)]
        if self._preface is None:
            # No record is lost by it, which a last seq before the first one says.
            found.append(SegmentDamage(self.path, 0, DATA_START, self.name.first_seq, Seq(self.name.first_seq - 1)))
        return sorted(found, key=lambda damage: damage.from_at)

    def _unindexed(self, size: int) -> list[SegmentDamage]:
        """Stretches before, between and behind the entries that belong to none of them."""
        index, name = self.index, self.name
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
    """Reserve as much as is wanted or, where the disk has not that much, as is needed; how much is reserved then."""
    try:
        return _reserve(file, wanted)
    except DiskFullError:
        return _reserve(file, needed)


def _reserve(file: File, length: int) -> int:
    """Reserve the first `length` bytes, whole pages; returns how many are reserved then."""
    pages = -(-length // limits.PAGE_SIZE) * limits.PAGE_SIZE
    try:
        file.allocate(pages)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise DiskFullError(f"{file.path}: no room to reserve {pages} bytes; free some space on its disk") from error
    return pages
