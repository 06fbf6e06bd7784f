"""The protocols between the engine and the operating system: files, shared memory, clocks, network.

There are two implementations: the real machine (`seawall.io.host`) and the simulators (`seawall.testing`). Both raise
the same errors: `OSError` with its errno if the operating system refuses an operation, `SyncError` if a sync fails.

Rules for every implementation
- Positions are explicit: no call moves a file cursor.
- `write` may be short, as `pwritev` may; `write_all` in `files.py` finishes it.
- After a failed sync every later change or sync through that handle raises `SyncError`. The kernel may have dropped the
  dirty pages, so a later success would prove nothing.
- A name (create, rename, unlink) is durable only after `sync_directory` of its directory.
- `open` with `create` or `exclusive` creates a file; a read-only handle cannot create one (`InvalidInputError`).
- Code reads the time from the clock of the host, never from `time`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

#: Anything with the buffer protocol that one vectored call can take.
ReadableBuffer: TypeAlias = bytes | bytearray | memoryview
WritableBuffer: TypeAlias = bytearray | memoryview


class Clock(Protocol):
    """Wall time for timestamps, monotonic time for timeouts and measurements."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; may step back."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds since some fixed point; never steps back."""
        ...


class Readable(Protocol):
    """Bytes addressed by position: a file, or memory that replaces one."""

    @property
    def path(self) -> str:
        """Path it was opened with; used in messages only."""
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
        """Write like `write`, bypassing the page cache where possible; for bytes that will not be read soon."""
        ...

    def write_durably(self, buffers: Sequence[ReadableBuffer], at: int) -> int:
        """Write like `write`; the bytes this call wrote are durable when it returns, earlier ones need a `sync`.

        `SyncError` if that fails; the handle then refuses every later change.
        """
        ...

    def sync(self) -> None:
        """Make data and length durable; `SyncError` if that fails, and the handle then refuses every later change."""
        ...

    def allocate(self, length: int) -> None:
        """Reserve disk space for the first `length` bytes, so that ENOSPC happens here and not at a write.

        A shorter file grows to `length` with zeros; a longer one keeps its length. A failure leaves the file unchanged.
        """
        ...

    def truncate(self, length: int) -> None:
        """Cut or extend the file to `length` bytes; an extension reads as zeros and reserves no space."""
        ...

    def try_lock(self) -> bool:
        """Take the exclusive advisory lock of this file; false if another handle has it. Closing releases it."""
        ...

    def close(self) -> None:
        """Close the descriptor; closing twice is fine. Closing syncs nothing."""
        ...


class Files(Protocol):
    """Directories and names."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        """Open a file; `create` creates it if it is missing, `exclusive` creates it and fails if it exists."""
        ...

    def exists(self, path: str) -> bool:
        """True if a file or directory has this name."""
        ...

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents; fine if it exists. Each is a new name in its parent."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing a file that has the new name."""
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
    """A memory range that several processes share."""

    @property
    def view(self) -> memoryview:
        """The bytes; read-only if the mapping was attached read-only."""
        ...

    def file_size(self) -> int:
        """Length of the file now. If it is shorter than the view, the file was truncated: do not touch the view."""
        ...

    @property
    def is_named(self) -> bool:
        """True while its path still leads to this file; false once the file was removed or replaced."""
        ...

    def try_lock(self, *, shared: bool) -> bool:
        """Take the advisory lock of the file, shared or exclusive; false if it is held, or if `is_named` is false.

        If this handle already holds the lock, its mode changes. Forked children hold it too, until the last one exits.
        """
        ...

    def close(self) -> None:
        """Unmap; `BufferError` while an array or view over the mapping is alive."""
        ...


class SharedMemory(Protocol):
    """File-backed shared mappings; every page is reserved before a mapping is returned."""

    def create(self, path: str, length: int) -> Mapping:
        """Create a file of `length` bytes, reserve every page (a later SIGBUS must be impossible), and map it.

        The bytes are zero and start on a page. `FileExistsError` if the name is taken, ENOSPC if there is no space.
        """
        ...

    def attach(self, path: str, length: int, *, read_only: bool = False) -> Mapping:
        """Map an existing file; `InvalidInputError` if it is shorter than `length`."""
        ...

    def free_bytes(self, path: str, /) -> int:
        """Bytes available for a new file of this name."""
        ...

    def remove(self, path: str) -> None:
        """Remove the name, fine if it does not exist; mappings of it stay valid until closed."""
        ...


class Stream(Protocol):
    """One connection, non-blocking."""

    def send(self, data: ReadableBuffer) -> int:
        """Send bytes; return how many were accepted, 0 if the peer or the network cannot accept more now."""
        ...

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Receive bytes; None if there are none now, 0 once the peer has finished sending."""
        ...

    def close(self) -> None:
        """End the connection in both directions."""
        ...


class Listener(Protocol):
    """A port that accepts connections, non-blocking."""

    @property
    def address(self) -> str:
        """The bound `host:port`; the actual port if port 0 was requested."""
        ...

    def accept(self) -> Stream | None:
        """The next connection, or None if there is none now."""
        ...

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
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
    """One machine, real or simulated: the implementations that the engine uses."""

    files: Files
    memory: SharedMemory
    clock: Clock
    network: Network
