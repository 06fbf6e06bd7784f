"""The state of one topic: what it holds, what it lost, and what it still promises.

Everything here changes by the batches of the log, in their order: `append` for records, `apply` for controls. Nothing
else is read: whoever commits a delete or an eviction has looked up which records go and how many bytes they
had, so the segments of what is gone may go at once.

    1 …… evict_floor …… floor ………………… head_seq
    lost by cap or ttl    deleted    live, deleted or lost in the middle

- `evict_floor`: one above the highest seq lost to a cap or to its age; below it a reader is told of a gap.
- `floor`: the first live record, `head_seq` + 1 when there is none. Deletes raise it and tell nobody.
- losses: ranges that a crash or damage took, told where a reader is about to pass them, also below the floor.
- `ceiling`: seqs below it may have been handed out, whatever the log still shows.

Invariants, checked after every change
- INV-LIVE-EXACT: every seq up to the head is live, deleted or lost, and floors and head never go back. 1 ≤ evict_floor
  ≤ floor ≤ head_seq + 1, and `live_records` counts the seqs from floor to head that are neither deleted nor lost.
- INV-SEQ-ONCE: no record gets a seq that was used before: the seqs of a topic, of its tags and of its keys rise.

After damage in the log a control may arrive whose predecessor is missing. That stops no replay: later values win,
floors only rise, and seqs that no batch and no control accounts for become a loss by corruption.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from seawall.core.checks import check
from seawall.core.types import NumberedBatch, Offset, Seq, TimestampNs, TopicEpoch, TopicId
from seawall.errors import InvalidInputError
from seawall.kernels.log.epochs import WalRows
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import Ceiling, SegmentRoll
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise, Loss, TopicConfigure
from seawall.storage.segments.delete_sidecar import DeletedSeqs, Ranges
from seawall.topics.config import TopicConfig, stored_config
from seawall.topics.gaps import Gap, Losses
from seawall.topics.keys import IdempotencyKeys
from seawall.topics.ranges import SeqRanges
from seawall.topics.skips import Skips
from seawall.wire.format.codes import GapReason


class TopicState:
    """One topic. Its fields are for reading; only `append`, `apply` and a restart change them."""

    __slots__ = (
        "cap_floor",
        "ceiling",
        "config",
        "created_ms",
        "deleted",
        "end_offset",
        "epoch",
        "floor",
        "head_seq",
        "keys",
        "last_timestamp_ns",
        "live_bytes",
        "live_records",
        "losses",
        "name",
        "segment_first_seq",
        "skips",
        "topic_id",
        "ttl_floor",
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
        #: One above the highest seq lost to a cap, and to its age: the higher one is the floor of both.
        self.cap_floor = Seq(1)
        self.ttl_floor = Seq(1)
        self.deleted = SeqRanges()
        self.losses = Losses()
        self.live_records = 0
        self.live_bytes = 0
        self.keys = IdempotencyKeys()
        self.skips = Skips()

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
        """Records of a stamped batch."""
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
        """Records of one or more stamped batches, in their order: the same as `append` of each, without tags."""
        first = rows["base_seq"]
        behind = first + rows["count"]
        check(bool((rows["topic_id"] == self.topic_id).all()), "INV-APPLY-ONCE", f"a run in topic {self.topic_id}")
        # A sum that has wrapped is below what was added to.
        rising = first[0] > self.head_seq and bool((first[1:] >= behind[:-1]).all() and (behind >= first).all())
        check(rising, "INV-SEQ-ONCE", f"seqs from {first[0]} of topic {self.name} again, head is {self.head_seq}")
        holes = np.flatnonzero(first[1:] != behind[:-1]) + 1
        for index in [*([0] if first[0] > self.next_seq else []), *holes.tolist()]:
            if index:
                self.head_seq = Seq(int(behind[index - 1]) - 1)
            self._lose(Gap(self.next_seq, Seq(int(first[index]) - 1), GapReason.CORRUPTION))
        self.head_seq = Seq(int(behind[-1]) - 1)
        self._settle()
        self.end_offset = Offset(int(rows["base_offset"][-1]) + int(rows["raw_length"][-1]))
        self.last_timestamp_ns = max(self.last_timestamp_ns, TimestampNs(int(rows["timestamp_ns"].max())))
        self.live_records += int(rows["count"].sum(dtype=np.uint64))
        self.live_bytes += int(rows["raw_length"].sum(dtype=np.uint64))

    def apply(self, control: SimpleControl) -> None:
        """One control that concerns this topic, other than the append of a reference."""
        check(control.topic_id == self.topic_id, "INV-APPLY-ONCE", f"{control.topic_id} in topic {self.topic_id}")
        before = (self.evict_floor, self.floor, self.head_seq)
        match control:
            case TopicConfigure():
                self.config = stored_config(control.after)
            case Ceiling():
                self.ceiling = max(self.ceiling, control.ceiling)
            case SegmentRoll():
                self.segment_first_seq = max(self.segment_first_seq, control.first_seq)
            case DeleteRecords():
                self._delete(control)
            case FloorRaise():
                self._evict(control)
            case Loss():
                self._remove_live(control.first_seq, control.last_seq, control.lost_bytes)
                self._lose(Gap(control.first_seq, control.last_seq, control.reason))
            case _:
                raise InvalidInputError(f"{control.COMMAND.name} does not change the state of a topic")
        self._settle()
        after = (self.evict_floor, self.floor, self.head_seq)
        check(all(map(int.__le__, before, after)), "INV-LIVE-EXACT", f"{before} became {after}")

    # --- questions ---------------------------------------------------------------------------------------------

    def gaps(self, from_seq: Seq, to_seq: Seq) -> list[Gap]:
        """What a reader of a range has to be told, ascending and disjoint; deleted records are not mentioned."""
        low, high = sorted(((self.cap_floor, GapReason.CAP), (self.ttl_floor, GapReason.TTL)), key=_floor_of)
        evicted = (
            Gap(Seq(1), Seq(low[0] - 1), low[1]),
            Gap(low[0], Seq(high[0] - 1), high[1]),
        )
        found = [gap for each in evicted if (gap := each.clipped(from_seq, to_seq)) is not None]
        found.extend(self.losses.inside(from_seq, to_seq))
        return found

    def recreated(self, epoch: TopicEpoch) -> Gap | None:
        """What a cursor of another life of this name has to be told; empty where the new life has no records."""
        return None if epoch == self.epoch else Gap(Seq(1), self.head_seq, GapReason.RECREATED)

    def crash_loss(self) -> Loss | None:
        """What a restart after a crash has to log: seqs below the ceiling that no surviving record has.

        Any of them may have been seen, so none is given again; numbering goes on at the ceiling.
        """
        if self.ceiling <= self.next_seq:
            return None
        return Loss(self.topic_id, self.next_seq, Seq(self.ceiling - 1), GapReason.CRASH)

    def first_readable(self, seq: Seq) -> Seq:
        """The first live record from `seq` on; the next seq where there is none."""
        seq = max(seq, self.floor)
        while seq <= self.head_seq:
            passed = self.losses.first_outside(self.deleted.first_outside(seq))
            if passed == seq:
                return seq
            seq = passed
        return self.next_seq

    def live_runs(self, first: Seq, last: Seq) -> Iterator[tuple[Seq, Seq]]:
        """The parts of a range that are live as a whole, ascending."""
        first, last = max(first, self.floor), min(last, self.head_seq)
        for low, high in self.deleted.outside(first, last):
            yield from self.losses.outside(low, high)

    def dead(self, first: Seq, last: Seq) -> DeletedSeqs:
        """What a range holds that is not live, as one set; it may reach beyond the range."""
        rows = [(gap.first_seq, gap.last_seq + 1) for gap in self.losses.inside(first, last)]
        if first < self.floor:
            rows.append((Seq(1), self.floor))
        deleted = self.deleted.inside(first, last)
        return deleted.union(DeletedSeqs(np.array(rows, np.int64))) if rows else deleted

    def live(self, first: Seq, last: Seq) -> Ranges:
        """The parts of a range that are live as a whole, as rows of the first seq and the seq behind the last."""
        first, last = max(first, self.floor), min(last, self.head_seq)
        if first > last:
            return np.empty((0, 2), np.int64)
        if not len(self.deleted) and next(self.losses.inside(first, last), None) is None:
            return np.array([[first, last + 1]], np.int64)
        return self.dead(first, last).outside(first, last)

    def is_disposable(self, first: Seq, last: Seq) -> bool:
        """Whether what stores a range may go: nothing of it is live, and nothing was taken by damage.

        What damage took from the log may still be in a segment, where a person can find it.
        """
        damaged = any(gap.reason is GapReason.CORRUPTION for gap in self.losses.inside(first, last))
        return self.first_readable(first) > last and not damaged

    def check_invariants(self) -> None:
        """Recount what is kept by adding and subtracting, and compare the floors."""
        self._check_order()
        live = self._live_in(self.floor, self.head_seq)
        check(live == self.live_records, "INV-LIVE-EXACT", f"{live} live, counted {self.live_records}")
        check(self.first_readable(self.floor) == self.floor, "INV-LIVE-EXACT", f"floor {self.floor} is not live")

    # --- the transitions ---------------------------------------------------------------------------------------

    def _delete(self, delete: DeleteRecords) -> None:
        # Counted here and not by whoever resolved it: after damage it may meet fewer live records than it was made for.
        first, last = delete.removed.first_seq, delete.removed.last_seq
        live_before = self._live_in(first, last)
        self.deleted.update(delete.removed)
        self.live_records -= live_before - self._live_in(first, last)
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
        live = self.live(first, last)
        return int((live[:, 1] - live[:, 0]).sum())

    def _lose(self, lost: Gap) -> None:
        """A range is gone; where it lies beyond the head, numbering goes on behind it."""
        self.head_seq = max(self.head_seq, lost.last_seq)
        self.losses.add(lost)

    def _remove_live(self, first: Seq, last: Seq, removed_bytes: int) -> None:
        """Count out what a change takes from the live records, before it takes it."""
        self.live_records -= self._live_in(first, last)
        self.live_bytes = max(0, self.live_bytes - removed_bytes)

    def _settle(self) -> None:
        """Move the floor to the first live record, and forget what lies where no reader asks any more."""
        if not self.live_records:
            # Bytes may have been estimated where damage kept them from being counted; without records there are none.
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


def _floor_of(floor: tuple[Seq, GapReason]) -> Seq:
    return floor[0]
