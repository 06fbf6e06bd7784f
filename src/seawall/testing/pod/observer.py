"""Record the history of a pod by comparing its fabric before and after each step.

Roles know nothing of it. The events of a step are the differences that it made: claimed and published slots, advanced
cursors, entries with a token, increased counts. A step belongs to one role, so the events of a step are recorded in the
order in which that role works.

An abandoned slot is recorded with content 0. A slot without a token that a collector has passed was given up.

A power loss destroys the fabric; `attach` starts with a new one.
"""

from __future__ import annotations

from collections.abc import Callable

from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.limits import BATCH_HEADER_SIZE
from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History
from seawall.testing.checkers.order_events import AckStatus, EntryKind
from seawall.wire.format.frames import checksum

__all__ = ["PodObserver"]

_STRONG = 5


class PodObserver:
    """Records the history of one pod."""

    def __init__(self, history: History, order_of: Callable[[int], int], on_control: Callable[[int], None]) -> None:
        """`order_of` returns the order of a topic; `on_control` is called when a CONTROL entry is committed."""
        self.history = history
        self.record = history.record
        self._order_of = order_of
        self._on_control = on_control

    def attach(self, fabric: FabricArrays) -> None:
        """Observe this fabric from now on."""
        brokers = len(fabric.pbr)
        self._fabric = fabric
        self._slots = len(fabric.pbr[0])
        self._mask = len(fabric.goi) - 1
        self._claimed = [0] * brokers
        self._cursors = [0] * brokers
        self._completed = [0] * brokers
        #: Slots that are claimed but not published.
        self._open: list[list[int]] = [[] for _ in range(brokers)]
        self._blocks: dict[tuple[int, int], int] = {}
        self.committed = self.reserved = int(fabric.control["committed"][0])
        self._durable = int(fabric.control["durable"][0])
        self._replica = 0

    # --- brokers -------------------------------------------------------------------------------------------------

    def observe_broker(self, broker: int) -> None:
        """Record the slots that a broker claimed and published."""
        claimed = int(self._fabric.tail_words[broker][records.TAIL_CLAIMED])
        for index in range(self._claimed[broker], claimed):
            self.record(events.Claimed(broker, broker, index))
            self._open[broker].append(index)
        self._claimed[broker] = claimed
        if self._open[broker]:
            tokens = self._fabric.pbr[broker]["token"]
            ready = [index for index in self._open[broker] if int(tokens[index % self._slots]) == index + 1]
            for index in ready:
                self._open[broker].remove(index)
                self._publish(broker, index)

    def _publish(self, broker: int, index: int) -> None:
        entry = self._fabric.pbr[broker][index % self._slots]
        block = self._blocks[broker, index] = self._block(broker, index)
        self.record(events.PayloadWritten(broker, broker, index, block))
        if int(entry["flags"]) & records.FLAG_NOP:
            self.record(events.Published(broker, broker, index, 0, 0, 0, 0, 0))
            return
        client, client_seq = int(entry["client_id"]), int(entry["client_seq"])
        epoch, crc = int(entry["session_epoch"]), int(entry["block_crc"])
        order = self._order(int(entry["topic_id"]), int(entry["flags"]))
        self.record(events.Published(broker, broker, index, client, client_seq, epoch, order, crc))

    def _order(self, topic: int, flags: int) -> int:
        if flags & records.FLAG_STRONG_ORDER:
            return _STRONG
        order = self._order_of(topic)
        return 2 if order == _STRONG else order

    def _block(self, broker: int, index: int) -> int:
        """The checksum of the bytes of a slot."""
        entry = self._fabric.pbr[broker][index % self._slots]
        if int(entry["flags"]) & records.FLAG_NOP:
            return 0
        blog = self._fabric.blogs[broker]
        at = int(entry["blog_offset"]) % blog.size
        return checksum(blog[at + BATCH_HEADER_SIZE : at + int(entry["size"])].tobytes())

    # --- the sequencer -------------------------------------------------------------------------------------------

    def observe_cursor(self, broker: int, cursor: int) -> None:
        """Record the slots that a collector collected or gave up."""
        for index in range(self._cursors[broker], cursor):
            if index in self._open[broker]:
                self.record(events.GivenUp(broker, index))
                continue
            # A slot that was ordered before a restart is skipped, and may be free by then.
            is_free = index < int(self._fabric.completion_words[broker][records.COMPLETION_COMPLETED])
            block = self._blocks[broker, index] if is_free else self._block(broker, index)
            self.record(events.Collected(broker, index, block))
        self._cursors[broker] = cursor

    def observe_entries(self, reserved: int) -> None:
        """Record the entries that the workers wrote."""
        for position in range(self.reserved, reserved):
            entry = self._fabric.goi[position & self._mask]
            if int(entry["token"]) == position + 1:
                self._record_ordered(position, *entry.tolist())
        self.reserved = max(self.reserved, reserved)

    def _record_ordered(
        self,
        position: int,
        _token: int,
        topic: int,
        crc: int,
        broker: int,
        term: int,
        _blog_offset: int,
        _size: int,
        count: int,
        _zero: int,
        client: int,
        client_seq: int,
        index: int,
        flags: int,
    ) -> None:
        kind = kind_of(flags)
        if broker == records.NO_BROKER:
            skip_count = count if kind is EntryKind.SKIP else 0
            skipped = (client, client_seq) if kind is EntryKind.SKIP else (0, 0)
            self.record(events.Ordered(position, term, kind, None, None, *skipped, 0, _STRONG, 0, skip_count))
            return
        epoch = int(self._fabric.pbr[broker][index % self._slots]["session_epoch"])
        order = self._order(topic, flags)
        self.record(events.Ordered(position, term, kind, broker, index, client, client_seq, epoch, order, crc))

    def observe_commits(self) -> None:
        """Record the entries that the frontier committed."""
        committed = int(self._fabric.control["committed"][0])
        for position in range(self.committed, committed):
            entry, side = self._fabric.goi[position & self._mask], self._fabric.side[position & self._mask]
            kind, status = kind_of(int(entry["flags"])), AckStatus(int(side["status"]))
            is_stored = kind is EntryKind.BATCH and status is AckStatus.OK
            base_seq, count = (int(side["base_seq"]), int(entry["record_count"])) if is_stored else (0, 0)
            self.record(events.Committed(position, status, int(entry["topic_id"]), base_seq, count))
            if kind is EntryKind.CONTROL:
                self._on_control(position)
        self.committed = committed
        self.observe_durable()

    def observe_durable(self) -> None:
        """Record changes of the replica's position, the durable position, and the completed slots."""
        fabric = self._fabric
        replica = int(fabric.replica_vector[0]["durable"])
        if replica > self._replica:
            self._replica = replica
            self.record(events.ReplicaDurable(0, replica))
        durable = int(fabric.control["durable"][0])
        if durable != self._durable:
            self._durable = durable
            self.record(events.DurableAdvanced(durable))
        for broker, before in enumerate(self._completed):
            completed = int(fabric.completion_vector[broker]["completed"])
            if completed != before:
                self._completed[broker] = completed
                self.record(events.Completed(broker, completed))

    # --- recovery ------------------------------------------------------------------------------------------------

    def recover(self, term: int, start: int) -> None:
        """Record that a sequencer continues in the same fabric, in a new term, from `start` on."""
        self.observe_commits()
        self.record(events.TermGranted(term, start))
        self.record(events.Recovered(True, start, start))
        self.reserved = start
        for broker, completed in enumerate(self._completed):
            self.record(events.CursorRestored(broker, completed))
            self._cursors[broker] = completed


def kind_of(flags: int) -> EntryKind:
    """The kind of an entry with these flags."""
    if flags & records.FLAG_NOP:
        return EntryKind.NOP
    if flags & records.FLAG_SKIP:
        return EntryKind.SKIP
    return EntryKind.CONTROL if flags & records.FLAG_CONTROL else EntryKind.BATCH
