"""Lanes and groups of lanes: every transition, every invariant by name, and any run of steps against a plain model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from seawall import limits
from seawall.core.types import LaneEpoch
from seawall.errors import InvalidInputError, InvariantError, LimitError, NotFoundError, WrongStateError
from seawall.storage.wal.lane_group import LaneGroup
from seawall.storage.wal.lane_types import (
    WRITABLE,
    FlushOutcome,
    LaneEvent,
    LaneOutcome,
    LanePhase,
    LanePolicy,
    LaneSettings,
    LaneState,
    LaneTrace,
)
from seawall.storage.wal.lanes import Lane, LaneFlush, LaneOwner

ACCEPTED, QUEUED, REFUSED = LaneOutcome.ACCEPTED, LaneOutcome.QUEUED, LaneOutcome.REFUSED
SIZE = limits.LARGE_BATCH_SIZE
LARGE = limits.LARGE_BATCH_SIZE
SMALL = LaneSettings(buffer_size=SIZE, overflow_size=2 * SIZE)
BLOCKING = LaneSettings(buffer_size=SIZE, overflow_size=2 * SIZE, policy=LanePolicy.BLOCK_WRITER)


def epoch(number: int) -> LaneEpoch:
    return LaneEpoch(number)


def owned(lane_settings: LaneSettings = SMALL, observer: Callable[[LaneEvent], None] | None = None) -> Owned:
    return Owned(Lane(3, settings=lane_settings, observer=observer))


class Owned:
    """A lane with its owner and a ticket counter."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.owner = lane.claim("worker")
        self.ticket = 0

    def append(self, data: bytes, count: int = 1) -> LaneOutcome:
        outcome = self.lane.append(self.owner, data, self.ticket, count)
        if outcome is not REFUSED:
            self.ticket += count
        return outcome

    def flush_all(self, number: int) -> bytes:
        self.lane.seal_active(epoch(number))
        content = written(self.lane.begin_flush(0))
        self.lane.complete_flush(0)
        return content


def written(flush: LaneFlush) -> bytes:
    return b"".join(flush.pieces())


def overflowing(lane_settings: LaneSettings = SMALL) -> Owned:
    """A lane whose active half is full, holding 64 KiB − 1 of `a`."""
    made = owned(lane_settings)
    assert made.append(b"a" * (SIZE - 1)) is ACCEPTED
    return made


def situation(lane: Lane) -> tuple[object, ...]:
    """Everything of a lane that a failed call might have changed."""
    pending = None if lane.flush is None else written(lane.flush)
    return (lane.active_state, lane.flush_state, lane.must_drain, lane.overflow_bytes, lane.has_unsealed, pending)


# --- the path of a batch --------------------------------------------------------------------------------------------


def test_a_lane_passes_through_all_its_states() -> None:
    made = owned()
    lane = made.lane
    assert (str(lane.active_state), str(lane.flush_state), lane.flush) == ("writable", "writable", None)
    assert not lane.has_unsealed
    assert [made.append(b"one"), made.append(b"two"), made.append(b"three")] == [ACCEPTED] * 3
    assert lane.has_unsealed
    lane.seal_active(epoch(5))
    assert (str(lane.active_state), lane.has_unsealed) == ("sealed(5)", False)
    flush = lane.begin_flush(0)
    assert (lane.active_state, str(lane.flush_state), lane.flush) == (WRITABLE, "flushing(5)", flush)
    assert [bytes(piece) for piece in flush.pieces()] == [b"onetwothree"]
    assert (flush.epoch, flush.byte_count, flush.batch_count, flush.first_ticket, flush.last_ticket) == (5, 11, 3, 0, 2)
    assert made.append(b"four") is ACCEPTED
    lane.complete_flush(0)
    assert (lane.active_state, lane.flush_state, lane.flush) == (WRITABLE, WRITABLE, None)
    assert made.flush_all(6) == b"four"


def test_an_empty_flush_has_no_tickets() -> None:
    made = owned()
    made.lane.seal_active(epoch(1))
    flush = made.lane.begin_flush(0)
    assert (flush.pieces(), flush.byte_count, flush.batch_count) == ([], 0, 0)
    assert (flush.first_ticket, flush.last_ticket) == (None, None)


def test_a_run_of_batches_takes_one_ticket_each() -> None:
    made = owned()
    assert made.append(b"abc", 3) is ACCEPTED
    assert made.append(b"d") is ACCEPTED
    made.lane.seal_active(epoch(1))
    flush = made.lane.begin_flush(0)
    assert (flush.batch_count, flush.first_ticket, flush.last_ticket, len(flush.runs)) == (4, 0, 3, 1)


def test_a_flush_is_one_buffer_even_if_its_tickets_have_holes() -> None:
    lane = Lane(0, settings=SMALL)
    owner = lane.claim("worker")
    for ticket in (1, 2, 7, 9):
        lane.append(owner, b"%d" % ticket, ticket)
    lane.seal_active(epoch(1))
    flush = lane.begin_flush(0)
    assert [(run.first_ticket, run.last_ticket) for run in flush.runs] == [(1, 2), (7, 7), (9, 9)]
    assert [bytes(piece) for piece in flush.pieces()] == [b"1279"]
    assert flush.batch_count == 4


def test_small_batches_are_copied_and_large_ones_are_referred_to() -> None:
    made = owned(LaneSettings())
    small, large = bytearray(b"s" * (LARGE - 1)), bytearray(b"l" * LARGE)
    for data in (small, large, b"z"):
        assert made.lane.append(made.owner, data, made.ticket) is ACCEPTED
        made.ticket += 1
    small[0] = large[0] = ord("!")
    made.lane.seal_active(epoch(1))
    first, second, third = made.lane.begin_flush(0).pieces()
    assert (first[0], second[0], third[0]) == (ord("s"), ord("!"), ord("z"))
    assert second.obj is large


def test_a_batch_larger_than_the_lane_is_never_blocked_for_ever() -> None:
    for lane_settings in (SMALL, BLOCKING):
        made = owned(lane_settings)
        giant = b"g" * (40 * SIZE)
        assert made.append(giant) is ACCEPTED
        assert made.append(b"small") is ACCEPTED
        assert made.append(giant) is (REFUSED if lane_settings is BLOCKING else QUEUED)
        if lane_settings is BLOCKING:
            assert made.flush_all(1) == giant + b"small"
            assert made.append(giant) is ACCEPTED


def test_references_share_the_bound_of_the_buffer() -> None:
    made = owned(LaneSettings(buffer_size=2 * LARGE, overflow_size=0, policy=LanePolicy.BLOCK_WRITER))
    assert [made.append(b"x" * LARGE) for _ in range(3)] == [ACCEPTED, ACCEPTED, REFUSED]


# --- overflow ------------------------------------------------------------------------------------------------------


def test_block_writer_refuses_and_changes_nothing() -> None:
    made = overflowing(BLOCKING)
    before = situation(made.lane)
    assert made.append(b"bb") is REFUSED
    assert situation(made.lane) == before
    assert made.append(b"c") is ACCEPTED, "what fits still fits"
    made.lane.seal_active(epoch(1))
    assert made.append(b"d") is REFUSED, "a sealed half takes nothing"
    assert written(made.lane.begin_flush(0)) == b"a" * (SIZE - 1) + b"c"
    assert made.append(b"d") is ACCEPTED


def test_overflow_queued_before_the_seal_is_of_the_sealed_epoch() -> None:
    made = overflowing()
    assert made.append(b"bb") is QUEUED
    assert made.append(b"c") is QUEUED, "it would fit, but must not overtake"
    assert made.lane.overflow_bytes == 3
    assert made.flush_all(1) == b"a" * (SIZE - 1) + b"bbc"
    assert (made.lane.overflow_bytes, made.lane.has_unsealed) == (0, False)


def test_overflow_queued_after_the_seal_is_of_the_next_epoch() -> None:
    made = owned()
    made.append(b"first")
    made.lane.seal_active(epoch(1))
    assert made.append(b"second") is QUEUED
    assert made.lane.has_unsealed
    assert written(made.lane.begin_flush(0)) == b"first"
    assert (made.lane.overflow_bytes, made.lane.has_unsealed) == (0, True)
    assert made.append(b"third") is ACCEPTED, "the waiting batch is in the active half already"
    made.lane.complete_flush(0)
    made.lane.seal_active(epoch(2))
    flush = made.lane.begin_flush(0)
    assert (flush.epoch, written(flush), flush.first_ticket) == (2, b"secondthird", 1)


def test_a_long_run_of_overflow_is_referenced_not_copied() -> None:
    made = owned(LaneSettings(buffer_size=SIZE, overflow_size=8 * SIZE))
    made.append(b"first")
    made.lane.seal_active(epoch(1))
    parts = [bytes([65 + index]) * (3 * SIZE // 4 + index) for index in range(4)]
    assert [made.append(part) for part in parts] == [QUEUED] * 4
    assert made.lane.overflow_bytes == sum(map(len, parts))
    made.lane.begin_flush(0)
    assert made.lane.overflow_bytes == 0
    assert made.append(b"last") is ACCEPTED
    made.lane.complete_flush(0)
    made.lane.seal_active(epoch(2))
    flush = made.lane.begin_flush(0)
    assert [bytes(piece) for piece in flush.pieces()] == [b"".join(parts), b"last"]


def test_runs_of_overflow_are_taken_one_by_one() -> None:
    """Tickets with holes make runs of their own, so some fit and some do not."""
    lane = Lane(0, settings=LaneSettings(buffer_size=SIZE, overflow_size=8 * SIZE))
    owner = lane.claim("worker")
    lane.append(owner, b"first", 0)
    lane.seal_active(epoch(1))
    parts = [bytes([65 + index]) * (SIZE // 2) for index in range(3)]
    for index, part in enumerate(parts):
        assert lane.append(owner, part, 2 + 2 * index) is QUEUED
    lane.begin_flush(0)
    assert lane.overflow_bytes == SIZE // 2
    assert lane.append(owner, b"last", 9) is QUEUED, "it must not overtake"
    lane.complete_flush(0)
    lane.seal_active(epoch(2))
    assert written(lane.begin_flush(0)) == b"".join(parts) + b"last"


def test_overflow_beyond_its_bound_forces_a_drain_in_order() -> None:
    """The drain writes flush, active and overflow in this order, and leaves both halves empty."""
    made = owned()
    lane = made.lane
    made.append(b"flush-")
    lane.seal_active(epoch(1))
    lane.begin_flush(0)
    made.append(b"active-")
    lane.seal_active(epoch(2))
    part = b"o" * (SIZE - 1)
    assert [made.append(part), made.append(part)] == [QUEUED, QUEUED]
    assert not lane.must_drain, "at the bound is not beyond it"
    assert made.append(b"xyz") is QUEUED
    assert lane.must_drain
    assert made.append(b"never") is REFUSED
    lane.complete_flush(0)
    lane.begin_flush(0)
    assert lane.must_drain, "only a drain lifts the force"
    assert made.append(b"never") is REFUSED
    with pytest.raises(WrongStateError, match="a drain is due"):
        lane.seal_active(epoch(3))
    flush = lane.begin_drain(epoch(4), 0)
    assert (flush.epoch, written(flush)) == (4, b"active-" + part + part + b"xyz")
    assert (str(lane.active_state), str(lane.flush_state)) == ("flushing(4)", "flushing(4)")
    assert made.append(b"never") is REFUSED
    lane.complete_flush(0)
    assert (lane.active_state, lane.flush_state, lane.must_drain) == (WRITABLE, WRITABLE, False)
    assert (lane.overflow_bytes, lane.has_unsealed, lane.flush) == (0, False, None)
    assert made.append(b"again") is ACCEPTED
    assert made.flush_all(5) == b"again"


def test_a_drain_begins_with_the_unfinished_flush() -> None:
    made = owned(LaneSettings(buffer_size=SIZE, overflow_size=0))
    made.append(b"flush-")
    made.lane.seal_active(epoch(1))
    made.lane.begin_flush(0)
    made.append(b"active-")
    made.lane.seal_active(epoch(2))
    made.append(b"overflow")
    assert made.lane.must_drain
    made.lane.fail_flush("EIO", 0)
    flush = made.lane.begin_drain(epoch(3), 0)
    assert (written(flush), flush.batch_count) == (b"flush-active-overflow", 3)
    assert (flush.first_ticket, flush.last_ticket) == (0, 2)
    made.lane.complete_flush(0)
    assert (made.lane.active_state, made.lane.flush_state) == (WRITABLE, WRITABLE)


def test_a_drain_includes_the_overflow_of_the_sealed_epoch() -> None:
    made = overflowing()
    made.append(b"bb")
    made.lane.seal_active(epoch(1))
    made.append(b"c")
    assert written(made.lane.begin_drain(epoch(2), 0)) == b"a" * (SIZE - 1) + b"bbc"


# --- invariants and refusals ---------------------------------------------------------------------------------------


def test_one_worker_owns_a_lane_at_a_time() -> None:
    """INV-LANE-TICKETS."""
    lane = Lane(7, settings=SMALL)
    first = lane.claim("first")
    with pytest.raises(WrongStateError, match="lane 7 belongs to first, second cannot have it"):
        lane.claim("second")
    assert lane.contention_count == 1
    stranger = LaneOwner("first")
    with pytest.raises(InvariantError, match="INV-LANE-TICKETS"):
        lane.append(stranger, b"x", 0)
    with pytest.raises(InvariantError, match="INV-LANE-TICKETS"):
        lane.release(stranger)
    assert lane.append(first, b"x", 0) is ACCEPTED
    lane.release(first)
    with pytest.raises(InvariantError, match="INV-LANE-TICKETS"):
        lane.append(first, b"y", 1)
    second = lane.claim("second")
    assert lane.append(second, b"y", 1) is ACCEPTED
    lane.seal_active(epoch(1))
    assert written(lane.begin_flush(0)) == b"xy"


def in_state(name: str) -> Owned:
    made = owned()
    made.append(b"old")
    steps: dict[str, list[Callable[[], object]]] = {
        "writable": [],
        "sealed": [lambda: made.lane.seal_active(epoch(9))],
        "flushing": [lambda: made.lane.seal_active(epoch(9)), lambda: made.lane.begin_flush(0)],
        "both": [
            lambda: made.lane.seal_active(epoch(8)),
            lambda: made.lane.begin_flush(0),
            lambda: made.append(b"new"),
            lambda: made.lane.seal_active(epoch(9)),
        ],
        "draining": [lambda: made.lane.begin_drain(epoch(9), 0)],
    }
    for step in steps[name]:
        step()
    return made


ACTIONS: dict[str, Callable[[Lane], object]] = {
    "seal": lambda lane: lane.seal_active(epoch(10)),
    "seal again": lambda lane: lane.seal_active(epoch(9)),
    "begin": lambda lane: lane.begin_flush(0),
    "drain": lambda lane: lane.begin_drain(epoch(10), 0),
    "drain again": lambda lane: lane.begin_drain(epoch(9), 0),
    "complete": lambda lane: lane.complete_flush(0),
    "fail": lambda lane: lane.fail_flush("EIO", 0),
}
INVALID = {
    "writable": ("begin", "complete", "fail"),
    "sealed": ("seal", "seal again", "complete", "fail", "drain again"),
    "flushing": ("seal again", "begin", "drain again"),
    "both": ("seal", "seal again", "begin", "drain again"),
    "draining": ("seal", "seal again", "begin", "drain", "drain again"),
}


@pytest.mark.parametrize(("state", "action"), [(state, action) for state in INVALID for action in ACTIONS])
def test_an_invalid_transition_raises_and_changes_nothing(state: str, action: str) -> None:
    made = in_state(state)
    before = situation(made.lane)
    if action in INVALID[state]:
        with pytest.raises(WrongStateError, match="lane 3 cannot"):
            ACTIONS[action](made.lane)
        assert situation(made.lane) == before
        made.append(b"more")
    else:
        ACTIONS[action](made.lane)
    drained = b"" if made.lane.flush is None else written(made.lane.flush)
    if made.lane.active_state.phase is not LanePhase.FLUSHING and action != "complete":
        drained = written(made.lane.begin_drain(epoch(11), 0))
        assert drained.startswith(b"old"), "a drain loses nothing"


def test_epochs_of_a_lane_rise() -> None:
    """INV-LANE-TICKETS."""
    made = owned()
    made.flush_all(4)
    for number in (0, 3, 4):
        with pytest.raises(WrongStateError, match="INV-LANE-TICKETS"):
            made.lane.seal_active(epoch(number))
        with pytest.raises(WrongStateError, match="INV-LANE-TICKETS"):
            made.lane.begin_drain(epoch(number), 0)
    assert made.lane.active_state is WRITABLE
    made.flush_all(5)


def test_the_bytes_of_a_flush_do_not_change() -> None:
    made = owned()
    made.append(b"before")
    made.lane.seal_active(epoch(1))
    pieces = made.lane.begin_flush(0).pieces()
    for index in range(200):
        made.append(bytes([index]) * 1000)
    assert [bytes(piece) for piece in pieces] == [b"before"]
    assert all(piece.readonly for piece in pieces)
    made.lane.fail_flush("ENOSPC", 0)
    assert made.lane.flush is not None
    assert written(made.lane.flush) == b"before"


def test_tickets_of_a_lane_rise() -> None:
    """INV-LANE-TICKETS; a refused ticket is still free."""
    made = overflowing(BLOCKING)
    for ticket in (0, -1):
        with pytest.raises(InvariantError, match="INV-LANE-TICKETS"):
            made.lane.append(made.owner, b"x", ticket)
    assert made.lane.append(made.owner, b"xx", 1) is REFUSED
    assert made.lane.append(made.owner, b"x", 1) is ACCEPTED


@pytest.mark.parametrize(("data", "count"), [(b"", 1), (b"x", 0), (b"x", -1)])
def test_an_empty_append_is_refused(data: bytes, count: int) -> None:
    made = owned()
    with pytest.raises(InvalidInputError, match="neither may be 0"):
        made.lane.append(made.owner, data, 0, count)


@pytest.mark.parametrize(("buffer_size", "overflow_size"), [(LARGE - 1, 0), (LARGE, -1)])
def test_a_lane_too_small_for_a_copied_batch_is_refused(buffer_size: int, overflow_size: int) -> None:
    with pytest.raises(InvalidInputError, match="at least"):
        LaneSettings(buffer_size=buffer_size, overflow_size=overflow_size)


def test_workers_on_their_own_lanes_run_concurrently() -> None:
    """Four workers at once, each on its lane."""
    group = LaneGroup(4, settings=LaneSettings())
    barrier = threading.Barrier(4)
    outcomes: dict[int, set[LaneOutcome]] = {}

    def work(core_id: int) -> None:
        owner = group.lane(core_id).claim(f"worker {core_id}")
        barrier.wait()
        lane = group.lane(core_id)
        outcomes[core_id] = {lane.append(owner, b"%07d" % ticket, ticket) for ticket in range(core_id, 8000, 4)}

    workers = [threading.Thread(target=work, args=(core_id,)) for core_id in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert outcomes == {core_id: {ACCEPTED} for core_id in range(4)}
    assert [lane.contention_count for lane in group.lanes] == [0] * 4
    group.seal(epoch(1))
    assert written(group.gather(epoch(1), 0)) == b"".join(b"%07d" % ticket for ticket in range(8000))


# --- events --------------------------------------------------------------------------------------------------------


def test_every_flush_ends_with_an_event() -> None:
    events: list[LaneEvent] = []
    trace = LaneTrace(trace_id="t", run_id="r", scenario_id="s", work_id="w")
    lane = Lane(5, settings=SMALL, trace=trace, observer=events.append)
    owner = lane.claim("worker")
    lane.append(owner, b"x", 0)
    lane.seal_active(epoch(2))
    lane.begin_flush(100)
    assert events == []
    lane.fail_flush("EIO", 130)
    lane.complete_flush(175)
    lane.begin_drain(epoch(3), 200)
    lane.complete_flush(201)
    common = {"trace_id": "t", "run_id": "r", "scenario_id": "s", "work_id": "w", "core_id": 5}
    flushing, draining = "flushing(2)", "flushing(3)"
    assert events == [
        LaneEvent(**common, epoch=epoch(2), lane_state_from=flushing, lane_state_to=flushing,
                  outcome=FlushOutcome.FAILED, duration_us=30, error_code="EIO"),
        LaneEvent(**common, epoch=epoch(2), lane_state_from=flushing, lane_state_to="writable",
                  outcome=FlushOutcome.FLUSHED, duration_us=75, error_code=None),
        LaneEvent(**common, epoch=epoch(3), lane_state_from=draining, lane_state_to="writable",
                  outcome=FlushOutcome.DRAINED, duration_us=1, error_code=None),
    ]  # fmt: skip
    with pytest.raises(FrozenInstanceError):
        events[0].outcome = FlushOutcome.FLUSHED


# --- groups --------------------------------------------------------------------------------------------------------


def group_of(count: int, lane_settings: LaneSettings = SMALL) -> tuple[LaneGroup, list[LaneOwner]]:
    group = LaneGroup(count, settings=lane_settings)
    return group, [lane.claim(f"worker {lane.core_id}") for lane in group.lanes]


def test_a_group_is_gathered_in_ticket_order() -> None:
    group, owners = group_of(3)
    for ticket, core_id in enumerate([2, 0, 0, 1, 2, 2, 0]):
        group.lane(core_id).append(owners[core_id], b"%d" % ticket, ticket)
    group.seal(epoch(1))
    flush = group.gather(epoch(1), 0)
    assert [bytes(piece) for piece in flush.pieces()] == [b"0", b"12", b"3", b"45", b"6"]
    assert (flush.batch_count, flush.first_ticket, flush.last_ticket, flush.byte_count) == (7, 0, 6, 7)


def test_an_epoch_is_durable_only_when_its_owner_says_so() -> None:
    group, owners = group_of(2)
    group.lane(0).append(owners[0], b"one", 0)
    steps: list[Callable[[], object]] = [
        lambda: group.seal(epoch(1)),
        lambda: group.gather(epoch(1), 0),
        lambda: group.fail(epoch(1), "EIO", 0),
    ]
    for step in steps:
        assert not group.is_durable(epoch(1))
        step()
    assert (group.durable_epoch, group.is_durable(epoch(1))) == (0, False)
    assert group.lane(0).flush_state == LaneState(LanePhase.FLUSHING, epoch(1)), "a failed flush keeps its bytes"
    assert group.lane(1).flush_state is WRITABLE, "a lane without batches is left alone"
    group.mark_durable(epoch(1), 0)
    assert (group.durable_epoch, group.is_durable(epoch(1)), group.is_durable(epoch(2))) == (1, True, False)


def test_the_next_epoch_is_sealed_while_one_is_written() -> None:
    group, owners = group_of(2)
    group.lane(0).append(owners[0], b"one", 0)
    group.seal(epoch(1))
    group.gather(epoch(1), 0)
    group.lane(1).append(owners[1], b"two", 1)
    group.seal(epoch(2))
    with pytest.raises(WrongStateError, match="epoch 2 cannot be gathered: sealed is 2, being written is 1"):
        group.gather(epoch(2), 0)
    with pytest.raises(WrongStateError, match="epoch 3 cannot be sealed"):
        group.seal(epoch(3))
    with pytest.raises(WrongStateError, match="epoch 2 is not being written"):
        group.mark_durable(epoch(2), 0)
    group.mark_durable(epoch(1), 0)
    assert not group.is_durable(epoch(2))
    assert written(group.gather(epoch(2), 0)) == b"two"
    group.mark_durable(epoch(2), 0)


def test_a_group_refuses_calls_out_of_order() -> None:
    group, _ = group_of(1)
    for action in (group.gather, group.mark_durable):
        with pytest.raises(WrongStateError, match="sealed is none, being written is none, durable is 0"):
            action(epoch(1), 0)
    with pytest.raises(WrongStateError, match="not being written"):
        group.fail(epoch(1), "EIO", 0)
    group.seal(epoch(4))
    for number in (3, 4):
        with pytest.raises(WrongStateError, match="is not new"):
            group.seal(epoch(number))
        with pytest.raises(WrongStateError, match="is not new"):
            group.drain(epoch(number), 0)
    assert written(group.gather(epoch(4), 0)) == b""
    group.mark_durable(epoch(4), 0)
    assert group.is_durable(epoch(4))


@pytest.mark.parametrize("core_id", [-1, 2, 99])
def test_a_core_without_a_lane_is_refused(core_id: int) -> None:
    group, _ = group_of(2)
    with pytest.raises(NotFoundError, match=f"core {core_id} has no lane"):
        group.lane(core_id)


@pytest.mark.parametrize("count", [0, limits.LANES_MAX + 1])
def test_the_number_of_lanes_is_bounded(count: int) -> None:
    with pytest.raises(LimitError):
        LaneGroup(count, settings=SMALL)


def test_a_group_drains_all_lanes_together() -> None:
    group, owners = group_of(2, LaneSettings(buffer_size=SIZE, overflow_size=0))
    group.lane(0).append(owners[0], b"0", 0)
    group.lane(1).append(owners[1], b"1", 1)
    group.seal(epoch(1))
    group.gather(epoch(1), 0)
    group.lane(1).append(owners[1], b"2", 2)
    group.seal(epoch(2))
    group.lane(0).append(owners[0], b"3", 3)
    assert group.lane(1).append(owners[1], b"4", 4) is QUEUED
    assert group.must_drain
    group.fail(epoch(1), "EIO", 0)
    with pytest.raises(WrongStateError, match="a drain is due"):
        group.seal(epoch(3))
    assert written(group.drain(epoch(3), 0)) == b"01234"
    with pytest.raises(WrongStateError, match="cannot begin in another"):
        group.drain(epoch(4), 0)
    with pytest.raises(WrongStateError, match="epoch 4 cannot be sealed"):
        group.seal(epoch(4))
    assert not any(lane.has_unsealed for lane in group.lanes)
    with pytest.raises(WrongStateError, match="epoch 1 is not being written"):
        group.mark_durable(epoch(1), 0)
    assert not group.is_durable(epoch(1))
    group.mark_durable(epoch(3), 0)
    assert group.is_durable(epoch(1))
    assert not group.must_drain
    assert [lane.active_state for lane in group.lanes] == [WRITABLE] * 2
    assert group.lane(1).append(owners[1], b"5", 5) is ACCEPTED


def test_a_duplicate_ticket_is_detected() -> None:
    group, owners = group_of(2)
    group.lane(0).append(owners[0], b"x", 4)
    group.lane(1).append(owners[1], b"y", 4)
    group.seal(epoch(1))
    with pytest.raises(InvariantError, match="INV-LANE-TICKETS"):
        group.gather(epoch(1), 0)


def test_a_ticket_after_its_epoch_is_detected() -> None:
    group, owners = group_of(2)
    group.lane(0).append(owners[0], b"x", 4)
    group.seal(epoch(1))
    group.gather(epoch(1), 0)
    group.mark_durable(epoch(1), 0)
    group.lane(1).append(owners[1], b"y", 3)
    group.seal(epoch(2))
    with pytest.raises(InvariantError, match="INV-LANE-TICKETS"):
        group.gather(epoch(2), 0)


class GroupMachine(RuleBasedStateMachine):
    """Any steps of workers and committer: every accepted batch is written once, in ticket order."""

    @initialize(
        lanes=st.integers(1, 3),
        policy=st.sampled_from(LanePolicy),
        buffer_size=st.sampled_from([SIZE, 3 * SIZE]),
        overflow_size=st.sampled_from([0, SIZE // 2, 4 * SIZE]),
    )
    def make(self, lanes: int, policy: LanePolicy, buffer_size: int, overflow_size: int) -> None:
        self.events: list[LaneEvent] = []
        lane_settings = LaneSettings(buffer_size, overflow_size, policy)
        self.group = LaneGroup(lanes, settings=lane_settings, observer=self.events.append)
        self.owners = [lane.claim("worker") for lane in self.group.lanes]
        self.overflow_size = overflow_size
        self.taken: list[bytes] = []
        self.sealed: tuple[int, int] | None = None
        self.gathered: tuple[int, int] | None = None
        self.durable_count = 0
        self.epoch = 0
        self.log = b""

    @rule(core=st.integers(0, 2), size=st.sampled_from([1, 9, SIZE // 3, LARGE - 1, LARGE, 5 * LARGE]))
    def append(self, core: int, size: int) -> None:
        core %= len(self.owners)
        ticket = len(self.taken)
        data = (b"%d," % ticket).ljust(size, b".")
        lane = self.group.lane(core)
        blocked = lane.must_drain
        outcome = lane.append(self.owners[core], data, ticket)
        assert not (blocked and outcome is not REFUSED)
        if outcome is not REFUSED:
            self.taken.append(data)

    @rule()
    def seal(self) -> None:
        number = epoch(self.epoch + 1)
        if self.sealed is not None or self.group.must_drain or self.is_draining:
            with pytest.raises(WrongStateError):
                self.group.seal(number)
        else:
            self.group.seal(number)
            self.epoch += 1
            self.sealed = (self.epoch, len(self.taken))

    @property
    def is_draining(self) -> bool:
        return any(lane.active_state.phase is LanePhase.FLUSHING for lane in self.group.lanes)

    @precondition(lambda self: self.sealed is not None and self.gathered is None)
    @rule()
    def gather(self) -> None:
        assert self.sealed is not None
        self.pieces = self.group.gather(epoch(self.sealed[0]), 0)
        self.gathered, self.sealed = self.sealed, None

    @precondition(lambda self: hasattr(self, "group") and not self.is_draining)
    @rule()
    def drain(self) -> None:
        self.epoch += 1
        self.pieces = self.group.drain(epoch(self.epoch), 0)
        self.gathered, self.sealed = (self.epoch, len(self.taken)), None

    @precondition(lambda self: self.gathered is not None)
    @rule(fails=st.booleans())
    def write(self, fails: bool) -> None:
        assert self.gathered is not None
        number, count = self.gathered
        expected = b"".join(self.taken[self.durable_count : count])
        assert written(self.pieces) == expected
        assert self.pieces.batch_count == count - self.durable_count
        if fails:
            self.group.fail(epoch(number), "EIO", 0)
            assert not self.group.is_durable(epoch(number))
        else:
            self.group.mark_durable(epoch(number), 0)
            assert self.group.is_durable(epoch(number))
            self.log += expected
            self.durable_count, self.gathered = count, None

    @invariant()
    def bounded_and_exclusive(self) -> None:
        if not hasattr(self, "group"):
            return
        assert self.log == b"".join(self.taken[: self.durable_count])
        for lane in self.group.lanes:
            assert lane.must_drain or lane.overflow_bytes <= self.overflow_size
            assert lane.active_state.phase in (LanePhase.WRITABLE, LanePhase.SEALED) or self.is_draining
            assert lane.flush_state.phase in (LanePhase.WRITABLE, LanePhase.FLUSHING)
        epochs = [event.epoch for event in self.events if event.core_id == 0]
        assert epochs == sorted(epochs)


GroupMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestGroup = GroupMachine.TestCase


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 5)), max_size=80))
def test_a_lane_returns_every_appended_batch_in_order(sizes: list[tuple[int, int]]) -> None:
    made = owned()
    taken = []
    for index, (size, count) in enumerate(sizes):
        data = bytes([index]) * size
        if made.append(data, count) is not REFUSED:
            taken.append((data, count))
    made.lane.seal_active(epoch(1))
    flush = made.lane.begin_flush(0)
    assert written(flush) == b"".join(data for data, _ in taken)
    assert flush.batch_count == sum(count for _, count in taken)
