"""One open file of a simulated disk.

Behaves like `seawall.io.disk.files.OsFile`, with the same errors: the same contract tests run against both. Faults and
crash points come from its disk, of which it uses only the interface `FileDisk`.

A crash inside a call: a write or copy has changed the page cache up to a seeded unit; an allocate or truncate has
happened; a sync has made some units durable and others not.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from seawall.errors import FatalError, SyncError
from seawall.io.interfaces import ReadableBuffer, WritableBuffer
from seawall.limits import IOVEC_COUNT_MAX, PAGE_SIZE
from seawall.testing.machine.content import SimContent
from seawall.testing.machine.faults import Call, Outcome, SimCall

__all__ = ["DeadHandleError", "FileDisk", "SimFile"]


class DeadHandleError(FatalError):
    """A handle was used after the end of the process or machine that opened it: a bug in the test or the code."""


class FileDisk(Protocol):
    """The interface of a `SimDisk` for its open files."""

    @property
    def chance(self) -> random.Random:
        """The source of all random decisions."""
        ...

    def call(self, name: Call, path: str, detail: str = "") -> AbstractContextManager[SimCall]:
        """Run one call: apply its fault and add it to the history."""
        ...

    def require_alive(self, number: int, path: str) -> None:
        """Raise `DeadHandleError` for a handle that was opened before a crash or kill."""
        ...

    def release(self, number: int) -> None:
        """Remove a closed handle."""
        ...

    def free_blocks(self) -> int:
        """Blocks not used by any file."""
        ...


class SimFile:
    """One open file. Made by `SimDisk.open`."""

    __slots__ = ("_closed", "_disk", "_number", "_path", "_read_only", "_sync_failed", "content")

    def __init__(self, disk: FileDisk, content: SimContent, path: str, number: int, *, read_only: bool) -> None:
        self._disk = disk
        self.content = content
        self._path = path
        self._number = number
        self._read_only = read_only
        self._closed = False
        self._sync_failed = False

    @property
    def path(self) -> str:
        """The path it was opened with; used only in messages."""
        return self._path

    def fileno(self) -> int:
        """The handle number for `SimDisk.execute`; -1 once closed."""
        return -1 if self._closed else self._number

    def size(self) -> int:
        """The current length in bytes."""
        self._require_open()
        return self.content.length

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from offset `at`; return the number of bytes read, fewer only at the end of the file."""
        total = 0
        views = [memoryview(buffer).cast("B") for buffer in buffers if memoryview(buffer).nbytes]
        data = self.read(sum(view.nbytes for view in views), at)
        for view in views:
            piece = data[total : total + view.nbytes]
            view[: len(piece)] = piece
            total += len(piece)
        return total

    def read(self, length: int, at: int) -> bytes:
        """Read up to `length` bytes from offset `at`, fewer only at the end of the file."""
        self._require_open()
        self._require_position(at, length)
        with self._disk.call("read", self._path):
            return self.content.read(length, at)

    def write(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write the buffers at offset `at`; return the number of bytes written, which may be less than requested."""
        self._require_writable()
        self._require_position(at)
        data = b"".join(buffers[:IOVEC_COUNT_MAX])
        return self._write("write", data, at)

    def write_uncached(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write like `write`: this disk does not model page cache eviction."""
        return self.write(buffers, at)

    def write_durably(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write and make only those bytes durable; two calls, so that a crash can happen between them."""
        written = self.write(buffers, at)
        self._sync(at, at + written)
        return written

    def sync(self) -> None:
        """Make data and length durable; `SyncError` if that fails, and on every later sync."""
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
        """Reserve disk space for the first `length` bytes; extends a shorter file with zeros."""
        self._require_writable()
        self._require_position(length)
        with self._disk.call("allocate", self._path, f"length={length}"):
            if self.content.blocks_needed(0, length) > self._disk.free_blocks():
                raise _os_error(errno.ENOSPC, self._path)
            self.content.allocate(length)

    def truncate(self, length: int) -> None:
        """Truncate or extend the file to `length` bytes; an extension reads as zeros and reserves no space."""
        self._require_open()
        self._require_synced()
        if self._read_only:
            raise _os_error(errno.EINVAL, self._path)
        self._require_position(length)
        with self._disk.call("truncate", self._path, f"length={length}"):
            self.content.truncate(length)

    def try_lock(self) -> bool:
        """Acquire the exclusive advisory lock of this file; False if another handle holds it. `close` releases it."""
        self._require_open()
        with self._disk.call("lock", self._path):
            if self.content.lock_holder is None:
                self.content.lock_holder = self._number
            return self.content.lock_holder == self._number

    def close(self) -> None:
        """Close the handle without a sync; closing twice, or after a crash, is allowed."""
        self._closed = True
        self._disk.release(self._number)
        if self.content.lock_holder == self._number:
            self.content.lock_holder = None

    def copy_from(self, source: SimFile, source_at: int, target_at: int, length: int) -> int:
        """Copy bytes from another file into this one, for `SimDisk.copy_range`."""
        source._require_open()
        self._require_writable()
        self._require_position(source_at, target_at, length)
        if source.content is self.content and abs(source_at - target_at) < length:
            raise _os_error(errno.EINVAL, self._path)
        return self._write("copy_range", source.content.read(length, source_at), target_at)

    def _write(self, name: Call, data: bytes, at: int) -> int:
        """Write as much as the fault plan, the crash point and the free space allow."""
        with self._disk.call(name, self._path) as call:
            written = self._fitting_size(data, at)
            if call.outcome is Outcome.SHORT and written > 1:
                written = self._disk.chance.randint(1, written - 1)
            elif call.outcome is Outcome.CRASH:
                # The power is lost between two units: the units before are in the page cache, those after are not.
                unit_size = self.content.unit_size
                cut = self._disk.chance.randint(at // unit_size, -(-(at + written) // unit_size)) * unit_size
                written = max(0, min(cut - at, written))
            self.content.write(data[:written], at)
            call.detail = f"at={at} length={len(data)} written={written}"
        return written

    def _fitting_size(self, data: bytes, at: int) -> int:
        """The number of bytes that fit the free space: all, or those before the first block that does not fit."""
        end = at + len(data)
        needed = self.content.blocks_needed(at, end)
        if needed == 0 or needed <= (free := self._disk.free_blocks()):
            return len(data)
        block_end = at
        while block_end < end and self.content.blocks_needed(at, block_end + 1) <= free:
            block_end = min(end, (block_end // PAGE_SIZE + 1) * PAGE_SIZE)
        if block_end == at:
            raise _os_error(errno.ENOSPC, self._path)
        return block_end - at

    def _require_open(self) -> None:
        if self._closed:
            raise _os_error(errno.EBADF, self._path)
        self._disk.require_alive(self._number, self._path)

    def _require_writable(self) -> None:
        self._require_open()
        self._require_synced()
        if self._read_only:
            raise _os_error(errno.EBADF, self._path)

    def _require_synced(self) -> None:
        """Raise `SyncError` after a failed sync."""
        if self._sync_failed:
            raise SyncError(f"{self._path}: an earlier sync failed, so nothing more may be written through this handle")

    def _require_position(self, *numbers: int) -> None:
        if min(numbers) < 0:
            raise _os_error(errno.EINVAL, self._path)


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
