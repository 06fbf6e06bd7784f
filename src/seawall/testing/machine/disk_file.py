"""One open file of a simulated disk.

Behaves as `seawall.io.disk.files.OsFile` does, error for error: the same contract tests run against both. The faults
and the crash point come from the disk it belongs to.

What a crash inside a call does to the page cache: a write keeps the units up to a seeded one, a copy likewise; allocate
and truncate have happened; a sync has moved some units and not others.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from seawall.errors import FatalError, SyncError
from seawall.io.interfaces import ReadableBuffer, WritableBuffer
from seawall.limits import IOVEC_COUNT_MAX, PAGE_SIZE
from seawall.testing.machine.content import SimContent
from seawall.testing.machine.faults import Call, Outcome

if TYPE_CHECKING:
    from seawall.testing.machine.disk import SimDisk

__all__ = ["DeadHandleError", "SimFile"]


class DeadHandleError(FatalError):
    """A handle outlived the simulated process or machine that opened it: a mistake in the test or the code."""


class SimFile:
    """One open file. Made by `SimDisk.open`."""

    __slots__ = ("_closed", "_disk", "_number", "_path", "_read_only", "_sync_failed", "content")

    def __init__(self, disk: SimDisk, content: SimContent, path: str, number: int, *, read_only: bool) -> None:
        self._disk = disk
        self.content = content
        self._path = path
        self._number = number
        self._read_only = read_only
        self._closed = False
        self._sync_failed = False

    @property
    def path(self) -> str:
        """Path it was opened by; used in messages only."""
        return self._path

    def fileno(self) -> int:
        """Number that `SimDisk.execute` understands; -1 once closed."""
        return -1 if self._closed else self._number

    def size(self) -> int:
        """Length in bytes now."""
        self._require_open()
        return self.content.length

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from position `at`; return the bytes read, fewer only at the end of the file."""
        total = 0
        views = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
        data = self.read(sum(view.nbytes for view in views), at)
        for view in views:
            piece = data[total : total + view.nbytes]
            view[: len(piece)] = piece
            total += len(piece)
        return total

    def read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from position `at`, fewer only at the end of the file."""
        self._require_open()
        self._require_position(at, length)
        with self._disk.call("read", self._path):
            return self.content.read(length, at)

    def write(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write the buffers at position `at`; return the bytes written, which may be fewer than asked."""
        self._require_writable()
        self._require_position(at)
        data = b"".join(buffers[:IOVEC_COUNT_MAX])
        return self._put("write", data, at)

    def write_uncached(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write: how long it stays in memory makes no difference here."""
        return self.write(buffers, at)

    def write_durably(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write as `write` does and make those bytes durable, and no others: a call each, so a crash fits between."""
        written = self.write(buffers, at)
        self._sync(at, at + written)
        return written

    def sync(self) -> None:
        """Make data and length durable; `SyncError` if that fails, once and for ever."""
        self._require_open()
        self._require_synced()
        self._sync(0, None)

    def _sync(self, start: int, end: int | None) -> None:
        try:
            with self._disk.call("sync", self._path) as call:
                if call.outcome is Outcome.CRASH:
                    self.content.sync_some(self._disk.chance)
                else:
                    self.content.sync(start, end)
        except OSError as error:
            self._sync_failed = True
            self.content.lose_unsynced()
            raise SyncError(f"{self._path}: sync failed ({error.strerror}); stop, start again and recover") from error

    def allocate(self, length: int) -> None:
        """Reserve disk space for the first `length` bytes, growing the file with zeros if it is shorter."""
        self._require_writable()
        self._require_position(length)
        with self._disk.call("allocate", self._path, f"length={length}"):
            if self.content.blocks_needed(0, length) > self._disk.free_blocks():
                raise _refusal(errno.ENOSPC, self._path)
            self.content.allocate(length)

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length` bytes; an extension reads as zeros and reserves nothing."""
        self._require_open()
        self._require_synced()
        if self._read_only:
            raise _refusal(errno.EINVAL, self._path)
        self._require_position(length)
        with self._disk.call("truncate", self._path, f"length={length}"):
            self.content.truncate(length)

    def try_lock(self) -> bool:
        """Take the exclusive advisory lock of this file; false if another handle has it. Closing gives it back."""
        self._require_open()
        with self._disk.call("lock", self._path):
            if self.content.lock_holder is None:
                self.content.lock_holder = self._number
            return self.content.lock_holder == self._number

    def close(self) -> None:
        """Give the handle back; closing twice, or after a crash, is fine. Closing syncs nothing."""
        self._closed = True
        self._disk.release(self._number)
        if self.content.lock_holder == self._number:
            self.content.lock_holder = None

    def copy_from(self, source: SimFile, source_at: int, target_at: int, length: int) -> int:
        """The work of `SimDisk.copy_range` into this file."""
        source._require_open()
        self._require_writable()
        self._require_position(source_at, target_at, length)
        if source.content is self.content and abs(source_at - target_at) < length:
            raise _refusal(errno.EINVAL, self._path)
        return self._put("copy_range", source.content.read(length, source_at), target_at)

    def _put(self, name: Call, data: bytes, at: int) -> int:
        """Write as much as the fault plan, the crash point and the free space allow."""
        with self._disk.call(name, self._path) as call:
            taken = self._fitting(data, at)
            if call.outcome is Outcome.SHORT and taken > 1:
                taken = self._disk.chance.randint(1, taken - 1)
            elif call.outcome is Outcome.CRASH:
                # The power goes between two units: those before are in the cache, those after are not.
                unit_size = self.content.unit_size
                cut = self._disk.chance.randint(at // unit_size, -(-(at + taken) // unit_size)) * unit_size
                taken = max(0, min(cut - at, taken))
            self.content.write(data[:taken], at)
            call.detail = f"at={at} length={len(data)} taken={taken}"
        return taken

    def _fitting(self, data: bytes, at: int) -> int:
        """Bytes there is space for: all, or those before the first block that the disk cannot give."""
        end = at + len(data)
        needed = self.content.blocks_needed(at, end)
        if needed == 0 or needed <= (free := self._disk.free_blocks()):
            return len(data)
        block_end = at
        while block_end < end and self.content.blocks_needed(at, block_end + 1) <= free:
            block_end = min(end, (block_end // PAGE_SIZE + 1) * PAGE_SIZE)
        if block_end == at:
            raise _refusal(errno.ENOSPC, self._path)
        return block_end - at

    def _require_open(self) -> None:
        if self._closed:
            raise _refusal(errno.EBADF, self._path)
        self._disk.require_alive(self._number, self._path)

    def _require_writable(self) -> None:
        self._require_open()
        self._require_synced()
        if self._read_only:
            raise _refusal(errno.EBADF, self._path)

    def _require_synced(self) -> None:
        """Refuse every change after a failed sync."""
        if self._sync_failed:
            raise SyncError(f"{self._path}: an earlier sync failed, so nothing more may be written through this handle")

    def _require_position(self, *numbers: int) -> None:
        if min(numbers) < 0:
            raise _refusal(errno.EINVAL, self._path)


def _refusal(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
