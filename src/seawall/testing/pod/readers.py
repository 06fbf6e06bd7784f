"""Readers of a simulated pod: of the global order, by position or for one topic, and of a stored topic by seq.

A reader of the order reads entries in the fabric, up to the committed or durable position. After the ring has overtaken
it, or after the loss of its fabric, it restarts at the committed position, as another reader. A reader of the store
continues after every crash.
"""

from __future__ import annotations

from dataclasses import dataclass

from seawall.core.types import Seq, TopicId
from seawall.engine.read.reading import StoredSkip
from seawall.engine.store.topic_log import StoredBatch
from seawall.fabric import records
from seawall.limits import BATCH_HEADER_SIZE, KIB
from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.order_events import AckStatus, EntryKind, ReadBy, ReadMode
from seawall.testing.pod.observer import kind_of
from seawall.testing.pod.world import SimPod
from seawall.topics.skips import Skip
from seawall.wire.format.frames import checksum

__all__ = ["OrderReader", "StoreReader"]


#: Workers overwrite at most this fraction (1/n) of the ring of entries at once.
_LATE_PART = 4


@dataclass
class OrderReader:
    """Reads entries in the fabric: all of them, or those of one topic."""

    pod: SimPod
    number: int
    mode: ReadMode
    topic: int = 0
    position: int = -1
    power_losses: int = -1
    restarts: int = 0

    @property
    def by(self) -> ReadBy:
        """The numbers that it follows."""
        return ReadBy.TOPIC if self.topic else ReadBy.POSITION

    def step(self, most: int = 1_000) -> None:
        """Read the available entries."""
        fabric = self.pod.fabric
        committed = int(fabric.control["committed"][0])
        if self.power_losses != self.pod.power_losses:
            self._restart(committed)
        limit = committed if self.mode is ReadMode.ORDERED else int(fabric.control["durable"][0])
        for position in range(self.position, min(limit, self.position + most)):
            entry = fabric.goi[position % len(fabric.goi)]
            # An entry of the previous lap may be partly overwritten, and stays so if the sequencer crashes.
            is_late = position + len(fabric.goi) - len(fabric.goi) // _LATE_PART < committed
            if is_late or int(entry["token"]) != position + 1:
                self._restart(committed)
                return
            self._record_entry(position)
            self.position = position + 1

    def _restart(self, position: int) -> None:
        self.power_losses = self.pod.power_losses
        self.position = position
        self.restarts += 1

    def _record_entry(self, position: int) -> None:
        fabric, record = self.pod.fabric, self.pod.history.record
        slot = position % len(fabric.goi)
        entry, side = fabric.goi[slot], fabric.side[slot]
        topic, count = int(entry["topic_id"]), int(entry["record_count"])
        if self.topic not in (0, topic):
            return
        client, client_seq = int(entry["client_id"]), int(entry["client_seq"])
        reader = self.number * 1_000 + self.restarts
        kind = kind_of(int(entry["flags"]))
        if kind is EntryKind.SKIP:
            record(events.SkipSeen(reader, self.by, self.mode, position, client, client_seq, count))
        elif kind is EntryKind.BATCH and int(side["status"]) == AckStatus.OK:
            numbers = (position, topic, int(side["base_seq"]), count, client, client_seq, self._block(slot))
            record(events.BatchSeen(reader, self.by, self.mode, *numbers))

    def _block(self, slot: int) -> int:
        """The checksum of the batch in the BLog; that of the entry if the bytes may have been reused."""
        fabric = self.pod.fabric
        entry = fabric.goi[slot]
        broker = int(entry["broker"])
        if int(entry["pbr_index"]) < int(fabric.completion_words[broker][records.COMPLETION_COMPLETED]):
            return int(entry["block_crc"])
        blog = fabric.blogs[broker]
        at = int(entry["blog_offset"]) % blog.size
        return checksum(blog[at + BATCH_HEADER_SIZE : at + int(entry["size"])].tobytes())


@dataclass
class StoreReader:
    """Reads a topic of the store by seq, up to the durable position."""

    pod: SimPod
    number: int
    topic: int
    next_seq: int = 1
    position: int = -1
    #: Records below this seq were deleted.
    deleted_below: int = 1

    def step(self) -> None:
        """Read the available entries."""
        topic = self.pod.store.catalog.find(TopicId(self.topic))
        if topic is None:
            return
        durable = int(self.pod.fabric.control["durable"][0])
        for item in self.pod.store.queries.read(topic.name, Seq(self.next_seq), size_max=64 * KIB):
            if isinstance(item, StoredSkip):
                self._record_skip(item.skip, durable)
                continue
            if not isinstance(item, StoredBatch):
                self._report_deleted(item.first_seq)
                self.pod.history.record(events.GapSeen(self.number, self.topic, item.first_seq, item.last_seq))
                self.next_seq = item.last_seq + 1
                continue
            if item.position >= durable:
                return
            self._report_deleted(item.base_seq)
            self._record_batch(item)

    def _record_skip(self, skip: Skip, durable: int) -> None:
        """Record a SKIP once: the store returns it again with a batch that was not durable yet."""
        if self.position < skip.position < durable:
            self.position = skip.position
            self.pod.history.record(
                events.SkipSeen(
                    *(self.number, ReadBy.TOPIC, ReadMode.DURABLE),
                    *(skip.position, skip.client_id, skip.first_client_seq, skip.count),
                )
            )

    def _report_deleted(self, first_seq: int) -> None:
        """Record a gap for deleted records, which the store skips without reporting them."""
        last = min(first_seq, self.deleted_below) - 1
        if self.next_seq <= last:
            self.pod.history.record(events.GapSeen(self.number, self.topic, self.next_seq, last))
            self.next_seq = last + 1

    def _record_batch(self, item: StoredBatch) -> None:
        header = item.header
        numbers = (item.position, self.topic, item.base_seq, item.record_count)
        identity = (header.client_id, header.client_seq, checksum(bytes(item.block)))
        self.pod.history.record(events.BatchSeen(self.number, ReadBy.TOPIC, ReadMode.DURABLE, *numbers, *identity))
        self.next_seq, self.position = item.next_seq, item.position
