"""A sliding window over one log file, addressed by log address: a mapped file, or one buffer that is read into.

If the file can be mapped (`io/disk/mapped.py`), the window moves over it and copies nothing: copying is most of the
cost of reading a log. Otherwise, or if loading its pages fails, the window reads pieces that fit the CPU cache.

The results of `read` and `load` are valid until the next call of either. The window ends at the end of the file or at
the start of the next file. This module must not know which epochs are part of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from seawall.errors import CorruptionError
from seawall.io.disk.mapped import MappedPart
from seawall.kernels.log.epochs import find_epoch
from seawall.kernels.runtime.memory import Bytes
from seawall.limits import WAL_MAPPED_SIZE, WAL_READ_SIZE
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, EpochHeader, WalAddress, parse_epoch_header
from seawall.storage.wal.files import WalFile

_EMPTY: Final[Bytes] = np.zeros(0, np.uint8)


class WalWindow:
    """The addresses of one file, up to its end or the next file."""

    __slots__ = ("_at", "_filled", "_mapped", "_shown", "_view", "buffer", "limit_at", "log", "memory", "next_file_at")

    def __init__(
        self,
        log: WalFile,
        next_file_at: WalAddress | None = None,
        memory: Bytes = _EMPTY,
        mapped: MappedPart | None = None,
    ) -> None:
        """`memory` is reused from an earlier window: allocating memory costs more than reading into it.

        `mapped` is the whole file, if it could be mapped.
        """
        self.log = log
        self.next_file_at = next_file_at
        self.limit_at = log.limit_at if next_file_at is None else min(log.limit_at, next_file_at)
        #: The buffer for reads.
        self.memory = memory
        self._mapped = mapped
        #: The window, memory or mapped file. Its first byte has address `_at` (negative for a mapped file, which
        #: begins with the preface), and its bytes are valid from `_shown` up to `_filled`.
        self.buffer = memory if mapped is None else mapped.bytes
        self._view = self.buffer.data
        self._at = int(log.first_at) if mapped is None else -log.file_position(WalAddress(0))
        self._shown = 0
        self._filled = 0

    def load(self, at: WalAddress, length: int) -> tuple[int, int]:
        """Load `length` bytes from an address, all below the limit; returns their offset in `buffer` and its end."""
        start = at - self._at
        if start < self._shown or start + length > self._filled:
            self._fill(at, length)
            start = at - self._at
        return start, self._filled

    def read(self, at: WalAddress, length: int) -> memoryview:
        """Up to `length` bytes from an address, fewer only at the limit."""
        length = min(length, self.limit_at - at)
        if length <= 0:
            return memoryview(b"")
        start, _ = self.load(at, length)
        return self._view[start : start + length]

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
        """The first address from `at` on with a header that has a valid checksum and the salt of this file."""
        while self.limit_at - at >= EPOCH_HEADER_SIZE:
            # Search the rest of the window first: after a match, the search continues one byte later.
            start, end = self.load(at, EPOCH_HEADER_SIZE)
            found = find_epoch(self.buffer, start, end, np.uint64(self.log.salt))
            if found >= 0:
                return WalAddress(at + found - start)
            at = WalAddress(at + end - start - EPOCH_HEADER_SIZE + 1)
        return None

    def _fill(self, at: WalAddress, length: int) -> None:
        if self._mapped is not None:
            if self._show(self._mapped, at, length):
                return
            self._mapped = None
            self.buffer = self.memory
            self._view = self.buffer.data
            self._at, self._shown, self._filled = at, 0, 0
        self._read(at, length)

    def _show(self, mapped: MappedPart, at: WalAddress, length: int) -> bool:
        """Move the window to an address of the mapped file, and start to load the pages after it."""
        start = at - self._at
        end = start + min(max(length, WAL_MAPPED_SIZE), self.limit_at - at)
        if not mapped.fetch(start, end):
            return False
        mapped.announce(end, end + WAL_MAPPED_SIZE)
        self._shown, self._filled = start, end
        return True

    def _read(self, at: WalAddress, length: int) -> None:
        wanted = min(max(length, WAL_READ_SIZE), self.limit_at - at)
        kept = self.buffer[max(0, at - self._at) : self._filled] if at >= self._at else _EMPTY
        if wanted > self.buffer.size:
            self.memory = self.buffer = np.empty(wanted, np.uint8)
            self._view = self.buffer.data
        # Move the bytes that are still needed to the front: no byte is read twice.
        self.buffer[: kept.size] = kept
        self._filled = 0
        self._at = at
        file_at = self.log.file_position(WalAddress(at + kept.size))
        missing = wanted - kept.size
        got = self.log.file.read_into([self._view[kept.size : wanted]], file_at)
        if got != missing:
            raise CorruptionError(
                f"{self.log.file.path}: wanted {missing} bytes at position {file_at}, the file ends after {got} of them"
            )
        self._filled = wanted
