"""Checkers of the pod's parts: who writes where, which term counts, when a slot is taken and used again, and progress.

See `order_checks_log` for what a checker is.
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
    """Fencing: nothing of a term or session that was superseded becomes part of the log."""
    name = "Property 4"
    for step, state in walk(history):
        match step.event:
            case events.TermGranted(term=term, start_position=start):
                if term <= state.term or start < state.committed:
                    violated(name, f"term {state.term} stands, with {state.committed} positions committed", step)
            case events.Committed() as committed:
                _check_fences(step, committed, state)
            case events.SessionOpened(client=client, session_epoch=epoch) if epoch <= _session(state, client):
                violated(name, f"session {_session(state, client)} of the client is as new", step)
            case events.SessionJoined(client=client, session_epoch=epoch) if epoch != _session(state, client):
                violated(name, f"session {_session(state, client)} of the client is the open one", step)
            case events.SessionFenced(client=client, session_epoch=epoch) if epoch >= _session(state, client):
                violated(name, f"no session of the client is newer than {epoch}", step)


def _session(state: OrderState, client: int) -> int:
    known = state.clients.get(client)
    return 0 if known is None else known.session_epoch


def _check_fences(step: Step, committed: events.Committed, state: OrderState) -> None:
    entry = state.entries.get(committed.position)
    if entry is None:
        return
    ordered = entry.ordered
    ruling = [granted.term for granted in state.terms if granted.start_position <= committed.position]
    if ordered.term != (ruling[-1] if ruling else 0):
        violated("Property 4", "the entry is of a term that does not hold here", *entry.steps(), step)
    if ordered.kind is not EntryKind.BATCH or committed.status is not AckStatus.OK or ordered.session_epoch == 0:
        return
    opened = [each for each in state.sessions if each.client == ordered.client and each.position <= committed.position]
    if opened and opened[-1].session_epoch != ordered.session_epoch:
        violated("Property 4", f"session {opened[-1].session_epoch} is the client's own here", *entry.steps(), step)


def check_property_5(history: History) -> None:
    """Progress: once all is quiet, each published slot has its entry and each living publisher its answer."""
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
                waiting = {key: sent for key, sent in waiting.items() if not _is_of(sent, client, epoch)}
            case events.Crashed(role=Role.CLIENT, number=client):
                waiting = {key: sent for key, sent in waiting.items() if key[0] != client}
            case events.Settled():
                for slot, published in state.published.items():
                    if slot not in state.ended:
                        violated("Property 5", "a slot was published and never ordered", published, step)
                for sent in waiting.values():
                    violated("Property 5", "a batch was sent and never answered for", sent, step)


def _answers(sent: Step, status: AckStatus, level: int) -> bool:
    """Whether it is the answer that was asked for: a refusal is one at any level."""
    assert isinstance(sent.event, events.Sent)
    return status is AckStatus.REJECTED or level >= sent.event.ack_level


def _is_of(sent: Step, client: int, epoch: int) -> bool:
    assert isinstance(sent.event, events.Sent)
    return (sent.event.client, sent.event.session_epoch) == (client, epoch)


def check_i1(history: History) -> None:
    """One writer: only a broker writes to its ring, slot by slot, each once."""
    for step, state in walk(history):
        match step.event:
            case (
                events.Claimed(broker=broker, writer=writer)
                | events.PayloadWritten(broker=broker, writer=writer)
                | events.Published(broker=broker, writer=writer)
            ) if writer != broker:
                violated("I1", f"broker {writer} wrote to the ring of broker {broker}", step)
            case events.Claimed(broker=broker, index=index) if index != state.claimed.get(broker, 0):
                violated("I1", f"slot {state.claimed.get(broker, 0)} is the next of broker {broker}", step)
            case events.Published(broker=broker, index=index) | events.PayloadWritten(broker=broker, index=index):
                before = state.published.get((broker, index))
                if before is not None:
                    violated("I1", "a published slot was written again", before, step)
                if index >= state.claimed.get(broker, 0):
                    violated("I1", "a slot was written that is not claimed", step)


def check_i2(history: History) -> None:
    """No entry has a term that was not granted yet."""
    for step, state in walk(history):
        if isinstance(step.event, events.Ordered) and step.event.term > state.term:
            violated("I2", f"term {state.term} is the newest that was granted", step)


def check_i6(history: History) -> None:
    """Publication: whoever sees a slot sees the bytes that were published with it, and orders just that."""
    for step, state in walk(history):
        match step.event:
            case events.Collected(broker=broker, index=index, block=block):
                published = state.published.get((broker, index))
                payload = state.payloads.get((broker, index % history.shape.pbr_entries))
                if published is None:
                    violated("I6", "a slot was collected that is not published", step)
                # One that is free was ordered before a restart: it is passed over, and others may have its bytes.
                if index >= state.completed.get(broker, 0):
                    _check_payload(step, block, published, payload)
            case events.Ordered(kind=EntryKind.BATCH, broker=int(broker), index=int(index)) as ordered:
                published = state.published.get((broker, index))
                if published is None:
                    violated("I6", "a slot was ordered that is not published", step)
                said = published.event
                assert isinstance(said, events.Published)
                identity = (said.client, said.client_seq, said.session_epoch, said.order, said.block)
                if identity != (
                    *(ordered.client, ordered.client_seq, ordered.session_epoch),
                    *(ordered.order, ordered.block),
                ):
                    violated("I6", "what was ordered is not what was published", published, step)


def _check_payload(step: Step, block: int, published: Step, payload: Step | None) -> None:
    if payload is None or payload.number > published.number:
        violated("I6", "the bytes were not there when the slot was published", published, step)
    said, bytes_there = published.event, payload.event
    assert isinstance(said, events.Published)
    assert isinstance(bytes_there, events.PayloadWritten)
    if (bytes_there.index, bytes_there.block, said.block) != (said.index, block, block):
        violated("I6", "the bytes are not those of the slot", payload, published, step)


def check_i_wrap(history: History) -> None:
    """Laps: no ring overtakes what is not durable; a slot is used again only after its entry is."""
    shape = history.shape
    for step, state in walk(history):
        match step.event:
            case events.Ordered(position=position) if position - state.durable >= shape.goi_entries:
                violated("I-WRAP", f"the order is a lap ahead of durable, which is {state.durable}", step)
            case events.Claimed(broker=broker, index=index):
                completed = state.completed.get(broker, 0)
                if index - completed >= shape.pbr_entries:
                    violated("I-WRAP", f"slot {index - shape.pbr_entries} is in use: {completed} are completed", step)
            case events.Completed(broker=broker, index=index):
                completed = state.completed.get(broker, 0)
                if index < completed:
                    violated("I-WRAP", f"completion went back from {completed}", step)
                for slot in range(completed, index):
                    position = state.ended.get((broker, slot), state.durable)
                    if position >= state.durable:
                        violated("I-WRAP", f"slot {slot} was freed and its entry is not durable", step)


def check_i_collect(history: History) -> None:
    """Collecting: each slot is taken in turn, ends in one entry, and is taken again after a recovery if not free."""
    cursors: dict[int, int] = {}
    unrestored = False
    filled: set[tuple[int | None, int | None]] = set()  # slots of dead brokers, which nobody collects
    for step, state in walk(history):
        match step.event:
            case events.Recovered(warm=warm):
                cursors, unrestored = {}, warm
                filled = filled if warm else set()
            case events.CursorRestored(broker=broker, index=index):
                if index != state.completed.get(broker, 0):
                    violated("I-COLLECT", f"{state.completed.get(broker, 0)} slots of the ring are completed", step)
                cursors[broker] = index
            case events.Collected(broker=broker, index=index) | events.GivenUp(broker=broker, index=index):
                if isinstance(step.event, events.GivenUp) and (broker, index) in state.published:
                    violated("I-COLLECT", "a slot was given up that is published", step)
                if unrestored and broker not in cursors:
                    violated("I-COLLECT", "a ring was collected from before its cursor was restored", step)
                following = cursors.get(broker, 0)
                while following < index and (broker, following) in filled:
                    following += 1
                if index != following:
                    violated("I-COLLECT", f"slot {following} is the next to collect", step)
                cursors[broker] = index + 1
            case events.Ordered(kind=EntryKind.NOP, broker=broker, index=index):
                filled.add((broker, index))
            case events.Ordered(kind=EntryKind.BATCH, broker=int(broker), index=int(index)):
                if (broker, index) not in state.collected:
                    violated("I-COLLECT", "a slot was ordered that was not collected", step)
            case events.Committed(position=position):
                _check_slot_ends_once(step, position, state)


def _check_slot_ends_once(step: Step, position: int, state: OrderState) -> None:
    entry = state.entries.get(position)
    if entry is None or entry.ordered.broker is None or entry.ordered.index is None:
        return
    before = state.ended.get((entry.ordered.broker, entry.ordered.index))
    if before is not None and before != position:
        violated("I-COLLECT", f"the slot has its entry at position {before}", *entry.steps(), step)
