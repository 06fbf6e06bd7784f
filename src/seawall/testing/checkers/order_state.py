"""The state of a pod according to its history, step by step, for the ordering checkers.

`walk` yields each step with the state right before it. The state accepts every event as recorded, right or wrong; the
checkers compare each event with the state before it.

*Live* entries are committed and not lost: a cold recovery removes the committed entries from `kept` on, and their
client seqs are undecided again. `ever_committed` keeps every entry that was ever committed.

Callers of `walk` must not change the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NoReturn

from seawall.errors import InvariantError
from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History, PodShape, Step
from seawall.testing.checkers.order_events import AckStatus, EntryKind, GapReason

__all__ = ["Client", "Entry", "OrderState", "OrderingViolationError", "violated", "walk"]


class OrderingViolationError(InvariantError):
    """A history violates an ordering property; names the property, the reason, and the steps that show it."""

    def __init__(self, name: str, reason: str, steps: tuple[Step, ...]) -> None:
        super().__init__(name, "\n  ".join((reason, *map(str, steps))))
        self.reason = reason
        self.steps = steps


def violated(name: str, reason: str, *steps: Step) -> NoReturn:
    """Raise an `OrderingViolationError`, with its steps in order and without repetitions."""
    raise OrderingViolationError(name, reason, tuple(sorted(set(steps), key=lambda step: step.number)))


@dataclass(slots=True)
class Entry:
    """The entry at a position: as the sequencer wrote it, and as the frontier committed it."""

    ordered: events.Ordered
    ordered_at: int
    committed: events.Committed | None = None
    committed_at: int = -1

    @property
    def stored(self) -> bool:
        """True if it is a batch with seqs."""
        committed = self.committed
        return committed is not None and committed.status is AckStatus.OK and self.ordered.kind is EntryKind.BATCH

    @property
    def skips(self) -> bool:
        """True if it declares client seqs lost."""
        return self.ordered.kind is EntryKind.SKIP

    @property
    def seqs(self) -> range:
        """The seqs of its records."""
        committed = self.committed
        if committed is None or not self.stored:
            return range(0)
        return range(committed.base_seq, committed.base_seq + committed.records)

    @property
    def client_seqs(self) -> range:
        """The client seqs that it decides; a NOP decides none."""
        first = self.ordered.client_seq
        if self.skips:
            return range(first, first + self.ordered.skip_count)
        return range(first, first + 1) if self.ordered.kind is EntryKind.BATCH else range(0)

    def steps(self) -> tuple[Step, ...]:
        """The steps that ordered and committed it."""
        steps = (Step(self.ordered_at, self.ordered),)
        return steps if self.committed is None else (*steps, Step(self.committed_at, self.committed))


@dataclass(slots=True)
class Client:
    """The state of a publisher according to the live entries."""

    start_seq: int | None = None  #: None if it never opened a session
    session_epoch: int = 0
    decided: dict[int, int] = field(
        default_factory=dict
    )  #: client seq → position where it was stored, rejected or skipped
    next_expected: int = 0  #: lowest undecided client seq

    def decide(self, client_seqs: Iterable[int], position: int) -> None:
        """Record that client seqs are decided at a position; the first decision counts."""
        for client_seq in client_seqs:
            self.decided.setdefault(client_seq, position)
        while self.next_expected in self.decided:
            self.next_expected += 1

    def open(self, opened: events.SessionOpened) -> None:
        """Apply the opening of a session."""
        self.session_epoch = opened.session_epoch
        if self.start_seq is None:
            self.start_seq = self.next_expected = opened.start_seq
            self.decide((), opened.position)


@dataclass(slots=True)
class OrderState:
    """The state of a pod after some steps of a history."""

    shape: PodShape
    terms: list[events.TermGranted] = field(default_factory=list)
    entries: dict[int, Entry] = field(default_factory=dict)  #: by position: live, or written and not committed
    ever_committed: dict[int, Entry] = field(default_factory=dict)
    committed: int = 0
    durable: int = 0
    next_seqs: dict[int, int] = field(default_factory=dict)  #: by topic: above every assigned seq
    gaps: dict[int, list[Step]] = field(default_factory=dict)  #: by topic: the declared gaps
    clients: dict[int, Client] = field(default_factory=dict)
    sessions: list[events.SessionOpened] = field(default_factory=list)
    sent: dict[tuple[int, int], Step] = field(default_factory=dict)  #: by client and client seq: the latest one
    claimed: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    payloads: dict[tuple[int, int], Step] = field(default_factory=dict)  #: by broker and slot of its ring
    published: dict[tuple[int, int], Step] = field(default_factory=dict)  #: by broker and absolute index
    collected: set[tuple[int, int]] = field(default_factory=set)
    committed_slots: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  #: by broker and absolute index: position of the committed entry
    members: tuple[int, ...] = ()
    replicas: dict[int, int] = field(default_factory=dict)

    @property
    def term(self) -> int:
        """The latest term; 0 before the first."""
        return self.terms[-1].term if self.terms else 0

    def live_entry(self, position: int) -> Entry | None:
        """The live entry at a position, or None."""
        entry = self.entries.get(position)
        return entry if entry is not None and entry.committed is not None else None

    def stored(self, client: int, client_seq: int) -> Entry | None:
        """The live entry that stores a batch, or None."""
        entry = self._decision(client, client_seq)
        return entry if entry is not None and entry.stored else None

    def skipped(self, client: int, client_seq: int) -> Entry | None:
        """The live SKIP of a client seq, or None."""
        entry = self._decision(client, client_seq)
        return entry if entry is not None and entry.skips else None

    def between(self, first: int, end: int) -> Iterator[Entry]:
        """The live entries at positions from `first` to below `end`, which may be far apart after a power loss."""
        positions = range(first, end)
        is_long = end - first > len(self.entries)
        for position in sorted(at for at in self.entries if first <= at < end) if is_long else positions:
            entry = self.live_entry(position)
            if entry is not None:
                yield entry

    def in_gap(self, topic: int, seqs: range, *reasons: GapReason) -> bool:
        """True if every seq is in a declared gap; with `reasons`, only gaps of these reasons count."""
        remaining = set(seqs)
        for step in self.gaps.get(topic, ()):
            gap = step.event
            assert isinstance(gap, events.GapDeclared)
            if not reasons or gap.reason in reasons:
                remaining.difference_update(range(max(gap.first_seq, seqs.start), min(gap.last_seq + 1, seqs.stop)))
        return not remaining

    def lost_by(self, kept: int) -> list[Entry]:
        """The live entries that a recovery to `kept` loses."""
        return [entry for at, entry in sorted(self.entries.items()) if at >= kept and entry.committed is not None]

    def _decision(self, client: int, client_seq: int) -> Entry | None:
        known = self.clients.get(client)
        position = None if known is None else known.decided.get(client_seq)
        return None if position is None else self.live_entry(position)

    # --- applying events ----------------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Apply an event."""
        handler = _HANDLERS.get(type(step.event))
        if handler is not None:
            handler(self, step)

    def _apply_to_rings(self, step: Step) -> None:
        match step.event:
            case events.Claimed(broker=broker, index=index):
                self.claimed[broker] = max(self.claimed.get(broker, 0), index + 1)
            case events.PayloadWritten(broker=broker, index=index):
                self.payloads[broker, index % self.shape.pbr_entries] = step
            case events.Published(broker=broker, index=index):
                self.published[broker, index] = step
            case events.Collected(broker=broker, index=index):
                self.collected.add((broker, index))
            case events.Completed(broker=broker, index=index):
                self.completed[broker] = max(self.completed.get(broker, 0), index)

    def _apply_to_order(self, step: Step) -> None:
        match step.event:
            case events.TermGranted() as granted:
                self.terms.append(granted)
            case events.Ordered(position=position) as ordered:
                if self.live_entry(position) is None:
                    self.entries[position] = Entry(ordered, step.number)
            case events.Committed(position=position) as committed:
                self.committed = max(self.committed, position + 1)
                entry = self.entries.get(position)
                if entry is not None and entry.committed is None:
                    entry.committed, entry.committed_at = committed, step.number
                    self._commit(entry)

    def _apply_to_rest(self, step: Step) -> None:
        match step.event:
            case events.Sent() as sent:
                self.sent[sent.client, sent.client_seq] = step
            case events.SessionOpened() as opened:
                self.sessions.append(opened)
                self.clients.setdefault(opened.client, Client()).open(opened)
            case events.ViewChanged(members=members):
                self.members = members
            case events.ReplicaDurable(replica=replica, position=position):
                self.replicas[replica] = position
            case events.DurableAdvanced(position=position):
                self.durable = max(self.durable, position)
            case events.GapDeclared(topic=topic, last_seq=last):
                self.gaps.setdefault(topic, []).append(step)
                self.next_seqs[topic] = max(self.next_seqs.get(topic, 1), last + 1)
            case events.Recovered() as recovered:
                self._recover(recovered)

    def _commit(self, entry: Entry) -> None:
        ordered, committed = entry.ordered, entry.committed
        assert committed is not None
        self.ever_committed.setdefault(ordered.position, entry)
        if entry.stored:
            topic = committed.topic
            self.next_seqs[topic] = max(self.next_seqs.get(topic, 1), entry.seqs.stop)
        if ordered.broker is not None and ordered.index is not None:
            self.committed_slots.setdefault((ordered.broker, ordered.index), ordered.position)
        self.clients.setdefault(ordered.client, Client()).decide(entry.client_seqs, ordered.position)

    def _recover(self, recovered: events.Recovered) -> None:
        """Remove the lost state: uncommitted entries; on a cold start also the rings and all entries from `kept` on."""
        self.committed = max(self.committed, recovered.next_position)
        self.entries = {at: entry for at, entry in self.entries.items() if entry.committed and at < recovered.kept}
        if recovered.warm:
            return
        self.durable = max(self.durable, recovered.next_position)
        for ring in (self.claimed, self.completed, self.payloads, self.published, self.collected, self.committed_slots):
            ring.clear()
        self.clients = {}
        self.sessions = [opened for opened in self.sessions if opened.position < recovered.kept]
        for opened in self.sessions:
            self.clients.setdefault(opened.client, Client()).open(opened)
        for position, entry in sorted(self.entries.items()):
            self.clients.setdefault(entry.ordered.client, Client()).decide(entry.client_seqs, position)


#: The handler of each event that changes the state.
_HANDLERS: Final[dict[type[events.OrderEvent], Callable[[OrderState, Step], None]]] = {
    **dict.fromkeys(
        (events.Claimed, events.PayloadWritten, events.Published, events.Collected, events.Completed),
        OrderState._apply_to_rings,
    ),
    **dict.fromkeys((events.TermGranted, events.Ordered, events.Committed), OrderState._apply_to_order),
    **dict.fromkeys(
        (
            *(events.Sent, events.SessionOpened, events.ViewChanged, events.ReplicaDurable, events.DurableAdvanced),
            *(events.GapDeclared, events.Recovered),
        ),
        OrderState._apply_to_rest,
    ),
}


def walk(history: History) -> Iterator[tuple[Step, OrderState]]:
    """Yield each step of a history with the state right before it."""
    state = OrderState(history.shape)
    for step in history:
        yield step, state
        state.apply(step)
