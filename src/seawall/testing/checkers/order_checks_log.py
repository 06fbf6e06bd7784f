"""Checkers of the log itself: total order, growth, visibility and durability.

Each checker is a pure function over a history and raises `OrderingViolationError` at the first step that violates its
property. `ordering_checkers` lists all of them; docs/guarantees.md explains them for users.
"""

from __future__ import annotations

from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History, Step
from seawall.testing.checkers.order_events import AckStatus, EntryKind, GapReason, ReadBy, ReadMode
from seawall.testing.checkers.order_state import Entry, OrderState, violated, walk

__all__ = ["check_i3", "check_i5", "check_i_vis", "check_property_1", "check_property_3"]

_STORED = (AckStatus.OK, AckStatus.DUPLICATE)


def check_property_1(history: History) -> None:
    """Total order: a position has one entry, a batch one position, a seq one record, and all readers see the same."""
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
        violated(name, f"position {position} was committed twice", *before.steps(), step)
    entry = state.entries.get(position)
    if entry is None:
        violated(name, f"nothing was ordered at position {position}", step)
    if entry.ordered.kind is not EntryKind.BATCH or committed.status is not AckStatus.OK:
        if committed.base_seq or committed.records:
            violated(name, f"position {position} stores no batch but has seqs", *entry.steps(), step)
        return
    ordered = entry.ordered
    original = state.stored(ordered.client, ordered.client_seq)
    if original is not None:
        violated(name, "a batch is stored at two positions", *original.steps(), *entry.steps(), step)
    sent = state.sent.get((ordered.client, ordered.client_seq))
    if sent is not None and not _is_sent(sent, ordered, committed):
        violated(name, "the stored batch differs from the sent batch", sent, *entry.steps(), step)
    expected = state.next_seqs.get(committed.topic, 1)
    if committed.base_seq < expected or committed.records < 1:
        violated(name, f"seqs of topic {committed.topic} below {expected} are assigned twice", *entry.steps(), step)
    if committed.base_seq > expected:
        violated(name, f"seq {expected} of topic {committed.topic} is neither assigned nor in a gap", step)


def _is_sent(sent: Step, ordered: events.Ordered, committed: events.Committed) -> bool:
    batch = sent.event
    assert isinstance(batch, events.Sent)
    stored = (ordered.block, ordered.order, committed.topic, committed.records)
    return (batch.block, batch.order, batch.topic, batch.records) == stored


def _check_content(step: Step, seen: events.BatchSeen, state: OrderState) -> None:
    """A reader sees the entry as committed; I-VIS checks that there is one."""
    entry = state.live_entry(seen.position)
    if entry is None or entry.committed is None:
        return
    ordered, committed = entry.ordered, entry.committed
    expected = (
        committed.topic,
        committed.base_seq,
        committed.records,
        ordered.client,
        ordered.client_seq,
        ordered.block,
    )
    if not entry.stored or expected != (
        *(seen.topic, seen.base_seq, seen.records),
        *(seen.client, seen.client_seq, seen.block),
    ):
        violated("Property 1", f"reader {seen.reader} saw another batch than was ordered", *entry.steps(), step)


def _check_progress(step: Step, seen: events.BatchSeen, before: Step, gap_seen: int, state: OrderState) -> None:
    last = before.event
    assert isinstance(last, events.BatchSeen)
    if seen.position <= last.position:
        violated("Property 1", f"reader {seen.reader} went back from position {last.position}", before, step)
    if seen.by is ReadBy.TOPIC:
        if seen.base_seq > max(last.base_seq + last.records - 1, gap_seen) + 1:
            violated("Property 1", f"reader {seen.reader} skipped seqs without a gap", before, step)
        return
    for missed in state.between(last.position + 1, seen.position):
        if missed.committed is not None and missed.stored:
            if state.in_gap(missed.committed.topic, missed.seqs):
                continue
            reason = f"reader {seen.reader} skipped position {missed.ordered.position}"
            violated("Property 1", reason, *missed.steps(), step)


def _check_answer(step: Step, answered: events.Answered, state: OrderState) -> None:
    entry = state.stored(answered.client, answered.client_seq)
    if answered.status not in _STORED or answered.position is None or entry is None:
        return
    if (answered.position, answered.base_seq) != (entry.ordered.position, entry.seqs.start):
        violated("Property 1", "an ack has another position or base seq than the batch", *entry.steps(), step)


def check_property_3(history: History) -> None:
    """Durability: a batch acknowledged at level 2 is durable and never lost; lost batches are in a gap."""
    acked: dict[int, Step] = {}
    state = OrderState(history.shape)
    for step, state in walk(history):
        match step.event:
            case events.Answered(level=2, status=status) as answered if status in _STORED:
                entry = state.stored(answered.client, answered.client_seq)
                if entry is None:
                    violated("Property 3", "a batch was acknowledged as durable but is not stored", step)
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
            violated(
                "Property 3", "a batch that was acknowledged as durable is lost", *lost.steps(), acked[position], step
            )
        # A NOP stores nothing that could be lost.
        if position < state.durable and lost.ordered.kind is not EntryKind.NOP:
            violated("Property 3", f"position {position} was durable but is lost", *lost.steps(), step)
        if lost.committed is not None and not state.in_gap(lost.committed.topic, lost.seqs, GapReason.CRASH):
            violated("Property 3", "a batch is lost but its seqs are in no gap", *lost.steps(), step)
    _check_gaps(state, recovered.kept)


def _check_gaps(state: OrderState, kept: int) -> None:
    """No crash gap covers a live batch below `kept`."""
    topics_with_gaps = {topic for topic, gaps in state.gaps.items() if gaps}
    for position, entry in state.entries.items():
        if entry.committed is None or position >= kept or entry.committed.topic not in topics_with_gaps:
            continue
        for gap in state.gaps[entry.committed.topic]:
            _check_gap(gap, entry)


def _check_gap(step: Step, entry: Entry) -> None:
    gap, seqs = step.event, entry.seqs
    assert isinstance(gap, events.GapDeclared)
    if gap.reason is GapReason.CRASH and gap.first_seq < seqs.stop and seqs.start <= gap.last_seq:
        violated("Property 3", "a live batch was declared lost", *entry.steps(), step)


def check_i3(history: History) -> None:
    """Growth: positions are committed in sequence, frontiers never go back, and no position is reused."""
    for step, state in walk(history):
        match step.event:
            case events.Committed(position=position) if position != state.committed:
                violated("I3", f"position {position} was committed, but {state.committed} is next", step)
            case events.DurableAdvanced(position=position) if position < state.durable:
                violated("I3", f"durable went back from {state.durable}", step)
            case events.Recovered(next_position=next_position) if next_position < state.committed:
                violated("I3", f"positions below {state.committed} were already assigned", step)
            case events.Recovered(warm=True, kept=kept) if kept != state.committed:
                violated("I3", f"a warm recovery must keep all {state.committed} positions", step)


def check_i5(history: History) -> None:
    """Copies: a durable position is stored by every member of the view, and the view has enough members."""
    needed = history.shape.copies_needed
    for step, state in walk(history):
        match step.event:
            case events.DurableAdvanced(position=position):
                copies = _copies(state, position)
                if len(state.members) < needed or copies < len(state.members):
                    violated("I5", f"{copies} of {len(state.members)} members stored it, {needed} are needed", step)
            case events.Answered(level=2, status=status) as answered if status in _STORED:
                entry = state.stored(answered.client, answered.client_seq)
                if entry is not None and _copies(state, entry.ordered.position + 1) < needed:
                    violated("I5", f"fewer than {needed} members stored the batch", *entry.steps(), step)


def _copies(state: OrderState, position: int) -> int:
    """The number of members that store everything below a position."""
    return sum(state.replicas.get(member, 0) >= position for member in state.members)


def check_i_vis(history: History) -> None:
    """Visibility: no one reads, replicates or acknowledges an entry that the frontier has not passed."""
    for step, state in walk(history):
        match step.event:
            case events.BatchSeen(position=position, mode=mode) | events.SkipSeen(position=position, mode=mode):
                if state.live_entry(position) is None:
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
    acked_on_arrival = sent is not None and isinstance(sent.event, events.Sent) and sent.event.order == 0
    if not acked_on_arrival or answered.level != 1 or answered.position is not None:
        violated("I-VIS", "a batch was acknowledged that is not committed", step)
    arrived = (each.event for each in state.published.values() if isinstance(each.event, events.Published))
    if not any((each.client, each.client_seq) == (answered.client, answered.client_seq) for each in arrived):
        violated("I-VIS", "a batch of order 0 was acknowledged that is in no ring", step)
