"""Readers of a simulated pod: of the order itself, by position or of one topic, and of a topic of the store by seq.

A reader of the order looks at entries in the fabric, up to what is committed or durable. One that was overtaken, or
whose fabric is gone, starts anew where the order is, as another reader. A reader of the store goes on over everything.
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


#: What workers may have under way at once is within this part of the ring of entries.
_LATE_PART = 4


@dataclass
class OrderReader:
    """Reads entries of the fabric; with a topic, those of it alone."""

    pod: SimPod
    number: int
    mode: ReadMode
    topic: int = 0
    position: int = -1
    life: int = -1
    renewals: int = 0

    @property
    def by(self) -> ReadBy:
        """What it counts in."""
        return ReadBy.TOPIC if self.topic else ReadBy.POSITION

    def step(self, most: int = 1_000) -> None:
        """Read what there is."""
        fabric = self.pod.fabric
        committed = int(fabric.control["committed"][0])
        if self.life != self.pod.power_losses:
            self._begin(committed)
        limit = committed if self.mode is ReadMode.ORDERED else int(fabric.control["durable"][0])
        for position in range(self.position, min(limit, self.position + most)):
            entry = fabric.goi[position % len(fabric.goi)]
            # Near the end of a lap an entry may be half written over, and so it stays if the sequencer ends there.
            is_late = position + len(fabric.goi) - len(fabric.goi) // _LATE_PART < committed
            if is_late or int(entry["token"]) != position + 1:
                self._begin(committed)
                return
            self._see(position)
            self.position = position + 1

    def _begin(self, position: int) -> None:
        self.life = self.pod.power_losses
        self.position = position
        self.renewals += 1

    def _see(self, position: int) -> None:
        fabric, record = self.pod.fabric, self.pod.history.record
        place = position % len(fabric.goi)
        entry, side = fabric.goi[place], fabric.side[place]
        topic, count = int(entry["topic_id"]), int(entry["record_count"])
        if self.topic not in (0, topic):
            return
        client, client_seq = int(entry["client_id"]), int(entry["client_seq"])
        reader = self.number * 1_000 + self.renewals
        kind = kind_of(int(entry["flags"]))
        if kind is EntryKind.SKIP:
            record(events.SkipSeen(reader, self.by, self.mode, position, client, client_seq, count))
        elif kind is EntryKind.BATCH and int(side["status"]) == AckStatus.OK:
            numbers = (position, topic, int(side["base_seq"]), count, client, client_seq, self._block(place))
            record(events.BatchSeen(reader, self.by, self.mode, *numbers))

    def _block(self, place: int) -> int:
        """What the bytes are, as long as they are there; else what the entry says of them."""
        fabric = self.pod.fabric
        entry = fabric.goi[place]
        broker = int(entry["broker"])
        if int(entry["pbr_index"]) < int(fabric.completion_words[broker][records.COMPLETION_COMPLETED]):
            return int(entry["block_crc"])
        blog = fabric.blogs[broker]
        at = int(entry["blog_offset"]) % blog.size
        return checksum(blog[at + BATCH_HEADER_SIZE : at + int(entry["size"])].tobytes())


@dataclass
class StoreReader:
    """Reads a topic of the store by seq, up to what is durable."""

    pod: SimPod
    number: int
    topic: int
    next_seq: int = 1
    position: int = -1
    #: Records below it were removed by somebody.
    removed_below: int = 1

    def step(self) -> None:
        """Read what there is."""
        topic = self.pod.store.catalog.find(TopicId(self.topic))
        if topic is None:
            return
        durable = int(self.pod.fabric.control["durable"][0])
        for item in self.pod.store.queries.read(topic.name, Seq(self.next_seq), size_max=64 * KIB):
            if isinstance(item, StoredSkip):
                self._see_skip(item.skip, durable)
                continue
            if not isinstance(item, StoredBatch):
                self._pass_removed(item.first_seq)
                self.pod.history.record(events.GapSeen(self.number, self.topic, item.first_seq, item.last_seq))
                self.next_seq = item.last_seq + 1
                continue
            if item.position >= durable:
                return
            self._pass_removed(item.base_seq)
            self._see(item)

    def _see_skip(self, skip: Skip, durable: int) -> None:
        """A SKIP ahead of a batch that may not be read yet is told again with it: once is enough."""
        if self.position < skip.position < durable:
            self.position = skip.position
            self.pod.history.record(
                events.SkipSeen(
                    *(self.number, ReadBy.TOPIC, ReadMode.DURABLE),
                    *(skip.position, skip.client_id, skip.first_client_seq, skip.count),
                )
            )

    def _pass_removed(self, first_seq: int) -> None:
        """What was removed is passed over in silence: say it for the reader, if it is just that."""
        last = min(first_seq, self.removed_below) - 1
        if self.next_seq <= last:
            self.pod.history.record(events.GapSeen(self.number, self.topic, self.next_seq, last))
            self.next_seq = last + 1

    def _see(self, item: StoredBatch) -> None:
        header = item.header
        numbers = (item.position, self.topic, item.base_seq, item.record_count)
        identity = (header.client_id, header.client_seq, checksum(bytes(item.block)))
        self.pod.history.record(events.BatchSeen(self.number, ReadBy.TOPIC, ReadMode.DURABLE, *numbers, *identity))
        self.next_seq, self.position = item.next_seq, item.position
