"""Files that are nothing but memory: for what must not outlive the process.

The same protocols as `OsFiles`, so whatever is written against the seam works on them. Names are paths without meaning;
directories are whatever names have in front of a slash. Syncs do nothing: there is nothing that could survive.

Bytes lie in pieces that the system hands out when they are first touched: a file that grows is not copied, and space
that is reserved costs nothing. Pieces have few sizes, so that those of files that are gone fit the files that come:
what is written and dropped all the time needs no fresh pages, whose clearing costs as much as the writing. They are
as they were left, so what nobody has written is never looked at.

One owner at a time for changes; a file that was unlinked is gone when its last handle is.
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from seawall.errors import InvalidInputError
from seawall.io.interfaces import File, ReadableBuffer, WritableBuffer
from seawall.kernels.memory import Bytes, copy_out
from seawall.limits import KIB, MIB

__all__ = ["MemoryFile", "MemoryFiles", "SparePieces"]

#: Smallest and largest piece of a file; the largest are asked for in huge pages.
_PIECE_SIZE_MIN: Final = 64 * KIB
_PIECE_SIZE_MAX: Final = 4 * MIB
#: So many bytes at once are on their way out of the caches: they are written past them, which takes two thirds of the
#: time and leaves there what is needed next.
_STREAMED_SIZE: Final = 64 * KIB
#: What is kept of files that are gone, beside half of what files have: they go whole, and come piece by piece.
_SPARE_SIZE: Final = 64 * MIB


def _piece_size(size: int) -> int:
    """The size of the next piece where so many bytes are missing: a power of two."""
    return min(max(_PIECE_SIZE_MIN, 1 << (size - 1).bit_length()), _PIECE_SIZE_MAX)


class SparePieces:
    """Memory of files that are gone, for those that come. Files of one owner may share it."""

    __slots__ = ("_pieces", "_used", "size")

    def __init__(self) -> None:
        #: By their size.
        self._pieces: dict[int, list[mmap.mmap]] = {}
        self._used = 0
        self.size = 0

    def take(self, size: int) -> mmap.mmap:
        """A piece of one of the sizes there are, which may hold anything."""
        self._used += size
        pieces = self._pieces.get(size)
        if pieces:
            self.size -= size
            return pieces.pop()
        piece = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size == _PIECE_SIZE_MAX and hasattr(mmap, "MADV_HUGEPAGE"):
            piece.madvise(mmap.MADV_HUGEPAGE)
        return piece

    def give_back(self, pieces: Sequence[mmap.mmap]) -> None:
        """Keep what there is room for; the rest goes back to the system."""
        self._used -= sum(map(len, pieces))
        size_max = _SPARE_SIZE + self._used // 2
        for piece in pieces:
            self._pieces.setdefault(len(piece), []).append(piece)
            self.size += len(piece)
        while self.size > size_max:
            largest = max(size for size, spare in self._pieces.items() if spare)
            self._pieces[largest].pop()
            self.size -= largest


class _Content:
    """The bytes of one file, and who has its lock."""

    __slots__ = ("_filled", "_pieces", "_spare", "_starts", "locked_by", "size")

    def __init__(self, spare: SparePieces) -> None:
        self._spare = spare
        #: Pieces in order, and where each begins. What lies behind `_filled` was not written: it reads as zeros.
        self._pieces: list[mmap.mmap] = []
        self._starts: list[int] = []
        self._filled = 0
        self.size = 0
        self.locked_by: MemoryFile | None = None

    def __del__(self) -> None:
        # The last handle is gone, so nobody reads it any more.
        self._spare.give_back(self._pieces)

    def resize(self, size: int) -> None:
        """Cut it, or grow it with zeros."""
        self._filled = min(self._filled, size)
        while self._starts and self._starts[-1] >= size:
            self._spare.give_back([self._pieces.pop()])
            self._starts.pop()
        room = self._starts[-1] + len(self._pieces[-1]) if self._pieces else 0
        while room < size:
            piece = self._spare.take(_piece_size(size - room))
            self._pieces.append(piece)
            self._starts.append(room)
            room += len(piece)
        self.size = size

    def read(self, at: int, end: int) -> bytes:
        """The bytes from one place to another."""
        end = min(end, self.size)
        known = [piece[first:last] for piece, first, last in self._spans(at, min(end, self._filled))]
        unwritten = max(0, end - max(at, self._filled))
        return b"".join([*known, bytes(unwritten)])

    def write(self, views: Sequence[memoryview], at: int, end: int) -> None:
        """Put bytes where there is room for them, which is up to `end`."""
        for piece, first, last in self._spans(self._filled, at):
            piece[first:last] = bytes(last - first)
        spans = self._spans(at, end)
        place = room = 0
        for view in views:
            done, size = 0, len(view)
            while done < size:
                if place == room:
                    piece, place, room = next(spans)
                step = min(size - done, room - place)
                if step >= _STREAMED_SIZE:
                    copy_out(np.frombuffer(piece, np.uint8), place, np.frombuffer(view, np.uint8), done, step)
                else:
                    piece[place : place + step] = view[done : done + step]
                place, done = place + step, done + step
        self._filled = max(self._filled, end)

    def lend(self, at: int, end: int) -> list[Bytes]:
        """Where the bytes between two places lie, for whoever writes them before anybody reads them."""
        self.write([], at, end)
        return [np.frombuffer(piece, np.uint8)[first:last] for piece, first, last in self._spans(at, end)]

    def _spans(self, at: int, end: int) -> Iterator[tuple[mmap.mmap, int, int]]:
        """The pieces between two places, and what of each."""
        index = bisect_right(self._starts, at) - 1
        while at < end:
            piece, start = self._pieces[index], self._starts[index]
            stop = min(end, start + len(piece))
            yield piece, at - start, stop - start
            at = stop
            index += 1


class MemoryFile:
    """One open file in memory. Made by `MemoryFiles.open`."""

    __slots__ = ("_content", "_path")

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

    def lend(self, at: int, length: int) -> list[Bytes]:
        """The memory of `length` bytes from position `at`, in order: to be written before anybody reads there."""
        self.allocate(at + length)
        return self._content.lend(at, at + length)

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

    def __init__(self, spare: SparePieces | None = None) -> None:
        self._files: dict[str, _Content] = {}
        self._spare = spare or SparePieces()

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
