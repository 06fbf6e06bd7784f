"""Histories of a correct pod pass every checker; each mutation of them is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from order_model import SHAPE, good_history

from seawall.testing.checkers import order_events as e
from seawall.testing.checkers.history import History
from seawall.testing.checkers.order_events import AckStatus, EntryKind, OrderEvent, ReadBy
from seawall.testing.checkers.ordering_checkers import CHECKERS, check_all, violations

Events = list[OrderEvent]
Kind = TypeVar("Kind", bound=OrderEvent)
#: Mutates a history at an event that a seed chooses; None if the history has no such event.
Mutation = Callable[[Events, Random], Events | None]

MUTATIONS: list[tuple[str, str, Mutation]] = []
SEEDS = range(8)


def breaks(name: str) -> Callable[[Mutation], Mutation]:
    """Register a mutation with the guarantee that it breaks."""

    def register(mutation: Mutation) -> Mutation:
        MUTATIONS.append((mutation.__name__, name, mutation))
        return mutation

    return register


def indexes(events: Events, kind: type[Kind], fits: Callable[[Kind], bool] = lambda _: True) -> list[int]:
    return [at for at, event in enumerate(events) if isinstance(event, kind) and fits(event)]


def choice(random: Random, found: list[int]) -> int | None:
    return random.choice(found) if found else None


def put(events: Events, at: int | None, **changes: object) -> Events | None:
    """The events with one of them changed."""
    return None if at is None else [*events[:at], replace(events[at], **changes), *events[at + 1 :]]


def moved(events: Events, at: int, to: int) -> Events:
    """The events with one of them earlier."""
    return [*events[:to], events[at], *events[to:at], *events[at + 1 :]]


def dropped(events: Events, at: int | None) -> Events | None:
    return None if at is None else [*events[:at], *events[at + 1 :]]


def commit_of(events: Events, position: int | None) -> int:
    return indexes(events, e.Committed, lambda each: each.position == position)[0]


def is_stored(event: e.Committed) -> bool:
    return event.records > 0


def crash_free(events: Events) -> bool:
    return not indexes(events, e.Recovered)


@breaks("I4")
def two_positions_are_swapped(events: Events, random: Random) -> Events | None:
    strong = indexes(events, e.Ordered, lambda each: each.kind is EntryKind.BATCH and each.order == 5)
    pairs = [(a, b) for a, b in pairwise(strong) if events[a].client == events[b].client]
    if not pairs or not crash_free(events):
        return None
    first, second = random.choice(pairs)
    mutated = put(events, first, position=events[second].position)
    return put(mutated, second, position=events[first].position)


@breaks("I3")
def a_batch_is_dropped_from_the_order(events: Events, random: Random) -> Events | None:
    return dropped(events, choice(random, indexes(events, e.Committed, is_stored)[:-1]) if crash_free(events) else None)


@breaks("Property 1")
def an_answer_comes_twice_with_other_numbers(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.Answered, lambda each: each.position is not None))
    if at is None:
        return None
    again = replace(events[at], status=AckStatus.DUPLICATE, position=events[at].position + 1)
    return [*events[: at + 1], again, *events[at + 1 :]]


@breaks("I-WRAP")
def a_slot_is_freed_too_early(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.Completed))
    return None if at is None else put(events, at, index=events[at].index + SHAPE.pbr_entries + 1)


@breaks("I-WRAP")
def a_slot_is_used_again_too_early(events: Events, random: Random) -> Events | None:
    if not crash_free(events):
        return None
    laps = indexes(events, e.Claimed, lambda each: each.index >= SHAPE.pbr_entries)
    at = choice(random, laps)
    if at is None:
        return None
    broker, index = events[at].broker, events[at].index
    freed = indexes(events, e.Completed, lambda each: each.broker == broker and each.index > index - SHAPE.pbr_entries)
    return moved(events, at, freed[0])


@breaks("I-VIS")
def a_reader_sees_what_is_not_committed(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.BatchSeen))
    return None if at is None else moved(events, at, commit_of(events, events[at].position))


@breaks("Property 1")
def a_seq_is_given_twice(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.Committed, lambda each: each.base_seq > 1))
    return None if at is None else put(events, at, base_seq=events[at].base_seq - 1)


@breaks("Property 1")
def a_reader_is_not_shown_a_batch(events: Events, random: Random) -> Events | None:
    reader = choice(random, [each.reader for each in events if isinstance(each, e.BatchSeen)])
    if not crash_free(events):
        return None  # a reader that has seen nothing yet need not see a gap before its first record
    return dropped(events, choice(random, indexes(events, e.BatchSeen, lambda each: each.reader == reader)[1:-1]))


@breaks("PROP-SKIP")
def what_was_delivered_is_skipped(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.Ordered, lambda each: each.kind is EntryKind.SKIP and each.client_seq > 1))
    if at is None or not crash_free(events):
        return None
    client = events[at].client
    for index in reversed(indexes(events[:at], e.Ordered, lambda each: (each.client, each.kind) == (client, 0))):
        if is_stored(events[commit_of(events, events[index].position)]):
            return put(events, at, client_seq=events[index].client_seq, skip_count=1)
    return None


@breaks("Property 2")
def a_skip_is_kept_quiet(events: Events, random: Random) -> Events | None:
    """Only a SKIP that releases a batch of its client, while nothing crashes, must be missed."""
    skips = indexes(events, e.Ordered, lambda each: each.kind is EntryKind.SKIP)
    released: list[int] = []
    for at in skips:
        for event in events[at:]:
            if isinstance(event, e.Recovered):
                break
            if not isinstance(event, e.Ordered) or (event.client, event.kind) != (events[at].client, EntryKind.BATCH):
                continue
            ours = event.order == 5 and event.client_seq > events[at].client_seq
            if ours and any(isinstance(x, e.Committed) and x.position == event.position and x.records for x in events):
                released.append(at)
    return put(events, choice(random, released), kind=EntryKind.NOP, skip_count=0)


@breaks("Property 2b")
def a_reader_is_not_told_of_a_skip(events: Events, random: Random) -> Events | None:
    told = [
        at
        for at in indexes(events, e.SkipSeen, lambda each: each.by is ReadBy.POSITION)
        if indexes(events[:at], e.BatchSeen, lambda each, at=at: each.reader == events[at].reader)
        and indexes(events[at:], e.BatchSeen, lambda each, at=at: each.reader == events[at].reader)
    ]
    return dropped(events, choice(random, told))


@breaks("I7")
def a_reader_sees_a_client_in_another_order(events: Events, random: Random) -> Events | None:
    strong = indexes(events, e.BatchSeen, lambda each: each.topic == 2)
    pairs = [
        (a, b)
        for a in strong
        for b in strong
        if a < b and (events[a].reader, events[a].client) == (events[b].reader, events[b].client)
    ]
    if not pairs:
        return None
    first, second = random.choice(pairs)
    return [*events[:first], *events[first + 1 : second + 1], events[first], *events[second + 1 :]]


@breaks("Property 3")
def a_batch_is_lost_without_a_gap(events: Events, random: Random) -> Events | None:
    def given(at: int) -> bool:
        gap = events[at]
        kept = next(each.kept for each in events[at:] if isinstance(each, e.Recovered))
        return any(
            isinstance(each, e.Committed) and each.topic == gap.topic and each.records and each.position >= kept
            for each in events[:at]
        )

    return dropped(events, choice(random, [at for at in indexes(events, e.GapDeclared) if given(at)]))


@breaks("Property 3")
def an_ack_does_not_wait_for_durable(events: Events, random: Random) -> Events | None:
    waited = indexes(events, e.Answered, lambda each: each.level == 2 and each.status is AckStatus.OK)
    at = choice(random, waited)
    return None if at is None else moved(events, at, commit_of(events, events[at].position) + 1)


@breaks("Property 4")
def an_entry_is_of_an_older_term(events: Events, random: Random) -> Events | None:
    return put(events, choice(random, indexes(events, e.Ordered)) if crash_free(events) else None, term=0)


@breaks("Property 5")
def an_answer_gets_lost(events: Events, random: Random) -> Events | None:
    fenced = {each.client for each in events if isinstance(each, e.SessionFenced)}  # these need none
    decisive = indexes(events, e.Answered, lambda each: each.status is not AckStatus.RETRY and each.level == 2)
    final = [at for at in decisive if events[at].client not in fenced]
    return dropped(events, choice(random, final))


@breaks("I1")
def a_foreign_broker_writes(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.Claimed) + indexes(events, e.PayloadWritten) + indexes(events, e.Published))
    return None if at is None else put(events, at, writer=events[at].broker + 1)


@breaks("I2")
def an_entry_is_of_the_future(events: Events, random: Random) -> Events | None:
    return put(events, choice(random, indexes(events, e.Ordered)), term=1000)


@breaks("I5")
def a_replica_is_not_asked(events: Events, random: Random) -> Events | None:
    return put(events, choice(random, indexes(events, e.ViewChanged)), members=(1,))


@breaks("I6")
def other_bytes_are_found(events: Events, random: Random) -> Events | None:
    return put(events, choice(random, indexes(events, e.Collected)), block=-1)


@breaks("I-CLIENT")
def a_client_is_restored_wrong(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.ClientRestored))
    return None if at is None else put(events, at, next_expected=events[at].next_expected + random.choice((-1, 1)))


@breaks("I-COLLECT")
def a_cursor_is_restored_wrong(events: Events, random: Random) -> Events | None:
    at = choice(random, indexes(events, e.CursorRestored))
    return None if at is None else put(events, at, index=events[at].index + random.choice((-1, 1)))


@given(st.integers(0, 1 << 32), st.integers(0, 400))
def test_a_correct_pod_breaks_no_guarantee(seed: int, steps: int) -> None:
    check_all(good_history(seed, steps))


@pytest.mark.parametrize(("name", "mutation"), [each[1:] for each in MUTATIONS], ids=[each[0] for each in MUTATIONS])
def test_a_mutated_history_is_caught(name: str, mutation: Mutation) -> None:
    mutated = 0
    for seed in SEEDS:
        history = good_history(seed)
        events = mutation(list(history.events()), Random(seed))
        if events is not None:
            mutated += 1
            assert name in violations(History(SHAPE, events)), f"seed {seed}\n{History(SHAPE, events).render()}"
    assert mutated, "no history offered what this mutation spoils"


def test_every_guarantee_has_a_mutation() -> None:
    assert {name for _, name, _ in MUTATIONS} == set(CHECKERS)
