"""The writer of the write-ahead log: epochs, one after another, into preallocated files.

    append_epoch … append_epoch, sync     what was appended is durable once `sync` has returned, and not before
    begin_epoch, finish_epoch             the same in two steps, for who writes elsewhere or without waiting
    prepare                               when idle: reserve the next file ahead of need
    locate, drop_before                   for those who read batches back, and for the checkpoint
    close                                 mark the log as closed in order

An *address* counts bytes of epochs from the very first one; `wal_files` says where it lies. An epoch never straddles
two files: one that does not fit the rest of a file begins the next, at the same address. Each file keeps the last 128
bytes it could use for two marks: that of a clean close, so that closing needs no space, and the one that says that the
log continues in the next file.

Invariants
- INV-WAL-SYNCED: what the log calls durable has been synced. Neither an epoch's synced_through nor what `sync` returns
  covers a byte whose sync has not returned.
- INV-WAL-CONTINUED: each file of the log records that the next one exists, so a lost file is noticed. A new file gets
  its name after all earlier bytes, its space and its preface are durable. It takes an epoch only after its name is
  durable and the file before it says, durably, that the log continues there.
- INV-WAL-ORDER: epoch numbers rise by one, and positions and addresses of the log never go back.
- INV-WAL-ZERO-TAIL: zeros follow the last epoch of the log, so a torn write is never found later. `repair_tail` sees to
  it before a writer starts.
- The file with the last epoch is never dropped, so number and position can always be read back.
- After a failed write or sync nothing more is written, ever: what the disk holds is unknown.

A full disk is found when a file is preallocated, before anything is promised: `DiskFullError`, and the writer goes on
with what fits its present file.

What a crash does: epochs since the last sync may be there, be gone, or be there in parts (`wal_reader` tells which);
a prepared file may be left behind, which the next one to prepare removes; dropped files may be back, below every
address that is still read.

One owner at a time. Batches come as they will be read, already stamped; this module must not know what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

import numpy as np

from seawall.core.checks import check
from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.errors import FatalError, InvalidInputError, InvariantError, LimitError
from seawall.io.interfaces import File, Files, ReadableBuffer
from seawall.kernels.log.epochs import LOG_NUMBERS
from seawall.limits import BATCH_HEADER_SIZE, WAL_FILE_SIZE, WAL_FILE_SIZE_MAX, WAL_FILE_SIZE_MIN
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
from seawall.storage.wal.files import WalEnd, WalFile, name_spare, open_wal_file, reserve_spare
from seawall.storage.wal.handles import WalHandles

#: Places in `LOG_NUMBERS`, and the first of them by one call.
_AT, _EPOCH, _POSITION, _TIMESTAMP, _SYNCED_THROUGH, _LIMIT_AT, _FILE_OFFSET, _SALT, _NEXT_AT, _NEXT_EPOCH = range(10)
_pack_end: Final = Struct("=5q").pack_into


class WalWriter:
    """The one writer of a log. `start` is its repaired end, as `repair_tail` returns it."""

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
        #: How far the log has come: `LOG_NUMBERS`, which kernels that commit read and change, too.
        self.numbers = np.zeros(1, LOG_NUMBERS)
        self._numbers = self.numbers.view(np.int64).data
        self._set_end(start.at, start.epoch, start.position, start.timestamp_ns, start.synced_through)
        self._numbers[_LIMIT_AT] = -1
        self._is_clean = start.clean
        self._is_poisoned = False
        self._is_closed = False
        self._spare: File | None = None
        self._current: WalFile | None = None
        self._numbers[_NEXT_AT], self._numbers[_NEXT_EPOCH] = start.at, start.epoch + 1
        #: How many epochs that were encoded elsewhere have begun, and were finished.
        self._begun = self._finished = 0
        self._encoded: list[EpochWrite] = []
        #: Whether the last of them becomes durable by its own write.
        self._is_ahead_durable = False
        self._handles = WalHandles(files, directory)
        if starts := self._handles.starts:
            check(starts[-1] <= start.at, "INV-WAL-ORDER", f"a file begins behind the end of the log, {start.at}")
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
        """The oldest address still kept."""
        return self._handles.starts[0] if self._handles.starts else self.at

    @property
    def next_position(self) -> Position:
        """The least position the next epoch may begin with."""
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
        """Write one epoch of stamped batches with dense positions, however they are cut into buffers.

        With `durable` it is on the disk when this returns, and everything before it too. `LimitError` if it is larger
        than a file can hold, `DiskFullError` if it needs a new file and there is no space; both leave everything as it
        was.
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
        aside_count: int = 0,
    ) -> EpochWrite:
        """What is to be written for an epoch of `length` bytes of batches, `aside_count` of which take no position.

        Until `finish_epoch` nothing else can be done with the log, and if that never comes, never again. Errors as
        `append_epoch` has them.
        """
        self._require_usable()
        if first_position < self.next_position or not 1 <= batch_count <= length // BATCH_HEADER_SIZE:
            detail = (
                f"{batch_count} batches in {length} bytes from position {first_position}, due is {self.next_position}"
            )
            raise InvariantError("INV-WAL-ORDER", detail)
        current = self._file_for(length, timestamp_ns)
        return self._begin_epoch(current, batches, length, first_position, batch_count, 0, timestamp_ns, aside_count)

    def begin_encoded(
        self, buffer: memoryview, next_position: Position, timestamp_ns: TimestampNs, *, durable: bool
    ) -> EpochWrite:
        """`begin_epoch` of one that its writer has encoded, header included, as `numbers` say, and that fits the file.

        One more may begin before this one is finished, but none other; they are written and finished in turn. What is
        returned is valid until the next but one begins: most epochs are such, so there are two objects for them all.
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
        # What is under way before it counts if its write makes it durable: nobody is told before both are done.
        write.follows_synced = self.synced_through == at or (
            self._is_ahead_durable and self._begun != self._finished + 1
        )
        self._is_ahead_durable = durable and write.follows_synced
        write.at = at
        write.epoch = numbers[_NEXT_EPOCH]
        write.next_position = next_position
        write.timestamp_ns = timestamp_ns
        numbers[_NEXT_AT] = write.end_at
        numbers[_NEXT_EPOCH] += 1
        return write

    def finish_encoded(self, write: EpochWrite, *, durable: bool) -> None:
        """`finish_epoch` of one that `begin_encoded` began."""
        self._count_in(write, durable=durable)
        self._finished += 1
        if self._begun != self._finished:
            following = self._encoded[self._begun & 1]
            following.follows_synced = self.synced_through == following.at
        else:
            self._is_poisoned = False

    def lend(self) -> File:
        """Let a kernel write epochs behind the end, as `numbers` say, into this file and no further, until `take_back`.

        If that never comes because a write failed, nothing is written any more.
        """
        self._require_usable()
        assert self._current is not None, "something was reserved"
        self._is_poisoned = True
        self._is_clean = False
        return self._current.file

    def take_back(self) -> None:
        """The kernel has ended, and all that it wrote is counted in."""
        self._is_poisoned = False

    def finish_epoch(self, write: EpochWrite, *, durable: bool) -> None:
        """Count in an epoch that was written; `durable` if it was carried out so."""
        self._count_in(write, durable=durable)
        self._numbers[_NEXT_AT], self._numbers[_NEXT_EPOCH] = write.end_at, write.epoch + 1
        self._is_poisoned = False

    def _count_in(self, write: EpochWrite, *, durable: bool) -> None:
        synced_through = write.end_at if durable else self.synced_through
        self._set_end(write.end_at, write.epoch, write.next_position, write.timestamp_ns, synced_through)
        self._is_clean = write.flags == FLAG_CLEAN

    def _set_end(self, *numbers: int) -> None:
        _pack_end(self._numbers, 0, *numbers)

    def fits(self, length: int) -> bool:
        """Whether an epoch with `length` bytes of batches fits the present file."""
        return self._numbers[_NEXT_AT] + EPOCH_HEADER_SIZE + length + MARKS_SIZE <= self._numbers[_LIMIT_AT]

    def reserve(self, length: int, timestamp_ns: TimestampNs, *, small: bool = False) -> None:
        """Make sure that an epoch with `length` bytes of batches can be appended; errors as `append_epoch` has them.

        Whoever numbers batches asks first: a number must not be given to what then finds no room. With `small` a new
        file is the smallest there is: for what must be logged though the disk is full.
        """
        self._require_usable()
        usual = self._file_size
        self._file_size = WAL_FILE_SIZE_MIN if small else usual
        try:
            self._file_for(length, timestamp_ns)
        finally:
            self._file_size = usual

    def sync(self) -> WalAddress:
        """Make everything appended durable; the address up to which that holds now. A `SyncError` is for ever."""
        self._require_usable()
        through = self.at
        if self._current is not None and self.synced_through < through:
            self._is_poisoned = True
            self._current.file.sync()
            self._is_poisoned = False
            self._numbers[_SYNCED_THROUGH] = through
        return through

    def prepare(self) -> bool:
        """Reserve the next file if the present one is more than half full; whether there was something to do.

        `DiskFullError` if there is no space: the writer goes on with what fits the present file.
        """
        self._require_usable()
        current = self._current
        is_early = current is not None and 2 * (self.at - current.first_at) <= current.size - DATA_START
        if is_early or self._spare is not None:
            return False
        self._spare = self._make_spare()
        return True

    def locate(self, at: WalAddress) -> tuple[File, int]:
        """The file an address lies in, and the position there; the file stays open until it is dropped."""
        self._require_open()
        return self._handles.locate(at, self.at)

    def drop_before(self, at: WalAddress) -> int:
        """Remove the files that lie wholly below an address, and whose content nobody reads any more; their number."""
        self._require_usable()
        if at > self.synced_through:
            raise InvalidInputError(f"WAL address {at} is not durable yet; durable is up to {self.synced_through}")
        dropped = 0
        starts = self._handles.starts
        while len(starts) > 1 and starts[1] <= at:
            if len(starts) == 2 and self.at == starts[1]:
                break  # the file with the last epoch stays: the newest file holds no epoch yet
            self._handles.drop_oldest()
            dropped += 1
        if dropped:
            self._is_poisoned = True
            self._files.sync_directory(self._directory)
            self._is_poisoned = False
        return dropped

    def close(self, *, clean: bool = True) -> None:
        """Sync, mark the log as closed in order, give all files back; after a failure only that. Twice is fine.

        `clean` is false where the owner has failed: numbers it gave may be in no log, so the next one must recover.
        """
        if self._is_closed:
            return
        try:
            if clean and not self._is_poisoned:
                self._finish()
        finally:
            self._is_closed = True
            self._handles.close()
            if self._spare is not None:
                self._spare.close()

    def _finish(self) -> None:
        """Write and sync the mark of a clean close, where there is anything to mark, and remove the prepared file."""
        current = self._current
        if current is not None and not self._is_clean:
            self.sync()
            if self.at + EPOCH_HEADER_SIZE > current.limit_at:
                current = self._rotate(EPOCH_HEADER_SIZE, self._timestamp_ns)
            write = self._begin_epoch(current, [], 0, self.next_position, 0, FLAG_CLEAN, self._timestamp_ns)
            write.execute(durable=True)
            self.finish_epoch(write, durable=True)
        if self._spare is not None:
            self._files.unlink(self._spare.path)

    def _file_for(self, length: int, timestamp_ns: TimestampNs) -> WalFile:
        """The present file if an epoch of that many bytes and the marks fit in it; else the next."""
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
        aside_count: int = 0,
    ) -> EpochWrite:
        at = self.at
        epoch = LaneEpoch(self._numbers[_EPOCH] + 1)
        header = encode_epoch_header(
            *(current.salt, epoch, length, self.synced_through, first_position, batch_count, flags, timestamp_ns),
            aside_count,
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
            next_position=Position(first_position + batch_count - aside_count),
            timestamp_ns=timestamp_ns,
            flags=flags,
        )

    def _rotate(self, needed: int, timestamp_ns: TimestampNs) -> WalFile:
        """Begin the next file at the present address: INV-WAL-CONTINUED."""
        if needed > self._file_size - DATA_START:
            raise LimitError(
                f"an epoch that needs {needed} bytes, a WAL file of {self._file_size} bytes holds "
                f"{self._file_size - DATA_START}; commit fewer batches at once"
            )
        self._spare = spare = self._spare or self._make_spare()
        self.sync()
        salt, size = self._salt(), spare.size()
        preface = Preface(
            FileKind.WAL, self._directory_id, first=self.at, salt=salt, created_ns=timestamp_ns, size=size
        )
        self._is_poisoned = True
        following = name_spare(self._files, self._directory, spare, preface)
        current = self._current
        # Not where that held no epoch and the new file took its name, nor where damage took the space for the mark.
        if current is not None and current.first_at < self.at <= current.limit_at - EPOCH_HEADER_SIZE:
            mark = self._begin_epoch(current, [], 0, self.next_position, 0, FLAG_CONTINUED, timestamp_ns)
            mark.execute(durable=True)
        self._is_poisoned = False
        self._spare = None
        self._use(following)
        return following

    def _make_spare(self) -> File:
        """A new file without content, its space reserved and durable."""
        spare = reserve_spare(self._files, self._directory, self._file_size)
        self._is_poisoned = True
        spare.sync()
        self._is_poisoned = False
        return spare

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
            raise InvalidInputError(f"{self._directory}: this WAL writer is closed")

    def _require_usable(self) -> None:
        """Refuse to write after a failed write or sync."""
        self._require_open()
        if self._is_poisoned:
            raise FatalError(
                f"{self._directory}: an earlier write or sync of the WAL failed, so nothing more may be written; "
                "stop, start again and recover"
            )
