"""The store beside a simulated pod: it follows the order, makes the changes that were ordered, and knows the clients.

It is the owner of the sequencer (`pod_sequencer.RecoveryOwner`), and outlives it: a sequencer that starts in the same
fabric asks it what the controls before it have done. It ends with the power only.

A change waits by the position of its CONTROL entry. One whose entry was lost with a sequencer is told so, and may be
ordered again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from seawall.core.types import Offset, Position, Term, TopicId
from seawall.engine.ordering.applier import Applier
from seawall.engine.ordering.client_rows import StoredClientRows
from seawall.engine.store.opening import POSITION_JUMP
from seawall.engine.store.store import Store
from seawall.errors import SeawallError
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.kernels.runtime.atomics import load_acquire_u64, store_release_u64
from seawall.sequencer.frontier import TopicNumbers
from seawall.sequencer.pod_sequencer import OpenedSession
from seawall.testing.machine.clock import SimClock

__all__ = ["Change", "PodOwner", "kept_of"]

REPLICA = 0


def kept_of(store: Store) -> Position:
    """Positions below it were in the log when a store was opened, after an end that was not clean."""
    return Position(max(0, (store.controls.began_at or 0) - POSITION_JUMP))


@dataclass(slots=True)
class Change:
    """One change that somebody asked for: what it does to the store, and who is told."""

    text: str
    make: Callable[[Store], None]
    told: Callable[[bool], None]
    topic_id: TopicId | None = None  #: whose change it is, for the order
    session: OpenedSession | None = None
    after_gap_ns: int = 0
    next_expected: int = 0  #: of the session's client, once it is ordered
    creates: TopicNumbers | None = None  #: known once it is made
    deletes: TopicId | None = None


class PodOwner:
    """The store, its follower, and the changes that are ordered."""

    def __init__(self, store: Store, fabric: FabricArrays, clock: SimClock, blog_size: int) -> None:
        self.store = store
        self.applier = Applier(store.parts, store.maintenance, goi_entries=len(fabric.goi), blog_size=blog_size)
        self.frontier = store.parts.writer.frontier
        self._fabric = fabric
        self._clock = clock
        #: Changes by the position of their entry: to be made, and made.
        self.changes: dict[int, Change] = {}
        self.made: dict[int, Change] = {}
        self._rows = StoredClientRows(store.sessions)
        #: For the sequencer: rows of clients that no worker has.
        self.load, self.save = self._rows.load, self._rows.save

    # --- the replica ---------------------------------------------------------------------------------------------

    def follow(self) -> int:
        """Bring what is committed to the log, as much as one commit holds; how many entries."""
        fabric, first = self._fabric, self.applier.next_position
        self.note_term()
        committed = load_acquire_u64(fabric.control_words, records.CONTROL_COMMITTED)
        count = max(0, committed - first)
        return self.applier.follow(fabric.goi, fabric.side, first, count, fabric.blog_all_bytes).count

    def note_term(self) -> None:
        """Log the term that entries have now, if it is a new one."""
        term = load_acquire_u64(self._fabric.control_words, records.CONTROL_TERM)
        if term > self.applier.term:
            self.applier.begin_term(Term(term))

    def tell(self) -> None:
        """Say how much is on disk."""
        vector = self._fabric.replica_words[REPLICA]
        store_release_u64(vector, records.REPLICA_DURABLE, self.applier.next_position)
        if self.applier.next_position >= load_acquire_u64(self._fabric.control_words, records.CONTROL_COMMITTED):
            self._rows.forget()

    # --- the owner of the sequencer ------------------------------------------------------------------------------

    def execute(self, position: Position) -> None:
        """Make the change at a position; if that was done before the sequencer ended, only the frontier hears of it."""
        if position < self.applier.next_position:
            self.repeat_for_topics(position)
            self.frontier.number_control(self._clock.wall_ns())
            return
        while self.follow():
            pass
        change = self.changes.pop(position, None)
        if change is not None:
            self.made[position] = change
        with self.applier.at(position):
            if change is not None:
                self._make(change)
        self.tell()

    def _make(self, change: Change) -> None:
        try:
            change.make(self.store)
        except SeawallError:
            change.deletes = change.creates = change.session = None
            change.told(False)
        else:
            change.told(True)

    def raise_ceilings(self) -> None:
        """Make higher ceilings durable."""
        self.applier.ensure_ceilings()

    def repeat_for_topics(self, position: Position) -> None:
        """Change the topics of the frontier as the control at a position did."""
        change = self.made.get(position)
        if change is None:
            return
        if change.creates is not None:
            self.frontier.add_topic(change.creates)
        if change.deletes is not None:
            self.frontier.remove_topic(change.deletes)

    def opened_at(self, position: Position) -> OpenedSession | None:
        """The session that the control at a position opened."""
        change = self.made.get(position)
        return None if change is None else change.session

    def offset_after(self, topic_id: TopicId, _position: Position) -> Offset:
        """Behind the last batch of a topic that is durable."""
        topic = self.store.catalog.find(topic_id)
        return Offset(0) if topic is None else topic.end_offset

    def forget_changes(self, start: int) -> list[Change]:
        """Take back the changes whose entries a new sequencer did not find."""
        return [self.changes.pop(position) for position in sorted(self.changes) if position >= start]
