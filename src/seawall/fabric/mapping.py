"""How a process comes to have the fabric: create it, find it again, attach to it, look at it.

    open_or_create   the supervisor, alone: warm if a fabric of this boot and data directory is there, else cold
    attach           a role: shares the fabric with the other roles
    look             whoever inspects it: read-only, no lock, changes nothing

Warm or cold. A fabric of the same boot and directory may hold batches that were acknowledged and are on no disk yet,
so it is never thrown away: if it does not fit (other sizes, another version, a damaged header), that is an error which
says what to do. One of an earlier boot or of another directory, or one whose creation was not finished, holds nothing
of ours: it is removed, and a new one is made.

Locks. Roles hold the lock of the file shared, a starting supervisor needs it alone: it cannot start beside a role of
the one before it. It lets roles in by `share`. A forked child has the mapping and the lock of its parent and may use
both and close its own; the lock ends with the last of them. Nothing is removed when a process ends.

INV-FABRIC-BACKED: every page of a fabric is reserved before it is mapped, and nobody shortens a fabric: missing memory
is an error, never a SIGBUS. Free space is asked for first, and the error names the setting. A fabric goes by unlinking,
which leaves mappings whole. Its size is compared with its header when it is attached, before anything else of it is
touched; `require_whole` looks again.

The magic is written last, so that a creation that was cut off is recognised.

What a crash does: to the fabric, nothing: the next supervisor attaches warm. A reboot ends it. This module must not
know what the regions are used for.
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

_NO_ROOM: Final = NO_SPACE | {errno.ENOMEM}


class Start(StrEnum):
    """What a supervisor found."""

    WARM = "warm"
    COLD = "cold"


class Fabric:
    """A fabric in this process. Made by `create`, `open_or_create`, `attach` or `look`."""

    __slots__ = ("_arrays", "_mapping", "_memory", "header", "layout", "path", "start", "why")

    def __init__(
        self, memory: SharedMemory, mapping: Mapping, path: str, header: FabricHeader, start: Start, why: str
    ) -> None:
        self._memory = memory
        self._mapping = mapping
        self.path: Final = path
        self.header: Final = header
        self.layout: Final = FabricLayout.of(header.sizes)
        #: Whether what is in it is to be recovered (warm), or it is new (cold), and why.
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
        why: str = "it was asked for",
    ) -> Fabric:
        """Make a new one and hold it alone; `LockedError` if the name is taken, `DiskFullError` if there is no room."""
        layout = FabricLayout.of(sizes)
        header = FabricHeader(identity, sizes, created_ns)
        mapping = _reserve(memory, path, layout)
        if not mapping.try_lock(shared=False):
            mapping.close()
            raise LockedError(
                f"{path}: another process takes over this fabric right now; start again when it has ended"
            )
        data = header.encode()
        magic_end = HEADER_AT + len(MAGIC)
        mapping.view[magic_end : HEADER_AT + HEADER_SIZE] = data[len(MAGIC) :]
        mapping.view[HEADER_AT:magic_end] = data[: len(MAGIC)]
        return cls(memory, mapping, path, header, Start.COLD, why)

    @classmethod
    def open_or_create(
        cls, memory: SharedMemory, path: str, sizes: FabricSizes, identity: Identity, *, created_ns: int = 0
    ) -> Fabric:
        """The fabric of this boot and data directory, or a new one, held alone either way; `start` says which."""
        why = _reason_to_discard(memory, path, identity)
        if why is None:
            return cls._open(memory, path, sizes, identity, shared=False)
        if why:
            _discard(memory, path)
        return cls.create(memory, path, sizes, identity, created_ns=created_ns, why=why or "there was none")

    @classmethod
    def attach(cls, memory: SharedMemory, path: str, identity: Identity, sizes: FabricSizes | None = None) -> Fabric:
        """Share a fabric that a supervisor has opened; with `sizes` it must have been made with those."""
        return cls._open(memory, path, sizes, identity, shared=True)

    @classmethod
    def look(cls, memory: SharedMemory, path: str) -> Fabric:
        """Whatever fabric has this name, read-only and without a lock."""
        header = FabricHeader.parse(_header_bytes(memory, path), path)
        mapping = _map_whole(memory, path, header, read_only=True)
        return cls(memory, mapping, path, header, Start.WARM, "looked at")

    @classmethod
    def _open(
        cls, memory: SharedMemory, path: str, sizes: FabricSizes | None, identity: Identity, *, shared: bool
    ) -> Fabric:
        data = _header_bytes(memory, path)
        header = FabricHeader.parse(data, path)
        mismatch = identity.mismatch(header.identity)
        if mismatch:
            raise ConflictError(f"{path}: not the fabric that was asked for: {mismatch}; start its pod again")
        differences = header.sizes.differences(sizes) if sizes is not None else []
        if differences:
            raise ConflictError(
                f"{path}: made with other sizes than configured: {', '.join(differences)}; start and stop its pod once "
                "with the old ones, or remove the file to start from storage"
            )
        mapping = _map_whole(memory, path, header, read_only=False)
        if not mapping.try_lock(shared=shared) or bytes(mapping.view[HEADER_AT : HEADER_AT + HEADER_SIZE]) != data:
            mapping.close()
            holder = "a supervisor has not let roles in yet" if shared else "roles of a running pod use it"
            raise LockedError(f"{path}: {holder}; try again when that is over")
        return cls(memory, mapping, path, header, Start.WARM, "a fabric of this boot and data directory was there")

    @property
    def arrays(self) -> FabricArrays:
        """All regions; whoever keeps one of them keeps the fabric from being closed."""
        if self._arrays is None:
            raise WrongStateError(f"{self.path}: this fabric is closed")
        return self._arrays

    def share(self) -> None:
        """Let roles attach: from alone to shared."""
        if not self._mapping.try_lock(shared=True):
            raise LockedError(f"{self.path}: the fabric was taken over by another supervisor; stop this one")

    def require_whole(self) -> None:
        """`CorruptionError` if the file was cut: then nothing of it may be touched any more."""
        if self._mapping.file_size() < self.layout.size:
            raise _cut(self.path, self.layout.size)

    def close(self) -> None:
        """Unmap, and let go of the lock; `WrongStateError` while somebody holds an array of it, and it stays usable."""
        self._arrays = None
        try:
            self._mapping.close()
        except BufferError as error:
            self._arrays = FabricArrays(self._mapping.view, self.layout)
            raise WrongStateError(
                f"{self.path}: arrays of the fabric are still in use; let go of them first"
            ) from error

    def remove(self) -> None:
        """Remove the name after a clean stop, when nothing of it is needed; `LockedError` while a role has it.

        Where somebody else has removed or replaced the file, nothing is left to remove.
        """
        if not self._mapping.is_named:
            return
        if not self._mapping.try_lock(shared=False):
            raise LockedError(f"{self.path}: roles still use the fabric; stop them first")
        self._memory.remove(self.path)


def _reason_to_discard(memory: SharedMemory, path: str, identity: Identity) -> str | None:
    """Why what has the name is not to be used: None if it is ours, empty if there is nothing."""
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
        raise NotFoundError(f"{path}: there is no fabric; start its pod first") from error
    except InvalidInputError:
        return bytes(HEADER_SIZE)  # made, and cut off before it had a length
    size = probe.file_size()
    probe.close()
    if size < PAGE_SIZE:
        raise CorruptionError(f"{path}: not a fabric of Seawall: a file of {size} bytes")
    page = memory.attach(path, PAGE_SIZE, read_only=True)
    data = bytes(page.view[HEADER_AT : HEADER_AT + HEADER_SIZE])
    page.close()
    return data


def _map_whole(memory: SharedMemory, path: str, header: FabricHeader, *, read_only: bool) -> Mapping:
    """Map all of a fabric after comparing the size of its file."""
    wanted = FabricLayout.of(header.sizes).size
    try:
        return memory.attach(path, wanted, read_only=read_only)
    except InvalidInputError as error:
        raise _cut(path, wanted) from error


def _cut(path: str, wanted: int) -> CorruptionError:
    return CorruptionError(
        f"{path}: the file is shorter than the {wanted} bytes that its header says: somebody cut it; stop its pod and "
        "remove the file to start from storage"
    )


def _discard(memory: SharedMemory, path: str) -> None:
    """Remove a fabric that is not ours, unless somebody uses it."""
    try:
        mapping = memory.attach(path, 1)
    except InvalidInputError:
        memory.remove(path)  # empty: whoever is making it notices, since its lock is worth nothing then
        return
    alone = mapping.try_lock(shared=False)
    if alone:
        memory.remove(path)
    mapping.close()
    if not alone:
        raise LockedError(f"{path}: another pod uses this fabric; give this one another place (fabric.directory)")


def _reserve(memory: SharedMemory, path: str, layout: FabricLayout) -> Mapping:
    """A new file with all its pages (INV-FABRIC-BACKED)."""
    try:
        free = memory.free_bytes(path)
        if free < layout.size:
            raise _no_space(path, layout, f"{free} are free there")
        return memory.create(path, layout.size)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: its folder does not exist; make it, or set fabric.directory") from error
    except FileExistsError as error:
        raise LockedError(f"{path}: there is a fabric already; attach to it, or stop its pod and remove it") from error
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _no_space(path, layout, "files of this process must be smaller (ulimit -f)") from error
        if error.errno in _NO_ROOM:
            raise _no_space(path, layout, f"{memory.free_bytes(path)} are free there") from error
        raise


def _no_space(path: str, layout: FabricLayout, there_is: str) -> DiskFullError:
    largest = layout.largest()
    settings = " or ".join(f"fabric.{name} (now {getattr(layout.sizes, name)})" for name in largest.settings)
    return DiskFullError(
        f"{path}: the fabric needs {layout.size} bytes and {there_is}: lower {settings}, of which {largest.name} take "
        f"{largest.size} bytes, enlarge the file system (containers: a larger shm size), or set fabric.directory"
    )
