"""What a history has come to, step by step: the state that ordering checkers compare the next event with.

`walk` gives each step with the state right before it. The state believes every event: it holds what was said, not what
is right, so a wrong event is judged by its checkers and the walk goes on from it.

*Standing* entries are those that are committed and not lost: a cold recovery takes the committed entries from `kept` on
away, and their client seqs are undecided again. Whatever was once committed stays in `ever_committed`.

What `walk` gives was changed by earlier events only. Whoever gets it must not change it.
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
    """A history breaks a property of the order: which one, why, and the steps that show it."""

    def __init__(self, name: str, reason: str, steps: tuple[Step, ...]) -> None:
        super().__init__(name, "\n  ".join((reason, *map(str, steps))))
        self.reason = reason
        self.steps = steps


def violated(name: str, reason: str, *steps: Step) -> NoReturn:
    """Raise that a property does not hold; the steps in the order of the history, each once."""
    raise OrderingViolationError(name, reason, tuple(sorted(set(steps), key=lambda step: step.number)))


@dataclass(slots=True)
class Entry:
    """What stands at a position: what the sequencer wrote, and what the frontier made of it."""

    ordered: events.Ordered
    ordered_at: int
    committed: events.Committed | None = None
    committed_at: int = -1

    @property
    def stored(self) -> bool:
        """Whether it is a batch with seqs."""
        said = self.committed
        return said is not None and said.status is AckStatus.OK and self.ordered.kind is EntryKind.BATCH

    @property
    def skips(self) -> bool:
        """Whether it declares client seqs lost."""
        return self.ordered.kind is EntryKind.SKIP

    @property
    def seqs(self) -> range:
        """The seqs it was given."""
        said = self.committed
        return range(said.base_seq, said.base_seq + said.records) if said is not None and self.stored else range(0)

    @property
    def client_seqs(self) -> range:
        """The client seqs it decides; a NOP decides none."""
        first = self.ordered.client_seq
        if self.skips:
            return range(first, first + self.ordered.skip_count)
        return range(first, first + 1) if self.ordered.kind is EntryKind.BATCH else range(0)

    def steps(self) -> tuple[Step, ...]:
        """The steps that made it."""
        made = (Step(self.ordered_at, self.ordered),)
        return made if self.committed is None else (*made, Step(self.committed_at, self.committed))


@dataclass(slots=True)
class Client:
    """What the standing entries say about a publisher."""

    start_seq: int | None = None  #: None: it never opened a session
    session_epoch: int = 0
    decided: dict[int, int] = field(default_factory=dict)  #: position by client seq: stored, refused or skipped
    next_expected: int = 0  #: lowest client seq that is not decided

    def decide(self, client_seqs: Iterable[int], position: int) -> None:
        """Some client seqs are decided at a position; the first decision counts."""
        for client_seq in client_seqs:
            self.decided.setdefault(client_seq, position)
        while self.next_expected in self.decided:
            self.next_expected += 1

    def open(self, opened: events.SessionOpened) -> None:
        """A session takes effect."""
        self.session_epoch = opened.session_epoch
        if self.start_seq is None:
            self.start_seq = self.next_expected = opened.start_seq
            self.decide((), opened.position)


@dataclass(slots=True)
class OrderState:
    """A pod, as a history tells it up to some step."""

    shape: PodShape
    terms: list[events.TermGranted] = field(default_factory=list)
    entries: dict[int, Entry] = field(default_factory=dict)  #: by position: standing, or written and not committed
    ever_committed: dict[int, Entry] = field(default_factory=dict)
    committed: int = 0
    durable: int = 0
    next_seqs: dict[int, int] = field(default_factory=dict)  #: by topic: above every seq ever given
    gaps: dict[int, list[Step]] = field(default_factory=dict)  #: by topic: what was declared
    clients: dict[int, Client] = field(default_factory=dict)
    sessions: list[events.SessionOpened] = field(default_factory=list)
    sent: dict[tuple[int, int], Step] = field(default_factory=dict)  #: by client and client seq: the latest
    claimed: dict[int, int] = field(default_factory=dict)
    completed: dict[int, int] = field(default_factory=dict)
    payloads: dict[tuple[int, int], Step] = field(default_factory=dict)  #: by broker and place in its ring
    published: dict[tuple[int, int], Step] = field(default_factory=dict)  #: by broker and absolute index
    collected: set[tuple[int, int]] = field(default_factory=set)
    ended: dict[tuple[int, int], int] = field(default_factory=dict)  #: position of the committed entry of a slot
    members: tuple[int, ...] = ()
    replicas: dict[int, int] = field(default_factory=dict)

    @property
    def term(self) -> int:
        """The newest term; 0 before the first."""
        return self.terms[-1].term if self.terms else 0

    def standing(self, position: int) -> Entry | None:
        """The committed entry at a position, if it is not lost."""
        entry = self.entries.get(position)
        return entry if entry is not None and entry.committed is not None else None

    def stored(self, client: int, client_seq: int) -> Entry | None:
        """The standing entry that stores a batch."""
        entry = self._decision(client, client_seq)
        return entry if entry is not None and entry.stored else None

    def skipped(self, client: int, client_seq: int) -> Entry | None:
        """The standing SKIP over a client seq."""
        entry = self._decision(client, client_seq)
        return entry if entry is not None and entry.skips else None

    def between(self, first: int, end: int) -> Iterator[Entry]:
        """The standing entries at positions from `first` to below `end`, which may be far apart after a power loss."""
        positions = range(first, end)
        is_long = end - first > len(self.entries)
        for position in sorted(at for at in self.entries if first <= at < end) if is_long else positions:
            entry = self.standing(position)
            if entry is not None:
                yield entry

    def in_gap(self, topic: int, seqs: range, *reasons: GapReason) -> bool:
        """Whether each of some seqs lies in a declared gap, of one of these reasons if any are named."""
        left = set(seqs)
        for step in self.gaps.get(topic, ()):
            gap = step.event
            assert isinstance(gap, events.GapDeclared)
            if not reasons or gap.reason in reasons:
                left.difference_update(range(max(gap.first_seq, seqs.start), min(gap.last_seq + 1, seqs.stop)))
        return not left

    def lost_by(self, kept: int) -> list[Entry]:
        """The standing entries that a recovery which keeps so much takes away."""
        return [entry for at, entry in sorted(self.entries.items()) if at >= kept and entry.committed is not None]

    def _decision(self, client: int, client_seq: int) -> Entry | None:
        known = self.clients.get(client)
        position = None if known is None else known.decided.get(client_seq)
        return None if position is None else self.standing(position)

    # --- the next event -----------------------------------------------------------------------------------------

    def apply(self, step: Step) -> None:
        """Take an event in."""
        take = _TAKES.get(type(step.event))
        if take is not None:
            take(self, step)

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
                if self.standing(position) is None:
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
            self.ended.setdefault((ordered.broker, ordered.index), ordered.position)
        self.clients.setdefault(ordered.client, Client()).decide(entry.client_seqs, ordered.position)

    def _recover(self, recovered: events.Recovered) -> None:
        """Forget what is lost: written and not committed, and on a cold start also the rings and what was not kept."""
        self.committed = max(self.committed, recovered.next_position)
        self.entries = {at: entry for at, entry in self.entries.items() if entry.committed and at < recovered.kept}
        if recovered.warm:
            return
        self.durable = max(self.durable, recovered.next_position)
        for ring in (self.claimed, self.completed, self.payloads, self.published, self.collected, self.ended):
            ring.clear()
        self.clients = {}
        self.sessions = [opened for opened in self.sessions if opened.position < recovered.kept]
        for opened in self.sessions:
            self.clients.setdefault(opened.client, Client()).open(opened)
        for position, entry in sorted(self.entries.items()):
            self.clients.setdefault(entry.ordered.client, Client()).decide(entry.client_seqs, position)


#: Which part of the state an event changes; the others change nothing.
_TAKES: Final[dict[type[events.OrderEvent], Callable[[OrderState, Step], None]]] = {
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
    """Each step of a history, with the state right before it."""
    state = OrderState(history.shape)
    for step in history:
        yield step, state
        state.apply(step)
