"""All operations at once on a real directory, with every result checked.

Threads publish and wait, publishers do not wait, an event loop does both; others read, read as Arrow, subscribe; others
delete below seqs and by tag, and one makes checkpoints. One topic has a cap, one only grows.

Every value contains its topic, its writer, the writer's count and whether it is tagged. So each reader can check:

- a value belongs to its topic, and each writer's values arrive once and in its order;
- seqs rise; a skipped seq was deleted, and a seq in a gap was evicted by the cap of its topic;
- a seq has the same value for every reader, and the one of the delivery of its writer.

At the end every delivered record that was neither deleted nor evicted exists, before and after a reopen.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.delivery import Delivery
from seawall.engine.read.read_results import Item, Message, ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.errors import SeawallError
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import GapReason

CAP = 2_000
GROWING, DELETED, CAPPED = "growing", "deleted", "capped"
TOPICS = {
    GROWING: {"durability": "fsync"},
    DELETED: {"durability": "disk"},
    CAPPED: {"durability": "memory", "cap_records": CAP},
}
SETTINGS = StoreSettings(wal_file_size=MIB, ceiling_step=1_000, ballast_size=64 * KIB, checkpoint_size=2 * MIB)
TAG = "x"

#: Whatever a bug may raise, but not the end of this process.
ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, OSError),
    *(RuntimeError, SeawallError, TypeError, ValueError),
)

#: Seqs that a reader goes back at a restart, so that it reads ranges with new deletes.
_BACK = 500


@dataclass
class Told:
    """Delivered records and deletes of one topic; shared by all threads."""

    values: dict[int, bytes] = field(default_factory=dict)
    delivered: set[int] = field(default_factory=set)
    #: Bounds of started deletes: of all records, and of tagged records.
    below: int = 1
    tagged_below: int = 1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def saw(self, seq: int, value: bytes) -> None:
        """INV of the whole: one seq, one value."""
        before = self.values.setdefault(seq, value)
        assert before == value, f"seq {seq} is {before[:60]!r} and {value[:60]!r}"

    def may_be_silent(self, seq: int) -> bool:
        if seq < self.below:
            return True
        value = self.values.get(seq)
        return seq < self.tagged_below and (value is None or is_tagged(value))


def is_tagged(value: bytes) -> bool:
    return value.split(b" ", 4)[3] == b"x"


class Stress:
    """One run: the facts, the errors, and when it ends."""

    def __init__(self, seconds: float, seed: int) -> None:
        self.told = {topic: Told() for topic in TOPICS}
        self.errors: list[BaseException] = []
        self.seed = seed
        self.counts: dict[str, int] = {}
        self._seconds = seconds
        self._ends_at = 0.0

    def begin(self) -> None:
        """From now on it counts."""
        self._ends_at = time.monotonic() + self._seconds

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._ends_at and not self.errors

    def thread(self, name: str, step: Callable[[random.Random], int]) -> threading.Thread:
        """A thread that does its step, once at least, until the end; the first error of any ends all."""

        def run() -> None:
            chance = random.Random(f"{name} {self.seed}")
            done = 0
            try:
                done += step(chance)
                while self.goes_on:
                    done += step(chance)
            except ERRORS as error:
                self.errors.append(error)
            self.counts[name] = done

        return threading.Thread(target=run, name=name)


# --- writing ----------------------------------------------------------------------------------------------------------


class Writer:
    """The values of one writer, in its order."""

    def __init__(self, stress: Stress, name: str) -> None:
        self.stress = stress
        self._name = name
        self._numbers = dict.fromkeys(TOPICS, 0)

    def messages(self, topic: str, chance: random.Random) -> list[Message]:
        sizes = [70_000] if chance.random() < 0.01 else [chance.choice((10, 100, 1_000))] * chance.choice((1, 1, 5, 50))
        return [self._message(topic, size) for size in sizes]

    def _message(self, topic: str, size: int) -> Message:
        self._numbers[topic] += 1
        number = self._numbers[topic]
        tag = TAG if number % 4 == 0 else None
        return Message(f"{topic} {self._name} {number} {tag or '-'} ".encode() + bytes(size), tag=tag)

    def delivered(self, delivery: Delivery, messages: Sequence[Message]) -> None:
        told = self.stress.told[delivery.topic]
        with told.lock:
            for seq, message in zip(delivery.seqs, messages, strict=True):
                assert isinstance(message.value, bytes)
                told.saw(seq, message.value)
                told.delivered.add(seq)


def waiting_writer(stress: Stress, log: EmbeddedLog, name: str) -> Callable[[random.Random], int]:
    writer = Writer(stress, name)

    def step(chance: random.Random) -> int:
        topic = chance.choice([*TOPICS])
        messages = writer.messages(topic, chance)
        writer.delivered(log.publish(topic, messages), messages)
        return len(messages)

    return step


def publishing_writer(stress: Stress, log: EmbeddedLog, name: str) -> Callable[[random.Random], int]:
    writer = Writer(stress, name)
    publishers = {topic: log.publisher(topic, max_in_flight=MIB) for topic in TOPICS}

    def step(chance: random.Random) -> int:
        topic = chance.choice([*TOPICS])
        pairs = []
        for _ in range(20):
            messages = writer.messages(topic, chance)
            pairs.append((publishers[topic].publish(messages), messages))
        publishers[topic].flush()
        for delivery, messages in pairs:
            writer.delivered(delivery.result(), messages)
        return sum(len(messages) for _, messages in pairs)

    return step


async def write_on_loop(stress: Stress, log: AsyncLog, name: str) -> None:
    """One of the tasks of the event loop."""
    writer, chance = Writer(stress, name), random.Random(f"{name} {stress.seed}")
    done = 0
    while stress.goes_on:
        topic = chance.choice([*TOPICS])
        messages = writer.messages(topic, chance)
        writer.delivered(await log.publish(topic, messages), messages)
        done += len(messages)
    stress.counts[name] = done


# --- reading ----------------------------------------------------------------------------------------------------------


class Reader:
    """Checks the items that one reader receives."""

    def __init__(self, stress: Stress, topic: str) -> None:
        self._told = stress.told[topic]
        self._topic = topic
        self.begin(1)

    def begin(self, seq: int) -> None:
        """Read from a seq on."""
        self.next_seq = seq
        self._numbers: dict[bytes, int] = {}

    def take(self, items: Sequence[Item]) -> int:
        """Check the next items; returns the number of records in them."""
        count = 0
        for item in items:
            if isinstance(item, ReceivedBatch):
                count += self.records((record.seq, record.value) for record in item)
                self.passed(item.next_seq)
            else:
                self.passed(item.first_seq)
                assert (self._topic, item.reason) == (CAPPED, GapReason.CAP), f"{self._topic}: {item}"
                self.next_seq = item.last_seq + 1
        return count

    def records(self, pairs: Iterable[tuple[int, bytes]], *, told_of_gaps: bool = True) -> int:
        count = 0
        with self._told.lock:
            for seq, value in pairs:
                assert seq >= self.next_seq, f"{self._topic}: {seq} after {self.next_seq - 1}"
                if told_of_gaps:
                    self._passed(seq)
                self.next_seq = seq + 1
                topic, writer, number, _ = value.split(b" ", 3)
                assert topic.decode() == self._topic
                assert self._numbers.get(writer, 0) < int(number), f"{self._topic}: {writer!r} out of order at {seq}"
                self._numbers[writer] = int(number)
                self._told.saw(seq, value)
                count += 1
        return count

    def passed(self, seq: int) -> None:
        """Note that all seqs before this one were skipped."""
        with self._told.lock:
            self._passed(seq)
            self.next_seq = max(self.next_seq, seq)

    def _passed(self, seq: int) -> None:
        for each in range(self.next_seq, seq):
            assert self._told.may_be_silent(each), f"{self._topic}: seq {each} is passed over without a reason"


def following_reader(stress: Stress, log: EmbeddedLog, topic: str) -> Callable[[random.Random], int]:
    reader = Reader(stress, topic)

    def step(chance: random.Random) -> int:
        items = log.read(topic, reader.next_seq, max_bytes=chance.choice((1, 10_000, MIB)))
        if not items:
            reader.begin(max(1, reader.next_seq - _BACK))
        return reader.take(items)

    return step


def subscribing_reader(stress: Stress, log: EmbeddedLog, topic: str) -> Callable[[random.Random], int]:
    reader, subscriber = Reader(stress, topic), log.subscriber(topic, owner="stress")

    def step(chance: random.Random) -> int:
        count = reader.take(subscriber.poll(0.05))
        if chance.random() < 0.02:
            subscriber.commit()
        return count

    return step


def arrow_reader(stress: Stress, log: EmbeddedLog, topic: str) -> Callable[[random.Random], int]:
    def step(chance: random.Random) -> int:
        reader = Reader(stress, topic)
        reader.begin(max(1, log.describe(topic).next_seq - chance.choice((100, 5_000))))
        table = log.read_arrow(topic, reader.next_seq, columns=["value"])
        # A table contains no gaps, so evicted records are just missing.
        rows = zip(table["seq"].to_pylist(), table["value"].to_pylist(), strict=True)
        return reader.records(rows, told_of_gaps=topic != CAPPED)

    return step


async def read_on_loop(stress: Stress, log: AsyncLog, topic: str) -> None:
    reader = Reader(stress, topic)
    while stress.goes_on:
        items = await log.read(topic, reader.next_seq)
        reader.take(items)
        if not items:
            await asyncio.sleep(0)


# --- removing ---------------------------------------------------------------------------------------------------------


def remover(stress: Stress, log: EmbeddedLog) -> Callable[[random.Random], int]:
    def step(chance: random.Random) -> int:
        topic = chance.choice((DELETED, CAPPED))
        told, next_seq = stress.told[topic], log.describe(topic).next_seq
        tag = chance.choice((None, TAG))
        before_seq = max(1, next_seq - chance.choice((50, 1_000, 3_000)))
        with told.lock:
            if tag is None:
                told.below = max(told.below, before_seq)
            else:
                told.tagged_below = max(told.tagged_below, before_seq)
        threading.Event().wait(0.02)
        return log.delete(topic, before_seq=before_seq, tag=tag)

    return step


def checkpointer(log: EmbeddedLog) -> Callable[[random.Random], int]:
    def step(_: random.Random) -> int:
        log.checkpoint()
        threading.Event().wait(0.1)
        return 1

    return step


# --- the run ----------------------------------------------------------------------------------------------------------


def run_stress(directory: Path, seconds: float, seed: int = 0) -> dict[str, int]:
    """Do all of it for so long; how much of each was done. An error of any part, or a wrong answer, is raised."""
    stress = Stress(seconds, seed)
    asyncio.run(_run(stress, directory))
    if stress.errors:
        raise stress.errors[0]
    with open_log(directory, SETTINGS) as log:
        check_end(stress, log)
        assert log.verify().is_sound
    return stress.counts


async def _run(stress: Stress, directory: Path) -> None:
    async with AsyncLog(directory, SETTINGS) as loop_log:
        for topic, settings in TOPICS.items():
            await loop_log.create_topic(topic, segment_max_records=3_000, **settings)
        log = loop_log._opened()
        threads = [
            *(stress.thread(f"waits-{n}", waiting_writer(stress, log, f"waits-{n}")) for n in range(2)),
            stress.thread("publishes", publishing_writer(stress, log, "publishes")),
            *(stress.thread(f"reads {topic}", following_reader(stress, log, topic)) for topic in TOPICS),
            *(stress.thread(f"subscribes {topic}", subscribing_reader(stress, log, topic)) for topic in TOPICS),
            *(stress.thread(f"arrow {topic}", arrow_reader(stress, log, topic)) for topic in TOPICS),
            stress.thread("deletes", remover(stress, log)),
            stress.thread("checkpoints", checkpointer(log)),
        ]
        stress.begin()
        for thread in threads:
            thread.start()
        try:
            tasks = [write_on_loop(stress, loop_log, f"loop-{number}") for number in range(4)]
            await asyncio.gather(*tasks, read_on_loop(stress, loop_log, GROWING))
        except BaseException as error:
            stress.errors.append(error)
            raise
        finally:
            for thread in threads:
                await asyncio.to_thread(thread.join)
        if not stress.errors:
            await asyncio.to_thread(check_end, stress, log)


def check_end(stress: Stress, log: EmbeddedLog) -> None:
    """Every delivered record exists, unless it was deleted or evicted."""
    for topic, told in stress.told.items():
        reader = Reader(stress, topic)
        count = reader.take([*log.follow(topic)])
        info = log.describe(topic)
        assert count == info.record_count
        assert reader.next_seq == info.next_seq == max(told.values) + 1
        if topic == CAPPED:
            assert count <= CAP
