"""One case of the crash sweep: a script of changes that crashes at some call, recoveries that may crash too, checks.

A case is a seed and a number: `run_case(seed, number)` is deterministic. The script (`crash_world`) is drawn from the
seed and `number // CASES_PER_SCRIPT`; where and how it ends is drawn from the case.

Two kinds of cases, together `CASES_PER_SCRIPT` of a script:

- *photos*: the script runs to its end. Before every tenth call that changes the disk, a copy of disk and history is
  taken and ended there: a power loss that keeps none, all or a random part of the unsynced bytes, or a kill. The ten
  photo cases of a script cover every such call;
- *ends*: the script itself ends before or inside a call, or at a call that fails, once or from then on, followed by one
  of these ends or by a close.

A quarter of the photo cases have a failing call too. The recovery may crash too, up to twice. Every image is recovered
and checked against `History`; some are then appended to, closed, opened and checked again.

Recovery twice: some images are recovered, crashed without keeping unsynced bytes, and recovered again. Both recoveries
must leave the same durable bytes in every file outside wal/ (except LOCK and FABRIC, which hold no data), and the
second may add nothing to wal/ but one start of a term.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass
from functools import lru_cache
from unittest.mock import patch

from crash_history import BrokenPromiseError, require
from crash_world import PATH, WatchedDisk, World

from seawall.engine.commit import appends, reservations
from seawall.engine.maintenance import flushing
from seawall.engine.transactions import copying as transaction_copying
from seawall.errors import InvariantError, SeawallError
from seawall.limits import BATCH_HEADER_SIZE, KIB
from seawall.storage.control.batches import read_control
from seawall.storage.control.documents import TermStart
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.reader import WalBatch, read_wal
from seawall.testing import SimCrash

PHOTO_CASES = 10
END_CASES = 30
CASES_PER_SCRIPT = PHOTO_CASES + END_CASES
FAULTS = ("write", "sync", "allocate", "rename", "sync_directory", "copy_range", "unlink", "truncate")
ENDS = ("none", "all", "random", "random", "kill")


@dataclass(frozen=True)
class Case:
    """How one run ends."""

    seed: int
    number: int
    unit: int
    keep: str
    inside: bool
    fault: tuple[str, int, int, bool] | None
    nth: int

    @property
    def script(self) -> int:
        return self.seed * 1_000_003 + self.number // CASES_PER_SCRIPT

    @property
    def is_photographed(self) -> bool:
        return self.number % CASES_PER_SCRIPT < PHOTO_CASES

    @property
    def goes_on(self) -> bool:
        """True if the process continues after its fault.

        It does not if names cannot be synced: the file system is then read-only until the machine restarts, which loses
        its cache.
        """
        return self.fault is not None and self.fault[0] != "sync_directory"


#: Small batches count as large, so that a commit or a transaction has several writes without megabytes of data.
_small_pieces = patch.object(appends, "_PIECE_SIZE", 64 * KIB)
_small_copies = patch.object(transaction_copying, "_UNCACHED_SIZE", 0)
#: The operating system copies contiguous runs, however short.
_system_copies = patch.object(flushing, "_SYSTEM_COPY_SIZE_MIN", 1 * KIB)
_uncached_writes = patch.object(reservations, "_UNREAD_CACHED_SIZE", 0)


@lru_cache(maxsize=64)
def calls_of(script: int, make: type[World] = World) -> int:
    """The number of calls of a script that change the disk, without faults."""
    world = make(WatchedDisk(0, unit_size=512), script)
    world.run()
    return world.disk.calls


def case_of(seed: int, number: int, make: type[World] = World) -> Case:
    chance = random.Random(f"case {seed} {number}")
    script = seed * 1_000_003 + number // CASES_PER_SCRIPT
    kind = number % CASES_PER_SCRIPT
    fault = None
    if chance.random() < 0.25:
        error = chance.choice((errno.EIO, errno.ENOSPC))
        fault = (chance.choice(FAULTS), chance.randint(1, 40), error, chance.random() < 0.5)
    # Ends are spread over the script, so that its cases end at different calls.
    step = calls_of(script, make) / END_CASES
    nth = kind if kind < PHOTO_CASES else 1 + int((kind - PHOTO_CASES + chance.random()) * step)
    keep = chance.choice(ENDS)
    if fault is not None and fault[0] == "sync_directory" and keep == "kill":
        keep = "none"
    return Case(seed, number, chance.choice((512, 4_096)), keep, chance.random() < 0.5, fault, nth)


@_small_pieces
@_small_copies
@_uncached_writes
@_system_copies
def run_case(seed: int, number: int, make: type[World] = World) -> int:
    """Run one case; the number of images that were recovered and checked. `BrokenPromiseError` is a bug found."""
    case = case_of(seed, number, make)
    chance = random.Random(f"run {seed} {number}")
    world = make(WatchedDisk(chance.randrange(1 << 30), unit_size=case.unit), case.script)
    if case.fault is not None:
        call, nth, error, forever = case.fault
        world.disk.fail(call, nth=nth, error=error, forever=forever)
    camera = Camera(world, case)
    if case.is_photographed:
        world.disk.watcher = camera.shoot
    elif case.fault is None:
        world.disk.crash_after(case.nth, inside=case.inside)
    ended = False
    try:
        world.run(goes_on=case.goes_on)
        ended = True
    except SimCrash:
        pass
    except (SeawallError, OSError) as error:
        if case.fault is None or isinstance(error, InvariantError):
            raise
    world.disk.watcher = None
    world.disk.clear_faults()
    images = camera.images
    if not ended or chance.random() < 0.7:
        world.end(case.keep)
        images += 1
    return images + recover(world, chance, case.keep)


class Camera:
    """Takes copies of a world while its script runs, crashes them, and checks the recovered state."""

    def __init__(self, world: World, case: Case) -> None:
        self._world = world
        self._case = case
        self.images = 0

    def shoot(self) -> None:
        """Before a call that changes the disk."""
        case, number = self._case, self._world.disk.calls
        if number % PHOTO_CASES != case.nth:
            return
        name = f"photo {case.seed} {case.number} {number}"
        chance = random.Random(name)
        world = self._world.photo(name)
        world.disk.clear_faults()
        # A file system whose names could not be synced keeps nothing that was not.
        is_frozen = case.fault is not None and not case.goes_on
        world.end(chance.choice(("none", "random") if is_frozen else ENDS))
        self.images += 1
        if chance.random() < 0.2:
            self.images += recover(world, chance, chance.choice(("none", "all", "random")))
        else:
            world.open()
            world.check_opened()


def recover(world: World, chance: random.Random, keep: str) -> int:
    """Recover after a crash, with up to two more crashes during recovery, and check; returns the number of images."""
    images = 1
    for _ in range(chance.choice((0, 1, 2))):
        world.disk.crash_after(chance.randint(1, 40))
        try:
            world.open()
            world.end("kill")
        except SimCrash:
            world.end(keep)
        images += 1
    if chance.random() < 0.25:
        images += check_twice(world)
    check_recovered(world, chance)
    return images


def check_recovered(world: World, chance: random.Random) -> None:
    """Open, check, append, close in order, open and check again."""
    world.store = None
    world.open()
    world.check_opened()
    world.create()
    for _ in range(3):
        world.append()
    world.delete_below()
    if chance.random() < 0.5:
        world.checkpoint()
    world.check()
    if chance.random() < 0.5:
        world.close()
    else:
        world.sync()
        world.end("none")
    world.reopen()
    world.close()


def check_twice(world: World) -> int:
    """The second of two recoveries changes nothing but that it starts a term."""
    world.open().controls.begin_term()
    world.end("none")
    found: list[tuple[dict[str, bytes], list[WalBatch]]] = []
    for _ in range(2):
        directory_id = world.open().parts.directory.directory_id
        world.end("none")
        files = {path: world.disk.durable_bytes(path) for path in paths(world.disk, PATH)}
        items = read_wal(world.disk, f"{PATH}/wal", directory_id, WalAddress(0))
        found.append((files, [item for item in items if isinstance(item, WalBatch)]))
    (files, batches), (again, more) = found
    require(
        files == again,
        f"a second recovery changed {[path for path in files | again if files.get(path) != again.get(path)]}",
    )
    old = {batch.at: bytes(batch.data) for batch in batches}
    added = [batch for batch in more if old.get(batch.at) != bytes(batch.data)]
    controls = [read_control(batch.header, batch.data[BATCH_HEADER_SIZE:]) for batch in added]
    require(len(more) == len(batches) + 1, f"a second recovery logged {controls}")
    require(len(controls) == 1 and isinstance(controls[0], TermStart), f"a second recovery logged {controls}")
    return 2


def paths(disk: WatchedDisk, directory: str) -> list[str]:
    """Every file outside wal/ but LOCK, and FABRIC, which names memory of the process."""
    found: list[str] = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if path in (f"{PATH}/wal", f"{PATH}/LOCK", f"{PATH}/FABRIC"):
            continue
        try:
            found += paths(disk, path)
        except NotADirectoryError:
            found.append(path)
    return found


__all__ = ["BrokenPromiseError", "Case", "case_of", "run_case"]
