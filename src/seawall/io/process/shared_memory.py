"""Memory that several processes share, as mapped files.

The path decides what it is: `/dev/shm` for memory, a DAX device's file system for persistent memory, any directory
where neither exists. This module must not know what is laid out inside.

Invariants
- Every page is reserved before the mapping is handed out. A page of a sparse file that cannot be backed at its first
  touch ends the process with SIGBUS, which nothing can handle; a reservation that fails is an error with a way out.
- Mappings start on a page and the file ends on one; the view has exactly the length asked for.
- INV-LOCK-NAMED: a lock counts only while the name still leads to the locked file, so two pods never share a fabric.
  Whoever replaces a file unlinks it, and a lock on what was unlinked keeps nobody out.
- INV-OWN-MEMORY: only regular files are mapped, and only files of this user are mapped for writing. Folders of shared
  memory are open to all, and whoever made a file there can read and change it. Opening what somebody put there never
  waits.

What a crash does: the end of a process does not touch the file, so another process attaches to what was there; after
a reboot `/dev/shm` is empty.
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

#: Policy of mbind: take memory of this node while it has any, of another one after that.
_PREFER: Final = 1


def map_pages(descriptor: int, at: int, length: int) -> int | None:
    """Map a stretch of a file, from the beginning of a page on, read-only; its address, None if the system refuses."""
    import ctypes

    address: int = c_library().mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, at)
    return None if address == ctypes.c_void_p(-1).value else address


class OsMapping:
    """One mapping in this process, and the handle that its lock is taken by. Made by `OsSharedMemory`."""

    __slots__ = ("__weakref__", "_descriptor", "_give_back", "_length", "_map", "_path", "_view")

    def __init__(self, descriptor: int, path: str, length: int, size: int, *, read_only: bool = False) -> None:
        self._descriptor = descriptor
        self._path = path
        self._length = length
        self._map = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE)
        self._view = memoryview(self._map)[:length]
        self._give_back = weakref.finalize(self, os.close, descriptor)

    @property
    def view(self) -> memoryview:
        """The bytes; read-only if it was attached so."""
        return self._view

    def file_size(self) -> int:
        """Length of the file now."""
        return os.fstat(self._descriptor).st_size

    def try_lock(self, *, shared: bool) -> bool:
        """Take the lock of the file, or change its kind; false if others hold it (INV-LOCK-NAMED)."""
        try:
            fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return self.is_named

    @property
    def is_named(self) -> bool:
        """Whether its name still leads to this file."""
        try:
            named = os.lstat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._descriptor))

    def close(self) -> None:
        """Unmap; `BufferError` while an array or a view over it is alive, and the mapping then stays usable."""
        self._view.release()
        try:
            self._map.close()
        except BufferError:
            self._view = memoryview(self._map)[: self._length]
            raise
        self._give_back()


class OsSharedMemory:
    """File-backed shared mappings. `node` is the memory node the pages should come from, where there are several."""

    __slots__ = ("_node",)

    def __init__(self, node: int | None = None) -> None:
        self._node = node

    def create(self, path: str, length: int) -> OsMapping:
        """Create a file of `length` bytes, reserve every page, and map it; `FileExistsError` if the name is taken."""
        _require_length(path, length)
        size = -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)  # whatever the umask
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
        """Map an existing file; `InvalidInputError` if it is shorter than `length`, or not a file of this user's."""
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
        """Bytes that a new file of this name could have."""
        status = os.statvfs(parent_directory(path))
        return status.f_bavail * status.f_frsize

    def remove(self, path: str) -> None:
        """Remove the name, fine if it is not there; mappings of it stay valid until closed."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@cache
def c_library() -> ctypes.CDLL:
    """The C library with the calls of a mapping declared: a pointer does not fit what is passed by default."""
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
    """Ask for pages of one memory node; false where the kernel does not take the hint, which costs speed only.

    It must stand before the pages are reserved, for the reservation is what picks them. The policy belongs to the
    file and outlives the mapping it was given through.
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
            # The kernel reads one bit less than it is told.
            ctypes.c_ulong(words * 64 + 1),
            ctypes.c_uint(0),
        )
        del anchor
    return result == 0


def _open_own(path: str, *, read_only: bool) -> int:
    """Open a regular file without waiting (INV-OWN-MEMORY); one that is to be written must belong to this user."""
    flags = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InvalidInputError(f"{path}: a symbolic link; somebody else may have put it there: remove it") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        problem = "not a regular file"
    elif not read_only and status.st_uid != os.geteuid():
        problem = f"it belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}"
    else:
        return descriptor
    os.close(descriptor)
    raise InvalidInputError(f"{path}: {problem}; somebody else may have put it there: remove it")


def _require_length(path: str, length: int) -> None:
    if length <= 0:
        raise InvalidInputError(f"{path}: shared memory of {length} bytes was asked for; it needs at least one")


def _reserve(descriptor: int, path: str, size: int) -> None:
    """Back every page of a file of `size` bytes, or say what is missing."""
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
