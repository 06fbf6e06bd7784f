"""Checkers of the log itself: one order, grown in one direction, shown when it may be, and kept.

Each is a pure function over a history and raises `OrderingViolationError` at the first step that breaks its property.
`ordering_checkers` lists them all, docs/guarantees.md says what they mean to a user.
"""

from __future__ import annotations

from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History, Step
from seawall.testing.checkers.order_events import AckStatus, EntryKind, GapReason, ReadBy, ReadMode
from seawall.testing.checkers.order_state import Entry, OrderState, violated, walk

__all__ = ["check_i3", "check_i5", "check_i_vis", "check_property_1", "check_property_3"]

_STORED = (AckStatus.OK, AckStatus.DUPLICATE)


def check_property_1(history: History) -> None:
    """Total order: a position has one entry, a batch one position, a seq one record, and everybody sees the same."""
    readers: dict[int, Step] = {}
    gaps_seen: dict[int, int] = {}
    for step, state in walk(history):
        match step.event:
            case events.Committed() as committed:
                _check_commit(step, committed, state)
            case events.BatchSeen(reader=reader) as seen:
                _check_content(step, seen, state)
                if reader in readers:
                    _check_progress(step, seen, readers[reader], gaps_seen.pop(reader, 0), state)
                readers[reader] = step
            case events.GapSeen(reader=reader, last_seq=last):
                gaps_seen[reader] = max(gaps_seen.get(reader, 0), last)
            case events.Answered() as answered:
                _check_answer(step, answered, state)


def _check_commit(step: Step, committed: events.Committed, state: OrderState) -> None:
    name, position = "Property 1", committed.position
    before = state.ever_committed.get(position)
    if before is not None:
        violated(name, f"position {position} is committed twice", *before.steps(), step)
    entry = state.entries.get(position)
    if entry is None:
        violated(name, f"nothing was ordered at position {position}", step)
    if entry.ordered.kind is not EntryKind.BATCH or committed.status is not AckStatus.OK:
        if committed.base_seq or committed.records:
            violated(name, f"position {position} stores no batch and got seqs", *entry.steps(), step)
        return
    ordered = entry.ordered
    original = state.stored(ordered.client, ordered.client_seq)
    if original is not None:
        violated(name, "one batch is stored at two positions", *original.steps(), *entry.steps(), step)
    sent = state.sent.get((ordered.client, ordered.client_seq))
    if sent is not None and not _is_sent(sent, ordered, committed):
        violated(name, "what is stored is not what was sent", sent, *entry.steps(), step)
    expected = state.next_seqs.get(committed.topic, 1)
    if committed.base_seq < expected or committed.records < 1:
        violated(name, f"seqs of topic {committed.topic} below {expected} are given twice", *entry.steps(), step)
    if committed.base_seq > expected:
        violated(name, f"seq {expected} of topic {committed.topic} is neither given nor in a gap", step)


def _is_sent(sent: Step, ordered: events.Ordered, committed: events.Committed) -> bool:
    batch = sent.event
    assert isinstance(batch, events.Sent)
    stored = (ordered.block, ordered.order, committed.topic, committed.records)
    return (batch.block, batch.order, batch.topic, batch.records) == stored


def _check_content(step: Step, seen: events.BatchSeen, state: OrderState) -> None:
    """What was seen is what stands there; that it stands there at all is I-VIS."""
    entry = state.standing(seen.position)
    if entry is None or entry.committed is None:
        return
    ordered, committed = entry.ordered, entry.committed
    stands = (committed.topic, committed.base_seq, committed.records, ordered.client, ordered.client_seq, ordered.block)
    if not entry.stored or stands != (
        *(seen.topic, seen.base_seq, seen.records),
        *(seen.client, seen.client_seq, seen.block),
    ):
        violated("Property 1", f"reader {seen.reader} saw something else than what was ordered", *entry.steps(), step)


def _check_progress(step: Step, seen: events.BatchSeen, before: Step, gap_seen: int, state: OrderState) -> None:
    last = before.event
    assert isinstance(last, events.BatchSeen)
    if seen.position <= last.position:
        violated("Property 1", f"reader {seen.reader} went back from position {last.position}", before, step)
    if seen.by is ReadBy.TOPIC:
        if seen.base_seq > max(last.base_seq + last.records - 1, gap_seen) + 1:
            violated("Property 1", f"reader {seen.reader} passed over seqs in silence", before, step)
        return
    for missed in state.between(last.position + 1, seen.position):
        if missed.committed is not None and missed.stored:
            if state.in_gap(missed.committed.topic, missed.seqs):
                continue
            reason = f"reader {seen.reader} passed over position {missed.ordered.position}"
            violated("Property 1", reason, *missed.steps(), step)


def _check_answer(step: Step, answered: events.Answered, state: OrderState) -> None:
    entry = state.stored(answered.client, answered.client_seq)
    if answered.status not in _STORED or answered.position is None or entry is None:
        return
    if (answered.position, answered.base_seq) != (entry.ordered.position, entry.seqs.start):
        violated("Property 1", "an answer tells other numbers than the batch has", *entry.steps(), step)


def check_property_3(history: History) -> None:
    """Durability: what was answered at level 2 is durable then and stands ever after; what is lost is in a gap."""
    acked: dict[int, Step] = {}
    state = OrderState(history.shape)
    for step, state in walk(history):
        match step.event:
            case events.Answered(level=2, status=status) as answered if status in _STORED:
                entry = state.stored(answered.client, answered.client_seq)
                if entry is None:
                    violated("Property 3", "a batch that is not stored was called durable", step)
                if entry.ordered.position >= state.durable:
                    violated("Property 3", f"only {state.durable} positions were durable", *entry.steps(), step)
                acked.setdefault(entry.ordered.position, step)
            case events.Recovered() as recovered:
                _check_loss(step, recovered, acked, state)
    _check_gaps(state, state.committed)


def _check_loss(step: Step, recovered: events.Recovered, acked: dict[int, Step], state: OrderState) -> None:
    for lost in state.lost_by(recovered.kept):
        position = lost.ordered.position
        if position in acked:
            violated("Property 3", "a batch that was called durable is lost", *lost.steps(), acked[position], step)
        # A NOP brings nothing that could be lost, and nobody waits for it to be on disk.
        if position < state.durable and lost.ordered.kind is not EntryKind.NOP:
            violated("Property 3", f"position {position} was durable and is lost", *lost.steps(), step)
        if lost.committed is not None and not state.in_gap(lost.committed.topic, lost.seqs, GapReason.CRASH):
            violated("Property 3", "a batch is lost and its seqs are in no gap", *lost.steps(), step)
    _check_gaps(state, recovered.kept)


def _check_gaps(state: OrderState, kept: int) -> None:
    """No gap of a crash lies over a batch that stands below `kept`."""
    given = {topic for topic, gaps in state.gaps.items() if gaps}
    for position, entry in state.entries.items():
        if entry.committed is None or position >= kept or entry.committed.topic not in given:
            continue
        for gap in state.gaps[entry.committed.topic]:
            _check_gap(gap, entry)


def _check_gap(step: Step, entry: Entry) -> None:
    gap, seqs = step.event, entry.seqs
    assert isinstance(gap, events.GapDeclared)
    if gap.reason is GapReason.CRASH and gap.first_seq < seqs.stop and seqs.start <= gap.last_seq:
        violated("Property 3", "a batch that stands was declared lost", *entry.steps(), step)


def check_i3(history: History) -> None:
    """Growth: positions are committed one after the other, frontiers never go back, and none is used again."""
    for step, state in walk(history):
        match step.event:
            case events.Committed(position=position) if position != state.committed:
                violated("I3", f"position {position} is committed where {state.committed} is next", step)
            case events.DurableAdvanced(position=position) if position < state.durable:
                violated("I3", f"durable went back from {state.durable}", step)
            case events.Recovered(next_position=following) if following < state.committed:
                violated("I3", f"positions below {state.committed} were given already", step)
            case events.Recovered(warm=True, kept=kept) if kept != state.committed:
                violated("I3", f"a warm recovery keeps all of {state.committed} positions", step)


def check_i5(history: History) -> None:
    """Copies: durable is what every member of the view has, and enough members at that."""
    needed = history.shape.copies_needed
    for step, state in walk(history):
        match step.event:
            case events.DurableAdvanced(position=position):
                having = _copies(state, position)
                if len(state.members) < needed or having < len(state.members):
                    violated("I5", f"{having} of {len(state.members)} members had it, {needed} are needed", step)
            case events.Answered(level=2, status=status) as answered if status in _STORED:
                entry = state.stored(answered.client, answered.client_seq)
                if entry is not None and _copies(state, entry.ordered.position + 1) < needed:
                    violated("I5", f"fewer than {needed} members had the batch", *entry.steps(), step)


def _copies(state: OrderState, position: int) -> int:
    """The members that have everything below a position."""
    return sum(state.replicas.get(member, 0) >= position for member in state.members)


def check_i_vis(history: History) -> None:
    """Visibility: nobody sees, copies or answers for what the frontier has not passed."""
    for step, state in walk(history):
        match step.event:
            case events.BatchSeen(position=position, mode=mode) | events.SkipSeen(position=position, mode=mode):
                if state.standing(position) is None:
                    violated("I-VIS", f"nothing is committed at position {position}", step)
                if mode is ReadMode.DURABLE and position >= state.durable:
                    violated("I-VIS", f"only {state.durable} positions were durable", step)
            case events.ReplicaDurable(position=position) | events.DurableAdvanced(position=position):
                if position > state.committed:
                    violated("I-VIS", f"only {state.committed} positions were committed", step)
            case events.Answered(status=status) as answered if status in _STORED:
                _check_answer_visible(step, answered, state)


def _check_answer_visible(step: Step, answered: events.Answered, state: OrderState) -> None:
    if state.stored(answered.client, answered.client_seq) is not None:
        return
    sent = state.sent.get((answered.client, answered.client_seq))
    on_arrival = sent is not None and isinstance(sent.event, events.Sent) and sent.event.order == 0
    if not on_arrival or answered.level != 1 or answered.position is not None:
        violated("I-VIS", "a batch was answered for that is not committed", step)
    arrived = (each.event for each in state.published.values() if isinstance(each.event, events.Published))
    if not any((each.client, each.client_seq) == (answered.client, answered.client_seq) for each in arrived):
        violated("I-VIS", "a batch of order 0 was answered for that is in no ring", step)
