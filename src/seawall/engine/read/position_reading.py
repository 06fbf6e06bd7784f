"""Read by position: the items of all topics, in the total order.

Each topic is read as usual (`reading.py`), from its first batch at or after a position up to an end position that all
topics share; then the results are merged. Array operations on the indexes find the batches that fit the size limit of
one read. The end is between two positions.

- A batch and a SKIP have a position each. The batches of a transaction share one position and are delivered together,
  topic by topic, however many bytes that takes.
- A gap has no position. It is delivered directly before the next batch of its topic, or at the end of the read if that
  batch is damaged. A gap with no batch after it is not delivered yet. If the batches before a gap are gone, it is not
  known how much of the gap the reader has already passed: the whole gap is delivered.

INV-POSITION-ONCE: a read by position that resumes at `next_position` delivers every later item once.

A plan pins files until it is executed or released, as every read plan does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from seawall.core.types import Position, Seq, TopicId
from seawall.engine.read.read_results import PositionItem, ReceivedSkip, TopicGap, received
from seawall.engine.read.reading import ReadPlan, plan_records
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.storage.segments.batch_index import Entries
from seawall.topics.gaps import Gap
from seawall.topics.skips import Skip
from seawall.topics.state import TopicState

_UNBOUNDED: Final = 1 << 62


class PartialPosition(NamedTuple):
    """How far a position that several topics share was delivered: all of the topics with lower ids, and the batches of
    this topic below the seq."""

    topic_id: TopicId
    seq: Seq


class _TopicPart(NamedTuple):
    """The batches of one topic at or after a position; rather too many than too few."""

    topic: TopicState
    log: TopicLog
    #: The seq after the batches before that position.
    from_seq: Seq
    entries: Entries


class PositionPlan:
    """One read of all topics. Execute it once, or release it."""

    __slots__ = ("_plans", "_skips", "end_position", "is_last", "partial_position")

    def __init__(
        self,
        plans: list[tuple[str, ReadPlan]],
        skips: list[ReceivedSkip],
        end_position: Position,
        partial_position: PartialPosition | None = None,
        *,
        is_last: bool,
    ) -> None:
        self._plans = plans
        self._skips = skips
        #: Where the next read continues; `partial_position` says how much of that position was delivered, None if
        #: nothing.
        self.end_position = end_position
        self.partial_position = partial_position
        #: True if nothing is stored after `end_position` yet.
        self.is_last = is_last

    @property
    def size(self) -> int:
        """Bytes that the plan reads."""
        return sum(run.size for _, plan in self._plans for run in plan.runs)

    def stored(self) -> list[StoredBatch | ReceivedSkip]:
        """Execute the plan; returns stored batches and SKIPs by position. Missing seqs imply the gaps."""
        found: list[StoredBatch | ReceivedSkip] = [*self._skips]
        try:
            for _, plan in self._plans:
                found += [item for item in plan.execute() if isinstance(item, StoredBatch)]
        finally:
            self.release()
        found.sort(key=attrgetter("position"))
        return found

    def execute(self) -> list[PositionItem]:
        """Execute the plan; returns batches, SKIPs and gaps in order, none if all up to `end_position` was deleted."""
        found: list[tuple[Position, PositionItem]] = [(skip.position, skip) for skip in self._skips]
        try:
            for topic, plan in self._plans:
                found += self._with_positions(topic, plan)
        finally:
            self.release()
        # The sort is stable: at a position that topics share, the items of each topic stay together and in order.
        found.sort(key=_position_of)
        return [item for _, item in found]

    def release(self) -> None:
        """Release all pins. Calling it twice is fine."""
        for _, plan in self._plans:
            plan.release()

    def _with_positions(self, topic: str, plan: ReadPlan) -> list[tuple[Position, PositionItem]]:
        """Execute the plan of a topic; returns its items with positions. A gap gets that of the batch after it."""
        positioned: list[tuple[Position, PositionItem]] = []
        position = self.end_position
        for item in reversed(plan.execute()):
            if isinstance(item, Gap):
                gap = TopicGap(item.first_seq, item.last_seq, item.reason, topic, position)
                positioned.append((position, gap))
            elif isinstance(item, StoredBatch):
                position = item.position
                positioned.append((position, received(topic, item)))
        positioned.reverse()
        return positioned


def plan_positions(
    topics: Iterable[TopicState],
    log_of: Callable[[TopicId], TopicLog | None],
    from_position: Position,
    *,
    size_max: int,
    records_max: int | None = None,
    partial_position: PartialPosition | None = None,
    cuts_positions: bool = False,
) -> PositionPlan:
    """Plan what a reader at a position gets next. The caller holds the lock of the store.

    The plan ends before the batch that exceeds `size_max` bytes, and after the one that reaches `records_max` records,
    but not before the first batch. It ends with a whole position, unless it `cuts_positions`. `partial_position` says
    how much of the first position was delivered before.
    """
    topics = sorted(topics, key=attrgetter("topic_id"))
    found = [part for topic in topics if (part := _topic_part(topic, log_of, from_position, size_max)) is not None]
    parts = (
        found
        if partial_position is None
        else [left for part in found if (left := _undelivered(part, from_position, partial_position))]
    )
    end, end_told = _end(parts, size_max, records_max, cuts_positions=cuts_positions)
    skips = [
        _received_skip(topic, log_of(topic.topic_id), skip)
        for topic in topics
        if len(topic.skips)
        for skip in topic.skips.between(from_position, Position(_UNBOUNDED) if end is None else end)
        if partial_position is None or skip.position > from_position
    ]
    plans: list[tuple[str, ReadPlan]] = []
    try:
        for part in parts:
            plan = _plan_part(part, end, end_told)
            if plan is not None:
                plans.append((part.topic.name, plan))
    except BaseException:
        for _, plan in plans:
            plan.release()
        raise
    if end is not None:
        return PositionPlan(plans, skips, end, end_told, is_last=False)
    last = [int(part.entries["position"][-1]) for part in parts]
    last += [skip.position for skip in skips]
    return PositionPlan(plans, skips, Position(max(last, default=from_position - 1) + 1), is_last=True)


def _topic_part(
    topic: TopicState, log_of: Callable[[TopicId], TopicLog | None], position: Position, size_max: int
) -> _TopicPart | None:
    log = log_of(topic.topic_id)
    if log is None:
        return None
    from_seq, entries = log.from_position(position, topic.next_seq, size_max)
    return _TopicPart(topic, log, from_seq, entries) if len(entries) else None


def _received_skip(topic: TopicState, log: TopicLog | None, skip: Skip) -> ReceivedSkip:
    next_seq = None if log is None else log.first_seq_from(skip.position)
    numbers = (skip.position, skip.client_id, skip.first_client_seq, skip.count)
    return ReceivedSkip(topic.name, *numbers, topic.next_seq if next_seq is None else min(next_seq, topic.next_seq))


def _undelivered(part: _TopicPart, position: Position, partial_position: PartialPosition) -> _TopicPart | None:
    """Remove from a part what was delivered of its first position; None if nothing is left."""
    topic_id, entries = part.topic.topic_id, part.entries
    below = (
        partial_position.seq
        if topic_id == partial_position.topic_id
        else 0
        if topic_id > partial_position.topic_id
        else _UNBOUNDED
    )
    is_delivered = (entries["position"] == position) & (entries["base_seq"] < below)
    left = entries[~is_delivered]
    if not len(left):
        return None
    last = entries[is_delivered][-1:]
    from_seq = Seq(int(last["base_seq"][0]) + int(last["count"][0])) if len(last) else part.from_seq
    return part._replace(entries=left, from_seq=from_seq)


def _end(
    parts: list[_TopicPart], size_max: int, records_max: int | None, *, cuts_positions: bool
) -> tuple[Position | None, PartialPosition | None]:
    """Returns the position after the last batch to read, None if that is the last of all; or a position that is read
    in part, and how far.

    Each part holds the batches of its topic up to the first that exceeds `size_max` bytes; no later batch can be read.
    """
    if not parts:
        return None, None
    positions = np.concatenate([part.entries["position"] for part in parts])
    # Stable: batches that share a position stay in the order of the topics.
    order = np.argsort(positions, kind="stable")
    sizes = np.concatenate([part.entries["length"] for part in parts])[order].cumsum(dtype=np.int64)
    taken = max(1, int(sizes.searchsorted(size_max, "right")))
    if records_max is not None:
        counts = np.concatenate([part.entries["count"] for part in parts])[order]
        taken = min(taken, int(counts.cumsum(dtype=np.int64).searchsorted(records_max)) + 1)
    if taken == len(positions) and sizes[-1] <= size_max:
        return None, None
    last = Position(int(positions[order[taken - 1]]))
    is_cut = taken < len(positions) and int(positions[order[taken]]) == last
    if not is_cut or not cuts_positions:
        return Position(last + 1), None
    topic_ids = np.repeat([part.topic.topic_id for part in parts], [len(part.entries) for part in parts])
    seqs = np.concatenate([part.entries["base_seq"] + part.entries["count"] for part in parts])
    return last, PartialPosition(TopicId(int(topic_ids[order[taken - 1]])), Seq(int(seqs[order[taken - 1]])))


def _plan_part(part: _TopicPart, end: Position | None, partial_position: PartialPosition | None) -> ReadPlan | None:
    """Plan the read of a topic below position `end`, and of `end` itself up to `partial_position`; None if empty."""
    entries = part.entries
    count = len(entries) if end is None else int(entries["position"].searchsorted(np.uint64(end)))
    if partial_position is not None and end is not None and part.topic.topic_id <= partial_position.topic_id:
        count_through_end = int(entries["position"].searchsorted(np.uint64(end + 1)))
        below = partial_position.seq if part.topic.topic_id == partial_position.topic_id else _UNBOUNDED
        count = min(count_through_end, max(count, int(entries["base_seq"].searchsorted(np.uint64(below)))))
    if not count:
        return None
    base_seq, *_, records, _ = entries[count - 1].item()
    end_seq = Seq(base_seq + records)
    return plan_records(part.topic, part.log, part.from_seq, end_seq, size_max=_UNBOUNDED)


def _position_of(positioned: tuple[Position, PositionItem]) -> Position:
    return positioned[0]
