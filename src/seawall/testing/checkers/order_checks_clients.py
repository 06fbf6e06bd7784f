"""Checkers of what a publisher is promised: its own order where it asked for it, and loss that is declared.

Order 5 is meant wherever one batch waits for another. A batch is *decided* when it is stored, refused at its place, or
under a SKIP. See `order_checks_log` for what a checker is.
"""

from __future__ import annotations

from bisect import bisect_left

from seawall.testing.checkers import order_events as events
from seawall.testing.checkers.history import History, Step
from seawall.testing.checkers.order_events import AckStatus, EntryKind, ReadBy
from seawall.testing.checkers.order_state import Entry, OrderState, violated, walk

__all__ = ["check_i4", "check_i7", "check_i_client", "check_prop_skip", "check_property_2", "check_property_2b"]

_STORED = (AckStatus.OK, AckStatus.DUPLICATE)
_STRONG = 5


def _committing(step: Step, state: OrderState) -> Entry | None:
    """What the entry that a step commits becomes; None if nothing was ordered there, or it is committed already."""
    committed = step.event
    if not isinstance(committed, events.Committed):
        return None
    entry = state.entries.get(committed.position)
    if entry is None or entry.committed is not None:
        return None
    return Entry(entry.ordered, entry.ordered_at, committed, step.number)


def check_property_2(history: History) -> None:
    """Client order: a batch of order 5 is stored only when all its client sent before it is decided."""
    highest: dict[int, Entry] = {}
    for step, state in walk(history):
        if isinstance(step.event, events.Recovered):
            highest = _highest_stored(state, step.event.kept)
        entry = _committing(step, state)
        if entry is None or not entry.stored or entry.ordered.order != _STRONG:
            continue
        ordered, last = entry.ordered, highest.get(entry.ordered.client)
        if last is not None and ordered.client_seq <= last.ordered.client_seq:
            violated("Property 2", "a batch follows a later one of its client", *last.steps(), *entry.steps())
        client = state.clients.get(ordered.client)
        if client is not None and client.start_seq is not None and client.next_expected < ordered.client_seq:
            violated("Property 2", f"client seq {client.next_expected} is not decided yet", *entry.steps())
        highest[ordered.client] = entry


def _highest_stored(state: OrderState, kept: int) -> dict[int, Entry]:
    """The last standing batch of order 5 of each client, below a position."""
    strong = (entry for at, entry in sorted(state.entries.items()) if at < kept and entry.ordered.order == _STRONG)
    return {entry.ordered.client: entry for entry in strong if entry.stored}


def check_property_2b(history: History) -> None:
    """Declared loss: a lost client seq is under one SKIP, ahead of what it releases, and readers are told."""
    readers: dict[int, Step] = {}
    for step, state in walk(history):
        match step.event:
            case events.Committed():
                entry = _committing(step, state)
                if entry is not None and entry.skips:
                    _check_skip(entry, state)
            case events.SkipSeen() | events.BatchSeen() as seen:
                if isinstance(seen, events.SkipSeen):
                    _check_skip_seen(step, seen, state)
                if seen.reader in readers:
                    _check_passed(step, seen, readers[seen.reader], state)
                readers[seen.reader] = step


def _check_skip(entry: Entry, state: OrderState) -> None:
    ordered = entry.ordered
    if ordered.skip_count < 1 or ordered.index is not None:
        violated("Property 2b", "a SKIP covers at least one client seq, and no slot", *entry.steps())
    client = state.clients.get(ordered.client)
    for client_seq in entry.client_seqs:
        other = state.skipped(ordered.client, client_seq)
        if other is not None:
            violated("Property 2b", f"client seq {client_seq} is under two SKIPs", *other.steps(), *entry.steps())
    for client_seq in () if client is None else client.decided:
        stored = state.stored(ordered.client, client_seq) if client_seq >= entry.client_seqs.stop else None
        if stored is not None and stored.ordered.order == _STRONG:
            violated("Property 2b", "a batch was released before the SKIP", *stored.steps(), *entry.steps())


def _check_skip_seen(step: Step, seen: events.SkipSeen, state: OrderState) -> None:
    entry = state.standing(seen.position)
    if entry is None:
        return
    ordered = entry.ordered
    stands = (ordered.kind, ordered.client, ordered.client_seq, ordered.skip_count)
    if stands != (EntryKind.SKIP, seen.client, seen.client_seq, seen.skip_count):
        violated("Property 2b", "a reader was told of another SKIP than was ordered", *entry.steps(), step)


def _check_passed(step: Step, seen: events.SkipSeen | events.BatchSeen, before: Step, state: OrderState) -> None:
    """No SKIP that concerns the reader lies between what it saw last and now; batches that go back are Property 1."""
    last = before.event
    assert isinstance(last, events.SkipSeen | events.BatchSeen)
    if seen.position <= last.position and events.SkipSeen in (type(seen), type(last)):
        violated("Property 2b", f"reader {seen.reader} went back from position {last.position}", before, step)
    here = state.standing(seen.position)
    topic = None if here is None or here.committed is None else here.committed.topic
    for entry in state.between(last.position + 1, seen.position):
        if entry.committed is None or not entry.skips:
            continue
        if seen.by is ReadBy.POSITION or entry.committed.topic == topic:
            violated("Property 2b", f"reader {seen.reader} was not told of a SKIP", *entry.steps(), step)


def check_prop_skip(history: History) -> None:
    """A SKIP is for ever: what is under it is never stored, shown, or answered for as stored."""
    name = "PROP-SKIP"
    for step, state in walk(history):
        match step.event:
            case events.Committed():
                entry = _committing(step, state)
                if entry is not None:
                    _check_skip_or_batch(entry, state)
            case events.Answered(client=client, client_seq=client_seq, status=status) if status in _STORED:
                skip = state.skipped(client, client_seq)
                if skip is not None:
                    violated(name, f"client seq {client_seq} is skipped, and answered for", *skip.steps(), step)
            case events.BatchSeen(client=client, client_seq=client_seq, reader=reader):
                skip = state.skipped(client, client_seq)
                if skip is not None:
                    violated(name, f"client seq {client_seq} is skipped, reader {reader} saw it", *skip.steps(), step)


def _check_skip_or_batch(entry: Entry, state: OrderState) -> None:
    for client_seq in entry.client_seqs:
        look = state.stored if entry.skips else state.skipped
        other = look(entry.ordered.client, client_seq)
        if other is not None and (entry.skips or entry.stored):
            reason = f"client seq {client_seq} is both skipped and stored"
            violated("PROP-SKIP", reason, *other.steps(), *entry.steps())


def check_i4(history: History) -> None:
    """Entries of order 5 that the sequencer writes for one client have their positions in the client's order."""
    written: dict[int, list[tuple[int, Step]]] = {}
    for step, state in walk(history):
        match step.event:
            case events.Recovered(kept=kept):
                for entries in written.values():
                    entries[:] = [each for each in entries if each[0] < kept and state.standing(each[0])]
            case events.Ordered(kind=EntryKind.BATCH, order=5) as ordered:
                entries = written.setdefault(ordered.client, [])
                at = bisect_left(entries, ordered.position, key=_first)
                if at < len(entries) and entries[at][0] == ordered.position:
                    del entries[at]
                if at > 0 and _client_seq(entries[at - 1][1]) >= ordered.client_seq:
                    violated("I4", "a batch has its place behind a later one of its client", entries[at - 1][1], step)
                if at < len(entries) and _client_seq(entries[at][1]) <= ordered.client_seq:
                    violated("I4", "a batch has its place before an earlier one of its client", entries[at][1], step)
                entries.insert(at, (ordered.position, step))


def _first(entry: tuple[int, Step]) -> int:
    return entry[0]


def _client_seq(step: Step) -> int:
    assert isinstance(step.event, events.Ordered | events.BatchSeen)
    return step.event.client_seq


def check_i7(history: History) -> None:
    """Each reader sees the batches of order 5 of one client in the client's order."""
    seen_before: dict[tuple[int, int], list[tuple[int, Step]]] = {}
    for step, state in walk(history):
        match step.event:
            case events.Recovered(kept=kept):  # what was lost may be sent, stored and seen again
                for steps in seen_before.values():
                    steps[:] = [each for each in steps if each[0] < kept]
            case events.BatchSeen() as seen:
                sent = state.sent.get((seen.client, seen.client_seq))
                if sent is None or not isinstance(sent.event, events.Sent) or sent.event.order != _STRONG:
                    continue
                steps = seen_before.setdefault((seen.reader, seen.client), [])
                if steps and _client_seq(steps[-1][1]) >= seen.client_seq:
                    reason = f"reader {seen.reader} saw batches of a client in another order than its own"
                    violated("I7", reason, steps[-1][1], step)
                steps.append((seen.position, step))


def check_i_client(history: History) -> None:
    """After a recovery the sequencer knows of every client what the log says, before it orders for it again."""
    unrestored: set[int] = set()
    for step, state in walk(history):
        match step.event:
            case events.Recovered(kept=kept):
                unrestored = {opened.client for opened in state.sessions if opened.position < kept}
            case events.ClientRestored() as restored:
                client = state.clients.get(restored.client)
                if client is None or client.start_seq is None:
                    violated("I-CLIENT", "a client was restored that has no session", step)
                is_right = restored.next_expected == client.next_expected or _is_reopened(restored, state)
                if restored.session_epoch != client.session_epoch or not is_right:
                    reason = f"the log says session {client.session_epoch}, next expected {client.next_expected}"
                    violated("I-CLIENT", reason, step)
                unrestored.discard(restored.client)
            case events.Ordered(kind=EntryKind.BATCH, client=client_id) if client_id in unrestored:
                violated("I-CLIENT", f"client {client_id} was not restored before its batch was ordered", step)


def _is_reopened(restored: events.ClientRestored, state: OrderState) -> bool:
    """Whether the seq that is expected was refused: nothing of it is stored, so a restart may forget that."""
    client = state.clients[restored.client]
    position = client.decided.get(restored.next_expected)
    entry = None if position is None else state.standing(position)
    return entry is not None and not entry.stored and not entry.skips and restored.next_expected < client.next_expected
