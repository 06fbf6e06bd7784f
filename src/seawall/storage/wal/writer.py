"""Writes the write-ahead log: epochs, one after another, into preallocated files.

    append_epoch … append_epoch, sync     appended epochs are durable once `sync` has returned, and not before
    begin_epoch, finish_epoch             the same in two steps, for callers that execute the write themselves
    prepare                               when idle: preallocate the next file
    locate, drop_before                   for reading batches back, and for the checkpoint
    close                                 mark the log as closed cleanly

An *address* counts the bytes of epochs from the very first one; `wal/files.py` maps it to a file. An epoch never spans
two files: one that does not fit the rest of a file begins the next, at the same address. Each file reserves its last
128 bytes for two marks: a clean close, so that closing needs no space, and the continuation in the next file. Files
grow with the log up to their full size, so that a log with little in it takes little space.

Invariants
- INV-WAL-SYNCED: what the log calls durable has been synced. Neither an epoch's synced_through nor what `sync` returns
  covers a byte whose sync has not returned.
- INV-WAL-CONTINUED: each file of the log records that the next one exists, so a lost file is noticed. A new file gets
  its name after all earlier bytes, its space and its preface are durable. It takes an epoch only after its name is
  durable and the file before it says, durably, that the log continues there.
- INV-WAL-ORDER: epoch numbers rise by one, and positions and addresses of the log never go back.
- INV-WAL-ZERO-TAIL: zeros follow the last epoch of the log, so a torn write is never found later. `repair_tail` ensures
  that before a writer starts.
- The file with the last epoch is never dropped, so its number and position can always be read back.
- After a failed write or sync nothing more is ever written: the content of the disk is unknown.

Preallocating a file finds a full disk before anything is acknowledged: `DiskFullError`, and the writer continues with
epochs that fit its current file.

What a crash does: epochs since the last sync may survive, be lost, or survive in part (`wal/reader.py` finds out); a
preallocated file may be left over, which the next preallocation removes; dropped files may reappear, below every
address that is still read.

Not thread-safe. Batches arrive in their final form, already stamped; this module must not know what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

import numpy as np

from seawall.core.checks import check
from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.errors import FatalError, InvalidInputError, InvariantError, LimitError, WrongStateError
from seawall.io.interfaces import File, Files, ReadableBuffer
from seawall.kernels.log.epochs import LOG_NUMBERS
from seawall.limits import (
    BATCH_HEADER_SIZE,
    WAL_FILE_GROWTH,
    WAL_FILE_SIZE,
    WAL_FILE_SIZE_MAX,
    WAL_FILE_SIZE_MIN,
    WAL_FIRST_FILE_SIZE,
)
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.wal.epoch_write import EpochReceipt, EpochWrite
from seawall.storage.wal.epochs import (
    EPOCH_HEADER_SIZE,
    FLAG_CLEAN,
    FLAG_CONTINUED,
    MARKS_SIZE,
    WalAddress,
    encode_epoch_header,
)
from seawall.storage.wal.files import WalEnd, WalFile, activate_file, open_wal_file, preallocate_file
from seawall.storage.wal.handles import WalHandles

#: Indexes of the fields of `LOG_NUMBERS`; `_pack_end` sets the first five in one call.
_AT, _EPOCH, _POSITION, _TIMESTAMP, _SYNCED_THROUGH, _LIMIT_AT, _FILE_OFFSET, _SALT, _NEXT_AT, _NEXT_EPOCH = range(10)
_pack_end: Final = Struct("=5q").pack_into


class WalWriter:
    """The only writer of a log. `start` is its repaired end, as `repair_tail` returns it."""

    def __init__(
        self,
        files: Files,
        directory: str,
        directory_id: bytes,
        *,
        start: WalEnd,
        file_size: int = WAL_FILE_SIZE,
        salt: Callable[[], int],
    ) -> None:
        if not WAL_FILE_SIZE_MIN <= file_size <= WAL_FILE_SIZE_MAX:
            raise LimitError(f"a WAL file of {file_size} bytes; choose {WAL_FILE_SIZE_MIN} to {WAL_FILE_SIZE_MAX}")
        check(start.synced_through == start.at, "INV-WAL-ZERO-TAIL", f"the end was not repaired: {start}")
        self._files = files
        self._directory = directory
        self._directory_id = directory_id
        self._file_size = file_size
        self._salt = salt
        #: The end of the log as `LOG_NUMBERS`; kernels that commit read and change it too.
        self.numbers = np.zeros(1, LOG_NUMBERS)
        self._numbers = self.numbers.view(np.int64).data
        self._set_end(start.at, start.epoch, start.position, start.timestamp_ns, start.synced_through)
        self._numbers[_LIMIT_AT] = -1
        self._is_clean = start.clean
        self._is_poisoned = False
        self._is_closed = False
        self._preallocated: File | None = None
        self._current: WalFile | None = None
        self._numbers[_NEXT_AT], self._numbers[_NEXT_EPOCH] = start.at, start.epoch + 1
        #: How many epochs `begin_encoded` has begun, and `finish_encoded` has finished.
        self._begun = self._finished = 0
        self._encoded: list[EpochWrite] = []
        #: True if the last of them becomes durable by its own write.
        self._is_last_durable = False
        self._handles = WalHandles(files, directory)
        if starts := self._handles.starts:
            check(starts[-1] <= start.at, "INV-WAL-ORDER", f"a file begins after the end of the log, {start.at}")
            self._use(open_wal_file(files, directory, starts[-1], directory_id, read_only=False))

    @property
    def at(self) -> WalAddress:
        """Address of the next epoch."""
        return WalAddress(self._numbers[_AT])

    @property
    def synced_through(self) -> WalAddress:
        """Address below which everything is durable."""
        return WalAddress(self._numbers[_SYNCED_THROUGH])

    @property
    def _timestamp_ns(self) -> TimestampNs:
        return TimestampNs(self._numbers[_TIMESTAMP])

    @property
    def first_at(self) -> WalAddress:
        """The oldest address that is still stored."""
        return self._handles.starts[0] if self._handles.starts else self.at

    @property
    def next_position(self) -> Position:
        """The lowest position that the next epoch may begin with."""
        return Position(self._numbers[_POSITION])

    def append_epoch(
        self,
        batches: Sequence[ReadableBuffer],
        first_position: Position,
        batch_count: int,
        timestamp_ns: TimestampNs,
        *,
        durable: bool = False,
    ) -> EpochReceipt:
        """Write one epoch of stamped batches with dense positions; buffers need not end at batch boundaries.

        With `durable` it is on the disk when this returns, and everything before it too. `LimitError` if it is larger
        than a file can hold, `DiskFullError` if it needs a new file and there is no space; both change nothing.
        """
        length = sum(memoryview(buffer).nbytes for buffer in batches)
        write = self.begin_epoch(batches, length, first_position, batch_count, timestamp_ns)
        write.execute(durable=durable)
        self.finish_epoch(write, durable=durable)
        return EpochReceipt(LaneEpoch(write.epoch), write.at, self.at)

    def begin_epoch(
        self,
        batches: Sequence[ReadableBuffer],
        length: int,
        first_position: Position,
        batch_count: int,
        timestamp_ns: TimestampNs,
        unpositioned_count: int = 0,
    ) -> EpochWrite:
        """Start an epoch of `length` bytes of batches, `unpositioned_count` of which take no position.

        Until `finish_epoch` the writer refuses everything else; without it, forever. Same errors as `append_epoch`.
        """
        self._require_usable()
        if first_position < self.next_position or not 1 <= batch_count <= length // BATCH_HEADER_SIZE:
            detail = (
                f"{batch_count} batches in {length} bytes from position {first_position}, due is {self.next_position}"
            )
            raise InvariantError("INV-WAL-ORDER", detail)
        current = self._file_for(length, timestamp_ns)
        return self._begin_epoch(
            current, batches, length, first_position, batch_count, 0, timestamp_ns, unpositioned_count
        )

    def begin_encoded(
        self, buffer: memoryview, next_position: Position, timestamp_ns: TimestampNs, *, durable: bool
    ) -> EpochWrite:
        """Like `begin_epoch`, for an epoch that the caller has encoded from `numbers`, header included, and that fits.

        One more such epoch may begin before this one is finished; they are written and finished in order. The result is
        valid until the next but one begins: most epochs are of this kind, so two objects are reused for all of them.
        """
        if self._is_closed or (self._is_poisoned and self._begun != self._finished + 1):
            self._require_usable()
        self._is_poisoned = True
        self._begun += 1
        numbers = self._numbers
        write, at = self._encoded[self._begun & 1], WalAddress(numbers[_NEXT_AT])
        write.buffers = [buffer]
        write.size = len(buffer)
        write.file_at = at + numbers[_FILE_OFFSET]
        # An epoch in flight before this one counts as synced if its own write makes it durable: nothing is acknowledged
        # before both are done.
        write.follows_synced = self.synced_through == at or (
            self._is_last_durable and self._begun != self._finished + 1
        )
        self._is_last_durable = durable and write.follows_synced
        write.at = at
        write.epoch = numbers[_NEXT_EPOCH]
        write.next_position = next_position
        write.timestamp_ns = timestamp_ns
        numbers[_NEXT_AT] = write.end_at
        numbers[_NEXT_EPOCH] += 1
        return write

    def finish_encoded(self, write: EpochWrite, *, durable: bool) -> None:
        """Like `finish_epoch`, for an epoch of `begin_encoded`."""
        self._advance(write, durable=durable)
        self._finished += 1
        if self._begun != self._finished:
            next_write = self._encoded[self._begun & 1]
            next_write.follows_synced = self.synced_through == next_write.at
        else:
            self._is_poisoned = False

    def lend(self) -> File:
        """Let a kernel append epochs to the current file, and not past its end, until `take_back`; it uses `numbers`.

        If a write of the kernel fails, the caller does not call `take_back`, and the writer stays unusable.
        """
        self._require_usable()
        assert self._current is not None, "a reservation creates the file"
        self._is_poisoned = True
        self._is_clean = False
        return self._current.file

    def take_back(self) -> None:
        """End `lend`: the kernel has stopped, and `numbers` include everything it wrote."""
        self._is_poisoned = False

    def finish_epoch(self, write: EpochWrite, *, durable: bool) -> None:
        """Complete an epoch that was written; `durable` as in its `execute`."""
        self._advance(write, durable=durable)
        self._numbers[_NEXT_AT], self._numbers[_NEXT_EPOCH] = write.end_at, write.epoch + 1
        self._is_poisoned = False

    def _advance(self, write: EpochWrite, *, durable: bool) -> None:
        """Move the end of the log past a written epoch."""
        synced_through = write.end_at if durable else self.synced_through
        self._set_end(write.end_at, write.epoch, write.next_position, write.timestamp_ns, synced_through)
        self._is_clean = write.flags == FLAG_CLEAN

    def _set_end(self, *numbers: int) -> None:
        _pack_end(self._numbers, 0, *numbers)

    def fits(self, length: int) -> bool:
        """True if an epoch with `length` bytes of batches fits the current file."""
        return self._numbers[_NEXT_AT] + EPOCH_HEADER_SIZE + length + MARKS_SIZE <= self._numbers[_LIMIT_AT]

    def reserve(self, length: int, timestamp_ns: TimestampNs, *, small: bool = False) -> None:
        """Reserve space for an epoch with `length` bytes of batches; same errors as `append_epoch`.

        Call it before numbering batches: a batch that then finds no space must not have a number. With `small` a new
        file has the minimum size: for entries that must be logged although the disk is full.
        """
        self._require_usable()
        usual = self._file_size
        self._file_size = WAL_FILE_SIZE_MIN if small else usual
        try:
            self._file_for(length, timestamp_ns)
        finally:
            self._file_size = usual

    def sync(self) -> WalAddress:
        """Make everything appended durable; returns the end of that. After a `SyncError` the writer stays unusable."""
        self._require_usable()
        through = self.at
        if self._current is not None and self.synced_through < through:
            self._is_poisoned = True
            self._current.file.sync()
            self._is_poisoned = False
            self._numbers[_SYNCED_THROUGH] = through
        return through

    def prepare(self) -> bool:
        """Preallocate the next file if the current one is more than half full; true if it did.

        `DiskFullError` if there is no space: the writer continues with epochs that fit the current file.
        """
        self._require_usable()
        current = self._current
        is_early = current is not None and 2 * (self.at - current.first_at) <= current.size - DATA_START
        if is_early or self._preallocated is not None:
            return False
        self._preallocate(0)
        return True

    def locate(self, at: WalAddress) -> tuple[File, int]:
        """The file that holds an address, and the position there; the file stays open until it is dropped."""
        self._require_open()
        return self._handles.locate(at, self.at)

    def drop_before(self, at: WalAddress) -> int:
        """Remove the files that end at or below an address and are no longer read; returns how many."""
        self._require_usable()
        if at > self.synced_through:
            raise InvalidInputError(f"WAL address {at} is not durable yet; durable is up to {self.synced_through}")
        dropped = 0
        starts = self._handles.starts
        while len(starts) > 1 and starts[1] <= at:
            if len(starts) == 2 and self.at == starts[1]:
                break  # keep the file with the last epoch: the newest file holds none yet
            self._handles.drop_oldest()
            dropped += 1
        if dropped:
            self._is_poisoned = True
            self._files.sync_directory(self._directory)
            self._is_poisoned = False
        return dropped

    def close(self, *, clean: bool = True) -> None:
        """Sync, mark the log as closed cleanly, close all files; after a failure only close. Closing twice is fine.

        `clean` is false if the owner has failed: it may have assigned numbers that are not in the log, so the next open
        must recover.
        """
        if self._is_closed:
            return
        try:
            if clean and not self._is_poisoned:
                self._finish()
        finally:
            self._is_closed = True
            self._handles.close()
            if self._preallocated is not None:
                self._preallocated.close()

    def _finish(self) -> None:
        """Write and sync the mark of a clean close, if the log needs one, and remove the preallocated file."""
        current = self._current
        if current is not None and not self._is_clean:
            self.sync()
            if self.at + EPOCH_HEADER_SIZE > current.limit_at:
                current = self._rotate(EPOCH_HEADER_SIZE, self._timestamp_ns)
            write = self._begin_epoch(current, [], 0, self.next_position, 0, FLAG_CLEAN, self._timestamp_ns)
            write.execute(durable=True)
            self.finish_epoch(write, durable=True)
        if self._preallocated is not None:
            self._files.unlink(self._preallocated.path)

    def _file_for(self, length: int, timestamp_ns: TimestampNs) -> WalFile:
        """The current file if an epoch of that many bytes and the marks fit in it; else the next."""
        if self._current is None or not self.fits(length):
            return self._rotate(EPOCH_HEADER_SIZE + length + MARKS_SIZE, timestamp_ns)
        return self._current

    def _begin_epoch(
        self,
        current: WalFile,
        batches: Sequence[ReadableBuffer],
        length: int,
        first_position: Position,
        batch_count: int,
        flags: int,
        timestamp_ns: TimestampNs,
        unpositioned_count: int = 0,
    ) -> EpochWrite:
        at = self.at
        epoch = LaneEpoch(self._numbers[_EPOCH] + 1)
        header = encode_epoch_header(
            *(current.salt, epoch, length, self.synced_through, first_position, batch_count, flags, timestamp_ns),
            unpositioned_count,
        )
        self._is_poisoned = True
        return EpochWrite(
            file=current.file,
            buffers=[header, *batches],
            file_at=current.file_position(at),
            size=EPOCH_HEADER_SIZE + length,
            follows_synced=self.synced_through == at,
            at=at,
            epoch=epoch,
            next_position=Position(first_position + batch_count - unpositioned_count),
            timestamp_ns=timestamp_ns,
            flags=flags,
        )

    def _rotate(self, needed: int, timestamp_ns: TimestampNs) -> WalFile:
        """Begin the next file at the current address: INV-WAL-CONTINUED."""
        if needed > self._file_size - DATA_START:
            raise LimitError(
                f"an epoch that needs {needed} bytes, a WAL file of {self._file_size} bytes holds "
                f"{self._file_size - DATA_START}; commit fewer batches at once"
            )
        preallocated = self._preallocated
        if preallocated is None or needed > preallocated.size() - DATA_START:
            preallocated = self._preallocate(needed)
        self.sync()
        salt, size = self._salt(), preallocated.size()
        preface = Preface(
            FileKind.WAL, self._directory_id, first=self.at, salt=salt, created_ns=timestamp_ns, size=size
        )
        self._is_poisoned = True
        next_file = activate_file(self._files, self._directory, preallocated, preface)
        current = self._current
        # No mark if the current file held no epoch and the new one took its name, or if damage took the mark's space.
        if current is not None and current.first_at < self.at <= current.limit_at - EPOCH_HEADER_SIZE:
            mark = self._begin_epoch(current, [], 0, self.next_position, 0, FLAG_CONTINUED, timestamp_ns)
            mark.execute(durable=True)
        self._is_poisoned = False
        self._preallocated = None
        self._use(next_file)
        return next_file

    def _preallocate(self, needed: int) -> File:
        """Reserve durable space for the next file, which holds at least `needed` bytes; replaces a smaller one."""
        if self._preallocated is not None:
            self._preallocated.close()
            self._preallocated = None
        size = WAL_FIRST_FILE_SIZE
        while size < self._file_size and (size - DATA_START < needed or size < WAL_FILE_GROWTH * self.at):
            size *= WAL_FILE_GROWTH
        preallocated = preallocate_file(self._files, self._directory, min(size, self._file_size))
        self._is_poisoned = True
        preallocated.sync()
        self._is_poisoned = False
        self._preallocated = preallocated
        return preallocated

    def _use(self, current: WalFile) -> None:
        self._current = current
        self._numbers[_LIMIT_AT] = current.limit_at
        self._numbers[_FILE_OFFSET] = DATA_START - current.first_at
        self._numbers[_SALT] = current.salt - (1 << 64) if current.salt >> 63 else current.salt
        self._encoded = [
            EpochWrite(current.file, [], 0, 0, False, self.at, 0, self.next_position, self._timestamp_ns, 0)
            for _ in range(2)
        ]
        self._handles.add(current)

    def _require_open(self) -> None:
        if self._is_closed:
            raise WrongStateError(f"{self._directory}: this WAL writer is closed")

    def _require_usable(self) -> None:
        """Refuse to write after a failed write or sync."""
        self._require_open()
        if self._is_poisoned:
            raise FatalError(
                f"{self._directory}: an earlier write or sync of the WAL failed, so nothing more may be written; "
                "stop, start again and recover"
            )
