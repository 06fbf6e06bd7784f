"""A store on a simulated disk, a random script of changes to it, and the history of their acks.

The script is drawn from a seed: topics of every class, with and without caps and ages, are created, written, deleted
from, configured, read and deleted; the log is synced, checkpointed, closed and opened; time advances.
"""

from __future__ import annotations

import copy
import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from crash_history import NS_PER_MS, History, Level, Written, require

from seawall.core.types import Seq, TopicId
from seawall.engine.commit.appends import Append
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import DiskFullError, FatalError, FullError, InvariantError, LimitError, SeawallError
from seawall.limits import KIB
from seawall.storage.control.deletes import MatchKind, TagMatch
from seawall.storage.preface import DATA_START
from seawall.storage.wal.files import wal_addresses, wal_path
from seawall.testing import SimClock, SimDisk
from seawall.testing.machine.faults import CHANGING_CALLS, Call, SimCall
from seawall.topics.config import Discard, Durability, TopicConfig, changed_config
from seawall.topics.state import TopicState
from seawall.wire.format.fields import write_json
from seawall.wire.format.records import Record, encode_block

PATH = "/data"
BEGAN_NS = 1_700_000_000_000_000_000
CLASSES = {
    "sure": Durability.FSYNC,
    "quick": Durability.DISK,
    "loose": Durability.MEMORY,
    "brief": Durability.EPHEMERAL,
}
LEVELS = {
    Durability.FSYNC: Level.DURABLE,
    Durability.DISK: Level.WRITTEN,
    Durability.EPHEMERAL: Level.STAGED,
    Durability.MEMORY: Level.STAGED,
}
TAGS = (None, None, b"a", b"ab", b"b")
STEPS = 30

#: The C library's name for the size from which memory is given back to the system, and comes from it as zeros: without
#: it most of a run is spent clearing the tables that every opening makes.
_M_MMAP_THRESHOLD = -3
ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 256 * KIB)


class WatchedDisk(SimDisk):
    """A disk that calls a watcher before each call that may change it."""

    def __init__(self, seed: int, *, unit_size: int) -> None:
        super().__init__(seed, unit_size=unit_size)
        self.watcher: Callable[[], None] | None = None

    def call(self, name: Call, path: str, detail: str = "") -> AbstractContextManager[SimCall]:
        if name in CHANGING_CALLS and self.watcher is not None:
            self.watcher()
        return super().call(name, path, detail)

    def photo(self) -> WatchedDisk:
        """A disk of its own in the same state."""
        watcher, self.watcher = self.watcher, None
        taken = copy.deepcopy(self)
        self.watcher = watcher
        return taken


def settings_of(script: int) -> StoreSettings:
    chance = random.Random(f"settings {script}")
    return StoreSettings(
        wal_file_size=chance.choice((128 * KIB, 192 * KIB)),
        ceiling_step=chance.choice((16, 64)),
        ballast_size=4_096,
        checkpoint_size=chance.choice((60_000, 1 << 62)),
    )


def append_of(topic_id: int, values: list[Written]) -> Append:
    """One batch, without session and key."""
    return Append(TopicId(topic_id), encode_block([value.record() for value in values]), len(values))


def encoded(topic_id: int, values: list[bytes]) -> Append:
    """One batch of plain values."""
    return Append(TopicId(topic_id), encode_block([Record(1, value) for value in values]), len(values))


class World:
    """A store on a simulated disk, and the history of its clients."""

    def __init__(self, disk: WatchedDisk, script: int, history: History | None = None) -> None:
        self.disk = disk
        self.script = script
        self.chance = random.Random(f"script {script}")
        self.history = History() if history is None else history
        self.clock = SimClock(wall_ns=max(BEGAN_NS, self.history.now_ns))
        self.opened = 0
        self.level = Level.STAGED
        self.store: Store | None = None

    def photo(self, name: str) -> World:
        """What is left if everything ends now, as a world of its own."""
        world = type(self)(self.disk.photo(), self.script, self.history.copy())
        world.chance = random.Random(name)
        world.opened = self.opened + 1_000
        return world

    def end(self, keep: str) -> None:
        """The process is killed, or the machine loses its power."""
        self.store = None
        if keep == "kill":
            self.disk.kill()
        else:
            self.history.power_lost()
            self.disk.crash(keep=keep)

    def open(self) -> Store:
        self.opened += 1
        random_bytes = random.Random(f"machine {self.script} {self.opened}").randbytes
        self.clock.advance(1)
        machine = Machine(self.disk, self.clock, random_bytes, pid=7)
        self.store = open_store(machine, PATH, self.settings())
        return self.store

    def settings(self) -> StoreSettings:
        return settings_of(self.script)

    def check_opened(self) -> None:
        """Check the opened store against the history, and that only zeros follow the end of its log."""
        store = self._usable()
        self.history.check(store, self.chance)
        starts = wal_addresses(self.disk, f"{PATH}/wal")
        if not starts:
            return
        file = self.disk.open(wal_path(f"{PATH}/wal", starts[-1]), read_only=True)
        start = DATA_START + store.parts.wal.at - starts[-1]
        require(not file.read(file.size(), start).strip(b"\0"), f"{file.path}: something is left behind its end")
        file.close()

    # --- the script ------------------------------------------------------------------------------------------------

    def run(self, *, goes_on: bool = False) -> None:
        """Every step; after an error the next one is tried if it `goes_on`."""
        steps: list[Callable[[], None]] = [self.reopen, *(self.create for _ in CLASSES)]
        steps += self.chance.choices(self.weighted(), k=STEPS)
        for step in [*steps, self.close]:
            try:
                step()
            except (SeawallError, OSError) as error:
                if isinstance(error, InvariantError) or not goes_on:
                    raise

    def weighted(self) -> list[Callable[[], None]]:
        """What a script is drawn from."""
        return [
            *[self.append] * 12,
            *[self.check] * 2,
            *[self.checkpoint] * 2,
            *[self.place] * 2,
            *[self.delete_below] * 2,
            *[self.delete_tag] * 2,
            *[self.pass_time] * 2,
            *(self.churn, self.retain, self.sync, self.create, self.delete, self.configure, self.commit, self.reopen),
        ]

    @contextmanager
    def changing(self) -> Iterator[Store]:
        """One change; after it, it and everything before it have the durability `level`."""
        store = self._usable()
        self.history.now_ns = self.clock.wall_ns()
        self.level = Level.DURABLE
        try:
            yield store
        except (SeawallError, OSError):
            # Its evictions before the failure are known, their durability is not.
            self._observe(store, Level.STAGED)
            raise
        self._observe(store, self.level)
        if self.level > Level.STAGED:
            self.history.reached(self.level)

    def _observe(self, store: Store, level: Level) -> None:
        for topic in store.catalog:
            self.history.observe(topic, level)

    def create(self) -> None:
        store = self._usable()
        free = [name for name in CLASSES if name not in store.catalog.names()]
        if not free:
            return
        name = free[0]
        config = self._config(CLASSES[name])
        shown = int(store.catalog.next_topic_id), write_json(config.to_json())
        self.history.try_name(name, shown, config)
        with self.changing():
            store.create_topic(name, config)
        self.history.set_name(name, shown)

    def _config(self, durability: Durability) -> TopicConfig:
        if durability is Durability.DISK:
            # Always one whose evictions take sealed segments with them, and are not durable at once.
            cap_records = self.chance.choice((10, 20))
            return TopicConfig(durability=durability, segment_max_records=4, cap_records=cap_records)
        return TopicConfig(
            durability=durability,
            segment_max_records=self.chance.choice((4, 9, 60)),
            cap_records=self.chance.choice((0, 0, 10, 40)),
            cap_bytes=self.chance.choice((0, 0, 9_000)),
            ttl_ms=self.chance.choice((0, 0, 100)),
            discard=self.chance.choice((Discard.OLD, Discard.OLD, Discard.REJECT)),
        )

    def delete(self) -> None:
        topic = self._pick()
        if topic is not None:
            self.history.try_name(topic.name, None)
            with self.changing() as store:
                store.delete_topic(topic.name)
            self.history.set_name(topic.name, None)

    def configure(self) -> None:
        topic = self._pick()
        if topic is not None:
            patch = self.chance.choice(({"ttl_ms": 50}, {"ttl_ms": 0}, {"cap_records": 6}, {"cap_bytes": 2_000}))
            config = changed_config(topic.config, {**patch})
            shown = int(topic.topic_id), write_json(config.to_json())
            self.history.try_name(topic.name, shown, config)
            is_same = config == topic.config
            with self.changing() as store:
                store.configure_topic(topic.name, {**patch})
                self.level = Level.STAGED if is_same else Level.DURABLE
            self.history.set_name(topic.name, shown)

    def commit(self) -> None:
        topic = self._pick()
        if topic is not None:
            next_seq = self.chance.randrange(1, 1_000)
            self.history.try_cursor("reader", topic.topic_id, next_seq)
            with self.changing() as store:
                store.commit_cursor("reader", topic.name, Seq(next_seq))
            self.history.set_cursor("reader", topic.topic_id, next_seq)

    def append(self) -> None:
        """Some batches to one topic or two, in one commit."""
        topics = [topic for topic in (self._pick(), self._pick() if self.chance.random() < 0.2 else None) if topic]
        self._write(topics)

    def churn(self) -> None:
        """Fill a topic with limits, so that appends evict segments that a checkpoint has sealed."""
        limited = [topic for topic in self._usable().catalog if topic.config.cap_records or topic.config.cap_bytes]
        if limited:
            topic = self.chance.choice(limited)
            for _ in range(4):
                self._write([topic])
            self.checkpoint()
            for _ in range(4):
                self._write([topic])

    def _write(self, topics: list[TopicState]) -> None:
        groups: list[tuple[TopicState, list[Written]]] = []
        for topic in topics:
            for _ in range(self.chance.choice((1, 1, 2, 4))):
                zeros = self.chance.choice((0, 1, 20, 300, 4_000, 30_000, 66_000))
                count = self.chance.choice((1, 1, 3, 20)) if zeros < 4_000 else 1
                tags = self.chance.choices(TAGS, k=count)
                groups.append((topic, [self.history.write(topic.topic_id, zeros, tag) for tag in tags]))
        if groups:
            self._append(groups)

    def _append(self, groups: list[tuple[TopicState, list[Written]]]) -> None:
        appends = [append_of(topic.topic_id, values) for topic, values in groups]
        taken: set[str] = set()
        with self.changing() as store:
            full: DiskFullError | None = None
            try:
                store.append(appends)
            except (FullError, LimitError):
                # A topic that rejects; the others of the commit are stored.
                pass
            except DiskFullError as error:
                # Only when the disk is full: topics in memory need no space on it.
                full = error
            stored = [topic for (topic, _), append in zip(groups, appends, strict=True) if append.error is None]
            # One write and one sync for all of them.
            level = max((LEVELS[topic.config.durability] for topic in stored), default=Level.STAGED)
            self.level = level
            for (topic, values), append in zip(groups, appends, strict=True):
                if append.error is not None:
                    for value in values:
                        self.history.refused(topic.topic_id, value)
                elif append.numbered is not None:
                    taken.add(topic.name)
                    for seq, value in enumerate(values, append.numbered.base_seq):
                        self.history.acked(topic.topic_id, seq, value, append.numbered.timestamp_ns, level)
            if full is not None:
                raise full
        for name in taken:
            self._check_caps(store.catalog.named(name))

    def _check_caps(self, topic: TopicState) -> None:
        config = topic.config
        fits = not config.cap_records or topic.live_records <= config.cap_records
        fits &= not config.cap_bytes or topic.live_bytes <= config.cap_bytes
        # A store that has failed on the side of the append evicts nothing any more.
        require(
            fits or self._usable().guard.failure is not None, f"{topic.name} holds more than its caps after an append"
        )

    def delete_below(self) -> None:
        topic = self._pick()
        if topic is not None:
            self._delete(topic, topic.floor + self.chance.randrange(15), None)

    def delete_tag(self) -> None:
        topic = self._pick()
        if topic is not None:
            match = TagMatch(self.chance.choice([*MatchKind]), self.chance.choice(("a", "b")))
            below = topic.floor + self.chance.randrange(30)
            self._delete(topic, self.chance.choice((None, None, below)), match)

    def _delete(self, topic: TopicState, before_seq: int | None, match: TagMatch | None) -> None:
        meant = self.history.meant(topic.topic_id, topic.next_seq, before_seq, match)
        self.history.try_delete(topic.topic_id, meant)
        with self.changing() as store:
            removed = store.delete_records(topic.name, before_seq=before_seq, match=match)
            due = self.history.deleted(topic.topic_id, meant)
            require(removed == due, f"{topic.name}: a delete of {due} removed {removed}")
            # Where there is nothing to remove, nothing is synced.
            self.level = Level.DURABLE if removed else Level.STAGED

    def retain(self) -> None:
        with self.changing() as store:
            store.maintenance.retain()
            # Where nothing is due, nothing is synced.
            self.level = Level.STAGED

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice((1, 30, 70, 200)) * NS_PER_MS)

    def sync(self) -> None:
        with self.changing() as store:
            store.controls.sync()

    def checkpoint(self) -> None:
        with self.changing() as store:
            store.maintenance.checkpoint()

    def place(self) -> None:
        """Background work between checkpoints: it gives no guarantee, and must break none."""
        store = self._usable()
        for job in store.maintenance.plan_flushes():
            job.execute()
            job.settle()
        for seal in store.maintenance.plan_seals():
            seal.execute()
            seal.settle()

    def check(self) -> None:
        self.history.check(self._usable(), self.chance, whole=False)

    def close(self) -> None:
        if self.store is not None:
            store, self.store = self.store, None
            store.close()
            if store.guard.failure is None:
                self.history.reached(Level.DURABLE)

    def reopen(self) -> None:
        self.close()
        self.open()
        self.check_opened()

    def _usable(self) -> Store:
        if self.store is None:
            raise FatalError("not open")
        return self.store

    def _pick(self) -> TopicState | None:
        catalog = self._usable().catalog
        names = catalog.names()
        return catalog.named(self.chance.choice(names)) if names else None
