"""Reads what a router copies next, and makes the batches of its copies.

    whole batches      stay as they are: the block, compressed or not, byte for byte
    all others         are made anew by a kernel, without compression: filtered ones, those with deleted records, and
                       those that lose their node or tag; small ones in a row are joined

A step copies up to the next gap of the source; a gap is a step of its own. Seqs that no reader of the source gets a gap
for (deleted records) are skipped silently.

Hops. A copy counts how often it passed routers that allow loops, and the limit ends its way. The number is in the
header of the copy, as the client seq of a batch without a session: no block changes for it. Such routers also pass no
gap on that is a gap of copies already, or a single loss would circle for ever.

This module must not know how the copies are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.routers import RouterSettings
from seawall.core.types import ClientSeq, Seq, TimestampNs, TopicId
from seawall.engine.commit.appends import NO_SESSION
from seawall.engine.read.reading import ReadPlan, StoredSkip, plan_records
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.errors import CorruptionError
from seawall.kernels.codec import routing
from seawall.kernels.codec.blocks import RECORDS_STORED, scan_block
from seawall.kernels.codec.columns import COLUMN_COUNT, FLAG_NODE, FLAG_TAG, locate_envelopes
from seawall.kernels.runtime.memory import Bytes
from seawall.topics.gaps import Gap
from seawall.topics.routers import Router
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchHeader, batch_header, block_of
from seawall.wire.format.codes import GapReason
from seawall.wire.format.fields import Buffer

Integers: TypeAlias = npt.NDArray[np.int64]

_HEADER: Final = limits.BATCH_HEADER_SIZE


@dataclass(frozen=True, slots=True)
class Copy:
    """One batch of copies: a header, whose numbers are those of the original or 0, and the block."""

    header: bytes
    block: Buffer
    record_count: int
    #: Bytes of the block before compression.
    raw_length: int
    hops: int

    @property
    def size(self) -> int:
        """Bytes of the batch."""
        return _HEADER + len(self.block)


@dataclass(slots=True)
class Copies:
    """What one step copies: batches, or a loss of some records, or nothing if no record matches."""

    #: The seq of the source at which the next step continues.
    end_seq: Seq
    batches: list[Copy] = field(default_factory=list)
    #: Records that the source has lost.
    lost: int = 0


def plan_copies(router: Router, source: TopicState, log: TopicLog | None, batches_max: int) -> ReadPlan | Copies:
    """What a router copies next: a loss, or a plan to read, for `make_copies`. The source has records to copy."""
    first = source.first_readable(router.next_seq)
    gaps = source.gaps(router.next_seq, Seq(first - 1)) if router.next_seq < first else []
    lost = sum(gap.last_seq - gap.first_seq + 1 for gap in gaps if not _has_circled(gap, router.settings))
    if lost or first > source.head_seq:
        return Copies(first, lost=lost)
    plan = plan_records(source, log, first, source.next_seq, size_max=limits.ROUTER_STEP_SIZE)
    if plan.batch_count > batches_max:
        end_seq = Seq(int(np.concatenate([run.entries["base_seq"] for run in plan.runs])[batches_max]))
        plan.release()
        plan = plan_records(source, log, first, end_seq, size_max=limits.ROUTER_STEP_SIZE)
    return plan


def make_copies(plan: ReadPlan, settings: RouterSettings) -> Copies:
    """Execute a plan: the copies of its records, up to the first gap or damaged batch."""
    maker = _Maker(settings)
    reached = plan.from_seq
    for item in plan.execute():
        assert not isinstance(item, StoredSkip), "it was planned without SKIPs"
        lost = item if isinstance(item, Gap) else maker.take(item)
        if lost is None:
            reached = Seq(item.next_seq) if isinstance(item, StoredBatch) else reached
        elif reached > plan.from_seq:
            return Copies(reached, maker.finish())
        else:
            count = 0 if _has_circled(lost, settings) else lost.last_seq - lost.first_seq + 1
            return Copies(Seq(lost.last_seq + 1), lost=count)
    return Copies(plan.end_seq, maker.finish())


def set_hops(headers: Bytes, hops: list[int]) -> None:
    """Write the hops of copies into their headers."""
    headers.reshape(-1, _HEADER)[:, 12:20] = np.array(hops, "<u8").view(np.uint8).reshape(-1, 8)


def hops_of(header: BatchHeader) -> int:
    """How often the records of a batch passed routers that allow loops."""
    return header.client_seq if header.client_id == NO_SESSION and not header.is_keyed else 0


class _Maker:
    """Makes the batches of copies for one step, in order."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._made: list[Copy] = []
        #: The block that the next small batch is joined to, its records and its hops.
        self._joined = bytearray()
        self._joined_records = 0
        self._joined_hops = 0
        self._tag = _condition(settings.tag, settings.tag_prefix)
        self._node = _condition(settings.node, None)
        self._cut = (0 if settings.preserve_node else FLAG_NODE) | (0 if settings.preserve_tag else FLAG_TAG)
        #: True if whole batches need not be looked into.
        self._takes_all = not settings.is_filtered and not self._cut

    def take(self, batch: StoredBatch) -> Gap | None:
        """Add the copies of a batch; a gap instead if its records cannot be decoded, as readers find as well."""
        header = batch.header
        hops = hops_of(header) + self._settings.allow_cycle
        if hops > limits.ROUTER_HOPS_MAX:
            return None
        last_seq = Seq(batch.base_seq + batch.record_count - 1)
        if header.is_opaque:
            # One unit of bytes, without a tag or a node.
            if not self._settings.is_filtered:
                self._add_whole(batch, header, hops)
        elif self._takes_all and batch.live == ((batch.base_seq, last_seq),):
            self._add_whole(batch, header, hops)
        else:
            try:
                self._add_some(batch, header, hops)
            except CorruptionError:
                return Gap(batch.live[0][0], batch.live[-1][1], GapReason.CORRUPTION)
        return None

    def finish(self) -> list[Copy]:
        """All batches."""
        self._end_joined()
        return self._made

    def _add_whole(self, batch: StoredBatch, header: BatchHeader, hops: int) -> None:
        self._end_joined()
        head = bytes(batch.data[:_HEADER])
        self._made.append(Copy(head, batch.block, header.record_count, header.raw_length, hops))

    def _add_some(self, batch: StoredBatch, header: BatchHeader, hops: int) -> None:
        block: Bytes = np.frombuffer(block_of(header, batch.block), np.uint8)
        count = header.record_count
        offsets: Integers = np.zeros(count + 1, np.int64)
        if scan_block(block, 0, block.size, RECORDS_STORED, count, offsets) != count:
            raise CorruptionError(f"the batch at position {header.position} does not hold {count} records")
        starts: Integers = np.zeros((COLUMN_COUNT, count), np.int64)
        lengths: Integers = np.zeros((COLUMN_COUNT, count), np.int64)
        locate_envelopes(block, offsets, count, starts, lengths, np.zeros(count, np.int64))
        live: Integers = np.array(batch.live, np.int64)
        firsts, lasts = np.ascontiguousarray(live[:, 0]), np.ascontiguousarray(live[:, 1])
        routed: Bytes = np.empty(block.size, np.uint8)
        state: Integers = np.zeros(routing.ROUTED_STATE, np.int64)
        spans = (block, offsets, count, starts, lengths, batch.base_seq, firsts, lasts)
        copied = routing.route_records(*spans, *self._tag, *self._node, self._cut, routed, state)
        if copied == count and not state[routing.ROUTED_CHANGED]:
            self._add_whole(batch, header, hops)
        elif copied:
            self._join(routed[: int(state[routing.ROUTED_SIZE])], copied, hops)

    def _join(self, block: Bytes, record_count: int, hops: int) -> None:
        size, records = len(self._joined) + block.size, self._joined_records + record_count
        if hops != self._joined_hops or size > limits.LARGE_BATCH_SIZE or records > limits.BATCH_RECORDS_MAX:
            self._end_joined()
        self._joined += block.data
        self._joined_records += record_count
        self._joined_hops = hops

    def _end_joined(self) -> None:
        if self._joined_records:
            block, records = bytes(self._joined), self._joined_records
            header = batch_header(
                block,
                topic_id=TopicId(0),
                client_id=NO_SESSION,
                client_seq=ClientSeq(0),
                session_epoch=0,
                record_count=records,
                timestamp_ns=TimestampNs(0),
            )
            self._made.append(Copy(header.header_bytes(), block, records, len(block), self._joined_hops))
        self._joined, self._joined_records = bytearray(), 0


def _condition(whole: str | None, prefix: str | None) -> tuple[Bytes, int]:
    """The arguments of the kernel for the condition on one field."""
    how = routing.MATCH_EQUAL if whole is not None else routing.MATCH_ANY if prefix is None else routing.MATCH_PREFIX
    return np.frombuffer((whole or prefix or "").encode(), np.uint8), how


def _has_circled(gap: Gap, settings: RouterSettings) -> bool:
    """True if a gap is one of copies, and the router allows loops: then it ends here."""
    return settings.allow_cycle and gap.reason is GapReason.SOURCE_TRIM
