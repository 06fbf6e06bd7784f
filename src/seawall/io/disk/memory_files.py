"""Files that are nothing but memory: for what must not outlive the process.

The same protocols as `OsFiles`, so whatever is written against the seam works on them. Names are paths without meaning;
directories are whatever names have in front of a slash. Syncs do nothing: there is nothing that could survive.

Bytes lie in *extents*, one behind the other: stretches of pieces (`buffer_pool`). A file that grows is not copied, and
space that is reserved costs nothing: a piece is taken when something is written to it.

One owner at a time for changes, beside whom others may read what was there before; a file that was unlinked is gone
when its last handle is.
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
from seawall.io.disk.buffer_pool import PIECE_SIZE_MAX, PIECE_SIZE_MIN, BufferPool
from seawall.io.interfaces import File, ReadableBuffer, WritableBuffer
from seawall.kernels.runtime.memory import Bytes, copy_out
from seawall.limits import KIB

__all__ = ["BufferPool", "MemoryFile", "MemoryFiles"]

#: So many bytes at once are on their way out of the caches: they are written past them, which takes two thirds of the
#: time and leaves there what is needed next.
_STREAMED_SIZE: Final = 64 * KIB
_NOTHING: Final = np.zeros(0, np.uint8)


def _piece_size(size: int) -> int:
    """The size of the next piece where so many bytes are missing: a power of two."""
    return min(max(PIECE_SIZE_MIN, 1 << (size - 1).bit_length()), PIECE_SIZE_MAX)


class _Extent:
    """Bytes of a file that lie in one piece of memory: from `start` to `end` in the file, from `at` on in memory."""

    __slots__ = ("at", "end", "memory", "start")

    def __init__(self, start: int, end: int, memory: Bytes, at: int) -> None:
        self.start = start
        self.end = end
        self.memory = memory
        self.at = at


_START: Final = attrgetter("start")


class _Content:
    """The bytes of one file, and who has its lock."""

    __slots__ = ("_extents", "_piece", "_piece_used", "_spare", "filled", "locked_by", "size")

    def __init__(self, spare: BufferPool) -> None:
        self._spare = spare
        #: They hold all that was written, which is up to `filled`. What is behind it reads as zeros.
        self._extents: list[_Extent] = []
        self.filled = 0
        self.size = 0
        #: The last piece that was taken, and how much of it is used.
        self._piece: Bytes = _NOTHING
        self._piece_used = 0
        self.locked_by: MemoryFile | None = None

    def resize(self, size: int) -> None:
        """Cut it, or grow it with zeros."""
        self.size = size
        while self.filled > size:
            last = self._extents[-1]
            last.end = self.filled = max(last.start, size)
            if last.memory is self._piece:
                self._piece_used = last.at + last.end - last.start
            if last.end == last.start:
                self._extents.pop()
        if not self._piece_used:
            self._piece = _NOTHING

    def _append(self, memory: Bytes, at: int, length: int) -> None:
        """The next bytes of the file are those that lie in memory from `at` on."""
        end = self.filled + length
        last = self._extents[-1] if self._extents else None
        if last is not None and last.memory is memory and last.at + last.end - last.start == at:
            last.end = end
        else:
            self._extents.append(_Extent(self.filled, end, memory, at))
        self.filled = end
        self.size = max(self.size, end)

    def _grow(self, end: int) -> None:
        """Have room for bytes up to `end`, which are to be written now."""
        while self.filled < end:
            if self._piece_used == len(self._piece):
                # What was reserved will come, too.
                self._piece, self._piece_used = self._spare.take(_piece_size(max(self.size, end) - self.filled)), 0
            length = min(end - self.filled, len(self._piece) - self._piece_used)
            self._append(self._piece, self._piece_used, length)
            self._piece_used += length

    def read(self, at: int, end: int) -> bytes:
        """The bytes from one place to another."""
        end, filled = min(end, self.size), self.filled
        known = [memory.data[first:last] for memory, first, last in self._spans(at, min(end, filled))]
        unwritten = max(0, end - max(at, filled))
        return b"".join([*known, bytes(unwritten)])

    def write(self, views: Sequence[memoryview], at: int, end: int) -> None:
        """Put bytes at a place, up to `end`; a gap before them is filled with zeros."""
        before = self.filled
        self._grow(end)
        for memory, first, last in self._spans(before, at):
            memory[first:last] = 0
        spans = self._spans(at, end)
        place = space = 0
        for view in views:
            done, size = 0, len(view)
            while done < size:
                if place == space:
                    memory, place, space = next(spans)
                step = min(size - done, space - place)
                if step >= _STREAMED_SIZE:
                    copy_out(memory, place, np.frombuffer(view, np.uint8), done, step)
                else:
                    memory.data[place : place + step] = view[done : done + step]
                place, done = place + step, done + step

    def _spans(self, at: int, end: int) -> Iterator[tuple[Bytes, int, int]]:
        """The memory between two places, and what of each."""
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
        """Path it was opened by; used in messages only."""
        return self._path

    def fileno(self) -> int:
        """There is no descriptor, which every call with one answers with EBADF."""
        return -1

    def size(self) -> int:
        """Length in bytes now."""
        return self._content.size

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from position `at`; return the bytes read, fewer only at the end of the file."""
        total = 0
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            piece = self.read(view.nbytes, at + total)
            view[: len(piece)] = piece
            total += len(piece)
        return total

    def read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from position `at`, fewer only at the end of the file."""
        return self._content.read(at, at + length)

    def write(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write the buffers at position `at`, all of them; a gap before them is filled with zeros."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        total = sum(map(len, views))
        self.allocate(at + total)
        self._content.write(views, at, at + total)
        return total

    def write_uncached(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write: memory is all there is."""
        return self.write(buffers, at)

    def write_durably(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write: as durable as it gets."""
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
        """Give the handle back; closing twice is fine."""
        if self._content.locked_by is self:
            self._content.locked_by = None


class MemoryFiles:
    """Names and files of one process's memory."""

    __slots__ = ("_files", "_spare")

    def __init__(self, spare: BufferPool | None = None) -> None:
        self._files: dict[str, _Content] = {}
        self._spare = spare or BufferPool()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> MemoryFile:
        """Open a file; `create` makes it where missing, `exclusive` makes it and fails where it is there already."""
        if read_only and (create or exclusive):
            raise InvalidInputError(f"{path}: a file opened read-only cannot be created by the same call")
        if exclusive and path in self._files:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        if (create or exclusive) and path not in self._files:
            self._files[path] = _Content(self._spare)
        return MemoryFile(self._content(path), path)

    def exists(self, path: str) -> bool:
        """Whether a file has this name, or a directory with something in it."""
        return path in self._files or any(name.startswith(f"{path}/") for name in self._files)

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        inside = (name.removeprefix(f"{directory}/") for name in self._files if name.startswith(f"{directory}/"))
        return sorted({name.split("/", 1)[0] for name in inside})

    def make_directory(self, path: str) -> None:
        """Nothing to do: a directory is there with its first file."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it."""
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
        """Memory is not counted: as much as a number can say, less what the files below `path` take."""
        below = (content for name, content in self._files.items() if name.startswith(path))
        return (1 << 63) - 1 - sum(content.size for content in below)

    def _content(self, path: str) -> _Content:
        content = self._files.get(path)
        if content is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return content
