"""A broker's ring against its twin: reuse, wrapping, tokens stored last, recovery of a ring."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.ordering import broker_ring
from seawall.kernels.runtime import jit
from twins.ordering import broker_ring as twin

EXAMPLES = 20 if jit.PYTHON_MODE else 100
SLOTS = 4
BLOG = 1024
TERM = 0x1_2345


def batch(size: int = 100, client_seq: int = 1, *, order: int = 2, ack_level: int = 2, epoch: int = 9) -> bytes:
    fixed = struct.pack("<4sBBHIQQIIIIIQ", b"LANC", 2, 4, 0, 7, client_seq, 0, 3, size - 44, 0xFFFF_FFF1, 5, 0, 1 << 63)
    return (
        fixed
        + struct.pack("<QQQIIIBBBB", 0, 0, 0, 0, 0, epoch, order, ack_level, 0, 0)
        + bytes((client_seq + at) % 251 for at in range(size - 96))
    )


@pytest.fixture(autouse=True, scope="module", params=[broker_ring, twin], ids=["kernel", "twin"])
def subject(request: pytest.FixtureRequest) -> None:
    """What holds for the kernels holds for their twins."""
    Ring.subject = request.param


class Ring:
    """One broker's ring with all arguments of the kernels, driven through the kernels or their twins."""

    subject: ModuleType = broker_ring

    def __init__(self, module: ModuleType | None = None, slots: int = SLOTS, blog: int = BLOG) -> None:
        self.module = module or self.subject
        self.state = np.zeros(broker_ring.STATE_SIZE, np.int64)
        self.state[broker_ring.BROKER] = 3
        self.tails, self.completion = np.zeros(8, np.int64), np.zeros(16, np.int64)
        self.pending = np.zeros(slots, broker_ring.PENDING_ROW)
        self.slots = np.zeros(slots * 8, np.int64)
        self.entries = self.slots.view(np.uint8)
        self.blog = np.zeros(blog, np.uint8)
        self.progress = np.zeros(broker_ring.PROGRESS_SIZE, np.int64)

    @property
    def claims(self) -> tuple[Any, ...]:
        return self.state, self.tails, self.completion, self.pending

    @property
    def filled(self) -> tuple[Any, ...]:
        return self.state, self.pending, self.entries, self.slots, self.blog

    def publish(self, data: bytes, *, order: int = 5, ack_level: int = 1) -> tuple[int, list[int]]:
        source = np.frombuffer(data, np.uint8)
        state, *shared = self.claims
        arrays = (state, *shared, self.entries, self.slots, self.blog, self.progress)
        code = self.module.publish_run(source, 0, source.size, 77, order, ack_level, TERM, *arrays)
        return code, self.progress.tolist()

    def reserve(self, size: int, deadline_ns: int = 1_000) -> int:
        return self.module.reserve_slot(*self.claims, self.blog.size, size, deadline_ns)

    def receive(self, index: int, data: bytes) -> None:
        at = int(self.pending[index % self.pending.size]["blog_offset"]) % self.blog.size
        self.blog[at : at + len(data)] = np.frombuffer(data, np.uint8)

    def finish(self, index: int) -> int:
        return self.module.publish_reserved(*self.filled, index, 77, 5, 1, TERM)

    def abandon(self, index: int) -> int:
        return self.module.abandon_reserved(self.state, self.pending, self.entries, self.slots, index, TERM)

    def overdue(self, now_ns: int, space: int = 8) -> list[int]:
        found = np.zeros(space, np.int64)
        return found[: self.module.find_overdue(self.state, self.pending, now_ns, found)].tolist()

    def complete(self, count: int, *, answered: bool = True) -> None:
        self.completion[0] = count
        if answered:
            self.state[broker_ring.ANSWERED] = count

    def take_over(self) -> int:
        self.pending[:] = np.zeros(1, broker_ring.PENDING_ROW)
        self.state[: broker_ring.BROKER] = -1
        return self.module.resume_ring(*self.claims, self.entries, self.slots, TERM)

    def token(self, index: int) -> int:
        return int(self.slots.reshape(-1, 8)[index % self.pending.size, 7])

    def entry(self, index: int) -> tuple[int, ...]:
        row = self.entries.reshape(-1, 64)[index % self.pending.size]
        return struct.unpack("<QIIIIHHIQQIIQ", row.tobytes())

    def contents(self) -> list[Any]:
        return [each.tolist() for each in (*self.claims, self.slots, self.blog, self.progress)]


commands = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(96, 600), max_size=4), st.integers(0, 9)),
    st.tuples(st.just("reserve"), st.integers(96, 1100), st.integers(0, 5)),
    st.tuples(st.sampled_from(["finish", "abandon", "cut"]), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("complete"), st.integers(0, 5), st.booleans()),
    st.tuples(st.just("overdue"), st.integers(0, 6), st.integers(0, 3)),
    st.tuples(st.just("take_over"), st.just(0), st.just(0)),
)


def execute(ring: Ring, command: tuple[str, Any, Any]) -> Any:
    name, first, second = command
    claimed, completed = int(ring.state[broker_ring.CLAIMED]), int(ring.completion[0])
    match name:
        case "publish":
            levels = [(order, level) for order in (0, 5, 0xFF) for level in (0, 1, 0xFF)]
            order, level = levels[second % len(levels)]
            sent = [batch(size, at + 1, order=order, ack_level=level) for at, size in enumerate(first)]
            return ring.publish(b"".join(sent))
        case "reserve":
            index = ring.reserve(first, second)
            if index >= 0 and first >= 96:
                ring.receive(index, batch(first, index + 1))
            return index
        case "finish":
            return ring.finish(claimed - first)
        case "cut":
            if claimed:
                ring.receive(claimed - 1, bytes(40))
            return ring.finish(claimed - 1)
        case "abandon":
            return ring.abandon(claimed - first)
        case "complete":
            # As the frontier: only over slots that have their token.
            while first and completed < claimed and ring.token(completed) == completed + 1:
                completed, first = completed + 1, first - 1
            return ring.complete(completed, answered=second)
        case "overdue":
            return ring.overdue(first, second)
    return ring.take_over()


@settings(max_examples=EXAMPLES)
@given(st.lists(commands, max_size=30))
def test_a_ring_equals_its_twin(steps: list[tuple[str, Any, Any]]) -> None:
    ring, model = Ring(broker_ring), Ring(twin)
    for step in steps:
        assert execute(ring, step) == execute(model, step)
        assert ring.contents() == model.contents()


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.integers(96, 700), st.integers(0, 3)), max_size=60))
def test_bytes_in_use_are_never_overwritten(steps: list[tuple[int, int]]) -> None:
    """INV-BROKER-REUSE: every slot between completed and claimed keeps its token and its batch over many laps."""
    ring, held, completed = Ring(), {}, 0
    for number, (size, done) in enumerate(steps, start=1):
        sent = batch(size, number)
        code, (count, first, _) = ring.publish(sent)
        assert code == (broker_ring.RUN_DONE if count else broker_ring.RUN_FULL)
        if count:
            held[first] = sent
        for index, expected in held.items():
            offset, length = ring.entry(index)[:2]
            assert ring.token(index) == index + 1
            assert ring.blog[offset % BLOG : offset % BLOG + length].tobytes() == expected
            assert offset % broker_ring.LINE == 0
        completed = min(completed + done, int(ring.state[broker_ring.CLAIMED]))
        held = {index: sent for index, sent in held.items() if index >= completed}
        ring.complete(completed)


def test_an_entry_has_the_fields_of_its_header() -> None:
    ring = Ring()
    sent = batch(200, 42, order=5)
    assert ring.publish(batch(100) + sent) == (broker_ring.RUN_DONE, [2, 0, 300])
    assert ring.entry(1) == (128, 200, 3, 5, 0xFFFF_FFF1, 3, 0x2345, 1, 1 << 63, 42, 9, 0, 2)
    assert ring.tails[:2].tolist() == [2, 128 + 256]
    row = ring.pending[1]
    assert (row["owner"], row["client_id"], row["client_seq"]) == (77, 1 << 63, 42)
    assert (row["stage"], row["order"], row["ack_level"]) == (broker_ring.STAGE_WAITING, 5, 2)


def test_a_batch_without_order_and_level_gets_those_of_its_topic() -> None:
    ring = Ring()
    ring.publish(batch(order=0xFF, ack_level=0xFF), order=5, ack_level=0)
    ring.publish(batch(order=0xFF, ack_level=0xFF), order=0, ack_level=1)
    assert [(row["order"], row["ack_level"]) for row in ring.pending[:2]] == [(5, 0), (0, 1)]
    assert [ring.entry(index)[7] for index in (0, 1)] == [broker_ring.FLAG_STRONG_ORDER, 0]


def test_a_full_ring_frees_slots_only_after_completion_and_answer() -> None:
    """INV-BROKER-REUSE."""
    ring = Ring()
    sent = batch(100)
    assert ring.publish(sent * 6) == (broker_ring.RUN_FULL, [4, 0, 400])
    ring.complete(2, answered=False)
    assert ring.publish(sent)[0] == broker_ring.RUN_FULL
    ring.complete(2)
    assert ring.publish(sent * 3) == (broker_ring.RUN_FULL, [2, 4, 200])
    assert ring.token(4) == 5


def test_a_full_blog_frees_bytes_only_after_completion() -> None:
    ring = Ring()
    assert ring.publish(batch(500) * 3) == (broker_ring.RUN_FULL, [2, 0, 1000])
    ring.complete(1)
    assert ring.publish(batch(500)) == (broker_ring.RUN_DONE, [1, 2, 500])


def test_no_cache_line_in_use_is_given_to_another_batch() -> None:
    ring = Ring()
    ring.publish(batch(512) + batch(512))
    ring.complete(1)
    assert ring.publish(batch(513))[0] == broker_ring.RUN_FULL
    assert ring.publish(batch(512))[0] == broker_ring.RUN_DONE


def test_skipped_bytes_are_freed_with_the_slot_before_them() -> None:
    ring = Ring()
    ring.publish(batch(512) + batch(128))
    ring.complete(1)
    ring.publish(batch(512))
    assert ring.entry(2)[0] == BLOG
    ring.complete(2)
    assert ring.publish(batch(512)) == (broker_ring.RUN_DONE, [1, 3, 512])


def test_a_batch_never_wraps_around_the_end() -> None:
    ring = Ring()
    ring.publish(batch(600))
    assert ring.publish(batch(500))[0] == broker_ring.RUN_FULL
    ring.complete(1)
    ring.publish(batch(500))
    assert ring.entry(1)[0] == BLOG


def test_the_largest_batch_fits_an_empty_ring_at_any_position() -> None:
    ring = Ring()
    ring.publish(batch(100))
    assert ring.publish(batch(BLOG))[0] == broker_ring.RUN_FULL
    ring.complete(1)
    assert ring.publish(batch(BLOG))[0] == broker_ring.RUN_DONE
    assert ring.entry(1)[0] == BLOG
    assert ring.publish(batch(BLOG + 1))[0] == broker_ring.RUN_NEVER_FITS


@pytest.mark.parametrize("cut", [1, 50, 99])
def test_an_incomplete_batch_claims_nothing(cut: int) -> None:
    ring = Ring()
    assert ring.publish(batch(100) + batch(100)[:cut]) == (broker_ring.RUN_CUT, [1, 0, 100])
    assert ring.tails[0] == 1


def test_a_reserved_slot_has_no_token_until_its_batch_is_complete() -> None:
    ring = Ring()
    index = ring.reserve(200)
    assert (ring.token(index), ring.tails[0]) == (0, 1)
    ring.publish(batch())
    assert ring.token(1) == 2
    assert ring.finish(index) == broker_ring.RESERVED_CUT
    ring.receive(index, batch(200, 8))
    assert ring.finish(index) == broker_ring.RESERVED_PUBLISHED
    assert ring.entry(index)[9] == 8
    assert ring.finish(index) == broker_ring.RESERVED_GONE
    assert ring.abandon(index) == 0


def test_an_overdue_reservation_becomes_a_nop() -> None:
    """INV-BROKER-CLAIM-ENDS."""
    ring = Ring()
    late, soon = ring.reserve(200, 5), ring.reserve(200, 9)
    assert ring.overdue(4) == []
    assert ring.overdue(8) == [late]
    assert ring.overdue(9) == [late, soon]
    assert ring.overdue(9, space=1) == [late]
    assert ring.abandon(late) == 1
    assert ring.entry(late) == (0, 0, 0, 0, 0, 3, 0x2345, broker_ring.FLAG_NOP, 0, 0, 0, 0, late + 1)
    assert ring.overdue(9) == [soon]
    assert ring.finish(late) == broker_ring.RESERVED_GONE


def test_a_recovered_ring_has_a_nop_for_each_stuck_slot_and_continues() -> None:
    ring = Ring()
    ring.publish(batch(100))
    ring.reserve(200)
    ring.publish(batch(300))
    ring.reserve(64)
    assert ring.take_over() == 2
    nop = broker_ring.FLAG_NOP | broker_ring.FLAG_RECOVERED
    assert [ring.entry(index)[7] for index in range(4)] == [0, nop, 0, nop]
    assert [ring.token(index) for index in range(4)] == [1, 2, 3, 4]
    assert ring.publish(batch(96))[0] == broker_ring.RUN_FULL
    ring.completion[0] = 4
    assert ring.publish(batch(96)) == (broker_ring.RUN_DONE, [1, 4, 96])


def test_bytes_of_a_stuck_slot_are_free_after_recovery() -> None:
    ring = Ring()
    ring.reserve(BLOG)
    assert ring.reserve(96) == broker_ring.NO_SPACE
    ring.take_over()
    assert ring.reserve(BLOG) == 1


def test_bytes_counted_for_no_slot_are_free_after_recovery() -> None:
    ring = Ring()
    ring.tails[broker_ring.TAIL_BLOG_CLAIMED] = 640
    assert ring.take_over() == 0
    assert ring.reserve(BLOG) == 0


@pytest.mark.parametrize(("claimed", "completed"), [(3, 4), (9, 4), (-1, 0), (0, -1)])
def test_contradicting_counters_are_refused(claimed: int, completed: int) -> None:
    ring = Ring()
    ring.tails[0], ring.completion[0] = claimed, completed
    assert ring.take_over() == -1
