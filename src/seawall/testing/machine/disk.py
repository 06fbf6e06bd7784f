"""A simulated disk that fails on demand, to test code that must survive crashes.

    disk = SimDisk(seed=7)
    disk.make_directory("/data")
    file = disk.open("/data/wal", create=True)
    file.write([b"hello"], 0)
    file.sync()
    disk.crash(keep="none")             # the name was not synced: the file is gone

`SimDisk` implements `Files` of `seawall.io.interfaces`, and its files implement `File`. `content.py` has the rules for
unsynced bytes, `names.py` those for unsynced names, `faults.py` those for faults.

Three ways to end a run
- `crash(keep)`: the machine loses power. No unsynced state survives, all of it, or a seeded choice.
- `kill()`: the processes die, the machine stays up. The page cache stays; handles and locks are lost.
- `crash_after(n)`: the n-th changing call raises `SimCrash`, before it or inside it. Every later call raises it too,
  until `crash` or `kill` is called. A sweep over n covers every crash point of a scenario:

    for n in itertools.count(1):
        disk = SimDisk(seed=n)
        disk.crash_after(n)
        try:
            scenario(disk)
            break                       # it ended before the n-th call: all crash points are covered
        except SimCrash:
            disk.crash(keep="random")
            check_recovery(disk)

Invariants
- The same seed and the same calls give the same bytes and the same `history()`.
- A handle from before a crash or kill never works again (`DeadHandleError`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

from seawall.errors import InvalidInputError, SyncError
from seawall.io.interfaces import File
from seawall.limits import PAGE_SIZE, SECTOR_SIZE, TIB
from seawall.testing.checkers.history import EventLog
from seawall.testing.machine.content import Keep, SimContent
from seawall.testing.machine.disk_file import DeadHandleError, SimFile
from seawall.testing.machine.faults import CHANGING_CALLS, Call, Fault, FaultPlan, Outcome, SimCall, SimCrash
from seawall.testing.machine.names import SimNames, canonical

__all__ = ["SimDisk"]

#: Far above any open descriptor of a test process, so that a simulated one in a real call fails with EBADF.
_FIRST_HANDLE_NUMBER: Final = 1_000_000


class SimDisk:
    """One simulated disk: directories, files, faults and crashes.

    The disk never tears a unit of `unit_size` bytes (512 or 4096); `capacity` is its size in bytes.
    """

    def __init__(
        self, seed: int, *, faults: Iterable[Fault] = (), unit_size: int = SECTOR_SIZE, capacity: int = TIB
    ) -> None:
        if unit_size not in (SECTOR_SIZE, PAGE_SIZE):
            raise InvalidInputError(f"a disk tears writes at {SECTOR_SIZE} or {PAGE_SIZE} bytes, not at {unit_size}")
        #: The source of all random decisions of this disk and its files.
        self.chance = random.Random(seed)
        self._plan = FaultPlan(self.chance, faults)
        self._unit_size = unit_size
        self._capacity_blocks = capacity // PAGE_SIZE
        self._names = SimNames()
        self._handles: dict[int, SimFile] = {}
        self._next_number = _FIRST_HANDLE_NUMBER
        self._down = False
        self._log = EventLog()
        self._log.note(f"disk seed={seed} unit={unit_size} capacity={capacity}")

    # --- the interface `Files` ---------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> SimFile:
        """Open a file; `create` makes it if it is missing, `exclusive` makes it and fails if it exists."""
        if read_only and (create or exclusive):
            raise InvalidInputError(f"{path}: cannot create a file that is opened read-only")
        with self.call("open", path):
            exists = self._names.exists(path)
            if exists and exclusive:
                raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if not exists and (create or exclusive):
                content = SimContent(self._unit_size)
                self._names.create(path, content)
            else:
                content = self._names.file(path)
        file = SimFile(self, content, path, self._next_number, read_only=read_only)
        self._handles[self._next_number] = file
        self._next_number += 1
        return file

    def exists(self, path: str) -> bool:
        """True if a file or directory has this name."""
        with self.call("exists", path):
            return self._names.exists(path)

    def list(self, directory: str) -> list[str]:
        """Names in a directory, sorted."""
        with self.call("list", directory):
            return self._names.entries(directory)

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, each as a new name in its parent; no error if it exists."""
        with self.call("make_directory", path):
            self._names.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing a file of the new name. Does not rename directories."""
        with self.call("rename", old, f"to {new}"):
            self._names.rename(old, new)

    def unlink(self, path: str) -> None:
        """Remove a name; open handles keep the bytes."""
        with self.call("unlink", path):
            self._names.unlink(path)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable; `SyncError` if that fails."""
        self.require_power()
        self._names.entries(path)
        try:
            with self.call("sync_directory", path) as call:
                if call.outcome is Outcome.CRASH:
                    self._names.sync_some(path, self.chance)
                else:
                    self._names.sync(path)
        except OSError as error:
            self._names.lose_unsynced(path)
            raise SyncError(f"{path}: directory sync failed ({error.strerror}); stop and recover") from error

    def copy_range(self, source: File, source_at: int, target: File, target_at: int, length: int) -> int:
        """Copy bytes between files; return the number of bytes copied, which may be less than requested."""
        if not isinstance(source, SimFile) or not isinstance(target, SimFile):
            raise InvalidInputError(f"{source.path} and {target.path}: both must be open on a simulated disk")
        return target.copy_from(source, source_at, target_at, length)

    def free_bytes(self, path: str) -> int:
        """Free space in bytes; `path` must exist."""
        self.require_power()
        if not self._names.exists(path):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self.free_blocks() * PAGE_SIZE

    # --- faults ------------------------------------------------------------------------------------------------

    def fail(
        self,
        call: Call,
        *,
        nth: int = 1,
        error: int | Literal["short"] = errno.EIO,
        forever: bool = False,
        path: str = "*",
    ) -> None:
        """Make the `nth` call of this kind from now on fail; see `Fault`."""
        self._plan.add(Fault(call, nth=nth, error=error, forever=forever, path=path))

    def clear_faults(self) -> None:
        """Remove all faults; their effects stay."""
        self._plan.clear()

    def crash_after(self, calls: int, *, inside: bool | None = None) -> None:
        """Raise `SimCrash` at the n-th changing call from now on, before it or inside it (None: a seeded choice)."""
        self._plan.crash_after(calls, inside)

    @property
    def calls(self) -> int:
        """Changing calls so far."""
        return self._plan.calls

    def crash(self, keep: Keep = "random") -> None:
        """Lose power and restart: no unsynced state survives, all of it, or a seeded choice."""
        if keep not in ("none", "all", "random"):
            raise InvalidInputError(f"keep is {keep!r}; choose none, all or random")
        self._names.crash(keep, self.chance)
        for content in self._names.files():
            content.crash(keep, self.chance)
        self._restart(f"crash keep={keep}")

    def kill(self) -> None:
        """End every process that uses the disk. Handles and locks are lost, written data is not."""
        for content in self._names.files():
            content.lock_holder = None
        self._restart("kill")

    def flip_bit(self, path: str, byte: int, bit: int) -> None:
        """Flip one durable bit of a file."""
        content = self._names.durable_file(path)
        length = len(content.durable_bytes())
        if not (0 <= byte < length and 0 <= bit < 8):
            raise InvalidInputError(
                f"{path}: there is no bit {bit} of byte {byte}; the file has {length} durable bytes"
            )
        content.flip_bit(byte, bit)
        self._log.note(f"flip_bit {path} byte={byte} bit={bit}")

    def flip_random_bits(self, path: str, count: int = 1) -> tuple[tuple[int, int], ...]:
        """Flip seeded durable bits of a file; return them as (byte, bit)."""
        length = len(self.durable_bytes(path))
        bits = sorted(self.chance.sample(range(length * 8), min(count, length * 8)))
        for position in bits:
            self.flip_bit(path, position // 8, position % 8)
        return tuple(divmod(position, 8) for position in bits)

    def durable_bytes(self, path: str) -> bytes:
        """The bytes of a file after `crash(keep="none")`; `FileNotFoundError` if its name would be lost."""
        return self._names.durable_file(path).durable_bytes()

    def history(self) -> tuple[str, ...]:
        """The events so far, one per line."""
        return self._log.lines()

    # --- the disk ring -----------------------------------------------------------------------------------------

    def execute(self, operation: str, fileno: int, buffers: Sequence[memoryview], at: int) -> int:
        """Execute one entry of a disk ring; returns the number of bytes moved, or a negative errno, as the kernel does.

        Operations are "read", "write", "sync", and "write_sync" (write, then sync).
        """
        if operation not in ("read", "write", "sync", "write_sync"):
            raise InvalidInputError(f"{operation!r} is not a disk ring operation")
        self.require_power()
        file = self._handles.get(fileno)
        if file is None:
            return -errno.EBADF
        moved = 0
        try:
            if operation == "read":
                return file.read_into(buffers, at)
            if operation != "sync":
                moved = file.write(buffers, at)
            if operation != "write":
                file.sync()
        except SyncError as error:
            cause = error.__cause__
            return -(cause.errno or errno.EIO) if isinstance(cause, OSError) else -errno.EIO
        except OSError as error:
            return -(error.errno or errno.EIO)
        return moved

    # --- for the files of this disk (`disk_file.FileDisk`) -----------------------------------------------------

    @contextlib.contextmanager
    def call(self, name: Call, path: str, detail: str = "") -> Iterator[SimCall]:
        """Run one call: apply its fault and add it to the history. With a crash point inside, it raises `SimCrash`."""
        self.require_power()
        try:
            call = SimCall(self._plan.decide(name, canonical(path)), detail)
        except OSError as error:
            self._note(name, path, f"failed: {error.strerror}")
            raise
        except SimCrash as crash:
            self._down = True
            self._log.note(str(crash))
            raise
        try:
            yield call
        except OSError as error:
            self._note(name, path, f"refused: {error.strerror}")
            if call.outcome is not Outcome.CRASH:
                raise
        if call.outcome is Outcome.CRASH:
            self._down = True
            self._note(name, path, f"{call.detail} power lost inside".lstrip())
            raise SimCrash(f"power lost inside {name} {path}, call {self.calls}")
        self._note(name, path, call.detail)

    def require_power(self) -> None:
        """Raise `SimCrash` if the machine has lost power."""
        if self._down:
            raise SimCrash("the simulated machine is down; call crash() or kill() to continue")

    def require_alive(self, number: int, path: str) -> None:
        """Raise `DeadHandleError` for a handle that was opened before a crash or kill."""
        self.require_power()
        if number not in self._handles:
            raise DeadHandleError(f"{path}: this handle was opened before a crash; open the file again")

    def release(self, number: int) -> None:
        """Remove a closed handle."""
        self._handles.pop(number, None)

    def free_blocks(self) -> int:
        """Blocks not used by a file that has a name or a handle."""
        contents = {id(content): content for content in self._names.files()}
        contents.update((id(file.content), file.content) for file in self._handles.values())
        return max(0, self._capacity_blocks - sum(content.block_count for content in contents.values()))

    def _note(self, name: Call, path: str, detail: str) -> None:
        if name in CHANGING_CALLS:
            self._log.note(f"{name} {path} {detail}".rstrip())

    def _restart(self, event: str) -> None:
        self._handles.clear()
        self._plan.disarm()
        self._down = False
        self._log.note(event)
