"""The store of a simulated pod: applies the order, executes ordered changes, and keeps the client rows.

It is the owner of the sequencer (`pod_sequencer.RecoveryOwner`) and outlives it: a sequencer that starts in the same
fabric asks it for the effects of earlier CONTROL entries. Only a power loss ends it.

A change waits under the position of its CONTROL entry. If the entry was lost with a sequencer, the change may be
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

__all__ = ["Change", "PodOwner", "kept_position"]

REPLICA = 0


def kept_position(store: Store) -> Position:
    """The end of the positions that a store found in its log when it was opened after a crash."""
    return Position(max(0, (store.controls.began_at or 0) - POSITION_JUMP))


@dataclass(slots=True)
class Change:
    """One requested change: its effect on the store, and a callback with its success."""

    text: str
    execute: Callable[[Store], None]
    on_done: Callable[[bool], None]
    topic_id: TopicId | None = None  #: the topic that it changes, for the order
    session: OpenedSession | None = None
    after_gap_ns: int = 0
    next_expected: int = 0  #: next expected seq of the client, once the session is ordered
    creates: TopicNumbers | None = None  #: set by its execution
    deletes: TopicId | None = None


class PodOwner:
    """The store, its applier, and the ordered changes."""

    def __init__(self, store: Store, fabric: FabricArrays, clock: SimClock, blog_size: int) -> None:
        self.store = store
        self.applier = Applier(store.parts, store.maintenance, goi_entries=len(fabric.goi), blog_size=blog_size)
        self.frontier = store.parts.writer.frontier
        self._fabric = fabric
        self._clock = clock
        #: Changes by the position of their entry: ordered, and executed.
        self.changes: dict[int, Change] = {}
        self.executed: dict[int, Change] = {}
        self._rows = StoredClientRows(store.sessions)
        #: For the sequencer: client rows that no worker has in memory.
        self.load, self.save = self._rows.load, self._rows.save

    # --- the replica ---------------------------------------------------------------------------------------------

    def apply_committed(self) -> int:
        """Write committed entries to the log, as many as fit one commit; return their number."""
        fabric, first = self._fabric, self.applier.next_position
        self.note_term()
        committed = load_acquire_u64(fabric.control_words, records.CONTROL_COMMITTED)
        count = max(0, committed - first)
        return self.applier.apply(fabric.goi, fabric.side, first, count, fabric.blog_all_bytes).count

    def note_term(self) -> None:
        """Log the current term, if it is new."""
        term = load_acquire_u64(self._fabric.control_words, records.CONTROL_TERM)
        if term > self.applier.term:
            self.applier.begin_term(Term(term))

    def report_durable(self) -> None:
        """Publish the durable position of the replica in the fabric."""
        vector = self._fabric.replica_words[REPLICA]
        store_release_u64(vector, records.REPLICA_DURABLE, self.applier.next_position)
        if self.applier.next_position >= load_acquire_u64(self._fabric.control_words, records.CONTROL_COMMITTED):
            self._rows.forget()

    # --- the owner of the sequencer ------------------------------------------------------------------------------

    def execute(self, position: Position) -> None:
        """Execute the change at a position; after a restart, repeat only its effect on the frontier."""
        if position < self.applier.next_position:
            self.repeat_for_topics(position)
            self.frontier.number_control(self._clock.wall_ns())
            return
        while self.apply_committed():
            pass
        change = self.changes.pop(position, None)
        if change is not None:
            self.executed[position] = change
        with self.applier.at(position):
            if change is not None:
                self._execute(change)
        self.report_durable()

    def _execute(self, change: Change) -> None:
        try:
            change.execute(self.store)
        except SeawallError:
            change.deletes = change.creates = change.session = None
            change.on_done(False)
        else:
            change.on_done(True)

    def raise_ceilings(self) -> None:
        """Raise the seq ceilings and make them durable."""
        self.applier.ensure_ceilings()

    def repeat_for_topics(self, position: Position) -> None:
        """Repeat the effect of the CONTROL entry at a position on the topics of the frontier."""
        change = self.executed.get(position)
        if change is None:
            return
        if change.creates is not None:
            self.frontier.add_topic(change.creates)
        if change.deletes is not None:
            self.frontier.remove_topic(change.deletes)

    def opened_at(self, position: Position) -> OpenedSession | None:
        """The session that the CONTROL entry at a position opened, or None."""
        change = self.executed.get(position)
        return None if change is None else change.session

    def offset_after(self, topic_id: TopicId, _position: Position) -> Offset:
        """The end offset of the durable batches of a topic."""
        topic = self.store.catalog.find(topic_id)
        return Offset(0) if topic is None else topic.end_offset

    def forget_changes(self, start: int) -> list[Change]:
        """Remove and return the changes whose entries a new sequencer did not find."""
        return [self.changes.pop(position) for position in sorted(self.changes) if position >= start]
