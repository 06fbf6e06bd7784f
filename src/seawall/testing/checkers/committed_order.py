"""A committed order in plain memory: the rings and BLogs of a pod, filled one entry at a time as by its sequencer.

A real `CommitFrontier` assigns the numbers, with its own kernels. Tests can therefore run an `Applier` without brokers,
collectors and workers. It has one owner, who must not overwrite entries or bytes that the applier still needs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Position, Term, TimestampNs, TopicId
from seawall.engine.commit.appends import NO_SESSION
from seawall.engine.ordering.applier import Applied, Applier
from seawall.fabric.records import FLAG_NOP, FLAG_SKIP, FLAG_SKIP_RANGE, GOI_ENTRY, SIDE_ENTRY
from seawall.io.interfaces import ReadableBuffer
from seawall.kernels.admission.frontier import NEXT_POSITION
from seawall.sequencer.frontier import CommitFrontier, RunStop
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import U64_MAX, AckStatus, Codec

#: The `broker` of an entry without a slot.
_NO_BROKER = 0xFFFF


class CommittedOrder:
    """Committed entries at positions from `first` to below `committed`."""

    def __init__(
        self,
        frontier: CommitFrontier,
        *,
        term: int = 1,
        goi_entries: int = 1_024,
        brokers: int = 2,
        blog_size: int = limits.MIB,
    ) -> None:
        self.entries = np.zeros(goi_entries, GOI_ENTRY)
        self.sides = np.zeros(goi_entries, SIDE_ENTRY)
        self.blogs = np.zeros(brokers * blog_size, np.uint8)
        self.blog_size = blog_size
        self.term = term
        self.first = self.committed = frontier.next_position
        self._frontier = frontier
        self._tails = [0] * brokers

    def apply_once(self, applier: Applier) -> Applied:
        """Let the applier apply entries once, from its next position on."""
        start = applier.next_position
        return applier.apply(self.entries, self.sides, start, self.committed - start, self.blogs)

    def apply_all(self, applier: Applier) -> None:
        """Let the applier apply all committed entries."""
        while self.apply_once(applier).next_position < self.committed:
            pass

    def batch(
        self,
        topic_id: int,
        block: ReadableBuffer,
        record_count: int,
        *,
        wall_ns: int = 0,
        broker: int = 0,
        client_id: int = NO_SESSION,
        client_seq: int = 0,
        session_epoch: int = 0,
        codec: Codec = Codec.NONE,
        raw_length: int | None = None,
        flags: int = 0,
        raise_ceiling: Callable[[], object] | None = None,
    ) -> AckStatus:
        """Commit one batch, which is admitted or rejected; calls `raise_ceiling` if its topic has no seqs left."""
        header = batch_header(
            block,
            topic_id=TopicId(topic_id),
            client_id=ClientId(client_id),
            client_seq=ClientSeq(client_seq),
            session_epoch=session_epoch,
            record_count=record_count,
            timestamp_ns=TimestampNs(0),
            codec=codec,
            raw_length=raw_length,
            flags=flags,
        )
        data = encode_batch(header, block)
        tail = self._tails[broker]
        if tail % self.blog_size + len(data) > self.blog_size:
            tail += self.blog_size - tail % self.blog_size
        self._tails[broker] = tail + len(data)
        at = broker * self.blog_size + tail % self.blog_size
        self.blogs[at : at + len(data)] = np.frombuffer(data, np.uint8)
        copy = bytearray(data)
        admitted = self._frontier.admit(copy, term=Term(self.term), wall_ns=wall_ns)
        if admitted.stop is RunStop.NEEDS_CEILING and raise_ceiling is not None:
            raise_ceiling()
            admitted = self._frontier.admit(copy, term=Term(self.term), wall_ns=wall_ns)
        assert admitted.stop is RunStop.DONE, f"the batch of topic {topic_id} stopped with {admitted.stop.name}"
        row = admitted.rows[0]
        status = AckStatus(int(row["status"]))
        self._commit(
            (topic_id, header.block_crc, broker, tail, len(data), record_count, client_id, client_seq, 0),
            (topic_id, status, int(row["reason"]), row["base_seq"], row["base_offset"], row["timestamp_ns"]),
            advances_frontier=status is not AckStatus.OK,
        )
        return status

    def nop(
        self,
        status: AckStatus,
        *,
        reason: int = 0,
        topic_id: int = 0,
        client_id: int = 0,
        client_seq: int = 0,
        block_crc: int = 0,
        original: int = U64_MAX,
    ) -> None:
        """Commit an entry without a new batch."""
        result = int(status) | reason << 8
        self._commit(
            (topic_id, block_crc, 0, original, 0, result, client_id, client_seq, FLAG_NOP),
            (topic_id, status, reason, 0, 0, 0),
        )

    def skip(self, topic_id: int, client_id: int, first_client_seq: int, count: int) -> None:
        """Commit a SKIP of client seqs."""
        flags = FLAG_SKIP | (FLAG_SKIP_RANGE if count > 1 else 0)
        self._commit(
            (topic_id, 0, _NO_BROKER, 0, 0, count, client_id, first_client_seq, flags),
            (topic_id, AckStatus.OK, 0, 0, 0, 0),
        )

    def _commit(self, entry: tuple[int, ...], side: tuple[int, ...], *, advances_frontier: bool = True) -> None:
        position = self.committed
        slot = position & (self.entries.size - 1)
        topic_id, block_crc, broker, blog_offset, size, record_count, client_id, client_seq, flags = entry
        self.entries[slot] = (
            *(position + 1, topic_id, block_crc, broker, self.term & 0xFFFF, blog_offset, size, record_count),
            *(0, client_id, client_seq, 0, flags),
        )
        topic_id, status, reason, base_seq, base_offset, timestamp_ns = side
        self.sides[slot] = (topic_id, status, 0, reason, base_seq, base_offset, timestamp_ns)
        if advances_frontier:
            self._frontier.arrays[4][NEXT_POSITION] = position + 1
        self.committed = Position(position + 1)

    def note_control(self) -> None:
        """Count a CONTROL entry, whose change was executed at position `committed`."""
        self.committed = Position(self.committed + 1)
