"""One case of the crash sweep: a script of changes, an end at some call, recoveries that may be cut too, the oracle.

A case is a number and a seed: `run_case(seed, number)` always does the same. The script (what is created, appended,
deleted, committed, read) is drawn from the seed and `number // CASES_PER_SCRIPT`; where and how it ends from the case.

Ends: power lost before or inside any call that changes the disk, with none, all or a random part of what was not
synced; the process killed there; or a call that fails, once or from then on, followed by one of these or by a close.
Up to two more crashes hit the recovery. Then the log is opened, held against `History`, written on, closed, and opened
and held against it again.

Recovery twice: of some images, after one recovery and a crash that keeps nothing unsynced a second one is run (after
two, where the image was that of a clean close: the crash is then the first one). Both
must leave the same durable bytes in every file outside wal/ (but for LOCK, which is no data), and the batches in wal/
of the second must be those of the first and one start of a term behind them, nothing else.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from crash_history import BrokenPromiseError, History, require, shown_by

from seawall.core.types import Seq, TopicId
from seawall.engine.appends import Append
from seawall.engine.opening import open_store
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.store import Store
from seawall.errors import FatalError, InvariantError, SeawallError
from seawall.limits import BATCH_HEADER_SIZE, KIB
from seawall.storage.control_batches import read_control
from seawall.storage.control_documents import TermStart
from seawall.storage.epochs import WalAddress
from seawall.storage.wal_reader import WalBatch, read_wal
from seawall.testing import SimClock, SimCrash, SimDisk
from seawall.topics.config import Durability, TopicConfig
from seawall.wire.fields import write_json
from seawall.wire.records import Record, encode_block

PATH = "/data"
NAMES = ("sure", "quick", "loose")
CLASSES = (Durability.FSYNC, Durability.DISK, Durability.MEMORY)
CASES_PER_SCRIPT = 50
STEPS = 26
FAULTS = ("write", "sync", "allocate", "rename", "sync_directory", "copy_range", "unlink", "truncate")


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


def settings_of(script: int) -> StoreSettings:
    chance = random.Random(f"settings {script}")
    return StoreSettings(
        wal_file_size=chance.choice((128 * KIB, 192 * KIB)),
        ceiling_step=chance.choice((16, 64)),
        ballast_size=4_096,
        checkpoint_size=chance.choice((60_000, 1 << 62)),
    )


def encoded(topic_id: int, values: list[bytes]) -> Append:
    return Append(TopicId(topic_id), encode_block([Record(1, value) for value in values]), len(values))


class World:
    """A store on a simulated disk, and what everybody was told."""

    def __init__(self, disk: SimDisk, script: int) -> None:
        self.disk = disk
        self.script = script
        self.chance = random.Random(f"script {script}")
        self.history = History()
        self.opened = 0
        self.store: Store | None = None

    def open(self) -> Store:
        self.opened += 1
        random_bytes = random.Random(f"machine {self.script} {self.opened}").randbytes
        machine = Machine(self.disk, SimClock(wall_ns=1_700_000_000_000_000_000 + self.opened), random_bytes, pid=7)
        self.store = open_store(machine, PATH, settings_of(self.script))
        return self.store

    # --- the script ------------------------------------------------------------------------------------------------

    def run(self, *, goes_on: bool = False) -> None:
        """Every step; after an error the next one is tried if it `goes_on`."""
        steps: list[Callable[[], None]] = [self.reopen, *(self.create for _ in NAMES)]
        weighted = [
            *[self.append] * 12,
            *[self.check] * 2,
            self.checkpoint,
            self.checkpoint,
            self.sync,
            self.create,
            self.delete,
            self.configure,
            self.commit,
            self.reopen,
        ]
        steps += self.chance.choices(weighted, k=STEPS)
        for step in [*steps, self.close]:
            try:
                step()
            except (SeawallError, OSError) as error:
                if isinstance(error, InvariantError) or not goes_on:
                    raise

    def create(self) -> None:
        store = self._usable()
        free = [name for name in NAMES if name not in store.catalog.names()]
        if not free:
            return
        name = free[0]
        config = TopicConfig(durability=CLASSES[NAMES.index(name)], segment_max_records=self.chance.choice((4, 9, 60)))
        shown = int(store.catalog.next_topic_id), write_json(config.to_json())
        self.history.try_name(name, shown)
        store.create_topic(name, config)
        self.history.set_name(name, shown)

    def delete(self) -> None:
        store, name = self._pick()
        if name is not None:
            self.history.try_name(name, None)
            store.delete_topic(name)
            self.history.set_name(name, None)

    def configure(self) -> None:
        store, name = self._pick()
        if name is not None:
            topic = store.catalog.named(name)
            patch = {"ttl_ms": self.chance.randrange(1, 10**6)}
            shown = int(topic.topic_id), write_json(topic.config.patched(patch).to_json())
            self.history.try_name(name, shown)
            store.configure_topic(name, patch)
            self.history.set_name(name, shown)

    def commit(self) -> None:
        store, name = self._pick()
        if name is not None:
            topic_id, next_seq = store.catalog.named(name).topic_id, self.chance.randrange(1, 1_000)
            self.history.try_cursor("reader", topic_id, next_seq)
            store.commit_cursor("reader", name, Seq(next_seq))
            self.history.set_cursor("reader", topic_id, next_seq)

    def append(self) -> None:
        store, name = self._pick()
        if name is None:
            return
        topic = store.catalog.named(name)
        groups = []
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            size = self.chance.choice((0, 1, 20, 300, 4_000, 30_000, 66_000))
            count = self.chance.choice((1, 1, 3, 20)) if size < 4_000 else 1
            groups.append([self.history.new_value(topic.topic_id, size) for _ in range(count)])
        headers = store.append([encoded(topic.topic_id, group) for group in groups])
        facts = self.history.topic(topic.topic_id)
        kept = facts.durable if topic.config.durability is Durability.FSYNC else facts.weak
        for header, group in zip(headers, groups, strict=True):
            for seq, value in enumerate(group, header.base_seq):
                self.history.saw(topic.topic_id, seq, value)
                kept[seq] = value

    def sync(self) -> None:
        self._usable().sync()
        self.history.synced()

    def checkpoint(self) -> None:
        self._usable().checkpoint()
        self.history.synced()

    def check(self) -> None:
        self.history.check(self._usable(), self.chance, whole=False)

    def close(self) -> None:
        if self.store is not None:
            store, self.store = self.store, None
            store.close()
            if store._failure is None:
                self.history.synced()

    def reopen(self) -> None:
        self.close()
        self.open()
        self.history.check(self._usable(), self.chance)

    def _usable(self) -> Store:
        if self.store is None:
            raise FatalError("not open")
        return self.store

    def _pick(self) -> tuple[Store, str | None]:
        store = self._usable()
        names = store.catalog.names()
        return store, self.chance.choice(names) if names else None


@lru_cache(maxsize=64)
def calls_of(script: int) -> int:
    """How many calls of a script change the disk, if nothing goes wrong."""
    world = World(SimDisk(seed=0), script)
    world.run()
    return world.disk.calls


def case_of(seed: int, number: int) -> Case:
    chance = random.Random(f"case {seed} {number}")
    script = seed * 1_000_003 + number // CASES_PER_SCRIPT
    fault = None
    if chance.random() < 0.25:
        error = chance.choice((errno.EIO, errno.ENOSPC))
        fault = (chance.choice(FAULTS), chance.randint(1, 40), error, chance.random() < 0.5)
    # Crash points are spread over the script, so that one script's cases do not meet.
    step = calls_of(script) / CASES_PER_SCRIPT
    nth = 1 + int((number % CASES_PER_SCRIPT + chance.random()) * step)
    keep = chance.choice(("none", "all", "random", "random", "kill"))
    if fault is not None and fault[0] == "sync_directory" and keep == "kill":
        keep = "none"
    return Case(seed, number, chance.choice((512, 4_096)), keep, chance.random() < 0.5, fault, nth)


def run_case(seed: int, number: int) -> int:
    """Run one case; the number of images that were recovered and checked. `BrokenPromiseError` is a bug found."""
    case = case_of(seed, number)
    chance = random.Random(f"run {seed} {number}")
    disk = SimDisk(seed=chance.randrange(1 << 30), unit_size=case.unit)
    world = World(disk, case.script)
    if case.fault is None:
        disk.crash_after(case.nth, inside=case.inside)
    else:
        call, nth, error, forever = case.fault
        disk.fail(call, nth=nth, error=error, forever=forever)
    ended = False
    try:
        world.run(goes_on=goes_on_after(case))
        ended = True
    except SimCrash:
        pass
    except (SeawallError, OSError) as error:
        if case.fault is None or isinstance(error, (BrokenPromiseError, InvariantError)):
            raise
    disk.clear_faults()
    images = 0
    if not ended or chance.random() < 0.7:
        end(disk, case.keep)
        images += 1
    for _ in range(chance.choice((0, 1, 2))):
        disk.crash_after(chance.randint(1, 40))
        try:
            world.open()
            end(disk, "kill")
        except SimCrash:
            end(disk, case.keep)
        images += 1
    if chance.random() < 0.25:
        images += check_twice(world)
    check_recovered(world, chance)
    return images + 1


def goes_on_after(case: Case) -> bool:
    """Whether a process lives on after its fault: a file system whose names cannot be synced is read-only from then on.

    Only a restart of the machine brings it back, without what its cache held.
    """
    return case.fault is not None and case.fault[0] != "sync_directory"


def end(disk: SimDisk, keep: str) -> None:
    if keep == "kill":
        disk.kill()
    else:
        disk.crash(keep=keep)


def check_recovered(world: World, chance: random.Random) -> None:
    """Open, compare, write on, close in order, open and compare again."""
    world.store = None
    world.open()
    world.history.check(world._usable(), chance)
    world.create()
    for _ in range(3):
        world.append()
    if chance.random() < 0.5:
        world.checkpoint()
    world.check()
    if chance.random() < 0.5:
        world.close()
    else:
        world.sync()
        world.disk.crash(keep="none")
        world.store = None
    world.reopen()
    world.close()


def check_twice(world: World) -> int:
    """The second of two recoveries changes nothing but that it starts a term."""
    world.open().begin_term()
    world.disk.crash(keep="none")
    found: list[tuple[dict[str, bytes], list[WalBatch]]] = []
    for _ in range(2):
        directory_id = world.open()._directory.directory_id
        world.disk.crash(keep="none")
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


def paths(disk: SimDisk, directory: str) -> list[str]:
    """Every file outside wal/ but LOCK."""
    found: list[str] = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if path in (f"{PATH}/wal", f"{PATH}/LOCK"):
            continue
        try:
            found += paths(disk, path)
        except NotADirectoryError:
            found.append(path)
    return found


__all__ = ["BrokenPromiseError", "Case", "case_of", "run_case", "shown_by"]
