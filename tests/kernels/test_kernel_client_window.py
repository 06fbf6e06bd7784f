"""Client windows: every step of kernel and twin on the same arrays, and the edges of the window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.admission import client_index
from seawall.kernels.admission import client_window as window
from seawall.kernels.runtime import jit
from seawall.wire.format.codes import AckStatus
from twins.admission import client_window as twin

EXAMPLES = 15 if jit.PYTHON_MODE else 100
SYNTHETIC = (1 << 63) | 5
OK, REJECTED = int(AckStatus.OK), int(AckStatus.REJECTED)


class Arrays:
    """The state of a window for four clients and two memories."""

    def __init__(self, memories: int = 2) -> None:
        self.table = np.zeros(8, np.uint32)
        self.count = 0
        self.clients = np.zeros((4, 8), np.uint64)
        self.sides = np.zeros((4, 8), np.uint64)
        self.slots = np.zeros((window.slot_rows(memories), 8), np.uint64)
        self.slots[-1, window.SLOT_COUNT] = memories
        self.results = np.zeros(memories * window.WINDOW, window.WINDOW_RESULT)

    def add(self, client_id: int, epoch: int = 1, start: int = 1) -> None:
        row, self.count = self.count, self.count + 1
        client_index.add_row(self.table, np.uint64(client_id), row)
        self.clients[row, :4] = (client_id, epoch, start, start - 1)

    def state(self) -> tuple[Any, ...]:
        return (self.table, self.clients, self.sides, self.slots, self.results)

    def content(self) -> list[Any]:
        return [array.tolist() for array in self.state()]


class Pair:
    """The same calls on a kernel's arrays and on a twin's."""

    def __init__(self, memories: int = 2) -> None:
        self.ours, self.theirs = Arrays(memories), Arrays(memories)

    def add(self, client_id: int, epoch: int = 1, start: int = 1) -> None:
        self.ours.add(client_id, epoch, start)
        self.theirs.add(client_id, epoch, start)

    def same(self) -> None:
        assert self.ours.content() == self.theirs.content()

    def check(self, client_id: int, client_seq: int, crc: int = 0, epoch: int = 1) -> tuple[int, Any]:
        before = self.ours.content()
        answers, expected = np.ones((2, 3), window.WINDOW_RESULT)
        given_arguments = (np.uint64(client_id), epoch, client_seq, crc)
        code = window.check_batch(*given_arguments, self.ours.state(), answers, 1)
        assert code == twin.check_batch(client_id, epoch, client_seq, crc, self.theirs.state(), expected, 1)
        assert answers.tolist() == expected.tolist()
        assert self.ours.content() == before
        return code, answers[1].tolist()

    def decide(self, client_id: int, client_seq: int, crc: int = 0, status: int = OK, number: int = 0) -> int:
        outcomes = np.zeros(2, window.WINDOW_RESULT)
        outcomes[1] = (number, number + 1, number + 2, crc, status * 7, status, 0)
        code = window.decide_batch(np.uint64(client_id), client_seq, self.ours.state(), outcomes, 1)
        assert code == twin.decide_batch(client_id, client_seq, self.theirs.state(), outcomes, 1)
        self.same()
        return code

    def skip_to(self, client_id: int, seq: int) -> int:
        code = window.skip_to(np.uint64(client_id), seq, *self.ours.state()[:-1])
        assert code == twin.skip_to(client_id, seq, *self.theirs.state()[:-1])
        self.same()
        return code

    def refuse(self, row: int, client_seq: int) -> int:
        code = window.refuse_row(client_seq, self.ours.clients, self.ours.sides, row)
        assert code == twin.refuse_row(client_seq, self.theirs.clients, self.theirs.sides, row)
        self.same()
        return code

    def skip_run(self, row: int, end: int) -> int:
        ours, theirs = ((each.clients, each.sides, each.slots) for each in (self.ours, self.theirs))
        count = window.skip_run(end, *ours, row)
        assert count == twin.skip_run(end, *theirs, row)
        self.same()
        return count

    def window_of(self, row: int = 0) -> tuple[int, int]:
        next_expected, highest = self.ours.clients[row, 2:4].tolist()
        return next_expected, highest


def pair_with(client_id: int = 1, start: int = 1, memories: int = 2) -> Pair:
    pair = Pair(memories)
    pair.add(client_id, start=start)
    return pair


some_clients = st.sampled_from([1, 2, 3, 4, SYNTHETIC])
steps = st.lists(
    st.tuples(
        st.sampled_from(["decide", "decide", "decide", "check", "skip", "refuse", "skip run"]),
        some_clients,
        st.one_of(st.integers(-3, 6), st.sampled_from([-300, -256, -255, -254, 254, 255, 256, 257, 400])),
        st.integers(0, 1),
        st.sampled_from([OK, OK, REJECTED]),
    ),
    max_size=60,
)


@settings(max_examples=EXAMPLES)
@given(steps, st.sampled_from([1, 2, 300, window.CLIENT_SEQ_MAX - 300]), st.integers(1, 3))
def test_every_step_equals_its_twin(taken: list[tuple[str, int, int, int, int]], start: int, memories: int) -> None:
    pair = Pair(memories)
    for client_id in (1, 2, 3):
        pair.add(client_id, epoch=client_id, start=start)
    for number, (action, client_id, offset, crc, status) in enumerate(taken):
        row = min(client_id, 3) - 1
        seq = pair.window_of(row)[0] + offset
        if action == "decide":
            pair.decide(client_id, seq, crc, status, number)
        elif action == "check":
            pair.check(client_id, seq, crc, epoch=min(client_id, 3))
        elif action == "refuse":
            pair.refuse(row, seq)
        elif action == "skip run":
            pair.skip_run(row, min(seq, window.CLIENT_SEQ_MAX))
        elif client_id != SYNTHETIC:
            pair.skip_to(client_id, min(max(seq, 0), window.CLIENT_SEQ_MAX))
        next_expected, highest = pair.window_of(row)
        assert next_expected - 1 <= highest <= next_expected + 255, "INV-WINDOW-EXACT"


@settings(max_examples=EXAMPLES)
@given(
    st.lists(st.tuples(some_clients, st.integers(0, 12), st.integers(0, 2), st.integers(0, 1)), max_size=25),
    st.integers(0, 25),
)
def test_a_call_for_many_equals_calls_one_by_one(given_batches: list[tuple[int, int, int, int]], count: int) -> None:
    count = min(count, len(given_batches))
    pair, single = pair_with(), pair_with()
    pair.add(2)
    single.add(2)
    batches = np.array([tuple(batch) for batch in given_batches], window.WINDOW_BATCH)
    outcomes = np.zeros(len(batches), window.WINDOW_RESULT)
    outcomes["block_crc"] = batches["block_crc"]
    for codes_of, twin_of, answers in (
        (window.decide_many, twin.decide_many, outcomes),
        (window.check_many, twin.check_many, outcomes.copy()),
    ):
        codes, expected = np.full((2, len(batches)), -1, np.int64)
        expected_answers = answers.copy()
        codes_of(batches, count, pair.ours.state(), answers, codes)
        twin_of(batches, count, pair.theirs.state(), expected_answers, expected)
        pair.same()
        assert codes.tolist() == expected.tolist()
        assert answers.tolist() == expected_answers.tolist()
        assert codes.tolist()[count:] == [-1] * (len(batches) - count)
        for index, (client_id, seq, epoch, crc) in enumerate(given_batches[:count]):
            if codes_of is window.decide_many:
                assert single.decide(client_id, seq, crc) == codes[index]
            else:
                assert single.check(client_id, seq, crc, epoch)[0] == codes[index]


def test_a_batch_is_new_only_once() -> None:
    pair = pair_with()
    assert pair.check(1, 1, crc=9) == (window.CHECK_NEW, (2**64 - 1, 0, 0, 0, 0, 0, 0))
    assert pair.decide(1, 1, crc=9, number=100) == window.CHECK_NEW
    assert pair.check(1, 1, crc=9) == (window.CHECK_DUPLICATE, (100, 101, 102, 9, 0, OK, 1))
    assert pair.check(1, 1, crc=8)[0] == window.CHECK_MISMATCH
    assert pair.decide(1, 1, crc=9) == window.CHECK_DUPLICATE
    assert pair.window_of() == (2, 1)


def test_a_refusal_is_remembered_and_never_becomes_a_duplicate() -> None:
    pair = pair_with()
    assert pair.decide(1, 1, crc=9, status=REJECTED) == window.CHECK_NEW
    code, answer = pair.check(1, 1, crc=9)
    assert (code, answer[4:]) == (window.CHECK_REFUSED, (REJECTED * 7, REJECTED, 1))
    assert pair.check(1, 1, crc=8)[0] == window.CHECK_MISMATCH
    assert pair.decide(1, 1) == window.CHECK_REFUSED
    assert pair.window_of() == (2, 1)
    pair.ours.sides[:] = pair.theirs.sides[:] = 0  # as after a restart, when only the rows are left
    assert pair.check(1, 1)[0] == window.CHECK_SKIPPED


def test_the_edges_of_the_window() -> None:
    pair = pair_with(start=1000)
    assert pair.check(1, 999)[0] == window.CHECK_SKIPPED, "before the start nothing was ever stored"
    assert pair.check(1, 1000 + 255)[0] == window.CHECK_NEW
    assert pair.check(1, 1000 + 256)[0] == window.CHECK_OUTSIDE
    assert pair.decide(1, 1000 + 255) == window.CHECK_NEW
    assert pair.window_of() == (1000, 1255)
    assert pair.check(1, 999)[0] == window.CHECK_OUTSIDE
    assert pair.check(1, 1256)[0] == window.CHECK_OUTSIDE
    for seq in range(1000, 1255):
        assert pair.check(1, seq)[0] == window.CHECK_NEW
    assert pair.decide(1, 1000) == window.CHECK_NEW
    assert pair.window_of() == (1001, 1255)
    assert pair.check(1, 1256)[0] == window.CHECK_NEW
    assert pair.decide(1, 1256) == window.CHECK_NEW
    assert pair.check(1, 1000)[0] == window.CHECK_OUTSIDE
    for seq in range(1001, 1255):
        assert pair.decide(1, seq) == window.CHECK_NEW
    assert pair.window_of() == (1257, 1256), "the gap is closed and all decided seqs after it are counted"


@pytest.mark.parametrize("seq", [0, -1, window.CLIENT_SEQ_MAX + 1, 2**63 - 1, -(2**63)])
def test_an_invalid_client_seq_is_outside_the_window(seq: int) -> None:
    pair = pair_with()
    assert pair.check(1, seq)[0] == window.CHECK_OUTSIDE
    assert pair.decide(1, seq) == window.CHECK_OUTSIDE


def test_the_largest_client_seq() -> None:
    pair = pair_with(start=window.CLIENT_SEQ_MAX)
    assert pair.decide(1, window.CLIENT_SEQ_MAX) == window.CHECK_NEW
    assert pair.check(1, window.CLIENT_SEQ_MAX)[0] == window.CHECK_DUPLICATE
    assert pair.check(1, window.CLIENT_SEQ_MAX + 1)[0] == window.CHECK_OUTSIDE


@pytest.mark.parametrize("epoch", [0, 1, 3, 2**32 + 1])
def test_another_session_is_fenced(epoch: int) -> None:
    pair = Pair()
    pair.add(1, epoch=2**32 + 2)
    assert pair.check(1, 1, epoch=epoch)[0] == window.CHECK_FENCED
    assert pair.check(1, 1, epoch=2)[0] == window.CHECK_NEW, "a header has the low half of an epoch"


def test_unknown_clients_and_clients_without_a_session() -> None:
    pair = pair_with()
    before = pair.ours.content()
    assert pair.check(2, 1)[0] == window.CHECK_UNKNOWN_CLIENT
    assert pair.decide(2, 1) == window.CHECK_UNKNOWN_CLIENT
    assert pair.skip_to(2, 5) == window.CHECK_UNKNOWN_CLIENT
    for seq in (0, 1, 1, 2**62):
        assert pair.check(SYNTHETIC, seq, epoch=0)[0] == window.CHECK_NEW
        assert pair.decide(SYNTHETIC, seq) == window.CHECK_NEW
    assert pair.ours.content() == before


def test_the_memory_of_the_least_recently_decided_client_is_reused() -> None:
    pair = Pair(memories=2)
    for client_id in (1, 2, 3):
        pair.add(client_id)
    for client_id in (1, 2, 1, 3):
        seq = pair.window_of(client_id - 1)[0]
        pair.decide(client_id, seq, crc=client_id)
    known = [pair.check(client_id, 1, crc=client_id) for client_id in (1, 2, 3)]
    assert [code for code, _ in known] == [window.CHECK_DUPLICATE] * 3
    assert [answer[-1] for _, answer in known] == [1, 0, 1]
    assert pair.check(2, 1, crc=77)[0] == window.CHECK_DUPLICATE, "a forgotten block cannot be told apart"
    pair.decide(2, 2, crc=5)
    assert pair.check(2, 2, crc=5)[1][-1] == 1
    assert pair.check(2, 1, crc=5)[1][-1] == 0, "a memory taken again starts empty"
    assert pair.check(1, 1, crc=1)[1][-1] == 0


def test_a_reused_memory_starts_on_its_own_cache_line() -> None:
    pair = Pair(memories=2)
    for client_id, start in ((1, 1), (2, 200), (3, 1_000), (4, 77)):
        pair.add(client_id, start=start)
    for client_id, start, memory in ((1, 1, 0), (2, 200, 1), (3, 1_000, 0), (4, 77, 1)):
        pair.decide(client_id, start, crc=client_id)
        place = window.known_result(start, pair.ours.sides, pair.ours.slots, client_id - 1)
        assert place == memory * window.WINDOW + window.first_result(memory)
        assert window.first_result(memory) == memory * 64 // window.WINDOW_RESULT.itemsize


def test_a_rotated_memory_has_a_slot_for_each_seq_of_the_window() -> None:
    pair = pair_with(start=100)
    for seq in range(100, 100 + window.WINDOW):
        pair.decide(1, seq, crc=seq, number=seq)
    answers = [pair.check(1, seq, crc=seq)[1] for seq in range(100, 100 + window.WINDOW)]
    assert [answer[0] for answer in answers] == list(range(100, 100 + window.WINDOW))


def test_skipped_seqs_are_decided() -> None:
    pair = pair_with()
    pair.decide(1, 3)
    assert pair.skip_to(1, 1) == window.CHECK_OUTSIDE
    assert pair.skip_to(1, 3) == window.CHECK_NEW
    assert pair.window_of() == (4, 3), "seqs decided after the gap are counted"
    assert [pair.check(1, seq)[0] for seq in (1, 2, 3, 4)] == [
        *(window.CHECK_SKIPPED, window.CHECK_SKIPPED),
        *(window.CHECK_DUPLICATE, window.CHECK_NEW),
    ]
    assert pair.decide(1, 2) == window.CHECK_SKIPPED
    assert pair.skip_to(1, 10_000) == window.CHECK_NEW
    assert pair.window_of() == (10_000, 9_999)
    assert pair.check(1, 9_999 - 255)[0] == window.CHECK_SKIPPED
    assert pair.check(1, 9_999 - 256)[0] == window.CHECK_OUTSIDE


def test_old_bits_are_not_taken_for_new_seqs() -> None:
    pair = pair_with()
    for seq in range(1, 257):
        pair.decide(1, seq)
    assert pair.check(1, 257)[0] == window.CHECK_NEW
    pair.decide(1, 260)
    assert [pair.check(1, seq)[0] for seq in (257, 258, 259)] == [window.CHECK_NEW] * 3


def test_a_stored_seq_can_still_be_refused() -> None:
    pair = pair_with()
    for seq in (1, 2, 3):
        pair.decide(1, seq)
    assert (pair.refuse(0, 2), pair.refuse(0, 2), pair.refuse(0, 4)) == (1, 0, 0)
    assert pair.check(1, 2)[0] == window.CHECK_REFUSED
    assert pair.check(1, 3)[0] == window.CHECK_DUPLICATE
    pair.decide(1, 255)
    assert pair.refuse(0, 3) == 1
    pair.decide(1, 4)
    pair.decide(1, 260)
    assert pair.refuse(0, 4) == 0


def test_a_run_ends_at_a_decided_seq() -> None:
    pair = pair_with()
    pair.decide(1, 3)
    assert (pair.skip_run(0, 6), pair.window_of()) == (2, (4, 3))
    assert (pair.skip_run(0, 6), pair.window_of()) == (2, (6, 5))
    assert (pair.skip_run(0, 6), pair.window_of()) == (0, (6, 5))
