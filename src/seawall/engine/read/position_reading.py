"""Reading by position: everything that is ordered, over all topics, in the one order.

Topics are read as ever (`reading.py`): each from its first batch at or behind a position to a position that all of them
end at, and what they give is put together. Which batches those are is found in the indexes, by arrays, with as many
bytes as one read may have; the cut lies between two positions of the order.

- A batch lies at its position, and a SKIP at its own. The batches of a transaction share theirs and are told together,
  topic by topic, however many bytes that takes.
- A gap has no position: it is told right before the first batch of its topic behind it, at the end if that is damaged.
  What nothing has come behind yet is not told yet. Where the batches before it are gone, nobody knows how much of a gap
  a reader has passed before: it is told whole.

INV-POSITION-ONCE: a read by position that resumes at `next_position` delivers every later item once.

A plan pins files until it is carried out or released, as any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from seawall.core.types import Position, Seq, TopicId
from seawall.engine.api.read_results import PositionItem, ReceivedSkip, TopicGap, received
from seawall.engine.read.reading import ReadPlan, plan_records
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.storage.segments.batch_index import Entries
from seawall.topics.gaps import Gap
from seawall.topics.skips import Skip
from seawall.topics.state import TopicState

_UNBOUNDED: Final = 1 << 62


class Told(NamedTuple):
    """How far a position that batches of several topics share was told: all of topics with lower ids, and of this one
    what is below the seq."""

    topic_id: TopicId
    seq: Seq


class _Share(NamedTuple):
    """What one topic has at or behind a position: the seq behind all before that, and entries, too many sooner than
    too few."""

    topic: TopicState
    log: TopicLog
    behind: Seq
    entries: Entries


class PositionPlan:
    """One read of all topics. Carried out once, or released."""

    __slots__ = ("_parts", "_skips", "end_position", "is_last", "told")

    def __init__(
        self,
        parts: list[tuple[str, ReadPlan]],
        skips: list[ReceivedSkip],
        end_position: Position,
        told: Told | None = None,
        *,
        is_last: bool,
    ) -> None:
        self._parts = parts
        self._skips = skips
        #: Where the next read goes on, within that position if some of it is told; whether nothing is behind it yet.
        self.end_position = end_position
        self.told = told
        self.is_last = is_last

    @property
    def size(self) -> int:
        """Bytes that are read."""
        return sum(run.size for _, plan in self._parts for run in plan.runs)

    def stored(self) -> list[StoredBatch | ReceivedSkip]:
        """Batches as they are stored, and SKIPs, by position; gaps are left to the seqs of the batches."""
        found: list[StoredBatch | ReceivedSkip] = [*self._skips]
        try:
            for _, plan in self._parts:
                found += [item for item in plan.execute() if isinstance(item, StoredBatch)]
        finally:
            self.release()
        found.sort(key=attrgetter("position"))
        return found

    def execute(self) -> list[PositionItem]:
        """Batches, SKIPs and gaps, in their order; none where everything up to `end_position` was deleted."""
        found: list[tuple[Position, PositionItem]] = [(skip.position, skip) for skip in self._skips]
        try:
            for topic, plan in self._parts:
                found += self._placed(topic, plan)
        finally:
            self.release()
        # Of a position that several topics share each has its part in one piece, in the order it has there.
        found.sort(key=_position_of)
        return [item for _, item in found]

    def release(self) -> None:
        """Give back what is pinned; twice is fine."""
        for _, plan in self._parts:
            plan.release()

    def _placed(self, topic: str, plan: ReadPlan) -> list[tuple[Position, PositionItem]]:
        """What a topic has, the last first, each with where it belongs: a gap to the batch behind it."""
        placed: list[tuple[Position, PositionItem]] = []
        position = self.end_position
        for item in reversed(plan.execute()):
            if isinstance(item, Gap):
                gap = TopicGap(item.first_seq, item.last_seq, item.reason, topic, position)
                placed.append((position, gap))
            elif isinstance(item, StoredBatch):
                position = item.position
                placed.append((position, received(topic, item)))
        placed.reverse()
        return placed


def plan_positions(
    topics: Iterable[TopicState],
    log_of: Callable[[TopicId], TopicLog | None],
    from_position: Position,
    *,
    size_max: int,
    records_max: int | None = None,
    told: Told | None = None,
    cuts_positions: bool = False,
) -> PositionPlan:
    """Plan what a reader at a position gets next; nothing may change meanwhile.

    It ends before the batch that `size_max` bytes have no room for, and behind the one that makes `records_max` records
    full, but never before the first; and with a whole position, unless it `cuts_positions`. `told` says what of the
    first one is not wanted any more.
    """
    topics = sorted(topics, key=attrgetter("topic_id"))
    found = [share for topic in topics if (share := _share(topic, log_of, from_position, size_max)) is not None]
    shares = found if told is None else [left for share in found if (left := _unreported(share, from_position, told))]
    end, behind = _end(shares, size_max, records_max, cuts_positions=cuts_positions)
    skips = [
        _told(topic, log_of(topic.topic_id), skip)
        for topic in topics
        if len(topic.skips)
        for skip in topic.skips.between(from_position, Position(_UNBOUNDED) if end is None else end)
        if told is None or skip.position > from_position
    ]
    parts: list[tuple[str, ReadPlan]] = []
    try:
        for share in shares:
            plan = _plan_share(share, end, behind)
            if plan is not None:
                parts.append((share.topic.name, plan))
    except BaseException:
        for _, plan in parts:
            plan.release()
        raise
    if end is not None:
        return PositionPlan(parts, skips, end, behind, is_last=False)
    last = [int(share.entries["position"][-1]) for share in shares]
    last += [skip.position for skip in skips]
    return PositionPlan(parts, skips, Position(max(last, default=from_position - 1) + 1), is_last=True)


def _share(
    topic: TopicState, log_of: Callable[[TopicId], TopicLog | None], position: Position, size_max: int
) -> _Share | None:
    log = log_of(topic.topic_id)
    if log is None:
        return None
    behind, entries = log.from_position(position, topic.next_seq, size_max)
    return _Share(topic, log, behind, entries) if len(entries) else None


def _told(topic: TopicState, log: TopicLog | None, skip: Skip) -> ReceivedSkip:
    behind = None if log is None else log.seq_behind(skip.position)
    numbers = (skip.position, skip.client_id, skip.first_client_seq, skip.count)
    return ReceivedSkip(topic.name, *numbers, topic.next_seq if behind is None else min(behind, topic.next_seq))


def _unreported(share: _Share, position: Position, told: Told) -> _Share | None:
    """What is left of a share where some of a position is told; None if nothing is."""
    topic_id, entries = share.topic.topic_id, share.entries
    below = told.seq if topic_id == told.topic_id else 0 if topic_id > told.topic_id else _UNBOUNDED
    is_told = (entries["position"] == position) & (entries["base_seq"] < below)
    left = entries[~is_told]
    if not len(left):
        return None
    last = entries[is_told][-1:]
    behind = Seq(int(last["base_seq"][0]) + int(last["count"][0])) if len(last) else share.behind
    return share._replace(entries=left, behind=behind)


def _end(
    shares: list[_Share], size_max: int, records_max: int | None, *, cuts_positions: bool
) -> tuple[Position | None, Told | None]:
    """The position behind the last batch that is read, None if that is the last of all; or the position that is read
    in part, and how far.

    Each topic has shown its batches up to the first that `size_max` bytes do not hold, and none behind that is taken.
    """
    if not shares:
        return None, None
    positions = np.concatenate([share.entries["position"] for share in shares])
    # Stable: what shares a position stays in the order of the topics.
    order = np.argsort(positions, kind="stable")
    sizes = np.concatenate([share.entries["length"] for share in shares])[order].cumsum(dtype=np.int64)
    taken = max(1, int(sizes.searchsorted(size_max, "right")))
    if records_max is not None:
        counts = np.concatenate([share.entries["count"] for share in shares])[order]
        taken = min(taken, int(counts.cumsum(dtype=np.int64).searchsorted(records_max)) + 1)
    if taken == len(positions) and sizes[-1] <= size_max:
        return None, None
    last = Position(int(positions[order[taken - 1]]))
    is_cut = taken < len(positions) and int(positions[order[taken]]) == last
    if not is_cut or not cuts_positions:
        return Position(last + 1), None
    topic_ids = np.repeat([share.topic.topic_id for share in shares], [len(share.entries) for share in shares])
    seqs = np.concatenate([share.entries["base_seq"] + share.entries["count"] for share in shares])
    return last, Told(TopicId(int(topic_ids[order[taken - 1]])), Seq(int(seqs[order[taken - 1]])))


def _plan_share(share: _Share, end: Position | None, told: Told | None) -> ReadPlan | None:
    """The read of a topic up to a position, and of that what is told then; None where it has nothing before that."""
    entries = share.entries
    count = len(entries) if end is None else int(entries["position"].searchsorted(np.uint64(end)))
    if told is not None and end is not None and share.topic.topic_id <= told.topic_id:
        behind = int(entries["position"].searchsorted(np.uint64(end + 1)))
        below = told.seq if share.topic.topic_id == told.topic_id else _UNBOUNDED
        count = min(behind, max(count, int(entries["base_seq"].searchsorted(np.uint64(below)))))
    if not count:
        return None
    base_seq, *_, records, _ = entries[count - 1].item()
    end_seq = Seq(base_seq + records)
    return plan_records(share.topic, share.log, share.behind, end_seq, size_max=_UNBOUNDED)


def _position_of(placed: tuple[Position, PositionItem]) -> Position:
    return placed[0]
