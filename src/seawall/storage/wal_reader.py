"""The reader of the write-ahead log: what it holds after any end, clean or not, and the repair of its tail.

`read_wal` walks the epochs in order. Where something stands that is no valid epoch (see `epochs`), at address x, there
are two explanations, and synced_through tells them apart:

    damage      someone knew that the bytes at x were durable: a later epoch header says synced_through > x, or a later
                file has a name (INV-WAL-NAMED-WHOLE), or the caller starts behind x. The range is reported as `Damage`
                and reading goes on behind it. Of an epoch with a good header the batches before the first bad one are
                still delivered, and it ends where its header says; otherwise the next valid header is looked for at
                every byte, since lengths cannot be trusted any more.
    torn tail   nobody knew: these bytes were never promised to anyone. The log ends at x.

After damage the next epoch may have any higher number; otherwise numbers must rise by one, so that bytes of an earlier
tail can never pass for the continuation of a later one.

INV-WAL-NO-SILENT-END: bytes that were known to be durable are delivered or reported, never taken for the end.
INV-WAL-SAME-AGAIN: reading changes nothing; reading twice gives the same. Repairing twice changes nothing either.

A middle file that is missing, or whose preface is damaged, is damage. If the preface of the last file is, nobody knows
which positions it used, so nothing can be appended safely: `CorruptionError`, and a person must decide.

Memory: a window of 1 MiB, or one epoch where that is larger, which the size of its file bounds.
This module must not know what the batches mean.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.core.checks import check
from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.errors import CorruptionError
from seawall.io.files import read_exactly, write_all
from seawall.io.interfaces import Files
from seawall.kernels.epochs import find_epoch, verify_epoch
from seawall.limits import WAL_READ_SIZE
from seawall.storage.epochs import EPOCH_HEADER_SIZE, EpochHeader, WalAddress, parse_epoch_header
from seawall.storage.wal_files import WalEnd, WalFile, open_wal_file, spare_path, wal_addresses
from seawall.wire.batches import BatchHeader, BatchSource, parse_batch_header


@dataclass(frozen=True, slots=True)
class WalBatch:
    """One verified batch: header and block as they were appended."""

    at: WalAddress
    position: Position
    data: memoryview

    @property
    def header(self) -> BatchHeader:
        """Its header, parsed when asked for."""
        return parse_batch_header(self.data, source=BatchSource.STORED)


@dataclass(frozen=True, slots=True)
class Damage:
    """Addresses that were durable once and cannot be read any more."""

    from_at: WalAddress
    to_at: WalAddress
    reason: str


WalItem: TypeAlias = WalBatch | Damage | WalEnd


def read_wal(files: Files, directory: str, directory_id: bytes, from_at: WalAddress) -> Iterator[WalItem]:
    """Every batch at or behind `from_at`, and every damage, in order; a `WalEnd` comes last and always.

    `from_at` is where the caller's own state ends; everything below it is known to have been durable.
    """
    return _Walk(files, directory, directory_id, from_at).run()


def repair_tail(files: Files, directory: str, directory_id: bytes, end: WalEnd) -> WalEnd:
    """Discard what follows the end that `read_wal` found, make the rest durable, and return the end to start from.

    Zeros are written, not cut off: space once reserved is never given back. Repeating it, also after a crash inside it,
    comes to the same bytes.
    """
    if files.exists(spare_path(directory)):
        files.unlink(spare_path(directory))
    starts = wal_addresses(files, directory)
    if starts:
        check(starts[-1] <= end.at, "INV-WAL-NO-SILENT-END", f"a file begins at {starts[-1]}, the end is {end.at}")
        log = open_wal_file(files, directory, starts[-1], directory_id, read_only=False)
        try:
            window = _Window(log)
            # A sync that failed may have left bytes that only the page cache holds and that no later sync would write,
            # because the kernel takes them for written. Written again, they become durable with the others.
            at = max(end.synced_through, log.first_at)
            while at < end.at:
                data = window.read(at, min(WAL_READ_SIZE, end.at - at))
                write_all(log.file, [data], log.file_position(at))
                at = WalAddress(at + len(data))
            while data := window.read(at, WAL_READ_SIZE):
                if not _is_zero(data):
                    write_all(log.file, [bytes(len(data))], log.file_position(at))
                at = WalAddress(at + len(data))
            # Also where nothing was torn: a killed process may have left pages that only the cache holds.
            log.file.sync()
        finally:
            log.file.close()
    files.sync_directory(directory)
    return replace(end, synced_through=end.at)


class _Window:
    """Addresses of one file, up to its end or the next file, read in large pieces."""

    def __init__(self, log: WalFile, following: WalAddress | None = None) -> None:
        self.log = log
        self.following = following
        self.limit_at = log.limit_at if following is None else min(log.limit_at, following)
        self._data = memoryview(b"")
        self._at = log.first_at

    def read(self, at: WalAddress, length: int) -> memoryview:
        """Up to `length` bytes from an address, fewer only at the limit."""
        length = min(length, self.limit_at - at)
        if length <= 0:
            return memoryview(b"")
        offset = at - self._at
        if offset < 0 or offset + length > len(self._data):
            wanted = min(max(length, WAL_READ_SIZE), self.limit_at - at)
            self._data = memoryview(read_exactly(self.log.file, wanted, self.log.file_position(at)))
            self._at = at
            offset = 0
        return self._data[offset : offset + length]

    def header(self, at: WalAddress) -> EpochHeader | None:
        """The valid header at an address whose epoch fits below the limit."""
        header = parse_epoch_header(self.read(at, EPOCH_HEADER_SIZE), salt=self.log.salt, at=at)
        return header if header is not None and at + header.size <= self.limit_at else None

    def headers(self, at: WalAddress) -> Iterator[tuple[WalAddress, EpochHeader]]:
        """Every valid header that begins at any byte from `at` on."""
        found = self._find(at)
        while found is not None:
            header = self.header(found)
            if header is not None:
                yield found, header
            found = self._find(WalAddress(found + 1))

    def _find(self, at: WalAddress) -> WalAddress | None:
        """The first address from `at` on where a header with salt and checksum of this file stands."""
        while self.limit_at - at >= EPOCH_HEADER_SIZE:
            # What is left of the window first: after a header was found, the search goes on one byte behind it.
            left = self._at + len(self._data) - at
            data = self.read(at, left if EPOCH_HEADER_SIZE <= left <= len(self._data) else WAL_READ_SIZE)
            found = find_epoch(np.frombuffer(data, np.uint8), 0, len(data), np.uint64(self.log.salt))
            if found >= 0:
                return WalAddress(at + found)
            at = WalAddress(at + len(data) - EPOCH_HEADER_SIZE + 1)
        return None


class _Walk:
    """One reading of a log: what the epochs so far have said."""

    def __init__(self, files: Files, directory: str, directory_id: bytes, from_at: WalAddress) -> None:
        self._files = files
        self._directory = directory
        self._directory_id = directory_id
        self._from_at = from_at
        #: Number of the last epoch; None where none was seen and the first may have any.
        self._epoch: LaneEpoch | None = None
        #: Whether the next number must be exactly one more.
        self._is_strict = True
        self._position = Position(0)
        self._timestamp_ns = TimestampNs(0)
        self._is_clean = False
        self._synced_through = from_at
        self._is_searched = False
        self._offsets: npt.NDArray[np.int64] = np.zeros(1_024, np.int64)

    def run(self) -> Iterator[WalItem]:
        """The whole reading."""
        starts = wal_addresses(self._files, self._directory)
        if not starts:
            if self._from_at:
                raise CorruptionError(f"{self._directory}: no WAL file, though the log goes on at {self._from_at}")
            self._is_clean = True
            yield self._end(WalAddress(0))
            return
        # The file ahead of `from_at` is read too, and not delivered: it knows the number and position due next.
        index = max(0, bisect_left(starts, self._from_at) - 1)
        at = starts[index]
        if at == 0:
            self._epoch = LaneEpoch(0)
        yield from self._damage(self._from_at, at, "no file holds these addresses")
        self._synced_through = max(self._synced_through, starts[-1])
        for following in [*starts[index + 1 :], None]:
            at = yield from self._read_file(starts[index], following)
            index += 1
        # The last file may be shorter than the caller's knowledge: what it lacks was absorbed long ago.
        yield self._end(max(at, self._from_at))

    def _read_file(self, first_at: WalAddress, following: WalAddress | None) -> Generator[WalItem, None, WalAddress]:
        """Everything in one file; the address where it ends, or for the last one where the log does."""
        try:
            log = open_wal_file(self._files, self._directory, first_at, self._directory_id, read_only=True)
        except CorruptionError as error:
            if following is None:
                raise
            self._is_strict = False
            yield from self._damage(first_at, following, str(error))
            return following
        try:
            window = _Window(log, following)
            at = yield from self._read_epochs(window)
            if following is None:
                self._is_clean = self._is_clean and self._is_zero_from(window, at)
                return at
            if at < following:
                self._is_strict = False
                yield from self._damage(at, following, f"{log.file.path}: nothing valid up to the next file")
            return following
        finally:
            log.file.close()

    def _read_epochs(self, window: _Window) -> Generator[WalItem, None, WalAddress]:
        """Epoch by epoch, over damage, to the end of the file or of the log."""
        at = window.log.first_at
        while at < window.limit_at:
            header = window.header(at)
            if header is not None and not self._follows(header):
                header = None
            good = 0
            if header is not None:
                good = self._verify(window, at, header)
                if good == header.batch_count and self._offsets[good] == header.length:
                    self._accept(header)
                    yield from self._batches(window, at, header, good)
                    at = WalAddress(at + header.size)
                    continue
            if not self._was_synced(window, at):
                return at
            if header is None:
                next_at = self._next_epoch(window, at)
                yield from self._damage(at, next_at, f"{window.log.file.path}: no valid epoch header")
            else:
                self._accept(header)
                yield from self._batches(window, at, header, good)
                next_at = WalAddress(at + header.size)
                bad_at = WalAddress(at + EPOCH_HEADER_SIZE + int(self._offsets[good]))
                yield from self._damage(bad_at, next_at, f"{window.log.file.path}: bad batch in epoch {header.epoch}")
            at = next_at
        return at

    def _follows(self, header: EpochHeader) -> bool:
        """Whether an epoch may come next."""
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

    def _verify(self, window: _Window, at: WalAddress, header: EpochHeader) -> int:
        """Good batches at the beginning of an epoch; where they begin and end is in `_offsets`, from 0 on."""
        if self._offsets.size <= header.batch_count:
            self._offsets = np.zeros(2 * header.batch_count, np.int64)
        data = window.read(WalAddress(at + EPOCH_HEADER_SIZE), header.length)
        return verify_epoch(
            np.frombuffer(data, np.uint8), 0, len(data), header.first_position, header.batch_count, self._offsets
        )

    def _batches(self, window: _Window, at: WalAddress, header: EpochHeader, good: int) -> Iterator[WalBatch]:
        """The first `good` batches of a verified epoch, as far as they were asked for."""
        start = WalAddress(at + EPOCH_HEADER_SIZE)
        if start + header.length <= self._from_at:
            return
        data = window.read(start, header.length)
        offsets = self._offsets[: good + 1].tolist()
        for index in range(good):
            first, last = offsets[index], offsets[index + 1]
            if start + first >= self._from_at:
                yield WalBatch(WalAddress(start + first), Position(header.first_position + index), data[first:last])

    def _damage(self, from_at: WalAddress, to_at: WalAddress, reason: str) -> Iterator[Damage]:
        """The part of a damaged range that was asked for, if there is any."""
        from_at = max(from_at, self._from_at)
        if from_at < to_at:
            yield Damage(from_at, to_at, reason)

    def _was_synced(self, window: _Window, at: WalAddress) -> bool:
        """Whether anybody knew the byte at this address to be durable. The rest of the last file is searched once."""
        if self._synced_through <= at and not self._is_searched:
            self._is_searched = True
            for _, header in window.headers(WalAddress(at + 1)):
                self._synced_through = max(self._synced_through, header.synced_through)
        return self._synced_through > at

    def _next_epoch(self, window: _Window, at: WalAddress) -> WalAddress:
        """Where reading goes on behind a header that is damaged."""
        self._is_strict = False
        for found, header in window.headers(WalAddress(at + 1)):
            if self._follows(header):
                return found
        # Nothing more in this file: all up to the next one is lost, or in the last as much as anybody knew of.
        return min(window.limit_at, self._synced_through) if window.following is None else window.following

    def _is_zero_from(self, window: _Window, at: WalAddress) -> bool:
        while data := window.read(at, WAL_READ_SIZE):
            if not _is_zero(data):
                return False
            at = WalAddress(at + len(data))
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


def _is_zero(data: memoryview) -> bool:
    return not np.frombuffer(data, np.uint8).any()
