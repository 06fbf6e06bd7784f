"""Checkers of the parts of a pod: ring writers, terms and fencing, collecting and reuse of slots, and progress.

`order_checks_log` describes checkers in general.
"""

from __future__ import annotations

from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History, Step
from seawall.testing.checkers.order_events import AckStatus, EntryKind, Role
from seawall.testing.checkers.order_state import OrderState, violated, walk

__all__ = [
    "check_i1",
    "check_i2",
    "check_i6",
    "check_i_collect",
    "check_i_wrap",
    "check_property_4",
    "check_property_5",
]

_UNDECIDED = (AckStatus.UNKNOWN, AckStatus.RETRY)


def check_property_4(history: History) -> None:
    """Fencing: entries of a superseded term or session never become part of the log."""
    name = "Property 4"
    for step, state in walk(history):
        match step.event:
            case events.TermGranted(term=term, start_position=start):
                if term <= state.term or start < state.committed:
                    violated(
                        name, f"the current term is {state.term}, with {state.committed} committed positions", step
                    )
            case events.Committed() as committed:
                _check_fences(step, committed, state)
            case events.SessionOpened(client=client, session_epoch=epoch) if epoch <= _session(state, client):
                violated(name, f"the client already has session {_session(state, client)}", step)
            case events.SessionJoined(client=client, session_epoch=epoch) if epoch != _session(state, client):
                violated(name, f"the open session of the client is {_session(state, client)}", step)
            case events.SessionFenced(client=client, session_epoch=epoch) if epoch >= _session(state, client):
                violated(name, f"the client has no session newer than {epoch}", step)


def _session(state: OrderState, client: int) -> int:
    known = state.clients.get(client)
    return 0 if known is None else known.session_epoch


def _check_fences(step: Step, committed: events.Committed, state: OrderState) -> None:
    entry = state.entries.get(committed.position)
    if entry is None:
        return
    ordered = entry.ordered
    terms = [granted.term for granted in state.terms if granted.start_position <= committed.position]
    if ordered.term != (terms[-1] if terms else 0):
        violated("Property 4", "the entry has a term that is not valid at this position", *entry.steps(), step)
    if ordered.kind is not EntryKind.BATCH or committed.status is not AckStatus.OK or ordered.session_epoch == 0:
        return
    opened = [each for each in state.sessions if each.client == ordered.client and each.position <= committed.position]
    if opened and opened[-1].session_epoch != ordered.session_epoch:
        violated(
            "Property 4",
            f"session {opened[-1].session_epoch} of the client is valid at this position",
            *entry.steps(),
            step,
        )


def check_property_5(history: History) -> None:
    """Progress: after the run has settled, each published slot has an entry and each live publisher its acks."""
    waiting: dict[tuple[int, int], Step] = {}
    for step, state in walk(history):
        match step.event:
            case events.Sent(client=client, client_seq=client_seq, ack_level=level) if level > 0:
                waiting[client, client_seq] = step
            case events.Answered(client=client, client_seq=client_seq, status=status, level=level):
                sent = waiting.get((client, client_seq))
                if sent is not None and status not in _UNDECIDED and _answers(sent, status, level):
                    del waiting[client, client_seq]
            case events.SessionFenced(client=client, session_epoch=epoch):
                waiting = {key: sent for key, sent in waiting.items() if not _belongs_to(sent, client, epoch)}
            case events.Crashed(role=Role.CLIENT, number=client):
                waiting = {key: sent for key, sent in waiting.items() if key[0] != client}
            case events.Settled():
                for slot, published in state.published.items():
                    if slot not in state.committed_slots:
                        violated("Property 5", "a slot was published but never ordered", published, step)
                for sent in waiting.values():
                    violated("Property 5", "a batch was sent but never answered", sent, step)


def _answers(sent: Step, status: AckStatus, level: int) -> bool:
    """True if this answers the request: a rejection does at any level."""
    assert isinstance(sent.event, events.Sent)
    return status is AckStatus.REJECTED or level >= sent.event.ack_level


def _belongs_to(sent: Step, client: int, epoch: int) -> bool:
    assert isinstance(sent.event, events.Sent)
    return (sent.event.client, sent.event.session_epoch) == (client, epoch)


def check_i1(history: History) -> None:
    """One writer: only its broker writes to a ring, slot by slot, each slot once."""
    for step, state in walk(history):
        match step.event:
            case (
                events.Claimed(broker=broker, writer=writer)
                | events.PayloadWritten(broker=broker, writer=writer)
                | events.Published(broker=broker, writer=writer)
            ) if writer != broker:
                violated("I1", f"broker {writer} wrote to the ring of broker {broker}", step)
            case events.Claimed(broker=broker, index=index) if index != state.claimed.get(broker, 0):
                violated("I1", f"the next slot of broker {broker} is {state.claimed.get(broker, 0)}", step)
            case events.Published(broker=broker, index=index) | events.PayloadWritten(broker=broker, index=index):
                before = state.published.get((broker, index))
                if before is not None:
                    violated("I1", "a published slot was written again", before, step)
                if index >= state.claimed.get(broker, 0):
                    violated("I1", "an unclaimed slot was written", step)


def check_i2(history: History) -> None:
    """No entry has a term that has not been granted."""
    for step, state in walk(history):
        if isinstance(step.event, events.Ordered) and step.event.term > state.term:
            violated("I2", f"the latest granted term is {state.term}", step)


def check_i6(history: History) -> None:
    """Publication: the sequencer sees a slot with the bytes that were published with it, and orders exactly those."""
    for step, state in walk(history):
        match step.event:
            case events.Collected(broker=broker, index=index, block=block):
                published = state.published.get((broker, index))
                payload = state.payloads.get((broker, index % history.shape.pbr_entries))
                if published is None:
                    violated("I6", "an unpublished slot was collected", step)
                # A free slot was ordered before a restart and is skipped; its bytes may have been reused.
                if index >= state.completed.get(broker, 0):
                    _check_payload(step, block, published, payload)
            case events.Ordered(kind=EntryKind.BATCH, broker=int(broker), index=int(index)) as ordered:
                published = state.published.get((broker, index))
                if published is None:
                    violated("I6", "an unpublished slot was ordered", step)
                batch = published.event
                assert isinstance(batch, events.Published)
                identity = (batch.client, batch.client_seq, batch.session_epoch, batch.order, batch.block)
                if identity != (
                    *(ordered.client, ordered.client_seq, ordered.session_epoch),
                    *(ordered.order, ordered.block),
                ):
                    violated("I6", "the ordered batch differs from the published batch", published, step)


def _check_payload(step: Step, block: int, published: Step, payload: Step | None) -> None:
    if payload is None or payload.number > published.number:
        violated("I6", "the slot was published before its bytes were written", published, step)
    slot, written = published.event, payload.event
    assert isinstance(slot, events.Published)
    assert isinstance(written, events.PayloadWritten)
    if (written.index, written.block, slot.block) != (slot.index, block, block):
        violated("I6", "the bytes do not belong to the slot", payload, published, step)


def check_i_wrap(history: History) -> None:
    """Laps: no ring overwrites entries that are not durable; a slot is reused only after its entry is durable."""
    shape = history.shape
    for step, state in walk(history):
        match step.event:
            case events.Ordered(position=position) if position - state.durable >= shape.goi_entries:
                violated("I-WRAP", f"the order is a full lap ahead of the durable position {state.durable}", step)
            case events.Claimed(broker=broker, index=index):
                completed = state.completed.get(broker, 0)
                if index - completed >= shape.pbr_entries:
                    violated(
                        "I-WRAP", f"slot {index - shape.pbr_entries} is in use: only {completed} are completed", step
                    )
            case events.Completed(broker=broker, index=index):
                completed = state.completed.get(broker, 0)
                if index < completed:
                    violated("I-WRAP", f"completion went back from {completed}", step)
                for slot in range(completed, index):
                    position = state.committed_slots.get((broker, slot), state.durable)
                    if position >= state.durable:
                        violated("I-WRAP", f"slot {slot} was freed but its entry is not durable", step)


def check_i_collect(history: History) -> None:
    """Collecting: slots are collected in order, each gives one entry, and after a recovery those in use again."""
    cursors: dict[int, int] = {}
    unrestored = False
    filled: set[tuple[int | None, int | None]] = set()  # slots of dead brokers, which are not collected
    for step, state in walk(history):
        match step.event:
            case events.Recovered(warm=warm):
                cursors, unrestored = {}, warm
                filled = filled if warm else set()
            case events.CursorRestored(broker=broker, index=index):
                if index != state.completed.get(broker, 0):
                    violated("I-COLLECT", f"the ring has {state.completed.get(broker, 0)} completed slots", step)
                cursors[broker] = index
            case events.Collected(broker=broker, index=index) | events.GivenUp(broker=broker, index=index):
                if isinstance(step.event, events.GivenUp) and (broker, index) in state.published:
                    violated("I-COLLECT", "a published slot was given up", step)
                if unrestored and broker not in cursors:
                    violated("I-COLLECT", "a ring was collected before its cursor was restored", step)
                next_slot = cursors.get(broker, 0)
                while next_slot < index and (broker, next_slot) in filled:
                    next_slot += 1
                if index != next_slot:
                    violated("I-COLLECT", f"the next slot to collect is {next_slot}", step)
                cursors[broker] = index + 1
            case events.Ordered(kind=EntryKind.NOP, broker=broker, index=index):
                filled.add((broker, index))
            case events.Ordered(kind=EntryKind.BATCH, broker=int(broker), index=int(index)):
                if (broker, index) not in state.collected:
                    violated("I-COLLECT", "a slot was ordered without being collected", step)
            case events.Committed(position=position):
                _check_slot_has_one_entry(step, position, state)


def _check_slot_has_one_entry(step: Step, position: int, state: OrderState) -> None:
    entry = state.entries.get(position)
    if entry is None or entry.ordered.broker is None or entry.ordered.index is None:
        return
    before = state.committed_slots.get((entry.ordered.broker, entry.ordered.index))
    if before is not None and before != position:
        violated("I-COLLECT", f"the slot already has its entry at position {before}", *entry.steps(), step)
