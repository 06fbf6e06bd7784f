"""Memory that several processes share, as mapped files.

The path decides the kind: `/dev/shm` for memory, a DAX device's file system for persistent memory, any directory where
neither exists. This module must not know the layout of the content.

Invariants
- Every page is reserved before the mapping is returned. Touching a page of a sparse file that cannot be backed kills
  the process with SIGBUS, which no code can handle; a failed reservation is an ordinary error.
- Mappings start on a page and the file ends on one; the view has exactly the requested length.
- INV-LOCK-NAMED: a lock counts only while the name still leads to the locked file, so two pods never share a fabric.
  Replacing a file unlinks the old one, and a lock on an unlinked file keeps no other process out.
- INV-OWN-MEMORY: only regular files are mapped, and only files of this user are mapped for writing. Directories of
  shared memory are open to all users, and the owner of a file there can read and change it. Opening a planted file
  (for instance a FIFO) never blocks.

What a crash does: the end of a process does not change the file, so another process can attach to its content; after a
reboot `/dev/shm` is empty.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import platform
import stat
import weakref
from functools import cache
from typing import TYPE_CHECKING, Final

from seawall.errors import InvalidInputError
from seawall.io.disk.files import NO_SPACE, parent_directory, reserve_space

if TYPE_CHECKING:
    import ctypes

__all__ = ["OsMapping", "OsSharedMemory", "c_library", "map_pages"]

#: Number of the mbind system call; glibc has no wrapper for it.
_MBIND_NUMBERS: Final = {"x86_64": 237, "aarch64": 235}

#: mbind policy: take memory of this node while it has any, then of another one.
_PREFER: Final = 1


def map_pages(descriptor: int, at: int, length: int) -> int | None:
    """Map a page-aligned range of a file read-only; its address, or None if the system refuses."""
    import ctypes

    address: int = c_library().mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, at)
    return None if address == ctypes.c_void_p(-1).value else address


class OsMapping:
    """One mapping in this process, and the descriptor that holds its lock. Made by `OsSharedMemory`."""

    __slots__ = ("__weakref__", "_close_descriptor", "_descriptor", "_length", "_map", "_path", "_view")

    def __init__(self, descriptor: int, path: str, length: int, size: int, *, read_only: bool = False) -> None:
        self._descriptor = descriptor
        self._path = path
        self._length = length
        self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE)
        self._view = memoryview(self._map)[:length]
        self._close_descriptor = weakref.finalize(self, os.close, descriptor)

    @property
    def view(self) -> memoryview:
        """The bytes; read-only if the mapping was attached read-only."""
        return self._view

    def file_size(self) -> int:
        """Length of the file now."""
        return os.fstat(self._descriptor).st_size

    def try_lock(self, *, shared: bool) -> bool:
        """Take the lock of the file, or change its mode; false if it is held elsewhere (INV-LOCK-NAMED)."""
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return self.is_named

    @property
    def is_named(self) -> bool:
        """True while its path still leads to this file."""
        try:
            named = os.lstat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._descriptor))

    def close(self) -> None:
        """Unmap; `BufferError` while an array or a view over it is alive, and the mapping stays usable then."""
        self._view.release()
        try:
            self._map.close()
        except BufferError:
            self._view = memoryview(self._map)[: self._length]
            raise
        self._close_descriptor()


class OsSharedMemory:
    """File-backed shared mappings. `node` is the preferred NUMA node of the pages, if there are several."""

    __slots__ = ("_node",)

    def __init__(self, node: int | None = None) -> None:
        self._node = node

    def create(self, path: str, length: int) -> OsMapping:
        """Create a file of `length` bytes, reserve every page, and map it; `FileExistsError` if the name is taken."""
        _require_length(path, length)
        size = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)  # independent of the umask
            if self._node is not None:
                _prefer_node(descriptor, size, self._node)
            _reserve(descriptor, path, size)
            return OsMapping(descriptor, path, length, size)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise

    def attach(self, path: str, length: int, *, read_only: bool = False) -> OsMapping:
        """Map an existing file; `InvalidInputError` if it is shorter than `length`, or not a file of this user."""
        _require_length(path, length)
        descriptor = _open_own(path, read_only=read_only)
        try:
            status = os.fstat(descriptor)
            if status.st_size < length:
                raise InvalidInputError(
                    f"{path}: holds {status.st_size} bytes, {length} are needed; it was made with other settings, "
                    "remove it"
                )
            if not read_only and status.st_blocks * 512 < status.st_size:
                _reserve(descriptor, path, length)  # a copy may have holes where the original had zeros
            return OsMapping(descriptor, path, length, length, read_only=read_only)
        except BaseException:
            os.close(descriptor)
            raise

    def free_bytes(self, path: str, /) -> int:
        """Bytes available for a new file of this name."""
        status = os.statvfs(parent_directory(path))
        return status.f_bavail * status.f_frsize

    def remove(self, path: str) -> None:
        """Remove the name, fine if it does not exist; mappings of it stay valid until closed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@cache
def c_library() -> ctypes.CDLL:
    """The C library with the argument types of the mapping calls: ctypes passes 32-bit integers by default."""
    import ctypes

    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_longlong),
    )
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


def _prefer_node(descriptor: int, size: int, node: int) -> bool:
    """Prefer pages of one NUMA node; false if the kernel does not accept the hint, which costs only speed.

    Call it before reserving the pages, because the reservation allocates them. The policy belongs to the file and
    outlives the mapping that sets it.
    """
    number = _MBIND_NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        return False
    import ctypes

    words = node // 64 + 1
    mask = (ctypes.c_uint64 * words)()
    mask[node // 64] = 1 << (node % 64)
    os.ftruncate(descriptor, size)
    with mmap.mmap(descriptor, size) as mapped:
        anchor = ctypes.c_char.from_buffer(mapped)
        result: int = ctypes.CDLL(None).syscall(
            ctypes.c_long(number),
            ctypes.c_void_p(ctypes.addressof(anchor)),
            ctypes.c_size_t(size),
            ctypes.c_int(_PREFER),
            ctypes.byref(mask),
            # The kernel reads one bit less than this number.
            ctypes.c_ulong(words * 64 + 1),
            ctypes.c_uint(0),
        )
        del anchor
    return result == 0


def _open_own(path: str, *, read_only: bool) -> int:
    """Open a regular file without blocking (INV-OWN-MEMORY); for writing it must belong to this user."""
    flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InvalidInputError(f"{path}: a symbolic link; another user may have put it there: remove it") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif not read_only and status.st_uid != os.geteuid():
        problem = f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
    else:
        return descriptor
    os.close(descriptor)
    raise InvalidInputError(f"{path}: {problem}; another user may have put it there: remove it")


def _require_length(path: str, length: int) -> None:
    if length <= 0:
        raise InvalidInputError(f"{path}: cannot map {length} bytes of shared memory; it needs at least one")


def _reserve(descriptor: int, path: str, size: int) -> None:
    """Reserve every page of a file of `size` bytes; the error states how much is free."""
    try:
        reserve_space(descriptor, size)
    except OSError as error:
        if error.errno not in (errno.ENOMEM, errno.EFBIG, *NO_SPACE):
            raise
        status = os.statvfs(parent_directory(path))
        raise OSError(
            error.errno,
            f"shared memory needs {size} bytes and {status.f_bavail * status.f_frsize} are free: make the fabric "
            f"smaller, free or enlarge the file system (containers: a larger shm size), or use another directory",
            path,
        ) from error
