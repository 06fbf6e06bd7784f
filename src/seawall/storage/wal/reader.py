"""Reads the write-ahead log after a clean or unclean shutdown, and repairs its tail.

`read_wal` walks the epochs in order. If the bytes at address x are not a valid epoch (see `epochs`), there are two
explanations, and synced_through tells them apart:

    damage      the bytes at x were known to be durable: a later epoch header says synced_through > x, or a later file
                has a name, or the caller starts after x. The reader reports the range as `Damage` and continues after
                it. If the header of the epoch is valid, the reader still delivers the batches before the first bad
                one, and continues at the end that the header states. Otherwise it searches the next valid header at
                every byte, since lengths cannot be trusted any more.
    torn tail   the bytes were never known to be durable, so they were never acknowledged. The log ends at x.

After damage the next epoch may have any higher number; otherwise numbers must rise by one, so that bytes of an earlier
tail can never pass for the continuation of a later one.

INV-WAL-NO-SILENT-END: recovery delivers or reports every byte that was known to be durable; it never takes damage for
the end of the log.

Reading changes nothing and is repeatable. Repair is idempotent.

A middle file that is missing or truncated, or whose preface is damaged, is damage with `Damage.is_file_lost`. If that
happens to the last file (the one before it says that it exists), the positions it used are unknown, so nothing can be
appended safely: `CorruptionError`, and a person must decide.

Speed: one kernel call per window verifies and lists all epochs that simply follow each other, which are nearly all;
every other epoch is checked on its own. The result is the same.

Memory: mapped files use only the page cache; otherwise the reader needs a window that fits the cache of a core, or one
epoch if that is larger (its file bounds it). In addition a row for each of 16,384 batches, or of one epoch. This module
must not know what the batches mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from seawall.core.checks import check
from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.errors import ChecksumError, CorruptionError
from seawall.io.disk.files import read_exactly, write_all
from seawall.io.disk.mapped import map_part
from seawall.io.interfaces import Files
from seawall.kernels.log import epochs as kernels
from seawall.kernels.log.epochs import WAL_ROW, WalRows, is_zero, scan_epochs, verify_epoch
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import BATCH_HEADER_SIZE, WAL_READ_SIZE
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, EpochHeader, WalAddress
from seawall.storage.wal.files import WalEnd, WalFile, open_wal_file, preallocated_path, wal_addresses, wal_path
from seawall.storage.wal.window import WalWindow
from seawall.wire.format.batches import BatchHeader, BatchSource, parse_batch_header
from seawall.wire.format.frames import checksum

#: An address past every log.
_NOWHERE: Final = 1 << 64

#: The remedy for a lost file, in messages.
RESTORE: Final = "restore it from a backup"

#: Most batches in one run, unless a single epoch has more: 1.4 MiB of rows.
_ROWS: Final = 16_384


@dataclass(frozen=True, slots=True)
class WalBatch:
    """One verified batch: header and block as they were appended."""

    at: WalAddress
    position: Position
    data: bytes

    @property
    def header(self) -> BatchHeader:
        """Its header; parsed at each call."""
        return parse_batch_header(self.data, source=BatchSource.STORED)


@dataclass(frozen=True, slots=True, eq=False)
class WalRun:
    """Consecutive verified appends of the log, a row (`WAL_ROW`) for each.

    The reader owns the rows: they, and `batch`, are valid until the next part is read.
    """

    rows: WalRows
    log: WalFile

    def batch(self, index: int) -> WalBatch:
        """Read one of the batches again from the file."""
        at, position, size = self.rows[["at", "position", "size"]][index].tolist()
        data = read_exactly(self.log.file, size, self.log.file_position(at))
        if checksum(data[BATCH_HEADER_SIZE:]) != self.rows["block_crc"][index]:
            raise ChecksumError(f"{self.log.file.path}: the batch at address {at} reads differently a second time")
        return WalBatch(at, position, data)


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of addresses that was durable and can no longer be read."""

    from_at: WalAddress
    to_at: WalAddress
    reason: str
    #: True if a whole file is missing, truncated or unreadable, rather than bytes inside it damaged.
    is_file_lost: bool = False


#: The content of a log batch by batch; and the same with appends in runs and controls one by one.
WalItem: TypeAlias = WalBatch | Damage | WalEnd
WalPart: TypeAlias = WalRun | WalItem


def read_wal(
    files: Files, directory: str, directory_id: bytes, from_at: WalAddress, *, mapped: bool = False
) -> Iterator[WalItem]:
    """Every batch from `from_at` on, and every damage, in order; a `WalEnd` is always the last item.

    `from_at` is the end of the caller's own state; everything below it is known to have been durable. `mapped` permits
    mapping files, which only a process that does not serve clients yet may do (`io.disk.mapped`).
    """
    for part in read_runs(files, directory, directory_id, from_at, mapped=mapped):
        if isinstance(part, WalRun):
            yield from map(part.batch, range(len(part.rows)))
        else:
            yield part


def read_runs(
    files: Files, directory: str, directory_id: bytes, from_at: WalAddress, *, mapped: bool = False
) -> Iterator[WalPart]:
    """Like `read_wal`, with appends in runs of many batches."""
    return _Walk(files, directory, directory_id, from_at, is_mapped=mapped).run()


def repair_tail(files: Files, directory: str, directory_id: bytes, end: WalEnd) -> WalEnd:
    """Discard the bytes after the end that `read_wal` found, make the rest durable, and return the end to start from.

    It overwrites them with zeros instead of truncating the file, which keeps the reserved space. It is idempotent, even
    after a crash inside it.
    """
    if files.exists(preallocated_path(directory)):
        files.unlink(preallocated_path(directory))
    starts = wal_addresses(files, directory)
    if starts:
        check(starts[-1] <= end.at, "INV-WAL-NO-SILENT-END", f"a file begins at {starts[-1]}, the end is {end.at}")
        log = open_wal_file(files, directory, starts[-1], directory_id, read_only=False)
        try:
            window = WalWindow(log)
            # After a failed sync, bytes may be in the page cache only, and no later sync would write them, because the
            # kernel considers them clean. Writing them again makes them durable with the others.
            at = max(end.synced_through, log.first_at)
            while at < end.at:
                data = window.read(at, min(WAL_READ_SIZE, end.at - at))
                write_all(log.file, [data], log.file_position(at))
                at = WalAddress(at + len(data))
            while data := window.read(at, WAL_READ_SIZE):
                if not is_zero(np.frombuffer(data, np.uint8), 0, len(data)):
                    write_all(log.file, [bytes(len(data))], log.file_position(at))
                at = WalAddress(at + len(data))
            # Needed even without a torn tail: a killed process may have left pages that are only in the page cache.
            log.file.sync()
        finally:
            log.file.close()
    files.sync_directory(directory)
    return replace(end, synced_through=end.at)


class _Walk:
    """One pass over a log, with the state that the epochs so far define."""

    def __init__(
        self, files: Files, directory: str, directory_id: bytes, from_at: WalAddress, *, is_mapped: bool
    ) -> None:
        self._files = files
        self._is_mapped = is_mapped
        self._directory = directory
        self._directory_id = directory_id
        self._from_at = from_at
        #: Number of the last epoch; None if none was seen and the first may have any number.
        self._epoch: LaneEpoch | None = None
        #: True if the next number must be exactly one more.
        self._is_strict = True
        self._position = Position(0)
        self._timestamp_ns = TimestampNs(0)
        self._is_clean = False
        self._synced_through = from_at
        self._is_searched = False
        #: The bytes from here to the end of the last file are known to be zeros.
        self._zero_from = WalAddress(_NOWHERE)
        self._memory: Bytes = np.zeros(0, np.uint8)
        self._rows: WalRows = np.zeros(_ROWS, WAL_ROW)
        self._walk = np.zeros(kernels.WALK_SIZE, np.int64)

    def run(self) -> Iterator[WalPart]:
        """All parts of the log."""
        starts = wal_addresses(self._files, self._directory)
        if not starts:
            if self._from_at:
                raise CorruptionError(
                    f"{self._directory}: no WAL file is left, though the log continues at address {self._from_at}; "
                    f"{RESTORE}"
                )
            self._is_clean = True
            yield self._end(WalAddress(0))
            return
        # The file before `from_at` is read but not delivered: it has the last epoch number and position.
        index = max(0, bisect_left(starts, self._from_at) - 1)
        at = starts[index]
        if at == 0:
            self._epoch = LaneEpoch(0)
        missing = f"{self._directory}: the WAL file with address {self._from_at} is missing"
        yield from self._damage(self._from_at, at, missing, is_file_lost=True)
        self._synced_through = max(self._synced_through, starts[-1])
        for next_file_at in [*starts[index + 1 :], None]:
            at = yield from self._read_file(starts[index], next_file_at)
            index += 1
        if self._epoch is None and self._from_at:
            raise CorruptionError(
                f"{self._directory}: the WAL file with the last commit before address {self._from_at} is missing, "
                f"which has the number to continue from; {RESTORE}"
            )
        # Damage may end the log before `from_at`; the caller's state already includes what is missing.
        yield self._end(max(at, self._from_at))

    def _read_file(self, first_at: WalAddress, next_file_at: WalAddress | None) -> Generator[WalPart, None, WalAddress]:
        """The parts of one file; returns the address where it ends, or for the last file where the log ends."""
        try:
            log = open_wal_file(self._files, self._directory, first_at, self._directory_id, read_only=True)
        except CorruptionError as error:
            if next_file_at is None:
                raise CorruptionError(f"{error}; {RESTORE}") from error
            self._is_strict = False
            yield from self._damage(first_at, next_file_at, str(error), is_file_lost=True)
            return next_file_at
        mapped = map_part(log.file, 0, log.size) if self._is_mapped else None
        window = WalWindow(log, next_file_at, self._memory, mapped)
        try:
            if next_file_at is None:
                self._require_whole(log)
            at = yield from self._read_epochs(window)
            if next_file_at is None:
                self._is_clean = self._is_clean and self._is_zero_from(window, at)
                return at
            if at < next_file_at:
                self._is_strict = False
                reason = _cut(log) if log.is_cut else f"{log.file.path}: nothing valid up to the next file"
                yield from self._damage(at, next_file_at, reason, is_file_lost=log.is_cut)
            return next_file_at
        finally:
            self._memory = window.memory
            log.file.close()

    def _require_whole(self, log: WalFile) -> None:
        """Refuse a last file that was truncated, or that ends before the caller's state does."""
        if log.is_cut:
            raise CorruptionError(f"{_cut(log)}, so commits at its end may be lost; {RESTORE}")
        if log.limit_at < self._from_at:
            raise CorruptionError(
                f"{self._directory}: the WAL file after {log.file.path} is missing: a snapshot was taken at address "
                f"{self._from_at}; {RESTORE}"
            )

    def _read_epochs(self, window: WalWindow) -> Generator[WalPart, None, WalAddress]:
        """The epochs of a file, skipping damage; returns the end of the file or of the log."""
        at = window.log.first_at
        while at < window.limit_at:
            if self._epoch is not None and self._is_strict:
                plain_to = self._scan(window, at, self._epoch)
                if plain_to > at:
                    yield from self._deliver(window, self._rows[: self._walk[kernels.WALK_ROWS]])
                    at = plain_to
                    continue
            header = window.header(at)
            if header is not None and not self._follows(header):
                header = None
            if header is not None and header.is_continued:
                return (yield from self._skip_missing_file(window, at))
            good, good_to = 0, at
            if header is not None:
                good, good_to = self._verify(window, at, header)
                if good == header.batch_count and good_to == at + header.size:
                    self._accept(header)
                    yield from self._deliver(window, self._rows[:good])
                    at = good_to
                    continue
            if not self._was_synced(window, at):
                return at
            if header is None:
                next_at = self._next_epoch(window, at)
                is_lost = window.log.is_cut and next_at == window.next_file_at
                reason = _cut(window.log) if is_lost else f"{window.log.file.path}: no valid epoch header"
                yield from self._damage(at, next_at, reason, is_file_lost=is_lost)
            else:
                self._accept(header)
                yield from self._deliver(window, self._rows[:good])
                next_at = WalAddress(at + header.size)
                yield from self._damage(good_to, next_at, f"{window.log.file.path}: bad batch in epoch {header.epoch}")
            at = next_at
        return at

    def _skip_missing_file(self, window: WalWindow, at: WalAddress) -> Generator[Damage, None, WalAddress]:
        """Report the missing file in which the log continues; returns the start of the next existing one."""
        missing = wal_path(self._directory, at)
        if window.next_file_at is None:
            raise CorruptionError(
                f"{missing} is missing: {window.log.file.path} says that the log continues in it; {RESTORE}"
            )
        self._is_strict = False
        yield from self._damage(at, window.next_file_at, f"{missing} is missing", is_file_lost=True)
        return window.next_file_at

    def _scan(self, window: WalWindow, at: WalAddress, epoch: LaneEpoch) -> WalAddress:
        """Accept all epochs in the window that simply follow `epoch`; returns their end. `_rows` has their batches."""
        walk = self._walk
        walk[:] = 0
        walk[kernels.WALK_EPOCH] = epoch
        walk[kernels.WALK_POSITION] = self._position
        walk[kernels.WALK_SYNCED] = self._synced_through
        salt = np.uint64(window.log.salt)
        first_at = at
        needed = EPOCH_HEADER_SIZE
        while needed <= window.limit_at - at:
            start, end = window.load(at, needed)
            walk[kernels.WALK_SHIFT] = at - start
            reached = scan_epochs(window.buffer, start, end, salt, walk, self._rows)
            at = WalAddress(at + reached - start)
            needed = int(walk[kernels.WALK_NEEDED])
            if needed <= end - reached:
                break
        if at > first_at:
            _, number, position, synced_through, timestamp_ns, clean, *_ = walk.tolist()
            self._epoch = LaneEpoch(number)
            self._position = Position(position)
            self._timestamp_ns = TimestampNs(timestamp_ns)
            self._is_clean = bool(clean)
            self._synced_through = WalAddress(synced_through)
        return at

    def _follows(self, header: EpochHeader) -> bool:
        """True if an epoch may be the next one."""
        if header.first_position < self._position:
            return False
        if self._epoch is None:
            return True
        return header.epoch == self._epoch + 1 if self._is_strict else header.epoch > self._epoch

    def _accept(self, header: EpochHeader) -> None:
        self._epoch = header.epoch
        self._is_strict = True
        self._position = header.next_position
        self._timestamp_ns = header.timestamp_ns
        self._is_clean = header.is_clean
        self._synced_through = max(self._synced_through, header.synced_through)

    def _verify(self, window: WalWindow, at: WalAddress, header: EpochHeader) -> tuple[int, WalAddress]:
        """The number of valid batches at the beginning of an epoch, now in `_rows`, and the address after them."""
        if self._rows.size < header.batch_count:
            self._rows = np.zeros(header.batch_count, WAL_ROW)
        first_at = WalAddress(at + EPOCH_HEADER_SIZE)
        start, _ = window.load(first_at, header.length)
        good = verify_epoch(
            window.buffer,
            start,
            start + header.length,
            first_at - start,
            header.first_position,
            header.batch_count,
            self._rows,
            0,
        )
        if not good:
            return 0, first_at
        last = self._rows[good - 1]
        return good, WalAddress(int(last["at"]) + int(last["size"]))

    def _deliver(self, window: WalWindow, rows: WalRows) -> Iterator[WalRun | WalBatch]:
        """Yield verified batches from `from_at` on."""
        if rows.size and rows["at"][0] < self._from_at:
            rows = rows.take(np.flatnonzero(rows["at"] >= self._from_at))
        start = 0
        for control in [*np.flatnonzero(rows["command"]).tolist(), rows.size]:
            if start < control:
                yield WalRun(rows[start:control], window.log)
            if control < rows.size:
                yield WalRun(rows, window.log).batch(control)
            start = control + 1

    def _damage(
        self, from_at: WalAddress, to_at: WalAddress, reason: str, *, is_file_lost: bool = False
    ) -> Iterator[Damage]:
        """Yield the part of a damaged range from `from_at` on, if there is any."""
        from_at = max(from_at, self._from_at)
        if from_at < to_at:
            yield Damage(from_at, to_at, reason, is_file_lost)

    def _was_synced(self, window: WalWindow, at: WalAddress) -> bool:
        """True if the byte at this address was known to be durable. Searches the rest of the last file once."""
        if self._synced_through <= at and not self._is_searched and not self._is_zero_from(window, at):
            self._is_searched = True
            for _, header in window.headers(WalAddress(at + 1)):
                self._synced_through = max(self._synced_through, header.synced_through)
        return self._synced_through > at

    def _next_epoch(self, window: WalWindow, at: WalAddress) -> WalAddress:
        """The address where reading continues after a damaged header."""
        self._is_strict = False
        for found, header in window.headers(WalAddress(at + 1)):
            if self._follows(header):
                return found
        # No epoch in the rest of this file: all up to the next file is lost, or, in the last one, all that was durable.
        return min(window.limit_at, self._synced_through) if window.next_file_at is None else window.next_file_at

    def _is_zero_from(self, window: WalWindow, at: WalAddress) -> bool:
        """True if the bytes from an address to the end of the file are zeros; the result is cached."""
        first_at = at
        limit_at = min(window.limit_at, self._zero_from)
        while at < limit_at:
            start, end = window.load(at, 1)
            if not is_zero(window.buffer, start, end):
                return False
            at = WalAddress(at + end - start)
        self._zero_from = min(self._zero_from, first_at)
        return True

    def _end(self, at: WalAddress) -> WalEnd:
        return WalEnd(
            at=at,
            epoch=self._epoch or LaneEpoch(0),
            position=self._position,
            clean=self._is_clean,
            synced_through=min(at, self._synced_through),
            timestamp_ns=self._timestamp_ns,
        )


def _cut(log: WalFile) -> str:
    return f"{log.file.path}: has {log.size} bytes of the {log.reserved_size} that were reserved for it"
