"""A process that writes until it is killed, and the check of its directory on a real disk.

The child prints a line for each ack. It has a thread for each durability class that publishes and waits, one that uses
publishers and does not wait, one that writes to two topics in transactions, and one that deletes by seq and tag;
checkpoints are frequent. The parent collects the facts over all lives of the directory and checks:

- a record acked in class `fsync` or `disk` exists until a delete or a cap removes it;
- a record acked in class `memory` exists or is in an explicit gap; once an open has returned it, it stays;
- records of an acked delete are gone, and every record that is missing without a gap was deleted;
- seqs are dense, no seq is ever reused for another value, and the records of one thread are in its order;
- of each transaction all or nothing exists, in both topics, at one position.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path

from seawall.config import Config, FabricConfig
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.delivery import Delivery
from seawall.engine.read.read_results import Message, ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.limits import KIB
from seawall.wire.format.codes import GapReason

CAP = 60
TOPICS = {
    "fsync": {"durability": "fsync"},
    "disk": {"durability": "disk"},
    "memory": {"durability": "memory"},
    "ephemeral": {"durability": "ephemeral"},
    "capped": {"durability": "fsync", "cap_records": CAP},
}
#: Topics that are written in transactions alone.
PAIR = {"left": {"durability": "fsync"}, "right": {"durability": "disk"}}
SETTINGS = StoreSettings(wal_file_size=256 * KIB, ceiling_step=64, ballast_size=64 * KIB, checkpoint_size=300 * KIB)

FABRIC = FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=512 * KIB)

#: Children are forked off a process that has loaded the log and done nothing else.
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["seawall.engine.api.open_log"])


# --- the child ------------------------------------------------------------------------------------------------------


def report(line: str) -> None:
    """Send a line to the parent; it is written whole or, because of the kill, not at all."""
    os.write(1, f"{line}\n".encode())


class Writer:
    """One thread's values, numbered."""

    def __init__(self, name: str, seed: int) -> None:
        self._name = f"{seed}-{name}"
        self._number = 0
        self.chance = random.Random(self._name)

    def values(self, topic: str) -> list[Message]:
        sizes = [70_000] if self.chance.random() < 0.05 else self.chance.choice(([8], [100], [3_000], [20] * 5))
        return [self._value(topic, size) for size in sizes]

    def _value(self, topic: str, size: int) -> Message:
        self._number += 1
        text = f"{topic} {self._name} {self._number} ".encode()
        tag = "x" if self._number % 3 == 0 else None
        return Message(text + self.chance.randbytes(size), tag=tag)


def report_acks(topic: str, values: list[Message], delivery: Delivery) -> None:
    if delivery.error is None:
        digests = " ".join(digest(value.value) for value in values)
        report(f"ack {topic} {delivery.first_seq} {digests}")


def publish_and_wait(log: EmbeddedLog, topic: str, seed: int) -> None:
    writer = Writer(topic, seed)
    while True:
        values = writer.values(topic)
        report_acks(topic, values, log.publish(topic, values))


def publish_without_waiting(log: EmbeddedLog, seed: int) -> None:
    writer = Writer("publisher", seed)
    publishers = {topic: log.publisher(topic, max_in_flight=200 * KIB) for topic in TOPICS}
    while True:
        topic = writer.chance.choice([*TOPICS])
        values = writer.values(topic)
        publishers[topic].publish(values).add_callback(lambda done, t=topic, v=values: report_acks(t, v, done))


def transact(log: EmbeddedLog, seed: int) -> None:
    """Each transaction has as many records in one topic as in the other."""
    writer = Writer("transactions", seed)
    while True:
        values = {topic: writer.values(topic)[:1] for topic in PAIR}
        with log.transaction("writer") as transaction:
            for topic, messages in values.items():
                transaction.publish(topic, messages)
        for each in transaction.published:
            digests = " ".join(digest(message.value) for message in values[each.topic])
            report(f"ack {each.topic} {each.seqs.start} {digests}")


def delete_repeatedly(log: EmbeddedLog, seed: int) -> None:
    chance = random.Random(f"deletes {seed}")
    while True:
        topic = chance.choice([*TOPICS])
        info = log.describe(topic)
        tag = chance.choice((None, "x"))
        before_seq = max(1, info.next_seq - chance.choice((20, 200)))
        report(f"deleting {topic} {before_seq} {tag}")
        log.delete(topic, before_seq=before_seq, tag=tag)
        report(f"deleted {topic} {before_seq} {tag}")
        threading.Event().wait(0.02)


def opened(directory: str, brokers: int) -> EmbeddedLog:
    """The open log; the fabric of a killed process is next to its directory."""
    fabric = replace(FABRIC, directory=str(Path(directory).parent))
    return open_log(directory, SETTINGS, config=Config(fabric=fabric), brokers=brokers)


def write_until_killed(directory: str, seed: int, outlet: Connection, brokers: int) -> None:
    """The child."""
    os.dup2(outlet.fileno(), 1)
    threading.excepthook = exit_on_error
    log = opened(directory, brokers)
    for topic, settings in {**TOPICS, **PAIR}.items():
        if topic not in log.topics():
            log.create_topic(topic, segment_max_records=50, **settings)
    work = [threading.Thread(target=publish_and_wait, args=(log, topic, seed), daemon=True) for topic in TOPICS]
    work += [
        threading.Thread(target=target, args=(log, seed), daemon=True) for target in (publish_without_waiting, transact)
    ]
    for thread in work:
        thread.start()
    delete_repeatedly(log, seed)


def exit_on_error(failed: threading.ExceptHookArgs) -> None:
    """No thread of the child may fail."""
    threading.__excepthook__(failed)
    os._exit(1)


def digest(value: object) -> str:
    assert isinstance(value, bytes)
    return hashlib.sha256(value).hexdigest()[:16] + ("x" if int(value.split(b" ", 3)[2]) % 3 == 0 else "")


# --- the parent -----------------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """The facts about one topic, over all lives."""

    #: Seq → digest, over all lives; it ends with x if the record has that tag.
    seen: dict[int, str] = field(default_factory=dict)
    #: Seqs that must exist.
    due: set[int] = field(default_factory=set)
    #: Deletes as (before seq, tag): all that were begun, and where the acked ones have left nothing.
    begun: list[tuple[int, str]] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)

    def meant(self, seq: int) -> bool:
        """True if some delete covers a seq."""
        return any(seq < below and (tag == "None" or self.is_tagged(seq)) for below, tag in self.begun)

    def is_tagged(self, seq: int) -> bool:
        # The tag of a record that was never acked is unknown.
        return seq not in self.seen or self.seen[seq].endswith("x")

    def saw(self, seq: int, value: str) -> None:
        assert self.seen.setdefault(seq, value) == value, f"seq {seq} was given twice"


Known = dict[str, Facts]


def kill_cycle(directory: Path, seed: int, known: Known, brokers: int = 0) -> int:
    """Let a child write, kill it at some ack, open its log and check; returns the number of acked records."""
    chance = random.Random(f"kill {seed}")
    inlet, outlet = CHILDREN.Pipe(duplex=False)
    child = CHILDREN.Process(target=write_until_killed, args=(str(directory), seed, outlet, brokers))
    child.start()
    outlet.close()
    with os.fdopen(os.dup(inlet.fileno()), "rb") as lines:
        acks = sum(note(known, lines.readline()) for _ in range(chance.randint(1, 400)))
        # The kill hits at any later step: the more lines are in the pipe, the later.
        child.kill()
        acks += sum(note(known, line) for line in lines)
    child.join()
    inlet.close()
    assert child.exitcode == -signal.SIGKILL, "the writer ended by itself: see its error above"
    # A log written with brokers is opened without them, and the reverse.
    with opened(str(directory), 0 if brokers else seed % 2) as log:
        for topic in log.topics():
            check_topic(log, topic, known.setdefault(topic, Facts()))
        positions = {topic: [item.position for item in batches_of(log, topic)] for topic in PAIR}
        assert positions["left"] == positions["right"], "a transaction is in one topic and not in the other"
    return acks


def batches_of(log: EmbeddedLog, topic: str) -> list[ReceivedBatch]:
    return [item for item in log.follow(topic) if isinstance(item, ReceivedBatch)] if topic in log.topics() else []


def note(known: Known, line: bytes) -> int:
    """Note one line of the child; returns the number of records that it acks."""
    if not line.endswith(b"\n"):
        return 0
    word, topic, number, *rest = line.decode().split()
    facts = known.setdefault(topic, Facts())
    seq = int(number)
    if word == "ack":
        for each, value in enumerate(rest, seq):
            facts.saw(each, value)
            facts.due.add(each)
        return len(rest)
    if word == "deleting":
        facts.begun.append((seq, rest[0]))
    else:
        # Records below the bound were acked, but the line may have been lost in the kill.
        gone = {each for each in facts.seen if each < seq and (rest[0] == "None" or facts.is_tagged(each))}
        facts.deleted |= gone
    return 0


def check_topic(log: EmbeddedLog, topic: str, facts: Facts) -> None:
    found: dict[int, str] = {}
    gaps: dict[int, GapReason] = {}
    numbers: dict[bytes, int] = {}
    due = 1
    for item in log.follow(topic):
        if not isinstance(item, ReceivedBatch):
            assert item.first_seq >= due
            gaps.update(dict.fromkeys(range(item.first_seq, item.last_seq + 1), item.reason))
            due = item.last_seq + 1
            continue
        for record in item:
            assert isinstance(record.value, bytes)
            name, writer, number, _ = record.value.split(b" ", 3)
            assert name.decode() == topic
            assert numbers.get(writer, 0) < int(number), f"{topic}: {writer!r} out of order at seq {record.seq}"
            numbers[writer] = int(number)
            facts.saw(record.seq, digest(record.value))
            found[record.seq] = digest(record.value)
            assert record.seq >= due
        due = item.next_seq
    info = log.describe(topic)
    assert info.record_count == len(found)
    check_absent(topic, facts, found, gaps, range(1, info.next_seq))
    # Records that an open has returned must stay.
    facts.due = {*found}


def check_absent(
    topic: str, facts: Facts, found: dict[int, str], gaps: dict[int, GapReason], seqs: Iterable[int]
) -> None:
    """Check that every missing record may be missing, and that readers get a gap for it."""
    back = found.keys() & facts.deleted
    assert not back, f"{topic}: seqs {sorted(back)[:9]} were deleted and are back"
    head = max(seqs, default=0)
    for seq in seqs:
        reason = gaps.get(seq)
        if seq in found:
            assert reason is None
        elif reason is None:
            assert facts.meant(seq), f"{topic}: seq {seq} is gone without a word"
        elif reason is GapReason.CAP:
            assert head - seq >= CAP, f"{topic}: seq {seq} was evicted without need"
            assert topic == "capped"
        else:
            assert reason is GapReason.CRASH, f"{topic}: seq {seq} was lost: {reason}"
            lost = seq in facts.due and topic not in ("memory", "ephemeral")
            assert not lost, f"{topic}: seq {seq} was acked or shown before, and is lost"
