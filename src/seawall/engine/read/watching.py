"""Watches: which topics one reader of many topics gets, which of them have something to read, and what to report.

A watch knows how far each of its topics was read. A wake-up asks which topics have changed since the last one
(`topics/changes.py`) and looks at those only: what it pays follows the changes, not the watched topics. Topics with
something to read are *ready*; they are read in turn, by their priorities (`core/ready_set.py`), so that a long backlog
does not hold up the others.

    watched.refresh(store)             # under the lock of the store
    watched.take_events()              # deliver these before anything else
    topic = watched.first_ready        # read it at `next_seq` …
    watched.advance(topic, next_seq, is_last=…)

- A topic that is created and matches joins at its first record. A topic that is deleted leaves, with an event. One
  that was created again meanwhile is reported as that instead, and continues at the first record of its new life.
- CAUGHT_UP is reported when a topic reaches its end: when it joins there, and after each backlog, which is what takes
  more than one read.

A topic that is not ready has been read up to its end, as of the last refresh.

A crash loses a watch; its reader continues from the positions that it was given. This module must not know connections,
nor what is delivered.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

from seawall import limits
from seawall.api.topic_config import Durability
from seawall.core.identifiers import is_reserved_name
from seawall.core.ready_set import ReadySet
from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.core.watches import ANY_EPOCH, TopicEvent, TopicEventKind, WatchSpec
from seawall.engine.store.store import Store
from seawall.engine.store.store_queries import ChangedTopics, ChangeMark
from seawall.errors import LimitError, NotFoundError
from seawall.io.process.clocks import OsClock
from seawall.topics.state import TopicState

#: Classes whose records can be read before they are synced to disk, and are on it later.
_SYNCED_LATER: Final = frozenset({Durability.DISK, Durability.MEMORY})

_FIRST: Final = Seq(1)
_START: Final = Position(0)


class WatchedTopic:
    """One topic of a watch."""

    __slots__ = ("after_position", "is_behind", "next_seq", "state")

    def __init__(self, state: TopicState, next_seq: Seq, after_position: Position = _START) -> None:
        self.state = state
        self.next_seq = next_seq
        #: SKIPs below this position were delivered.
        self.after_position = after_position
        #: True if CAUGHT_UP has not been reported since it was behind its end.
        self.is_behind = True

    @property
    def topic_id(self) -> TopicId:
        """The id of the topic."""
        return self.state.topic_id

    @property
    def name(self) -> str:
        """The name of the topic."""
        return self.state.name

    @property
    def is_synced_later(self) -> bool:
        """True if its records can be read before they are synced to disk."""
        return self.state.config.durability in _SYNCED_LATER


class WatchedTopics:
    """All topics of one watch. Its owner uses it from one thread or task at a time."""

    def __init__(self, spec: WatchSpec) -> None:
        self._spec = spec
        self._patterns = spec.patterns
        self._topics: dict[TopicId, WatchedTopic] = {}
        self._ready: ReadySet[TopicId] = ReadySet()
        self._events: list[TopicEvent] = []
        #: Topics that exist when the watch begins, and have not joined yet if they match.
        self._joining: deque[TopicState] = deque()
        self._mark = ChangeMark(0, Position(0))
        self.is_strong = spec.is_strong
        #: How many topics the refreshes have looked at.
        self.topics_examined = 0
        self._clock = OsClock()

    def __len__(self) -> int:
        """The number of topics."""
        return len(self._topics)

    @property
    def has_events(self) -> bool:
        """True if something must be reported."""
        return bool(self._events)

    @property
    def is_at_end(self) -> bool:
        """True if there is nothing to read and nothing to report."""
        return not self._events and self.first_ready is None

    @property
    def ready_count(self) -> int:
        """How many topics have something to read."""
        return len(self._ready)

    @property
    def first_ready(self) -> WatchedTopic | None:
        """The topic to read next; None if all were read up to their end, or pause."""
        topic_id = self._ready.first(self._clock.monotonic_ns())
        return None if topic_id is None else self._topics[topic_id]

    def take_ready(self) -> WatchedTopic | None:
        """The topic to read next, which is not ready any more: call `advance` or `put_back` for it."""
        topic = self.first_ready
        if topic is not None:
            self._ready.take(topic.topic_id)
        return topic

    def put_back(self, topic: WatchedTopic) -> None:
        """Let a topic be ready: there is something to read."""
        now_ns = self._clock.monotonic_ns()
        self._ready.add(topic.topic_id, topic.state.priority_at(now_ns), now_ns)

    def pause_lowest(self, pauses: bool) -> None:
        """Leave topics of the lowest band for later, or not any more."""
        self._ready.pauses_lowest = pauses

    def take_events(self, count: int | None = None) -> list[TopicEvent]:
        """Remove and return the oldest events, at most `count`: deliver them now, in order."""
        taken, self._events = self._events[:count], [] if count is None else self._events[count:]
        return taken

    # --- what changes --------------------------------------------------------------------------------------------

    def begin(self, store: Store) -> TopicId:
        """Begin, and return the id from which on topics appear later. The caller holds the lock of the store.

        The topics join by calls of `join_next`. `NotFoundError` if a name does not exist; a watch that continues
        reports it as deleted if it was there before.
        """
        self._require_names(store)
        catalog = store.catalog
        self._mark = store.queries.change_mark()
        self._joining.extend(catalog.shown())
        return catalog.next_topic_id

    def join_next(self, count: int, store: Store) -> bool:
        """Let those of the next `count` topics join that match; False once all have. The caller holds the lock.

        Call it until all have joined, before anything else: what changes in between is found by the next refresh.
        """
        store.parts.pending.apply()
        for _ in range(min(count, len(self._joining))):
            state = self._joining.popleft()
            if self._patterns.matches(state.name):
                self._begin_topic(state)
        if self._joining:
            return True
        names = {topic.name for topic in self._topics.values()}
        for name, position in self._spec.positions.items():
            if name not in names and self._patterns.matches(name):
                self._report(TopicEventKind.DELETED, TopicId(0), position.epoch, position.next_seq, name)
        self._spec = replace(self._spec, positions={})
        return False

    def refresh(self, store: Store) -> None:
        """Find out what has changed since the last call. The caller holds the lock of the store."""
        mark = store.queries.change_mark()
        changed = store.queries.topics_changed(self._mark)
        if changed is None:
            self._examine_all(store)
        else:
            self._examine_changed(store, changed)
        # Only now: after an error, the next call finds the same changes.
        self._mark = mark

    def advance(self, topic: WatchedTopic, next_seq: Seq, *, is_last: bool) -> None:
        """Note that a topic was read up to a seq, and with `is_last` up to its end."""
        topic.next_seq = max(topic.next_seq, next_seq)
        topic.state.used_ns = self._clock.monotonic_ns()
        if topic.topic_id in self._ready:
            self._ready.take(topic.topic_id)
        if not is_last:
            topic.is_behind = True
            self.put_back(topic)
        elif topic.is_behind:
            self._report_caught_up(topic)

    # --- topics --------------------------------------------------------------------------------------------------

    def _require_names(self, store: Store) -> None:
        """Raise if a name does not exist, unless it was there before."""
        required = {name for name, position in self._spec.positions.items() if position.epoch == ANY_EPOCH}
        if not self._spec.continues:
            required |= self._patterns.names
        for name in sorted(required):
            if store.catalog.find_named(name) is None:
                raise NotFoundError(f"there is no topic {name!r} to watch; create it first, or watch {name + '*'!r}")

    def _begin_topic(self, state: TopicState) -> None:
        """Add a topic that exists when the watch begins."""
        spec = self._spec
        position = spec.positions.get(state.name)
        if position is not None and position.epoch not in (state.epoch, ANY_EPOCH):
            self._recreate(state)
        elif position is not None:
            self._join(WatchedTopic(state, position.next_seq, position.after_position))
        else:
            is_later = spec.continues and state.topic_id >= spec.later_from
            self._join(WatchedTopic(state, state.next_seq if spec.from_end and not is_later else _FIRST))

    def _examine_changed(self, store: Store, changed: ChangedTopics) -> None:
        """Look at the topics that have changed."""
        self.topics_examined += changed.applied.size + changed.pending.size
        for topic_id in changed.applied.tolist():
            self._examine(store, topic_id, has_pending=False)
        for topic_id in changed.pending.tolist():
            self._examine(store, topic_id, has_pending=True)

    def _examine(self, store: Store, topic_id: TopicId, *, has_pending: bool) -> None:
        """Look at a topic that has changed, watched or not; its newest records may be pending."""
        topic = self._topics.get(topic_id)
        state = store.topic_of(topic_id)
        if topic is None:
            if state is not None and not is_reserved_name(state.name) and self._patterns.matches(state.name):
                store.parts.pending.apply()
                self._join(WatchedTopic(state, _FIRST))
        elif state is None:
            self._leave(store, topic)
        elif has_pending or topic.next_seq < state.next_seq:
            self.put_back(topic)

    def _examine_all(self, store: Store) -> None:
        """Look at every topic."""
        catalog = store.catalog
        self.topics_examined += len(catalog)
        for topic in list(self._topics.values()):
            if catalog.find(topic.topic_id) is None:
                self._leave(store, topic)
            elif topic.next_seq < topic.state.next_seq:
                self.put_back(topic)
        for state in catalog.shown():
            if state.topic_id not in self._topics and self._patterns.matches(state.name):
                self._join(WatchedTopic(state, _FIRST))

    def _leave(self, store: Store, topic: WatchedTopic) -> None:
        """Remove a topic that was deleted, or replace it by the one that was created again under its name.

        A topic is looked at before the later ones of its name: their ids are higher.
        """
        self._topics.pop(topic.topic_id)
        self._ready.discard(topic.topic_id)
        state = store.catalog.find_named(topic.name)
        if state is not None:
            self._recreate(state)
        else:
            head = max(topic.next_seq, topic.state.next_seq)
            self._report(TopicEventKind.DELETED, topic.topic_id, topic.state.epoch, topic.next_seq, topic.name, head)

    def _recreate(self, state: TopicState) -> None:
        """Add a topic that was created again: what its new life has lost already is part of the reported gap."""
        self._join(WatchedTopic(state, state.floor), TopicEventKind.RECREATED)

    def _join(self, topic: WatchedTopic, kind: TopicEventKind = TopicEventKind.JOINED) -> None:
        if len(self._topics) >= limits.WATCH_TOPICS_MAX:
            raise LimitError(
                f"a watch of {self._patterns} would have more than {limits.WATCH_TOPICS_MAX} topics: watch fewer"
            )
        state = topic.state
        state.used_ns = self._clock.monotonic_ns()
        self._topics[topic.topic_id] = topic
        self._report(kind, topic.topic_id, state.epoch, topic.next_seq, topic.name, state.next_seq)
        if topic.next_seq < state.next_seq:
            self.put_back(topic)
        else:
            self._report_caught_up(topic)

    def _report_caught_up(self, topic: WatchedTopic) -> None:
        topic.is_behind = False
        self._report(TopicEventKind.CAUGHT_UP, topic.topic_id, topic.state.epoch, topic.next_seq, topic.name)

    def _report(
        self,
        kind: TopicEventKind,
        topic_id: TopicId,
        epoch: TopicEpoch,
        seq: Seq,
        name: str,
        end_seq: Seq | None = None,
    ) -> None:
        self._events.append(TopicEvent(kind, topic_id, epoch, seq, seq if end_seq is None else end_seq, name))
