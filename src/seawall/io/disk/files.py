"""Files of the operating system, and helpers that work on every implementation of `Files`.

`OsFiles` and `OsFile` implement the protocols of `interfaces.py` with `os` calls. `write_all`, `read_exactly` and
`replace_file` use the protocols alone, so they work the same on a simulated disk.

This module must not know what is stored: bytes, positions and names only.

Invariants
- INV-SYNC-FATAL: after a failed sync, no write or sync of that file or disk ring reports success again. Linux reports a
  lost page once and then calls it clean, so trying again would turn a loss into a success. The handle refuses every
  later change and sync with `SyncError`.
- `write_all` returns only when every byte is written; a write of no bytes is an error.
- INV-REPLACE-ATOMIC: after `replace_file`, or a crash inside it, a name has all of the old bytes or all of the new
  ones.

Signals: the interpreter repeats interrupted calls by itself (PEP 475), so EINTR never reaches this code.

What a crash does: bytes that were not synced may survive, be lost, or survive in part; so may a name whose directory
was not synced.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Sequence
from typing import Final

from seawall.errors import CorruptionError, InvalidInputError, SyncError
from seawall.io.disk.space_release import RELEASER
from seawall.io.interfaces import File, Files, ReadableBuffer, WritableBuffer
from seawall.io.process.descriptors import open_from_reserve
from seawall.io.process.permissions import make_directories, open_or_make
from seawall.limits import COPY_BUFFER_SIZE, IOVEC_COUNT_MAX

__all__ = [
    "NO_SPACE",
    "PLAIN_SYNC_IS_ENOUGH",
    "REPLACEMENT_SUFFIX",
    "OsFile",
    "OsFiles",
    "parent_directory",
    "read_exactly",
    "remove_if_there",
    "replace_file",
    "reserve_space",
    "system_error",
    "write_all",
]

#: Ending of the temporary name inside `replace_file`. A file with this name after a crash is debris: never read it.
REPLACEMENT_SUFFIX: Final = ".replacing"

#: Error codes for a full disk or an exhausted quota.
NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

#: On macOS `fsync` leaves data in the drive's own cache; only this command flushes it. None elsewhere.
_FULL_SYNC_COMMAND: int | None = getattr(fcntl, "F_FULLFSYNC", None)

#: True if a numba kernel that calls write and sync itself is as durable as `OsFile.sync`.
PLAIN_SYNC_IS_ENOUGH: Final = _FULL_SYNC_COMMAND is None

#: Write to the disk at once and drop the pages then: since Linux 6.14, and not in every file system.
_RWF_DONTCACHE: Final = 0x80 if sys.platform.startswith("linux") else 0

#: Error codes for two files that the kernel cannot copy between, though a read and a write would work.
_COPY_UNSUPPORTED: Final = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def write_all(
    file: File, buffers: Sequence[ReadableBuffer], at: int, *, durable: bool = False, uncached: bool = False
) -> int:
    """Write every byte of the buffers at position `at`, finishing short writes without copying; return the count.

    With `durable` these bytes are on the disk when it returns; earlier writes still need a sync. `uncached`, without
    `durable`, bypasses the page cache where possible.
    """
    remaining = _byte_views(buffers)
    write = file.write_durably if durable else file.write_uncached if uncached else file.write
    total = 0
    while remaining:
        written = write(remaining, at + total)
        if written == 0:
            raise OSError(errno.EIO, f"write at {at + total} took no bytes and gave no reason", file.path)
        total += written
        remaining = _skip(remaining, written)
    return total


def read_exactly(file: File, length: int, at: int) -> bytes:
    """Read `length` bytes at position `at`; `CorruptionError` if the file ends before."""
    data = file.read(length, at)
    if len(data) != length:
        raise CorruptionError(
            f"{file.path}: wanted {length} bytes at position {at}, the file ends after {len(data)} of them"
        )
    return data


def replace_file(files: Files, path: str, data: ReadableBuffer) -> None:
    """Make `path` hold exactly `data`, durably, or leave it as it was.

    One caller per path at a time: the temporary name is derived from the path.
    """
    temporary = path + REPLACEMENT_SUFFIX
    try:
        file = files.open(temporary, create=True)
        try:
            file.truncate(0)
            write_all(file, [data], 0)
            file.sync()
        finally:
            file.close()
        files.rename(temporary, path)
    except BaseException:
        # The error being raised matters more than debris, which the next replacement overwrites.
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    files.sync_directory(parent_directory(path))


def system_error(code: int) -> OSError:
    """An `OSError` with this errno."""
    return OSError(code, os.strerror(code))


def remove_if_there(files: Files, path: str) -> None:
    """Remove a name; fine if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)


def parent_directory(path: str) -> str:
    """The directory that holds the name `path`, in the form `sync_directory` takes."""
    return os.path.dirname(path) or "."


def reserve_space(descriptor: int, length: int) -> None:
    """Reserve space for the first `length` bytes of a file, growing it if it is shorter; undo the growth on failure.

    Where the system has no `posix_fallocate` (macOS), this writes zeros past the end; a hole that an earlier `truncate`
    left inside the file stays a hole.
    """
    size = os.fstat(descriptor).st_size
    try:
        if hasattr(os, "posix_fallocate"):
            if length != 0:
                os.posix_fallocate(descriptor, 0, length)
        else:
            _write_zeros(descriptor, size, length)
    except OSError:
        if os.fstat(descriptor).st_size > size:
            os.ftruncate(descriptor, size)
        raise


class OsFile:
    """One open file of the operating system. Made by `OsFiles.open`."""

    __slots__ = ("_descriptor", "_direct_sync", "_path", "_sync_failed")

    def __init__(self, descriptor: int, path: str, *, direct_sync: bool = False) -> None:
        self._descriptor = descriptor
        self._path = path
        self._direct_sync = direct_sync
        self._sync_failed = False

    @property
    def path(self) -> str:
        """Path it was opened with; used in messages only."""
        return self._path

    def fileno(self) -> int:
        """The file descriptor; -1 once closed, so that every call on it fails with EBADF."""
        return self._descriptor

    def size(self) -> int:
        """Length in bytes now."""
        return os.fstat(self._descriptor).st_size

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from position `at`; return the bytes read, fewer only at the end of the file."""
        self._require_position(at)
        remaining = _byte_views(buffers)
        total = 0
        while remaining:
            got = os.preadv(self._descriptor, remaining[:IOVEC_COUNT_MAX], at + total)
            if got == 0:
                break
            total += got
            remaining = _skip(remaining, got)
        return total

    def read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from position `at`, fewer only at the end of the file."""
        data = os.pread(self._descriptor, length, at)
        if len(data) in (0, length):
            return data
        buffer = bytearray(length)
        buffer[: len(data)] = data
        with memoryview(buffer) as view, view[len(data) :] as rest:
            got = len(data) + self.read_into([rest], at + len(data))
        return bytes(buffer[:got])

    def write(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write the buffers at position `at`; return the bytes written, which may be fewer than asked."""
        self.require_synced()
        self._require_position(at)
        if not buffers:
            return 0
        try:
            return os.pwritev(self._descriptor, buffers[:IOVEC_COUNT_MAX], at)
        except OSError as error:
            if not _may_retry_after(error):
                raise
            return os.pwritev(self._descriptor, buffers[:IOVEC_COUNT_MAX], at)

    def write_uncached(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write like `write`, but drop the pages from the page cache once they are on disk, where supported."""
        self.require_synced()
        self._require_position(at)
        try:
            return os.pwritev(self._descriptor, buffers[:IOVEC_COUNT_MAX], at, _RWF_DONTCACHE)
        except OSError as error:
            # The system or this file system does not know the flag; nothing was written.
            if error.errno != errno.EOPNOTSUPP:
                raise
            return self.write(buffers, at)

    def write_durably(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write like `write`, durable when it returns; a single call if the handle uses `direct_sync`."""
        if not self._direct_sync:
            written = self.write(buffers, at)
            self.sync()
            return written
        if self._sync_failed or at < 0:
            self.require_synced()
            self._require_position(at)
        try:
            return os.pwritev(self._descriptor, buffers[:IOVEC_COUNT_MAX], at, os.RWF_DSYNC)
        except OSError as error:
            # The error may come from the write or from its sync; treat it as the sync, which is worse.
            raise self._failed(error) from error

    def sync(self) -> None:
        """Make data and length durable; `SyncError` if that fails, and the handle then refuses every later change."""
        self.require_synced()
        try:
            _sync_descriptor(self._descriptor)
        except OSError as error:
            raise self._failed(error) from error

    def allocate(self, length: int) -> None:
        """Reserve disk space for the first `length` bytes, growing the file with zeros if it is shorter."""
        self.require_synced()
        try:
            reserve_space(self._descriptor, length)
        except OSError as error:
            if not _may_retry_after(error):
                raise
            reserve_space(self._descriptor, length)

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length` bytes; an extension reads as zeros and reserves nothing."""
        self.require_synced()
        os.ftruncate(self._descriptor, length)

    def try_lock(self) -> bool:
        """Take the exclusive advisory lock of this file; false if another handle has it. Closing releases it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Close the descriptor; closing twice is fine. Closing syncs nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @property
    def direct_sync(self) -> bool:
        """True if a durable write is one call (RWF_DSYNC)."""
        return self._direct_sync

    def failed(self, code: int) -> SyncError:
        """INV-SYNC-FATAL: record that a kernel's durable write on this handle failed; returns the error to raise."""
        return self._failed(system_error(code))

    def require_synced(self) -> None:
        """INV-SYNC-FATAL: raise `SyncError` if a sync of this handle has failed before."""
        if self._sync_failed:
            raise SyncError(f"{self._path}: an earlier sync failed, so nothing more may be written through this handle")

    def _failed(self, error: OSError) -> SyncError:
        """INV-SYNC-FATAL: record that a sync failed; returns the error to raise."""
        self._sync_failed = True
        failure = SyncError(f"{self._path}: sync failed ({error.strerror}); stop, start again and recover")
        failure.__cause__ = error
        return failure

    def _require_position(self, at: int) -> None:
        """Refuse a negative position: `preadv2` and `pwritev2` take -1 for the file cursor."""
        if at < 0:
            raise OSError(errno.EINVAL, f"position {at} is before the beginning", self._path)


class OsFiles:
    """Directories and names of the operating system.

    With `direct_sync` a durable write is one call (RWF_DSYNC); `direct_sync.direct_sync_wins` measures which is faster.

    It creates files for this user alone, or readable by one `group` too (`permissions.py`).
    """

    __slots__ = ("_direct_sync", "_group")

    def __init__(self, *, direct_sync: bool = False, group: int | None = None) -> None:
        self._direct_sync = direct_sync
        self._group = group

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> OsFile:
        """Open a file; `create` creates it if it is missing, `exclusive` creates it and fails if it exists."""
        if read_only and (create or exclusive):
            raise InvalidInputError(f"{path}: a file opened read-only cannot be created by the same call")
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
        if create or exclusive:
            descriptor = open_or_make(path, flags, self._group, exclusive=exclusive)
        else:
            descriptor = os.open(path, flags)
        return OsFile(descriptor, path, direct_sync=self._direct_sync)

    def exists(self, path: str) -> bool:
        """True if a file or directory has this name; raises an `OSError` that leaves the answer open."""
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents; fine if it exists."""
        make_directories(path, self._group)

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing a file that has the new name."""
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        """Remove a name; the space of a large file becomes free a little later (`space_release.py`)."""
        held = RELEASER.hold(path)
        try:
            os.unlink(path)
        finally:
            if held is not None:
                RELEASER.close_later(held)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; `SyncError` if that fails."""
        # From the reserve if need be: names have changed already, and this sync must not fail for want of a descriptor.
        with open_from_reserve(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as descriptor:
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise SyncError(f"{path}: directory sync failed ({error.strerror}); stop and recover") from error

    def copy_range(self, source: File, source_at: int, target: File, target_at: int, length: int) -> int:
        """Copy bytes between files inside the kernel; return the bytes copied, which may be fewer than asked."""
        if not isinstance(target, OsFile):
            raise InvalidInputError(
                f"{target.path}: not a file of the operating system, so the kernel cannot copy to it"
            )
        target.require_synced()
        if not hasattr(os, "copy_file_range"):
            return _copy_through_memory(source, source_at, target, target_at, length)
        try:
            return os.copy_file_range(source.fileno(), target.fileno(), length, source_at, target_at)
        except OSError as error:
            # Inside one file EINVAL means that the ranges overlap, which no copy in pieces gets right.
            overlapping = error.errno == errno.EINVAL and os.path.sameopenfile(source.fileno(), target.fileno())
            if error.errno not in _COPY_UNSUPPORTED or overlapping:
                raise
            return _copy_through_memory(source, source_at, target, target_at, length)

    def free_bytes(self, path: str) -> int:
        """Bytes an unprivileged writer may still add to the file system of `path`."""
        RELEASER.wait()
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


def _may_retry_after(error: OSError) -> bool:
    """True if the disk was full and all pending space is free now, so that the call may be tried again."""
    if error.errno not in NO_SPACE:
        return False
    # Retry even if nothing is pending: space may have become free since the error.
    RELEASER.wait()
    return True


def _byte_views(buffers: Sequence[ReadableBuffer]) -> list[memoryview]:
    """The buffers as byte views, without the empty ones: an empty first buffer would look like no progress."""
    views = [memoryview(buffer) for buffer in buffers]
    return [view if view.format == "B" and view.ndim == 1 else view.cast("B") for view in views if view.nbytes]


def _skip(views: list[memoryview], count: int) -> list[memoryview]:
    """The views without their first `count` bytes."""
    for index, view in enumerate(views):
        if count < view.nbytes:
            return [view[count:], *views[index + 1 :]]
        count -= view.nbytes
    return []


def _sync_descriptor(descriptor: int) -> None:
    """Push data and length of one descriptor to stable storage."""
    if _FULL_SYNC_COMMAND is not None:
        fcntl.fcntl(descriptor, _FULL_SYNC_COMMAND)
    else:
        os.fdatasync(descriptor)


def _write_zeros(descriptor: int, start: int, end: int) -> None:
    """Write zeros from the end of a file at `start` up to `end`."""
    zeros = memoryview(bytes(min(COPY_BUFFER_SIZE, max(0, end - start))))
    while start < end:
        start += os.pwrite(descriptor, zeros[: end - start], start)


def _copy_through_memory(source: File, source_at: int, target: File, target_at: int, length: int) -> int:
    """Copy at most one buffer by read and write."""
    data = source.read(min(length, COPY_BUFFER_SIZE), source_at)
    return write_all(target, [data], target_at)
