"""Checkers of the ordering guarantees: a history that keeps them all, and small ones that break them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seawall.errors import InvariantError
from seawall.testing.checkers import order_events as e
from seawall.testing.checkers.history import History, PodShape
from seawall.testing.checkers.order_events import AckStatus, EntryKind, GapReason, OrderEvent, ReadBy, ReadMode, Role
from seawall.testing.checkers.ordering_checkers import CHECKERS, OrderingViolationError, check_all, violations

GUARANTEES = Path(__file__).parents[2] / "docs" / "guarantees.md"
SHAPE = PodShape(goi_entries=4, pbr_entries=2, copies_needed=2)
CLIENT = 7
NAMES = (
    *("Property 1", "Property 2", "Property 2b", "Property 3", "Property 4", "Property 5"),
    *("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I-VIS", "I-WRAP", "I-CLIENT", "I-COLLECT", "PROP-SKIP"),
)
Events = list[OrderEvent]

START: Events = [
    e.ViewChanged(1, (0, 1)),
    e.TermGranted(1, 0),
    e.Ordered(0, 1, EntryKind.CONTROL, None, None, 0, 0, 0, 0, 0),
    e.Committed(0, AckStatus.OK, 0, 0, 0),
    e.SessionOpened(CLIENT, 1, 1, 0),
    e.SessionJoined(CLIENT, 1, 1),
]


def arrives(index: int, client_seq: int, *, order: int = 5, epoch: int = 1, level: int = 2) -> Events:
    block = 100 + client_seq
    return [
        e.Sent(CLIENT, client_seq, epoch, 0, 1, order, 1, block, level),
        e.Claimed(0, 0, index),
        e.PayloadWritten(0, 0, index, block),
        e.Published(0, 0, index, CLIENT, client_seq, epoch, order, block),
        e.Collected(0, index, block),
    ]


def is_ordered(
    position: int, index: int | None, client_seq: int, *, term: int = 1, order: int = 5, epoch: int = 1
) -> e.Ordered:
    broker = None if index is None else 0
    return e.Ordered(position, term, EntryKind.BATCH, broker, index, CLIENT, client_seq, epoch, order, 100 + client_seq)


def is_copied(position: int) -> Events:
    return [e.ReplicaDurable(0, position + 1), e.ReplicaDurable(1, position + 1), e.DurableAdvanced(position + 1)]


def is_read(position: int, client_seq: int, seq: int) -> Events:
    rest = (position, 1, seq, 1, CLIENT, client_seq, 100 + client_seq)
    return [
        e.BatchSeen(1, ReadBy.POSITION, ReadMode.ORDERED, *rest),
        e.BatchSeen(2, ReadBy.TOPIC, ReadMode.DURABLE, *rest),
    ]


def batch(
    position: int, index: int, client_seq: int, seq: int, *, term: int = 1, order: int = 5, epoch: int = 1
) -> Events:
    return [
        *arrives(index, client_seq, order=order, epoch=epoch),
        is_ordered(position, index, client_seq, term=term, order=order, epoch=epoch),
        e.Committed(position, AckStatus.OK, 1, seq, 1),
        *is_copied(position),
        e.Answered(CLIENT, client_seq, 2, AckStatus.OK, position, seq),
        e.Completed(0, index + 1),
        *is_read(position, client_seq, seq),
    ]


def skip(position: int, first: int, count: int) -> Events:
    return [
        e.Ordered(position, 1, EntryKind.SKIP, None, None, CLIENT, first, 0, 5, 0, count),
        e.Committed(position, AckStatus.OK, 1, 0, 0),
        e.SkipSeen(1, ReadBy.POSITION, ReadMode.ORDERED, position, CLIENT, first, count),
    ]


def skip_is_read(position: int, first: int, count: int) -> e.SkipSeen:
    return e.SkipSeen(2, ReadBy.TOPIC, ReadMode.DURABLE, position, CLIENT, first, count)


def warm(committed: int, completed: int, next_expected: int) -> Events:
    return [
        e.Crashed(Role.SEQUENCER, 1),
        e.Recovered(True, committed, committed),
        e.TermGranted(2, committed),
        e.CursorRestored(0, completed),
        e.ClientRestored(CLIENT, 1, next_expected),
    ]


def cold(kept: int, following: int, next_expected: int, *gaps: e.GapDeclared) -> Events:
    return [
        e.Crashed(Role.POWER, 0),
        *gaps,
        e.Recovered(False, kept, following),
        e.TermGranted(2, following),
        e.ClientRestored(CLIENT, 1, next_expected),
    ]


def crash_gap(first: int, last: int) -> e.GapDeclared:
    return e.GapDeclared(1, first, last, GapReason.CRASH)


ONE = [*START, *batch(1, 0, 1, 1)]
TWO = [*ONE, *batch(2, 1, 2, 2)]
THIRD = batch(4, 2, 5, 3)
LAPPED = [*TWO, *skip(3, 3, 2), *THIRD[:-1], skip_is_read(3, 3, 2), THIRD[-1], e.Settled()]
#: The second batch is committed, on no disk, and read as ordered.
LOOSE = [*ONE, *arrives(1, 2), is_ordered(2, 1, 2), e.Committed(2, AckStatus.OK, 1, 2, 1), is_read(2, 2, 2)[0]]


def at(events: Events, kind: type[OrderEvent], nth: int) -> int:
    return [index for index, event in enumerate(events) if isinstance(event, kind)][nth]


def edited(events: Events, kind: type[OrderEvent], nth: int, **changes: Any) -> Events:
    index = at(events, kind, nth)
    return [*events[:index], replace(events[index], **changes), *events[index + 1 :]]


def without(events: Events, kind: type[OrderEvent], nth: int) -> Events:
    index = at(events, kind, nth)
    return [*events[:index], *events[index + 1 :]]


def moved(events: Events, kind: type[OrderEvent], nth: int, before: type[OrderEvent], before_nth: int) -> Events:
    """An event, put ahead of another one."""
    left = without(events, kind, nth)
    index = at(events, before, before_nth)
    return [*left[:index], events[at(events, kind, nth)], *left[index:]]


GOOD: dict[str, Events] = {
    "nothing": [],
    "laps and a skip": LAPPED,
    "a warm recovery": [*TWO, *warm(3, 2, 3), *batch(3, 2, 3, 3, term=2), e.Settled()],
    "a warm recovery collects again what is not free": [
        *(*ONE, *arrives(1, 2), *warm(2, 1, 2), e.Collected(0, 1, 102), is_ordered(2, 1, 2, term=2)),
        e.Committed(2, AckStatus.OK, 1, 2, 1),
    ],
    "a cold recovery": [*LOOSE, *cold(2, 4, 2, crash_gap(2, 9)), *batch(4, 0, 2, 10, term=2)[:-2]],
    "what is lost is sent and seen again": [
        *(*LOOSE, *cold(2, 4, 2, crash_gap(2, 9)), *batch(4, 0, 2, 10, term=2)[:-1]),
        *(e.GapSeen(2, 1, 2, 9), is_read(4, 2, 10)[1]),
    ],
    "evicted batches are not read": [
        *(*ONE, *batch(2, 1, 2, 2)[:-2], e.GapDeclared(1, 2, 2, GapReason.CAP), e.GapSeen(2, 1, 2, 2)),
        *batch(3, 2, 3, 3),
    ],
    "a refused batch decides its seq": [
        *(*ONE, *arrives(1, 2), is_ordered(2, 1, 2), e.Committed(2, AckStatus.REJECTED, 1, 0, 0), *is_copied(2)),
        *(e.Answered(CLIENT, 2, 1, AckStatus.REJECTED, None, 0), e.Completed(0, 2), *batch(3, 2, 3, 2), e.Settled()),
    ],
    "order 2 waits for nobody": [*START, *batch(1, 0, 2, 1, order=2), *batch(2, 1, 1, 2, order=2)],
    "without a session nobody waits": [*START[:4], *batch(1, 0, 2, 1, epoch=0), *batch(2, 1, 9, 2, epoch=0)],
    "a new term writes over what an old one left": [
        *(*ONE, is_ordered(2, None, 2), e.TermGranted(2, 2), is_ordered(2, None, 2, term=2)),
        e.Committed(2, AckStatus.OK, 1, 2, 1),
    ],
    "order 0 is answered on arrival": [
        *(*START, *arrives(0, 1, order=0, level=1)),
        e.Answered(CLIENT, 1, 1, AckStatus.OK, None, 0),
    ],
    "a newer session": [
        *(*ONE, e.Ordered(2, 1, EntryKind.CONTROL, None, None, 0, 0, 0, 0, 0), e.Committed(2, AckStatus.OK, 0, 0, 0)),
        *(e.SessionOpened(CLIENT, 2, 1, 2), e.SessionFenced(CLIENT, 1), *batch(3, 1, 2, 2, epoch=2), e.Settled()),
    ],
    "the slot of a dead broker is filled": [
        *(*START, e.Claimed(0, 0, 0), e.Crashed(Role.BROKER, 0)),
        e.Ordered(1, 1, EntryKind.NOP, 0, 0, 0, 0, 0, 0, 0),
        *(e.Committed(1, AckStatus.REJECTED, 0, 0, 0), *batch(2, 1, 1, 1), e.Settled()),
    ],
    "who is gone needs no answer": [
        *(*START, *(arrives(0, 1)[:1]), e.Sent(CLIENT, 2, 1, 0, 1, 5, 1, 102, 1)),
        *(e.Crashed(Role.CLIENT, CLIENT), e.Settled()),
    ],
    "whose session is over needs no answer": [
        *(*START, e.Ordered(1, 1, EntryKind.CONTROL, None, None, 0, 0, 0, 0, 0), e.Committed(1, AckStatus.OK, 0, 0, 0)),
        *(arrives(0, 1)[0], e.SessionOpened(CLIENT, 2, 1, 1), e.SessionFenced(CLIENT, 1), e.Settled()),
    ],
}

P1, P2, P2B, P3, P4, P5 = NAMES[:6]
#: The fault, the history, and exactly the guarantees that it breaks.
BAD: list[tuple[str, Events, set[str]]] = [
    ("a seq is given twice", edited(LAPPED, e.Committed, 2, base_seq=1), {P1}),
    ("a seq is never given", edited(LAPPED, e.Committed, -1, base_seq=9), {P1}),
    ("a NOP gets seqs", [*START, *skip(1, 1, 1)[:1], e.Committed(1, AckStatus.OK, 1, 1, 1)], {P1}),
    ("something else is stored than was sent", edited(ONE, e.Sent, 0, records=2), {P1}),
    ("an answer tells another position", edited(LAPPED, e.Answered, 1, position=1), {P1}),
    ("an answer tells another seq", edited(LAPPED, e.Answered, 1, base_seq=7), {P1}),
    ("a reader sees other bytes", edited(LAPPED, e.BatchSeen, 3, block=1), {P1}),
    ("a reader by position misses a batch", without(LAPPED, e.BatchSeen, 2), {P1}),
    ("a reader by topic misses a batch", without(LAPPED, e.BatchSeen, 3), {P1}),
    ("a reader sees a batch twice", [*TWO, is_read(2, 2, 2)[0]], {P1, "I7"}),
    ("a position is committed twice", [*ONE, e.Committed(1, AckStatus.OK, 1, 2, 1)], {P1, "I3"}),
    ("a position is committed that nobody ordered", [*START, e.Committed(1, AckStatus.OK, 1, 1, 1)], {P1}),
    ("a batch is stored twice", [*ONE, *batch(2, 1, 1, 2, order=2)], {P1}),
    ("a batch does not wait", [*START, *batch(1, 0, 2, 1)], {P2}),
    ("a batch follows a later one", [*START, *batch(1, 0, 2, 1), *batch(2, 1, 1, 2)], {P2, "I4", "I7"}),
    (
        "a batch follows a later one of a client without a session",
        [*START[:4], *batch(1, 0, 2, 1, epoch=0), *batch(2, 1, 1, 2, epoch=0)],
        {P2, "I4", "I7"},
    ),
    ("a seq has two skips", [*ONE, *skip(2, 2, 2), *skip(3, 3, 1)], {P2B}),
    ("a skip of nothing", [*ONE, *skip(2, 2, 0)], {P2B}),
    ("a skip behind what it releases", [*START, *batch(1, 0, 2, 1), *skip(2, 1, 1)], {P2, P2B}),
    ("a reader by position is not told of a skip", without(LAPPED, e.SkipSeen, 0), {P2B}),
    ("a reader by topic is not told of a skip", without(LAPPED, e.SkipSeen, 1), {P2B}),
    ("a reader is told of one skip of two", [*ONE, *skip(2, 2, 1)[:2], *skip(3, 3, 1)], {P2B}),
    ("a reader is told of a skip late", [*TWO, *skip(3, 3, 1), *skip(4, 4, 1), skip(3, 3, 1)[-1]], {P2B}),
    ("a reader is told of another skip", edited(LAPPED, e.SkipSeen, 0, skip_count=1), {P2B}),
    ("an ack of level 2 before it is durable", moved(ONE, e.Answered, 0, e.DurableAdvanced, 0), {P3}),
    ("an ack of level 2 for nothing", [*START, e.Answered(CLIENT, 1, 2, AckStatus.OK, None, 0)], {P3, "I-VIS"}),
    ("what was acked is lost", [*ONE, *cold(1, 2, 1, crash_gap(1, 1))], {P3}),
    ("what was durable is lost", [*without(ONE, e.Answered, 0), *cold(1, 2, 1, crash_gap(1, 1))], {P3}),
    ("a batch is lost without a gap", [*LOOSE, *cold(2, 4, 2)], {P3}),
    ("a gap over a batch that stands", [*ONE, crash_gap(1, 1)], {P3}),
    ("a gap over a batch that was kept", [*LOOSE, *cold(2, 4, 2, crash_gap(1, 9))], {P3}),
    ("a superseded term goes on", [*ONE, e.TermGranted(2, 2), *batch(2, 1, 2, 2)], {P4}),
    ("a term is granted twice", [*ONE, e.TermGranted(1, 2)], {P4}),
    ("a term begins in the past", [*ONE, e.TermGranted(2, 1)], {P4}),
    ("a superseded session goes on", [*ONE, e.SessionOpened(CLIENT, 2, 1, 1), *batch(2, 1, 2, 2)], {P4}),
    ("a session opens twice", [*ONE, e.SessionOpened(CLIENT, 1, 1, 1)], {P4}),
    ("a session is joined that is not open", [*START, e.SessionJoined(CLIENT, 2, 1)], {P4}),
    ("the newest session is fenced", [*START, e.SessionFenced(CLIENT, 1)], {P4}),
    ("an answer never comes", without(LAPPED, e.Answered, -1), {P5}),
    ("an answer of too low a level", edited(LAPPED, e.Answered, -1, level=1), {P5}),
    ("an answer that decides nothing", edited(LAPPED, e.Answered, -1, status=AckStatus.RETRY), {P5}),
    ("a slot is never ordered", [*START, *arrives(0, 1, level=0), e.Settled()], {P5}),
    ("a foreign broker claims", edited(ONE, e.Claimed, 0, writer=1), {"I1"}),
    ("a foreign broker publishes", edited(ONE, e.Published, 0, writer=1), {"I1"}),
    ("a slot is claimed out of turn", [*START, e.Claimed(0, 0, 1)], {"I1"}),
    ("a slot is written unclaimed", without(ONE, e.Claimed, 0), {"I1"}),
    ("a slot is published twice", [*ONE, ONE[at(ONE, e.Published, 0)]], {"I1"}),
    ("an entry of the future", [*ONE, is_ordered(2, None, 2, term=9)], {"I2"}),
    ("a position is left out", [*ONE, *batch(3, 1, 2, 2)], {"I3"}),
    ("durable goes back", [*ONE, e.DurableAdvanced(1)], {"I3"}),
    ("a recovery uses positions again", [*ONE, *cold(2, 1, 2)], {"I3", P4}),
    ("a warm recovery loses", [*LOOSE, e.Recovered(True, 2, 3), crash_gap(2, 2)], {"I3", P3}),
    ("the sequencer turns two batches", [*ONE, is_ordered(3, None, 2), is_ordered(2, None, 3)], {"I4"}),
    ("the sequencer repeats a batch", [*ONE, is_ordered(2, None, 2), is_ordered(3, None, 2)], {"I4"}),
    ("a replica has less than was said", without(ONE, e.ReplicaDurable, 1), {"I5"}),
    ("fewer replicas than needed", edited(ONE, e.ViewChanged, 0, members=(0,)), {"I5"}),
    ("an ack counts a replica that has left", [*ONE, e.ViewChanged(2, (0,)), ONE[at(ONE, e.Answered, 0)]], {"I5"}),
    ("a slot is collected unpublished", moved(ONE, e.Collected, 0, e.Published, 0), {"I6"}),
    ("a slot is published before its bytes", moved(ONE, e.Published, 0, e.PayloadWritten, 0), {"I1", "I6"}),
    ("a slot has no bytes", without(ONE, e.PayloadWritten, 0), {"I6"}),
    ("other bytes are collected", edited(ONE, e.Collected, 0, block=1), {"I6"}),
    ("another client seq is ordered", edited(ONE, e.Published, 0, client_seq=4), {"I6"}),
    ("a slot is ordered unpublished", [*START, is_ordered(1, 0, 1)], {"I6", "I-COLLECT"}),
    (
        "a reader turns two batches",
        [*TWO, *(replace(x, reader=9) for x in (is_read(2, 2, 2)[0], is_read(1, 1, 1)[0]))],
        {P1, "I7"},
    ),
    ("a reader is ahead of the order", moved(ONE, e.BatchSeen, 0, e.Committed, 1), {"I-VIS"}),
    ("a reader is ahead of durable", moved(ONE, e.BatchSeen, 1, e.DurableAdvanced, 0), {"I-VIS"}),
    ("a replica is ahead of the order", [*ONE, e.ReplicaDurable(0, 9)], {"I-VIS"}),
    ("an answer ahead of the order", [*START, *arrives(0, 1), e.Answered(CLIENT, 1, 1, AckStatus.OK, 1, 1)], {"I-VIS"}),
    (
        "order 0 is answered before it arrived",
        [*START, arrives(0, 1, order=0)[0], e.Answered(CLIENT, 1, 1, AckStatus.OK, None, 0)],
        {"I-VIS"},
    ),
    ("a skip is seen ahead of the order", moved(LAPPED, e.SkipSeen, 0, e.Committed, 3), {"I-VIS"}),
    (
        "what was lost is shown",
        [*LOOSE, *cold(2, 4, 2, crash_gap(2, 9)), replace(is_read(2, 2, 2)[0], reader=9)],
        {"I-VIS"},
    ),
    ("a slot is used again too early", without(without(LAPPED, e.Completed, 0), e.Completed, 0), {"I-WRAP"}),
    ("a slot is freed too early", moved(ONE, e.Completed, 0, e.DurableAdvanced, 0), {"I-WRAP"}),
    ("slots are taken back", [*ONE, e.Completed(0, 0)], {"I-WRAP"}),
    ("the order laps itself", [*ONE, is_ordered(6, None, 2)], {"I-WRAP"}),
    ("a client is restored too high", [*ONE, *warm(2, 1, 3)], {"I-CLIENT"}),
    ("a client is restored too low", [*ONE, *warm(2, 1, 1)], {"I-CLIENT"}),
    ("a client is not restored", [*ONE, *warm(2, 1, 2)[:-1], *batch(2, 1, 2, 2, term=2)], {"I-CLIENT"}),
    ("a client is restored that nobody knows", [*START, e.ClientRestored(9, 1, 1)], {"I-CLIENT"}),
    ("collecting goes on too far", [*ONE, *arrives(1, 2), *warm(2, 2, 2)], {"I-COLLECT"}),
    (
        "collecting goes on anywhere",
        [*ONE, *without(warm(2, 1, 2), e.CursorRestored, 0), *arrives(1, 2)],
        {"I-COLLECT"},
    ),
    ("a slot is left out", [*START, *arrives(0, 1)[:-1], *arrives(1, 2)], {"I-COLLECT"}),
    ("a slot is passed over", without(TWO, e.Collected, 0), {"I-COLLECT"}),
    ("a slot is given up that is there", [*ONE, *arrives(1, 2)[:-1], e.GivenUp(0, 1)], {"I-COLLECT"}),
    (
        "a slot has two entries",
        [*ONE, e.Ordered(2, 1, EntryKind.NOP, 0, 0, 0, 0, 0, 0, 0), e.Committed(2, AckStatus.DUPLICATE, 0, 0, 0)],
        {"I-COLLECT"},
    ),
    ("what was skipped is stored", [*ONE, *skip(2, 2, 1), *batch(3, 1, 2, 2, order=2)[:7]], {"PROP-SKIP"}),
    ("what is stored is skipped", [*ONE, *skip(2, 1, 1)], {"PROP-SKIP"}),
    (
        "what was skipped is answered for",
        [*ONE, *skip(2, 2, 1), e.Answered(CLIENT, 2, 1, AckStatus.OK, None, 0)],
        {"PROP-SKIP", "I-VIS"},
    ),
    ("what was skipped is shown", [*ONE, *skip(2, 2, 1), *is_copied(2), is_read(2, 2, 2)[1]], {P1, "PROP-SKIP"}),
]


def found(events: Events) -> set[str]:
    return set(violations(History(SHAPE, events)))


@pytest.mark.parametrize("name", GOOD)
def test_a_history_that_keeps_every_guarantee_passes(name: str) -> None:
    check_all(History(SHAPE, GOOD[name]))


@pytest.mark.parametrize(("events", "broken"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_broken_guarantee_is_found_and_named(events: Events, broken: set[str]) -> None:
    assert found(events) == broken


def test_every_guarantee_is_broken_by_some_history_and_most_of_them_alone() -> None:
    alone = {name for _, _, broken in BAD for name in broken if len(broken) == 1}
    assert {name for _, _, broken in BAD for name in broken} == set(NAMES)
    assert set(NAMES) - alone == {
        "I7"
    }  # a reader that sees another order than the client's also sees another than the log's


def test_the_error_names_the_guarantee_the_reason_and_the_steps() -> None:
    history = History(SHAPE, edited(ONE, e.Claimed, 0, writer=3))
    with pytest.raises(OrderingViolationError) as caught:
        check_all(history)
    error = caught.value
    assert isinstance(error, InvariantError)
    assert (error.name, error.reason) == ("I1", "broker 3 wrote to the ring of broker 0")
    assert error.steps == (list(history)[7],)
    assert str(error) == "I1 violated: broker 3 wrote to the ring of broker 0\n  7 Claimed broker=0 writer=3 index=0"


def test_every_guarantee_of_the_design_has_its_own_checker() -> None:
    assert tuple(CHECKERS) == NAMES
    functions: list[Callable[[History], None]] = list(CHECKERS.values())
    said = [re.sub(r"[ -]", "_", name).lower() for name in NAMES]
    assert [function.__name__ for function in functions] == [f"check_{name}" for name in said]


def test_the_documentation_lists_the_same_guarantees_and_checkers() -> None:
    section = GUARANTEES.read_text(encoding="utf-8").partition("\n## Order\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \| [^|]+ \| `(\w+)` \|$", section, re.MULTILINE)
    assert rows == [(name, checker.__name__) for name, checker in CHECKERS.items()]
