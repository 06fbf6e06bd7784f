"""Checkers of the guarantees to publishers: client order for order 5, and declared loss.

Only batches of order 5 wait for each other. A batch is *decided* when it is stored, rejected at its position, or
covered by a SKIP. `order_checks_log` describes checkers in general.
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
    """The entry after the commit in this step; None if nothing was ordered there, or it was already committed."""
    committed = step.event
    if not isinstance(committed, events.Committed):
        return None
    entry = state.entries.get(committed.position)
    if entry is None or entry.committed is not None:
        return None
    return Entry(entry.ordered, entry.ordered_at, committed, step.number)


def check_property_2(history: History) -> None:
    """Client order: a batch of order 5 is stored only after all earlier batches of its client are decided."""
    highest: dict[int, Entry] = {}
    for step, state in walk(history):
        if isinstance(step.event, events.Recovered):
            highest = _highest_stored(state, step.event.kept)
        entry = _committing(step, state)
        if entry is None or not entry.stored or entry.ordered.order != _STRONG:
            continue
        ordered, last = entry.ordered, highest.get(entry.ordered.client)
        if last is not None and ordered.client_seq <= last.ordered.client_seq:
            violated("Property 2", "a batch was stored after a later one of its client", *last.steps(), *entry.steps())
        client = state.clients.get(ordered.client)
        if client is not None and client.start_seq is not None and client.next_expected < ordered.client_seq:
            violated("Property 2", f"client seq {client.next_expected} is undecided", *entry.steps())
        highest[ordered.client] = entry


def _highest_stored(state: OrderState, kept: int) -> dict[int, Entry]:
    """The last live batch of order 5 of each client, below a position."""
    strong = (entry for at, entry in sorted(state.entries.items()) if at < kept and entry.ordered.order == _STRONG)
    return {entry.ordered.client: entry for entry in strong if entry.stored}


def check_property_2b(history: History) -> None:
    """Declared loss: one SKIP covers a lost client seq, before the batches it releases, and readers see it."""
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
                    _check_no_skip_missed(step, seen, readers[seen.reader], state)
                readers[seen.reader] = step


def _check_skip(entry: Entry, state: OrderState) -> None:
    ordered = entry.ordered
    if ordered.skip_count < 1 or ordered.index is not None:
        violated("Property 2b", "a SKIP must cover at least one client seq and no slot", *entry.steps())
    client = state.clients.get(ordered.client)
    for client_seq in entry.client_seqs:
        other = state.skipped(ordered.client, client_seq)
        if other is not None:
            violated("Property 2b", f"two SKIPs cover client seq {client_seq}", *other.steps(), *entry.steps())
    for client_seq in () if client is None else client.decided:
        stored = state.stored(ordered.client, client_seq) if client_seq >= entry.client_seqs.stop else None
        if stored is not None and stored.ordered.order == _STRONG:
            violated("Property 2b", "a batch was released before the SKIP", *stored.steps(), *entry.steps())


def _check_skip_seen(step: Step, seen: events.SkipSeen, state: OrderState) -> None:
    entry = state.live_entry(seen.position)
    if entry is None:
        return
    ordered = entry.ordered
    expected = (ordered.kind, ordered.client, ordered.client_seq, ordered.skip_count)
    if expected != (EntryKind.SKIP, seen.client, seen.client_seq, seen.skip_count):
        violated("Property 2b", "a reader saw another SKIP than was ordered", *entry.steps(), step)


def _check_no_skip_missed(
    step: Step, seen: events.SkipSeen | events.BatchSeen, before: Step, state: OrderState
) -> None:
    """A reader misses no SKIP between its last event and this one; Property 1 checks batches that go back."""
    last = before.event
    assert isinstance(last, events.SkipSeen | events.BatchSeen)
    if seen.position <= last.position and events.SkipSeen in (type(seen), type(last)):
        violated("Property 2b", f"reader {seen.reader} went back from position {last.position}", before, step)
    current = state.live_entry(seen.position)
    topic = None if current is None or current.committed is None else current.committed.topic
    for entry in state.between(last.position + 1, seen.position):
        if entry.committed is None or not entry.skips:
            continue
        if seen.by is ReadBy.POSITION or entry.committed.topic == topic:
            violated("Property 2b", f"reader {seen.reader} missed a SKIP", *entry.steps(), step)


def check_prop_skip(history: History) -> None:
    """A SKIP is permanent: a skipped batch is never stored, read, or acknowledged as stored."""
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
                    violated(name, f"client seq {client_seq} is skipped but was acknowledged", *skip.steps(), step)
            case events.BatchSeen(client=client, client_seq=client_seq, reader=reader):
                skip = state.skipped(client, client_seq)
                if skip is not None:
                    violated(
                        name, f"client seq {client_seq} is skipped but reader {reader} saw it", *skip.steps(), step
                    )


def _check_skip_or_batch(entry: Entry, state: OrderState) -> None:
    for client_seq in entry.client_seqs:
        find = state.stored if entry.skips else state.skipped
        other = find(entry.ordered.client, client_seq)
        if other is not None and (entry.skips or entry.stored):
            reason = f"client seq {client_seq} is both skipped and stored"
            violated("PROP-SKIP", reason, *other.steps(), *entry.steps())


def check_i4(history: History) -> None:
    """The sequencer writes the order-5 entries of one client at positions in the client's order."""
    written: dict[int, list[tuple[int, Step]]] = {}
    for step, state in walk(history):
        match step.event:
            case events.Recovered(kept=kept):
                for entries in written.values():
                    entries[:] = [each for each in entries if each[0] < kept and state.live_entry(each[0])]
            case events.Ordered(kind=EntryKind.BATCH, order=5) as ordered:
                entries = written.setdefault(ordered.client, [])
                at = bisect_left(entries, ordered.position, key=_first)
                if at < len(entries) and entries[at][0] == ordered.position:
                    del entries[at]
                if at > 0 and _client_seq(entries[at - 1][1]) >= ordered.client_seq:
                    violated("I4", "a batch was ordered after a later one of its client", entries[at - 1][1], step)
                if at < len(entries) and _client_seq(entries[at][1]) <= ordered.client_seq:
                    violated("I4", "a batch was ordered before an earlier one of its client", entries[at][1], step)
                entries.insert(at, (ordered.position, step))


def _first(entry: tuple[int, Step]) -> int:
    return entry[0]


def _client_seq(step: Step) -> int:
    assert isinstance(step.event, events.Ordered | events.BatchSeen)
    return step.event.client_seq


def check_i7(history: History) -> None:
    """Each reader sees the order-5 batches of one client in the client's order."""
    seen_before: dict[tuple[int, int], list[tuple[int, Step]]] = {}
    for step, state in walk(history):
        match step.event:
            case events.Recovered(kept=kept):  # lost batches may be sent, stored and seen again
                for steps in seen_before.values():
                    steps[:] = [each for each in steps if each[0] < kept]
            case events.BatchSeen() as seen:
                sent = state.sent.get((seen.client, seen.client_seq))
                if sent is None or not isinstance(sent.event, events.Sent) or sent.event.order != _STRONG:
                    continue
                steps = seen_before.setdefault((seen.reader, seen.client), [])
                if steps and _client_seq(steps[-1][1]) >= seen.client_seq:
                    reason = f"reader {seen.reader} saw batches of a client out of order"
                    violated("I7", reason, steps[-1][1], step)
                steps.append((seen.position, step))


def check_i_client(history: History) -> None:
    """After a recovery the sequencer restores the state of a client from the log before it orders its batches."""
    unrestored: set[int] = set()
    for step, state in walk(history):
        match step.event:
            case events.Recovered(kept=kept):
                unrestored = {opened.client for opened in state.sessions if opened.position < kept}
            case events.ClientRestored() as restored:
                client = state.clients.get(restored.client)
                if client is None or client.start_seq is None:
                    violated("I-CLIENT", "a client without a session was restored", step)
                is_correct = restored.next_expected == client.next_expected or _is_reopened(restored, state)
                if restored.session_epoch != client.session_epoch or not is_correct:
                    reason = (
                        f"according to the log: session {client.session_epoch}, next expected {client.next_expected}"
                    )
                    violated("I-CLIENT", reason, step)
                unrestored.discard(restored.client)
            case events.Ordered(kind=EntryKind.BATCH, client=client_id) if client_id in unrestored:
                violated("I-CLIENT", f"a batch of client {client_id} was ordered before the client was restored", step)


def _is_reopened(restored: events.ClientRestored, state: OrderState) -> bool:
    """True if the expected seq had been rejected: nothing is stored for it, so a restart may forget the rejection."""
    client = state.clients[restored.client]
    position = client.decided.get(restored.next_expected)
    entry = None if position is None else state.live_entry(position)
    return entry is not None and not entry.stored and not entry.skips and restored.next_expected < client.next_expected
