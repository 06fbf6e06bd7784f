"""The state of one topic: which records are live, deleted or lost.

Only the batches of the log change it, in log order: `append` for records, `apply` for controls. It reads no records:
the control of a delete or an eviction states which records it removes and how many bytes they had, so their segments
may be dropped at once.

    1 …… evict_floor …… floor ………………… head_seq
    lost by cap or ttl    deleted    live, deleted or lost in the middle

- `evict_floor`: one above the highest seq lost to a cap or to its age; readers get a gap for the seqs below it.
- `floor`: the first live record, `head_seq` + 1 if there is none. Deletes raise it without a gap.
- losses: ranges lost by a crash or damage, reported to each reader that passes them, also below the floor.
- `ceiling`: seqs below it may have been assigned, even if the log does not show them.

Invariants, checked after every change
- INV-LIVE-EXACT: every seq up to the head is live, deleted or lost, and floors and head never go back. 1 ≤ evict_floor
  ≤ floor ≤ head_seq + 1, and `live_records` counts the seqs from floor to head that are neither deleted nor lost.
- INV-SEQ-ONCE: no record gets a seq that was used before: the seqs of a topic, of its tags and of its keys rise.

After damage in the log a control may follow a missing one. That does not stop replay: later values win, floors only
rise, and seqs that no batch and no control accounts for become a loss by corruption.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from seawall.core.checks import check
from seawall.core.types import NumberedBatch, Offset, Position, Seq, TimestampNs, TopicEpoch, TopicId
from seawall.errors import InvalidInputError
from seawall.kernels.log.epochs import WalRows
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import Ceiling, SegmentRoll
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise, Loss, TopicConfigure
from seawall.storage.control.queues import DeadLettered, LeaseRows, Leases
from seawall.storage.segments.delete_sidecar import DeletedSeqs, Ranges
from seawall.topics.config import TopicConfig, stored_config
from seawall.topics.gaps import Gap, Losses
from seawall.topics.keys import IdempotencyKeys
from seawall.topics.priorities import NEVER_NS, effective_priority
from seawall.topics.queues.durable_leases import DurableLeases
from seawall.topics.queues.lease_view import LeaseView
from seawall.topics.ranges import SeqRanges
from seawall.topics.skips import Skips
from seawall.wire.format.codes import GapReason


class TopicState:
    """One topic. Its fields are read-only for others; only `append`, `apply` and a restart change them."""

    __slots__ = (
        "cap_floor",
        "ceiling",
        "config",
        "created_ms",
        "dead_lettered",
        "deleted",
        "durable_leases",
        "end_offset",
        "epoch",
        "floor",
        "head_seq",
        "keys",
        "last_timestamp_ns",
        "leases",
        "live_bytes",
        "live_records",
        "losses",
        "name",
        "segment_first_seq",
        "skips",
        "topic_id",
        "ttl_floor",
        "used_ns",
    )

    def __init__(
        self, topic_id: TopicId, name: str, epoch: TopicEpoch, config: TopicConfig, created_ms: int = 0
    ) -> None:
        self.topic_id = topic_id
        self.name = name
        self.epoch = epoch
        self.config = config
        #: When it was created, in milliseconds since 1970.
        self.created_ms = created_ms
        self.head_seq = Seq(0)
        self.end_offset = Offset(0)
        self.last_timestamp_ns = TimestampNs(0)
        self.ceiling = Seq(1)
        self.segment_first_seq = Seq(0)
        self.floor = Seq(1)
        #: One above the highest seq lost to a cap, and to its age; `evict_floor` is the higher of the two.
        self.cap_floor = Seq(1)
        self.ttl_floor = Seq(1)
        self.deleted = SeqRanges()
        self.losses = Losses()
        self.live_records = 0
        self.live_bytes = 0
        self.keys = IdempotencyKeys()
        self.skips = Skips()
        #: Queues: jobs that became dead letters since the topic was created.
        self.dead_lettered = 0
        #: Queues: the leases that the log keeps.
        self.durable_leases = DurableLeases()
        #: Queues: the state of every job, once somebody has used the queue; rebuildable.
        self.leases: LeaseView | None = None
        #: When somebody last read, described or was sent this topic, by a monotonic clock; in memory only.
        self.used_ns = NEVER_NS

    def priority_at(self, now_ns: int) -> int:
        """Its effective priority for deliveries."""
        return effective_priority(self.config, now_ns - self.used_ns)

    @property
    def evict_floor(self) -> Seq:
        """One above the highest seq lost to a cap or to its age."""
        return max(self.cap_floor, self.ttl_floor)

    @property
    def next_seq(self) -> Seq:
        """The seq of the next record."""
        return Seq(self.head_seq + 1)

    # --- changes -----------------------------------------------------------------------------------------------

    def append(self, header: NumberedBatch) -> None:
        """Add the records of a stamped batch."""
        base_seq = header.base_seq
        check(header.topic_id == self.topic_id, "INV-APPLY-ONCE", "an append of another topic")
        if base_seq != self.head_seq + 1:
            check(base_seq > self.head_seq, "INV-SEQ-ONCE", f"seq {base_seq} again, head is {self.head_seq}")
            self._lose(Gap(self.next_seq, Seq(base_seq - 1), GapReason.CORRUPTION))
            self._settle()
        self.head_seq = Seq(header.base_seq + header.record_count - 1)
        self.end_offset = Offset(header.base_offset + header.raw_length)
        self.last_timestamp_ns = max(self.last_timestamp_ns, header.timestamp_ns)
        self.live_records += header.record_count
        self.live_bytes += header.raw_length

    def append_run(self, rows: WalRows) -> None:
        """Add the records of one or more stamped batches, in order: the same as `append` of each."""
        if len(rows) == 1:
            # A run of many topics has one batch of most of them: for these, arrays take longer than numbers.
            batch = _batch_of(rows)
            check(batch.base_seq + batch.record_count < 1 << 64, "INV-SEQ-ONCE", f"{batch} has seqs above 64 bits")
            self.append(batch)
            return
        first = rows["base_seq"]
        ends = first + rows["count"]
        check(bool((rows["topic_id"] == self.topic_id).all()), "INV-APPLY-ONCE", f"a run in topic {self.topic_id}")
        # An overflowed sum is below its start.
        rising = first[0] > self.head_seq and bool((first[1:] >= ends[:-1]).all() and (ends >= first).all())
        check(rising, "INV-SEQ-ONCE", f"seqs from {first[0]} of topic {self.name} again, head is {self.head_seq}")
        holes = np.flatnonzero(first[1:] != ends[:-1]) + 1
        for index in [*([0] if first[0] > self.next_seq else []), *holes.tolist()]:
            if index:
                self.head_seq = Seq(int(ends[index - 1]) - 1)
            self._lose(Gap(self.next_seq, Seq(int(first[index]) - 1), GapReason.CORRUPTION))
        self.head_seq = Seq(int(ends[-1]) - 1)
        self._settle()
        self.end_offset = Offset(int(rows["base_offset"][-1]) + int(rows["raw_length"][-1]))
        self.last_timestamp_ns = max(self.last_timestamp_ns, TimestampNs(int(rows["timestamp_ns"].max())))
        self.live_records += int(rows["count"].sum(dtype=np.uint64))
        self.live_bytes += int(rows["raw_length"].sum(dtype=np.uint64))

    def apply(self, control: SimpleControl) -> None:
        """Apply one control of this topic, other than the append of a reference."""
        check(control.topic_id == self.topic_id, "INV-APPLY-ONCE", f"{control.topic_id} in topic {self.topic_id}")
        match control:
            case TopicConfigure():
                self.config = stored_config(control.after)
            case Ceiling():
                self.ceiling = max(self.ceiling, control.ceiling)
            case SegmentRoll():
                self.segment_first_seq = max(self.segment_first_seq, control.first_seq)
            case DeadLettered():
                self.dead_lettered += control.count
            case Leases():
                self.durable_leases.add(control.rows)
                self.durable_leases.compact_if_due(self.dead(Seq(1), self.head_seq))
            case _:
                self._apply_removal(control)

    # --- queries -----------------------------------------------------------------------------------------------

    def gaps(self, from_seq: Seq, to_seq: Seq) -> list[Gap]:
        """The gaps to report to a reader of a range, ascending and disjoint; deleted records are not gaps."""
        low, high = sorted(((self.cap_floor, GapReason.CAP), (self.ttl_floor, GapReason.TTL)), key=_floor_of)
        evicted = (
            Gap(Seq(1), Seq(low[0] - 1), low[1]),
            Gap(low[0], Seq(high[0] - 1), high[1]),
        )
        found = [gap for each in evicted if (gap := each.clipped(from_seq, to_seq)) is not None]
        found.extend(self.losses.inside(from_seq, to_seq))
        return found

    def recreated(self, epoch: TopicEpoch) -> Gap | None:
        """The gap for a cursor of a deleted topic with this name; empty if the new topic has no records."""
        return None if epoch == self.epoch else Gap(Seq(1), self.head_seq, GapReason.RECREATED)

    def crash_loss(self) -> Loss | None:
        """The loss to log after a crash: seqs below the ceiling that no surviving record has.

        Any of them may have been seen, so none is assigned again; numbering resumes at the ceiling.
        """
        if self.ceiling <= self.next_seq:
            return None
        return Loss(self.topic_id, self.next_seq, Seq(self.ceiling - 1), GapReason.CRASH)

    def first_readable(self, seq: Seq) -> Seq:
        """The first live record from `seq` on; the next seq if there is none."""
        seq = max(seq, self.floor)
        while seq <= self.head_seq:
            skipped_to = self.losses.first_outside(self.deleted.first_outside(seq))
            if skipped_to == seq:
                return seq
            seq = skipped_to
        return self.next_seq

    def live_runs(self, first: Seq, last: Seq) -> Iterator[tuple[Seq, Seq]]:
        """The fully live parts of a range, ascending."""
        first, last = max(first, self.floor), min(last, self.head_seq)
        for low, high in self.deleted.outside(first, last):
            yield from self.losses.outside(low, high)

    def dead(self, first: Seq, last: Seq) -> DeletedSeqs:
        """The seqs of a range that are not live, as one set; it may extend beyond the range."""
        rows = [(gap.first_seq, gap.last_seq + 1) for gap in self.losses.inside(first, last)]
        if first < self.floor:
            rows.append((Seq(1), self.floor))
        deleted = self.deleted.inside(first, last)
        return deleted.union(DeletedSeqs(np.array(rows, np.int64))) if rows else deleted

    def lease_rows(self) -> LeaseRows:
        """The leases of live jobs that the log keeps."""
        if not len(self.durable_leases):
            return self.durable_leases.rows(DeletedSeqs())
        return self.durable_leases.rows(self.dead(Seq(1), self.head_seq))

    def live(self, first: Seq, last: Seq) -> Ranges:
        """The fully live parts of a range, as rows of the first seq and the seq after the last."""
        first, last = max(first, self.floor), min(last, self.head_seq)
        if first > last:
            return np.empty((0, 2), np.int64)
        if not len(self.deleted) and next(self.losses.inside(first, last), None) is None:
            return np.array([[first, last + 1]], np.int64)
        return self.dead(first, last).outside(first, last)

    def is_disposable(self, first: Seq, last: Seq) -> bool:
        """True if the storage of a range may be deleted: nothing of it is live, and nothing was lost by damage.

        Records that damage took from the log may still be in a segment, where a person can find them.
        """
        damaged = any(gap.reason is GapReason.CORRUPTION for gap in self.losses.inside(first, last))
        return self.first_readable(first) > last and not damaged

    def check_invariants(self) -> None:
        """Recount the live records, and compare the floors."""
        self._check_order()
        live = self._live_in(self.floor, self.head_seq)
        check(live == self.live_records, "INV-LIVE-EXACT", f"{live} live, counted {self.live_records}")
        check(self.first_readable(self.floor) == self.floor, "INV-LIVE-EXACT", f"floor {self.floor} is not live")

    # --- transitions -------------------------------------------------------------------------------------------

    def _apply_removal(self, control: SimpleControl) -> None:
        """Apply a control that removes records."""
        before = (self.evict_floor, self.floor, self.head_seq)
        match control:
            case DeleteRecords():
                self._delete(control)
                removed = control.removed.ranges
            case FloorRaise():
                removed = np.array([[self.floor, control.evict_floor]], np.int64)
                self._evict(control)
            case Loss():
                removed = np.array([[control.first_seq, control.last_seq + 1]], np.int64)
                self._remove_live(control.first_seq, control.last_seq, control.lost_bytes)
                self._lose(Gap(control.first_seq, control.last_seq, control.reason))
            case _:
                raise InvalidInputError(f"{control.COMMAND.name} does not change the state of a topic")
        if self.leases is not None:
            self.leases.removed_ranges(removed)
        self._settle()
        after = (self.evict_floor, self.floor, self.head_seq)
        check(all(map(int.__le__, before, after)), "INV-LIVE-EXACT", f"{before} became {after}")

    def _delete(self, delete: DeleteRecords) -> None:
        # Counted here, not when the delete was planned: after damage there may be fewer live records than then.
        removed = delete.removed
        live = DeletedSeqs(self.live(removed.first_seq, removed.last_seq), are_merged=True)
        self.deleted.update(removed)
        self.live_records -= live.overlap(removed)
        self.live_bytes = max(0, self.live_bytes - delete.removed_bytes)

    def _evict(self, raised: FloorRaise) -> None:
        evict_floor = min(raised.evict_floor, self.next_seq)
        if evict_floor <= self.evict_floor:
            return
        self._remove_live(self.floor, Seq(evict_floor - 1), raised.removed_bytes)
        if raised.reason is GapReason.CAP:
            self.cap_floor = evict_floor
        else:
            self.ttl_floor = evict_floor

    def _live_in(self, first: Seq, last: Seq) -> int:
        """Live records in a range."""
        if not len(self.deleted):
            # Losses are few: most topics have none, and arrays take longer than numbers.
            first, last = max(first, self.floor), min(last, self.head_seq)
            return sum(high - low + 1 for low, high in self.losses.outside(first, last))
        live = self.live(first, last)
        return int((live[:, 1] - live[:, 0]).sum())

    def _lose(self, lost: Gap) -> None:
        """Add a lost range; if it is beyond the head, numbering resumes after it."""
        self.head_seq = max(self.head_seq, lost.last_seq)
        self.losses.add(lost)

    def _remove_live(self, first: Seq, last: Seq, removed_bytes: int) -> None:
        """Subtract a range from the live counts, before a change removes it."""
        self.live_records -= self._live_in(first, last)
        self.live_bytes = max(0, self.live_bytes - removed_bytes)

    def _settle(self) -> None:
        """Move the floor to the first live record, and forget what no reader can ask for any more."""
        if not self.live_records:
            # Damage may have made the byte count an estimate; without records it is 0.
            self.live_bytes = 0
        self.floor = self.first_readable(self.evict_floor)
        self.deleted.drop_below(self.floor)
        self.losses.drop_below(self.evict_floor)
        self._check_order()

    def _check_order(self) -> None:
        end = self.next_seq
        check(
            1 <= self.evict_floor <= self.floor <= end,
            "INV-LIVE-EXACT",
            f"evicted below {self.evict_floor}, floor {self.floor}, end {end}",
        )


class _Batch(NamedTuple):
    """The numbers of one batch: a `NumberedBatch`."""

    position: Position
    base_seq: Seq
    base_offset: Offset
    timestamp_ns: TimestampNs
    record_count: int
    raw_length: int
    topic_id: TopicId


def _batch_of(rows: WalRows) -> _Batch:
    """The only batch of a run."""
    row = rows[0]
    return _Batch(
        Position(int(row["position"])),
        Seq(int(row["base_seq"])),
        Offset(int(row["base_offset"])),
        TimestampNs(int(row["timestamp_ns"])),
        int(row["count"]),
        int(row["raw_length"]),
        TopicId(int(row["topic_id"])),
    )


def _floor_of(floor: tuple[Seq, GapReason]) -> Seq:
    return floor[0]
