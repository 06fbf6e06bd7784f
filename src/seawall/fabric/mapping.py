"""Maps the fabric into a process: creates it, reopens it, attaches to it, or opens it read-only.

    open_or_create   for the supervisor, exclusive: warm if a fabric of this boot and data directory exists, else cold
    attach           for a role: shares the fabric with the other roles
    look             for inspection: read-only, no lock, changes nothing

Warm or cold. A fabric of the same boot and directory may hold batches that were acknowledged but are not on disk yet,
so it is never discarded: if it does not fit (other sizes, another version, a damaged header), that is an error with a
remedy. A fabric of an earlier boot or of another directory, or one whose creation was not finished, holds no data of
this directory: it is removed, and a new one is created.

Locks. Roles hold a shared lock on the file, a starting supervisor needs an exclusive one: it cannot start while a role
of its predecessor runs. `share` lets roles attach. A forked child inherits mapping and lock of its parent and may use
both and close its own; the lock ends with the last of them. Nothing is removed when a process ends.

INV-FABRIC-BACKED: every page of a fabric is reserved before it is mapped, and nobody shortens a fabric: missing memory
is an error, never a SIGBUS. Creation checks the free space first, and its error names the setting. A fabric is removed
by unlinking, which leaves mappings intact. Attaching compares the file size with the header before it accesses anything
else; `require_whole` checks it again.

The magic is written last, so that an interrupted creation is recognised.

A crash does not affect the fabric: the next supervisor attaches warm. A reboot removes it. This module must not know
what the regions are used for.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from typing import Final

from seawall.errors import (
    ConflictError,
    CorruptionError,
    DiskFullError,
    InvalidInputError,
    LockedError,
    NotFoundError,
    WrongStateError,
)
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.header import MAGIC, FabricHeader, Identity, is_unfinished, parse_identity
from seawall.fabric.layout import HEADER_AT, HEADER_SIZE, FabricLayout, FabricSizes
from seawall.io.disk.files import NO_SPACE
from seawall.io.interfaces import Mapping, SharedMemory
from seawall.limits import PAGE_SIZE

_NO_SPACE_CODES: Final = NO_SPACE | {errno.ENOMEM}


class Start(StrEnum):
    """Whether a supervisor found a usable fabric."""

    WARM = "warm"
    COLD = "cold"


class Fabric:
    """A mapped fabric. Create it with `create`, `open_or_create`, `attach` or `look`."""

    __slots__ = ("_arrays", "_mapping", "_memory", "header", "layout", "path", "start", "why")

    def __init__(
        self, memory: SharedMemory, mapping: Mapping, path: str, header: FabricHeader, start: Start, why: str
    ) -> None:
        self._memory = memory
        self._mapping = mapping
        self.path: Final = path
        self.header: Final = header
        self.layout: Final = FabricLayout.of(header.sizes)
        #: Whether its content must be recovered (warm) or it is new (cold), and why.
        self.start: Final = start
        self.why: Final = why
        self._arrays: FabricArrays | None = FabricArrays(mapping.view, self.layout)

    @classmethod
    def create(
        cls,
        memory: SharedMemory,
        path: str,
        sizes: FabricSizes,
        identity: Identity,
        *,
        created_ns: int = 0,
        why: str = "requested",
    ) -> Fabric:
        """Create a fabric and lock it exclusively; `LockedError` if the path exists, `DiskFullError` without space."""
        layout = FabricLayout.of(sizes)
        header = FabricHeader(identity, sizes, created_ns)
        mapping = _reserve(memory, path, layout)
        if not mapping.try_lock(shared=False):
            mapping.close()
            raise LockedError(f"{path}: another process is taking over this fabric; start again when it has ended")
        data = header.encode()
        magic_end = HEADER_AT + len(MAGIC)
        mapping.view[magic_end : HEADER_AT + HEADER_SIZE] = data[len(MAGIC) :]
        mapping.view[HEADER_AT:magic_end] = data[: len(MAGIC)]
        return cls(memory, mapping, path, header, Start.COLD, why)

    @classmethod
    def open_or_create(
        cls, memory: SharedMemory, path: str, sizes: FabricSizes, identity: Identity, *, created_ns: int = 0
    ) -> Fabric:
        """The fabric of this boot and data directory, or a new one (see `start`), locked exclusively."""
        why = _reason_to_discard(memory, path, identity)
        if why is None:
            return cls._open(memory, path, sizes, identity, shared=False)
        if why:
            _discard(memory, path)
        return cls.create(memory, path, sizes, identity, created_ns=created_ns, why=why or "no fabric existed")

    @classmethod
    def attach(cls, memory: SharedMemory, path: str, identity: Identity, sizes: FabricSizes | None = None) -> Fabric:
        """Share a fabric that a supervisor has opened; if given, `sizes` must match."""
        return cls._open(memory, path, sizes, identity, shared=True)

    @classmethod
    def open_read_only(cls, memory: SharedMemory, path: str) -> Fabric:
        """The fabric at a path, read-only and without a lock."""
        header = FabricHeader.parse(_header_bytes(memory, path), path)
        mapping = _map_whole(memory, path, header, read_only=True)
        return cls(memory, mapping, path, header, Start.WARM, "inspection")

    @classmethod
    def _open(
        cls, memory: SharedMemory, path: str, sizes: FabricSizes | None, identity: Identity, *, shared: bool
    ) -> Fabric:
        data = _header_bytes(memory, path)
        header = FabricHeader.parse(data, path)
        mismatch = identity.mismatch(header.identity)
        if mismatch:
            raise ConflictError(f"{path}: not the requested fabric: {mismatch}; start its pod again")
        differences = header.sizes.differences(sizes) if sizes is not None else []
        if differences:
            raise ConflictError(
                f"{path}: created with other sizes than configured: {', '.join(differences)}; start and stop its pod "
                "once with the old ones, or remove the file to start from storage"
            )
        mapping = _map_whole(memory, path, header, read_only=False)
        if not mapping.try_lock(shared=shared) or bytes(mapping.view[HEADER_AT : HEADER_AT + HEADER_SIZE]) != data:
            mapping.close()
            holder = "the supervisor is still starting" if shared else "roles of a running pod use it"
            raise LockedError(f"{path}: {holder}; try again later")
        return cls(memory, mapping, path, header, Start.WARM, "a fabric of this boot and data directory exists")

    @property
    def arrays(self) -> FabricArrays:
        """All regions; the fabric cannot be closed while a reference to one of them exists."""
        if self._arrays is None:
            raise WrongStateError(f"{self.path}: this fabric is closed")
        return self._arrays

    def share(self) -> None:
        """Let roles attach: change the exclusive lock to a shared one."""
        if not self._mapping.try_lock(shared=True):
            raise LockedError(f"{self.path}: the fabric was taken over by another supervisor; stop this one")

    def require_whole(self) -> None:
        """`CorruptionError` if the file was truncated: do not access the fabric any more then."""
        if self._mapping.file_size() < self.layout.size:
            raise _truncated(self.path, self.layout.size)

    def close(self) -> None:
        """Unmap and unlock; `WrongStateError`, and it stays usable, while a reference to one of its arrays exists."""
        self._arrays = None
        try:
            self._mapping.close()
        except BufferError as error:
            self._arrays = FabricArrays(self._mapping.view, self.layout)
            raise WrongStateError(f"{self.path}: arrays of the fabric are still in use; release them first") from error

    def remove(self) -> None:
        """Remove the file after a clean stop, when its content is not needed; `LockedError` while a role uses it.

        Does nothing if the file was already removed or replaced.
        """
        if not self._mapping.is_named:
            return
        if not self._mapping.try_lock(shared=False):
            raise LockedError(f"{self.path}: roles still use the fabric; stop them first")
        self._memory.remove(self.path)


def _reason_to_discard(memory: SharedMemory, path: str, identity: Identity) -> str | None:
    """Why the file at a path must not be used: None if it is our fabric, empty if there is no file."""
    try:
        data = _header_bytes(memory, path)
    except NotFoundError:
        return ""
    if is_unfinished(data):
        return "its creation was not finished"
    return identity.mismatch(parse_identity(data, path)) or None


def _header_bytes(memory: SharedMemory, path: str) -> bytes:
    """The bytes of the header, all zero if the file is empty."""
    try:
        probe = memory.attach(path, 1, read_only=True)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such fabric; start its pod first") from error
    except InvalidInputError:
        return bytes(HEADER_SIZE)  # creation was interrupted before the file had a size
    size = probe.file_size()
    probe.close()
    if size < PAGE_SIZE:
        raise CorruptionError(f"{path}: not a Seawall fabric: a file of {size} bytes")
    page = memory.attach(path, PAGE_SIZE, read_only=True)
    data = bytes(page.view[HEADER_AT : HEADER_AT + HEADER_SIZE])
    page.close()
    return data


def _map_whole(memory: SharedMemory, path: str, header: FabricHeader, *, read_only: bool) -> Mapping:
    """Map an entire fabric after checking the size of its file."""
    wanted = FabricLayout.of(header.sizes).size
    try:
        return memory.attach(path, wanted, read_only=read_only)
    except InvalidInputError as error:
        raise _truncated(path, wanted) from error


def _truncated(path: str, wanted: int) -> CorruptionError:
    return CorruptionError(
        f"{path}: the file is shorter than the {wanted} bytes in its header: it was truncated; stop its pod and remove "
        "the file to start from storage"
    )


def _discard(memory: SharedMemory, path: str) -> None:
    """Remove a fabric of another boot or directory, unless a process uses it."""
    try:
        mapping = memory.attach(path, 1)
    except InvalidInputError:
        memory.remove(path)  # empty: its creator notices, since its lock is invalid then
        return
    is_exclusive = mapping.try_lock(shared=False)
    if is_exclusive:
        memory.remove(path)
    mapping.close()
    if not is_exclusive:
        raise LockedError(
            f"{path}: another pod uses this fabric; set another directory for this one (fabric.directory)"
        )


def _reserve(memory: SharedMemory, path: str, layout: FabricLayout) -> Mapping:
    """Create the file with all its pages reserved (INV-FABRIC-BACKED)."""
    try:
        free = memory.free_bytes(path)
        if free < layout.size:
            raise _no_space(path, layout, f"{free} are free there")
        return memory.create(path, layout.size)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: its directory does not exist; create it, or set fabric.directory") from error
    except FileExistsError as error:
        raise LockedError(f"{path}: the fabric already exists; attach to it, or stop its pod and remove it") from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _no_space(path, layout, "files of this process must be smaller (ulimit -f)") from error
        if error.errno in _NO_SPACE_CODES:
            raise _no_space(path, layout, f"{memory.free_bytes(path)} are free there") from error
        raise


def _no_space(path: str, layout: FabricLayout, available: str) -> DiskFullError:
    largest = layout.largest()
    settings = " or ".join(f"fabric.{name} (now {getattr(layout.sizes, name)})" for name in largest.settings)
    return DiskFullError(
        f"{path}: the fabric needs {layout.size} bytes and {available}: lower {settings}, of which {largest.name} take "
        f"{largest.size} bytes, enlarge the file system (containers: a larger shm size), or set fabric.directory"
    )
