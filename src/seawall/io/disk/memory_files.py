"""Files in memory, for a log that must not outlive the process.

They implement the same protocols as `OsFiles`, so the storage layer works on them unchanged. Names are opaque paths; a
directory is any prefix of a name before a slash. Syncs do nothing, because nothing could survive.

The bytes of a file are in consecutive *extents*: ranges of pooled buffers (`buffer_pool`). Growing a file copies
nothing. Reserved space costs nothing: the file takes a buffer when bytes are written to it.

One thread at a time may change a file, while others read what was there before. An unlinked file is freed with its last
handle.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from seawall.errors import InvalidInputError
from seawall.io.disk.buffer_pool import BUFFER_SIZE_MAX, BUFFER_SIZE_MIN, BufferPool
from seawall.io.interfaces import File, ReadableBuffer, WritableBuffer
from seawall.kernels.runtime.memory import Bytes, copy_out
from seawall.limits import KIB

__all__ = ["BufferPool", "MemoryFile", "MemoryFiles"]

#: A copy of this size or more would flush the CPU caches, so it bypasses them: that takes two thirds of the time and
#: keeps the cached data.
_STREAMED_SIZE: Final = 64 * KIB
_NOTHING: Final = np.zeros(0, np.uint8)


def _buffer_size(size: int) -> int:
    """The size of the next buffer for `size` more bytes: a power of two within the limits."""
    return min(max(BUFFER_SIZE_MIN, 1 << (size - 1).bit_length()), BUFFER_SIZE_MAX)


class _Extent:
    """Bytes of a file inside one buffer: from `start` to `end` in the file, from `at` on in memory."""

    __slots__ = ("at", "end", "memory", "start")

    def __init__(self, start: int, end: int, memory: Bytes, at: int) -> None:
        self.start = start
        self.end = end
        self.memory = memory
        self.at = at


_START: Final = attrgetter("start")


class _Content:
    """The bytes of one file, and the handle that holds its lock."""

    __slots__ = ("_buffer", "_buffer_used", "_extents", "_pool", "filled", "locked_by", "size")

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        #: All written bytes, up to `filled`. Bytes from there to `size` read as zeros.
        self._extents: list[_Extent] = []
        self.filled = 0
        self.size = 0
        #: The newest buffer, and how much of it is used.
        self._buffer: Bytes = _NOTHING
        self._buffer_used = 0
        self.locked_by: MemoryFile | None = None

    def resize(self, size: int) -> None:
        """Truncate the file, or grow it with zeros."""
        self.size = size
        while self.filled > size:
            last = self._extents[-1]
            last.end = self.filled = max(last.start, size)
            if last.memory is self._buffer:
                self._buffer_used = last.at + last.end - last.start
            if last.end == last.start:
                self._extents.pop()
        if not self._buffer_used:
            self._buffer = _NOTHING

    def _append(self, memory: Bytes, at: int, length: int) -> None:
        """Make `length` bytes of a buffer, from `at` on, the next bytes of the file."""
        end = self.filled + length
        last = self._extents[-1] if self._extents else None
        if last is not None and last.memory is memory and last.at + last.end - last.start == at:
            last.end = end
        else:
            self._extents.append(_Extent(self.filled, end, memory, at))
        self.filled = end
        self.size = max(self.size, end)

    def _grow(self, end: int) -> None:
        """Add memory for bytes up to `end`; the caller writes them next."""
        while self.filled < end:
            if self._buffer_used == len(self._buffer):
                # Size the buffer for the reserved bytes too: they will be written.
                self._buffer, self._buffer_used = self._pool.take(_buffer_size(max(self.size, end) - self.filled)), 0
            length = min(end - self.filled, len(self._buffer) - self._buffer_used)
            self._append(self._buffer, self._buffer_used, length)
            self._buffer_used += length

    def read(self, at: int, end: int) -> bytes:
        """The bytes from `at` up to `end`, or up to the end of the file."""
        end, filled = min(end, self.size), self.filled
        written = [memory.data[first:last] for memory, first, last in self._spans(at, min(end, filled))]
        unwritten = max(0, end - max(at, filled))
        return b"".join([*written, bytes(unwritten)])

    def write(self, views: Sequence[memoryview], at: int, end: int) -> None:
        """Write bytes from `at` up to `end`; fills a gap before them with zeros."""
        before = self.filled
        self._grow(end)
        for memory, first, last in self._spans(before, at):
            memory[first:last] = 0
        spans = self._spans(at, end)
        offset = limit = 0
        for view in views:
            done, size = 0, len(view)
            while done < size:
                if offset == limit:
                    memory, offset, limit = next(spans)
                step = min(size - done, limit - offset)
                if step >= _STREAMED_SIZE:
                    copy_out(memory, offset, np.frombuffer(view, np.uint8), done, step)
                else:
                    memory.data[offset : offset + step] = view[done : done + step]
                offset, done = offset + step, done + step

    def _spans(self, at: int, end: int) -> Iterator[tuple[Bytes, int, int]]:
        """The buffers that hold the bytes from `at` up to `end`, each with its first and last offset."""
        index = bisect_right(self._extents, at, key=_START) - 1
        while at < end:
            extent = self._extents[index]
            stop = min(end, extent.end)
            yield extent.memory, extent.at + at - extent.start, extent.at + stop - extent.start
            at = stop
            index += 1


class MemoryFile:
    """One open file in memory. Made by `MemoryFiles.open`."""

    __slots__ = ("__weakref__", "_content", "_path")

    def __init__(self, content: _Content, path: str) -> None:
        self._content = content
        self._path = path

    @property
    def path(self) -> str:
        """Path it was opened with; used in messages only."""
        return self._path

    def fileno(self) -> int:
        """Always -1: there is no descriptor, so every system call with it fails with EBADF."""
        return -1

    def size(self) -> int:
        """Length in bytes now."""
        return self._content.size

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from position `at`; return the bytes read, fewer only at the end of the file."""
        total = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            data = self.read(view.nbytes, at + total)
            view[: len(data)] = data
            total += len(data)
        return total

    def read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from position `at`, fewer only at the end of the file."""
        return self._content.read(at, at + length)

    def write(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write all buffers at position `at`; fills a gap before them with zeros."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        total = sum(map(len, views))
        self.allocate(at + total)
        self._content.write(views, at, at + total)
        return total

    def write_uncached(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Same as `write`."""
        return self.write(buffers, at)

    def write_durably(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Same as `write`: memory has no other durability."""
        return self.write(buffers, at)

    def sync(self) -> None:
        """Nothing to do."""

    def allocate(self, length: int) -> None:
        """Grow the file with zeros to `length` bytes if it is shorter."""
        if self._content.size < length:
            self._content.resize(length)

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length` bytes."""
        self._content.resize(length)

    def try_lock(self) -> bool:
        """Take the exclusive lock of this file; false if another handle has it."""
        if self._content.locked_by is None:
            self._content.locked_by = self
        return self._content.locked_by is self

    def close(self) -> None:
        """Release the lock if this handle holds it; closing twice is fine."""
        if self._content.locked_by is self:
            self._content.locked_by = None


class MemoryFiles:
    """The names and files of one in-memory log."""

    __slots__ = ("_files", "_pool")

    def __init__(self, pool: BufferPool | None = None) -> None:
        self._files: dict[str, _Content] = {}
        self._pool = pool or BufferPool()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> MemoryFile:
        """Open a file; `create` creates it if it is missing, `exclusive` creates it and fails if it exists."""
        if read_only and (create or exclusive):
            raise InvalidInputError(f"{path}: a file opened read-only cannot be created by the same call")
        if exclusive and path in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if (create or exclusive) and path not in self._files:
            self._files[path] = _Content(self._pool)
        return MemoryFile(self._content(path), path)

    def exists(self, path: str) -> bool:
        """True if a file has this name, or a directory that holds a file."""
        return path in self._files or any(name.startswith(f"{path}/") for name in self._files)

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        inside = (name.removeprefix(f"{directory}/") for name in self._files if name.startswith(f"{directory}/"))
        return sorted({name.split("/", 1)[0] for name in inside})

    def make_directory(self, path: str) -> None:
        """Nothing to do: a directory exists with its first file."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing a file that has the new name."""
        self._files[new] = self._content(old)
        del self._files[old]

    def unlink(self, path: str) -> None:
        """Remove a name."""
        self._content(path)
        del self._files[path]

    def sync_directory(self, path: str) -> None:
        """Nothing to do."""

    def copy_range(self, source: File, source_at: int, target: File, target_at: int, length: int) -> int:
        """Copy bytes between files; return the bytes copied."""
        return target.write([source.read(length, source_at)], target_at)

    def free_bytes(self, path: str) -> int:
        """The largest 64-bit number less the size of the files below `path`: free memory is not measured."""
        below = (content for name, content in self._files.items() if name.startswith(path))
        return (1 << 63) - 1 - sum(content.size for content in below)

    def _content(self, path: str) -> _Content:
        content = self._files.get(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return content
