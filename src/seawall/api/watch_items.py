"""What watches hand out: batches, gaps and SKIPs of many topics, and reports about the topics; and how far that is.

    ReceivedBatch, ReceivedSkip    records of `item.topic`, as any reader gets them
    WatchGap                       lost seqs of `item.topic`; with the reason RECREATED it has begun again
    TopicCaughtUp                  everything that `item.topic` has was handed out
    TopicDeleted                   `item.topic` was deleted, nothing more of it follows

A watch receives *steps*: these items, and others that only move its progress.

INV-WATCH-ONCE: a watch that continues from a cursor gets everything after the items that were handed out before it, and
none of them again.

This module must not know where a log is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from seawall.api.received import Item, ReceivedBatch, ReceivedSkip
from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.core.watches import TopicEvent, TopicEventKind, WatchPosition, WatchSpec
from seawall.wire.format.codes import GapReason
from seawall.wire.format.gaps import Gap

#: When a record is delivered: as soon as it can be read, or once it is synced to disk.
Consistency: TypeAlias = Literal["eventual", "strong"]


@dataclass(frozen=True, slots=True)
class WatchGap(Gap):
    """A gap of one topic of a watch.

    With the reason `RECREATED` the topic was deleted and created again: `first_seq` to `last_seq` are the seqs of its
    new life so far, none if it is empty. Reading continues at its first record.
    """

    topic: str

    @property
    def is_recreated(self) -> bool:
        """True if the topic has begun again."""
        return self.reason is GapReason.RECREATED


@dataclass(frozen=True, slots=True)
class TopicCaughtUp:
    """All records of a topic that could be read were handed out; reported when a watch begins, and after a backlog."""

    topic: str
    next_seq: Seq
    is_skip: ClassVar[Literal[False]] = False


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic was deleted. Its seqs from `next_seq` to before `end_seq` were not handed out."""

    topic: str
    next_seq: Seq
    end_seq: Seq
    is_skip: ClassVar[Literal[False]] = False


#: What a watch hands out.
WatchItem: TypeAlias = ReceivedBatch | WatchGap | ReceivedSkip | TopicCaughtUp | TopicDeleted


@dataclass(frozen=True, slots=True)
class TopicJoined:
    """A topic belongs to the watch from now on."""

    topic: str
    epoch: TopicEpoch
    next_seq: Seq


@dataclass(frozen=True, slots=True)
class TopicMoved:
    """Everything of a topic before a seq was passed: what is between the last item and it is deleted."""

    topic: str
    next_seq: Seq


@dataclass(frozen=True, slots=True)
class WatchBegun:
    """All topics that matched when the watch began have joined: topics with ids from this on appear later."""

    later_from: TopicId


Step: TypeAlias = WatchItem | TopicJoined | TopicMoved | WatchBegun


def watch_item(topic: str, item: Item) -> WatchItem:
    """An item of one topic as an item of a watch."""
    return WatchGap(item.first_seq, item.last_seq, item.reason, topic) if isinstance(item, Gap) else item


def steps_of(events: Iterable[TopicEvent]) -> Iterator[Step]:
    """The steps for events of topics."""
    for kind, _, epoch, seq, end_seq, name in events:
        match kind:
            case TopicEventKind.JOINED:
                yield TopicJoined(name, epoch, seq)
            case TopicEventKind.RECREATED:
                yield TopicJoined(name, epoch, seq)
                yield WatchGap(Seq(1), Seq(end_seq - 1), GapReason.RECREATED, name)
            case TopicEventKind.CAUGHT_UP:
                yield TopicCaughtUp(name, seq)
            case TopicEventKind.DELETED:
                yield TopicDeleted(name, seq, end_seq)


def first_steps(events: Sequence[TopicEvent], later_from: TopicId) -> list[Step]:
    """The steps with which a watch begins: every topic joins before the first item is handed out.

    A topic that was created again joins with the gap that reports it: a cursor taken before that reports it again.
    """
    joined = (event for event in events if event.kind is TopicEventKind.JOINED)
    others = (event for event in events if event.kind is not TopicEventKind.JOINED)
    return [*steps_of(joined), WatchBegun(later_from), *steps_of(others)]


def has_item(steps: Sequence[Step]) -> bool:
    """True if a step is an item for the user."""
    return any(not isinstance(step, TopicJoined | TopicMoved | WatchBegun) for step in steps)


class WatchProgress:
    """How far a watch has handed out each of its topics."""

    __slots__ = ("later_from", "positions", "spec")

    def __init__(self, spec: WatchSpec) -> None:
        self.spec = spec
        self.positions = dict(spec.positions)
        self.later_from = spec.later_from

    def resumed(self) -> WatchSpec:
        """What a watch starts with that continues here."""
        return replace(self.spec, positions=self.positions, later_from=self.later_from)

    def take(self, step: Step) -> WatchItem | None:
        """Move past a step; returns it if it is an item for the user."""
        match step:
            case ReceivedBatch():
                self.move(step.topic, step.next_seq)
            case WatchGap():
                if not step.is_recreated:
                    self.move(step.topic, Seq(step.last_seq + 1))
            case ReceivedSkip():
                before = self.positions[step.topic]
                self.positions[step.topic] = before._replace(after_position=Position(step.position + 1))
            case TopicDeleted():
                self.positions.pop(step.topic, None)
            case TopicCaughtUp():
                pass
            case TopicJoined():
                self._join(step)
                return None
            case TopicMoved():
                self.move(step.topic, step.next_seq)
                return None
            case WatchBegun():
                self._begin(step)
                return None
        return step

    def move(self, topic: str, next_seq: Seq) -> None:
        """Note that the topic was handed out up to a seq."""
        before = self.positions[topic]
        if next_seq > before.next_seq:
            self.positions[topic] = WatchPosition(before.epoch, next_seq)

    def _join(self, joined: TopicJoined) -> None:
        before = self.positions.get(joined.topic)
        if before is None or (before.epoch, before.next_seq) != (joined.epoch, joined.next_seq):
            self.positions[joined.topic] = WatchPosition(joined.epoch, joined.next_seq)

    def _begin(self, begun: WatchBegun) -> None:
        self.later_from = begun.later_from
        # Positions of topics that the watch does not match would stay for ever.
        matches = self.spec.patterns.matches
        self.positions = {name: each for name, each in self.positions.items() if matches(name)}
