"""What Seawall asks of a machine: the seam between the engine and the operating system.

Two things stand behind these protocols: the real machine (`seawall.io.host`) and the simulators
(`seawall.testing`). Both raise the same errors: `OSError` with its errno where the operating system refuses an
operation, `SyncError` where a sync fails.

Rules every implementation keeps
- Positions are explicit: no call moves a file cursor.
- `write` may be short, as `pwritev` may; `write_all` in `files.py` finishes it.
- After a failed sync every later change or sync through that handle raises `SyncError`. The kernel may have dropped the
  dirty pages, so a later success would prove nothing.
- A name (create, rename, unlink) is durable only after `sync_directory` of its directory.
- A file is made by `open` with `create` or `exclusive`; a read-only handle cannot make one (`InvalidInputError`).
- Time is read from the clock of the host, never from `time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

#: Anything with the buffer protocol that one vectored call can take.
ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
WritableBuffer: TypeAlias = bytearray | memoryview


class Clock(Protocol):
    """Wall time for people and stamps, monotonic time for waiting and measuring."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may step back."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed point; never steps back."""
        ...


class Readable(Protocol):
    """Bytes addressed by position: a file, or memory that stands in for one."""

    @property
    def path(self) -> str:
        """Path it was opened by; used in messages only."""
        ...

    def read_into(self, buffers: Sequence[WritableBuffer], at: int) -> int:
        """Fill the buffers from position `at`; return the bytes read, fewer only at the end of the file."""
        ...

    def read(self, length: int, at: int) -> bytes:
        """Up to `length` bytes from position `at`, fewer only at the end of the file."""
        ...


class File(Readable, Protocol):
    """One open file, addressed by position."""

    def fileno(self) -> int:
        """Descriptor that a disk ring of the same host understands."""
        ...

    def size(self) -> int:
        """Length in bytes now."""
        ...

    def write(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write the buffers at position `at`; return the bytes written, which may be fewer than asked."""
        ...

    def write_uncached(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write as `write` does what nobody is expected to read soon: it goes to the disk at once, and need not stay in
        memory then."""
        ...

    def write_durably(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write as `write` does; the bytes this call took are durable when it returns, earlier ones need a `sync`.

        `SyncError` if making them durable fails, once and for ever.
        """
        ...

    def sync(self) -> None:
        """Make data and length durable; `SyncError` if that fails, once and for ever."""
        ...

    def allocate(self, length: int) -> None:
        """Reserve disk space for the first `length` bytes, so that ENOSPC is found here and not at a write.

        A shorter file grows to `length` with zeros; a longer one keeps its length. After a failure it is as before.
        """
        ...

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length` bytes; an extension reads as zeros and reserves no space."""
        ...

    def try_lock(self) -> bool:
        """Take the exclusive advisory lock of this file; false if another handle has it. Closing gives it back."""
        ...

    def close(self) -> None:
        """Give the descriptor back; closing twice is fine. Closing syncs nothing."""
        ...


class Files(Protocol):
    """Directories and names."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        """Open a file; `create` makes it where missing, `exclusive` makes it and fails where it is there already."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents; fine if it is there. Each is a new name in its parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it, atomically."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; `SyncError` if that fails."""
        ...

    def copy_range(self, source: File, source_at: int, target: File, target_at: int, length: int) -> int:
        """Copy bytes between files inside the kernel; return the bytes copied, which may be fewer than asked."""
        ...

    def free_bytes(self, path: str) -> int:
        """Bytes an unprivileged writer may still add to the file system of `path`."""
        ...


class Mapping(Protocol):
    """A stretch of memory several processes share."""

    @property
    def view(self) -> memoryview:
        """The bytes; read-only if it was attached so."""
        ...

    def file_size(self) -> int:
        """Length of the file now: one that is shorter than the view was cut, and must not be touched any more."""
        ...

    @property
    def is_named(self) -> bool:
        """Whether its name still leads to this file: somebody may have removed or replaced it."""
        ...

    def try_lock(self, *, shared: bool) -> bool:
        """Take the advisory lock of the file, shared or alone; false if others hold it, or the name is another's now.

        A lock that is held already becomes the other kind. Forked children hold it too; it ends with the last of them.
        """
        ...

    def close(self) -> None:
        """Unmap. Whoever holds an array or view over it must let go first (`BufferError` otherwise)."""
        ...


class SharedMemory(Protocol):
    """File-backed shared mappings, fully backed by memory before they are handed out."""

    def create(self, path: str, length: int) -> Mapping:
        """Create a file of `length` bytes, reserve every page (a later SIGBUS must be impossible), and map it.

        The bytes are zero and start on a page. `FileExistsError` if the name is taken, ENOSPC if there is no room.
        """
        ...

    def attach(self, path: str, length: int, *, read_only: bool = False) -> Mapping:
        """Map an existing file; `InvalidInputError` if it is shorter than `length`."""
        ...

    def free_bytes(self, path: str, /) -> int:
        """Bytes that a new file of this name could have."""
        ...

    def remove(self, path: str) -> None:
        """Remove the name, fine if it is not there; mappings of it stay valid until closed."""
        ...


class Stream(Protocol):
    """One connection, non-blocking."""

    def send(self, data: ReadableBuffer) -> int:
        """Hand over bytes; return how many were taken, 0 if the peer or the network cannot take more now."""
        ...

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Take bytes; None if there are none now, 0 once the peer has finished sending."""
        ...

    def close(self) -> None:
        """End the connection in both directions."""
        ...


class Listener(Protocol):
    """A port that accepts connections, non-blocking."""

    @property
    def address(self) -> str:
        """`host:port` really bound, also when port 0 was asked for."""
        ...

    def accept(self) -> Stream | None:
        """The next connection, or None if there is none now."""
        ...

    def close(self) -> None:
        """Stop listening; accepted connections go on."""
        ...


class Network(Protocol):
    """Connections between hosts; addresses are `host:port`."""

    def listen(self, address: str) -> Listener:
        """Bind and listen; port 0 picks a free one."""
        ...

    def connect(self, address: str) -> Stream:
        """Start a connection; a refused or lost one shows as `ConnectionError` from `send` or `receive_into`."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """One machine, real or simulated, as the engine sees it."""

    files: Files
    memory: SharedMemory
    clock: Clock
    network: Network
