"""Slot rings over several laps, and the bookkeeping of a disk ring, each against its twin."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.runtime import disk_ring, jit, rings
from twins.runtime import disk_ring as disk_twin
from twins.runtime import rings as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100

Words = npt.NDArray[np.int64]


class Ring:
    """Arrays of one ring, its laps beginning at an index of choice."""

    def __init__(self, capacity: int, first: int = 0) -> None:
        self.slots = np.zeros(capacity * rings.SLOT_WORDS, np.int64)
        self.counters = np.zeros(rings.COUNTER_WORDS, np.int64)
        self.counters[[rings.PRODUCED, rings.CONSUMED]] = first

    def state(self) -> tuple[list[int], list[int]]:
        return self.slots.tolist(), self.counters.tolist()


@settings(max_examples=EXAMPLES)
@given(
    st.integers(1, 5),
    st.sampled_from([0, 1, 6, 2**31 - 2, 2**62]),
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=50),
)
def test_a_ring_equals_its_twin_and_a_queue(capacity: int, first: int, steps: list[int | None]) -> None:
    ring, model = Ring(capacity, first), Ring(capacity, first)
    queue: deque[int] = deque()
    for step in steps:
        if step is None:
            taken, expected = np.zeros(7, np.int64), np.zeros(7, np.int64)
            done = rings.ring_pop(ring.slots, ring.counters, taken)
            assert done == twin.ring_pop(model.slots, model.counters, expected) == int(bool(queue))
            assert taken.tolist() == expected.tolist() == [queue.popleft() if queue else 0] * 7
        else:
            content = np.full(7, step, np.int64)
            done = rings.ring_push(ring.slots, ring.counters, content)
            assert done == twin.ring_push(model.slots, model.counters, content) == int(len(queue) < capacity)
            queue.extend([step] * done)
        ready = rings.ring_is_ready(ring.slots, ring.counters)
        assert ready == twin.ring_is_ready(model.slots, model.counters) == int(bool(queue))
        assert ring.state() == model.state()


def test_a_token_of_the_previous_lap_is_not_ready() -> None:
    ring, content = Ring(2), np.arange(7)
    for _ in range(2):
        assert rings.ring_push(ring.slots, ring.counters, content) == 1
        assert rings.ring_pop(ring.slots, ring.counters, content) == 1
    assert ring.slots[rings.TOKEN_WORD] == 1
    assert rings.ring_is_ready(ring.slots, ring.counters) == 0


def test_content_without_its_token_is_not_ready() -> None:
    ring, content = Ring(2), np.arange(1, 8)
    rings.ring_push(ring.slots, ring.counters, content)
    ring.slots[rings.TOKEN_WORD] = 0
    assert rings.ring_pop(ring.slots, ring.counters, content) == 0
    ring.slots[rings.TOKEN_WORD] = 1
    assert rings.ring_pop(ring.slots, ring.counters, content) == 1


def test_patterns_are_produced_and_consumed_by_one_thread() -> None:
    ring, content = Ring(8, 16), np.zeros(7, np.int64)
    for lap in range(5):
        assert rings.produce_pattern(ring.slots, ring.counters, lap * 8, 8, content) == 8
        assert rings.ring_push(ring.slots, ring.counters, content) == 0
        assert rings.consume_pattern(ring.slots, ring.counters, lap * 8, 8, content) == 8
        assert rings.ring_pop(ring.slots, ring.counters, content) == 0


@pytest.mark.parametrize("word", range(7))
def test_a_torn_slot_is_detected(word: int) -> None:
    ring, content = Ring(8), np.zeros(7, np.int64)
    rings.produce_pattern(ring.slots, ring.counters, 0, 8, content)
    ring.slots[3 * rings.SLOT_WORDS + word] += 1
    assert rings.consume_pattern(ring.slots, ring.counters, 0, 8, content) == -1 - 3


def operation(tag: int, kind: int, *, link: bool = False, size: int = 0) -> Words:
    words = np.zeros(7, np.int64)
    words[disk_ring.SUBMIT_TAG] = tag
    words[disk_ring.SUBMIT_OPERATION] = kind | (disk_ring.LINK if link else 0)
    words[disk_ring.SUBMIT_BYTES] = size
    return words


kinds = st.sampled_from([disk_ring.WRITE, disk_ring.SYNC, disk_ring.WRITE_SYNC, disk_ring.READ])
operations = st.tuples(kinds, st.booleans(), st.sampled_from([0, 10, 20]))
results = st.sampled_from([0, 10, 20, -errno.EIO, -errno.ECANCELED, -errno.ENOSPC])


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2), st.lists(st.one_of(operations, st.none()), max_size=30), st.data())
def test_bookkeeping_of_a_disk_ring_equals_its_twin(
    bits: int, steps: list[tuple[int, bool, int] | None], data: st.DataObject
) -> None:
    """Submit some, serve some with results out of a hat; None serves the next operation."""
    words = disk_ring.ring_words(2 << bits)
    ring, model = np.zeros(words, np.int64), np.zeros(words, np.int64)
    taken, expected = np.zeros(7, np.int64), np.zeros(7, np.int64)
    for tag, step in enumerate(steps):
        if step is not None:
            kind, link, size = step
            given_words = operation(tag, kind, link=link, size=size)
            assert disk_ring.submit(ring, given_words) == disk_twin.submit(model, given_words)
        elif disk_ring.has_operation(ring):
            assert disk_ring.next_operation(ring, taken) == disk_twin.next_operation(model, expected) == 1
            refused = disk_ring.refusal(ring, taken)
            assert refused == disk_twin.refusal(model, expected)
            result = refused or data.draw(results)
            disk_ring.settle(ring, taken, result)
            disk_twin.settle(model, expected, result)
        else:
            assert disk_ring.next_operation(ring, taken) == disk_twin.next_operation(model, expected) == 0
        assert disk_ring.has_operation(ring) == disk_twin.has_operation(model)
        assert taken.tolist() == expected.tolist()
        assert ring.tolist() == model.tolist()


@pytest.mark.parametrize("entries", [1, 2, 256])
def test_parts_of_a_disk_ring_do_not_overlap(entries: int) -> None:
    ring = np.zeros(disk_ring.ring_words(entries), np.int64)
    for value, name in enumerate(["submit_counters", "complete_counters", "submit_slots", "complete_slots"], start=1):
        part = getattr(disk_ring, name)(ring)
        assert part.size == (16 if "counters" in name else entries * 8)
        assert not part.any()
        part[:] = value
        assert (getattr(disk_twin, name)(ring) == value).all()
    assert not ring[: disk_ring.ring_words(0) - 32].any()
    assert ring[disk_ring.ring_words(0) - 32 :].all()


@pytest.mark.parametrize("stop", [0, 1])
@pytest.mark.parametrize("busy", [False, True])
def test_a_server_sleeps_only_when_there_is_nothing_to_do(stop: int, busy: bool) -> None:
    states = []
    for module in (disk_ring, disk_twin):
        ring = np.zeros(disk_ring.ring_words(2), np.int64)
        ring[disk_ring.CONTROL_STOP] = stop
        if busy:
            module.submit(ring, operation(1, disk_ring.SYNC))
        assert module.sleep_is_due(ring) == int(not stop and not busy)
        assert ring[disk_ring.CONTROL_SLEEPING] == int(not stop and not busy)
        states.append(ring.tolist())
    assert states[0] == states[1]


@pytest.fixture(params=[disk_ring, disk_twin], ids=["kernel", "twin"])
def publish(request: pytest.FixtureRequest) -> Callable[[Words, int, int, int], None]:
    return request.param.publish


def completions(ring: Words) -> list[tuple[int, int]]:
    taken, found = np.zeros(7, np.int64), []
    while rings.ring_pop(disk_ring.complete_slots(ring), disk_ring.complete_counters(ring), taken):
        found.append((int(taken[0]), int(taken[1])))
    return found


def test_an_operation_that_succeeds_after_a_failed_sync_is_reported_as_failed(publish: Callable[..., None]) -> None:
    """A sync that succeeds after a concurrent one has failed proves nothing."""
    ring = np.zeros(disk_ring.ring_words(8), np.int64)
    publish(ring, 1, disk_ring.WRITE, 10)
    publish(ring, 2, disk_ring.SYNC, -errno.ENOSPC)
    publish(ring, 3, disk_ring.SYNC, 0)
    publish(ring, 4, disk_ring.WRITE, 10)
    publish(ring, 5, disk_ring.READ, 10)
    publish(ring, 6, disk_ring.WRITE_SYNC, -errno.EINVAL)
    assert completions(ring) == [
        (1, 10),
        (2, -errno.ENOSPC),
        (3, -errno.EIO),
        (4, -errno.EIO),
        (5, 10),
        (6, -errno.EINVAL),
    ]
    assert ring[disk_ring.CONTROL_POISON] == -errno.ENOSPC


def test_a_canceled_sync_does_not_poison(publish: Callable[..., None]) -> None:
    ring = np.zeros(disk_ring.ring_words(2), np.int64)
    publish(ring, 1, disk_ring.SYNC, -errno.ECANCELED)
    assert ring[disk_ring.CONTROL_POISON] == 0


def test_the_address_of_a_buffer() -> None:
    for buffer in (np.zeros(8, np.uint8), np.frombuffer(b"fixed", np.uint8)):
        assert disk_ring.buffer_address(buffer) == disk_twin.buffer_address(buffer)


# --- rare results of system calls, injected -----------------------------------------------------------------------

python_mode_only = pytest.mark.skipif(not jit.PYTHON_MODE, reason="only plain Python lets a test replace a system call")


def injected(monkeypatch: pytest.MonkeyPatch, **answers: list[int]) -> list[str]:
    """Replace system calls by a list of results; returns the names of the calls as they are made."""
    calls: list[str] = []

    def inject(name: str) -> None:
        def call(*_: int) -> int:
            calls.append(name)
            return answers[name].pop(0)

        monkeypatch.setattr(disk_ring, name, call)

    for name in ("write_vector", "read_vector", "sync_data", "write_flagged"):
        inject(name)
    return calls


@python_mode_only
@pytest.mark.parametrize(
    ("answers", "result", "expected_calls"),
    [
        ({"write_flagged": [10]}, 10, ["write_flagged"]),
        ({"write_flagged": [-errno.EIO]}, -errno.EIO, ["write_flagged"]),
        ({"write_flagged": [-errno.EINTR, 10]}, 10, ["write_flagged", "write_flagged"]),
        (
            {"write_flagged": [-errno.EOPNOTSUPP], "write_vector": [10], "sync_data": [0]},
            10,
            ["write_flagged", "write_vector", "sync_data"],
        ),
        (
            {"write_flagged": [-errno.EOPNOTSUPP], "write_vector": [10], "sync_data": [-errno.EIO]},
            -errno.EIO,
            ["write_flagged", "write_vector", "sync_data"],
        ),
        (
            {"write_flagged": [-errno.EOPNOTSUPP], "write_vector": [-errno.ENOSPC]},
            -errno.ENOSPC,
            ["write_flagged", "write_vector"],
        ),
    ],
)
def test_durable_writes_fall_back(
    answers: dict[str, list[int]], result: int, expected_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = injected(monkeypatch, **{name: list(each) for name, each in answers.items()})
    assert disk_ring.execute(operation(1, disk_ring.WRITE_SYNC), 1) == result
    assert calls == expected_calls


@python_mode_only
@pytest.mark.parametrize(
    ("kind", "answers", "expected_calls"),
    [
        (disk_ring.WRITE, {"write_flagged": [10]}, ["write_flagged"]),
        (
            disk_ring.WRITE,
            {"write_flagged": [-errno.EOPNOTSUPP], "write_vector": [10]},
            ["write_flagged", "write_vector"],
        ),
        (disk_ring.WRITE_SYNC, {"write_flagged": [-errno.EOPNOTSUPP, 10]}, ["write_flagged", "write_flagged"]),
        (
            disk_ring.WRITE_SYNC,
            {"write_flagged": [-errno.EOPNOTSUPP, -errno.EOPNOTSUPP], "write_vector": [10], "sync_data": [0]},
            ["write_flagged", "write_flagged", "write_vector", "sync_data"],
        ),
    ],
)
def test_uncached_writes_fall_back(
    kind: int, answers: dict[str, list[int]], expected_calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = injected(monkeypatch, **{name: list(each) for name, each in answers.items()})
    assert disk_ring.execute(operation(1, kind | disk_ring.UNCACHED), 1) == 10
    assert calls == expected_calls


@python_mode_only
def test_an_interrupted_call_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    again = {"write_vector": [-errno.EINTR, 5], "sync_data": [-errno.EINTR, 0], "read_vector": [-errno.EINTR, 7]}
    calls = injected(monkeypatch, **again)
    kinds_and_results = ((disk_ring.WRITE, 5), (disk_ring.SYNC, 0), (disk_ring.READ, 7))
    for kind, result in kinds_and_results:
        assert disk_ring.execute(operation(1, kind), 0) == result
    assert len(calls) == 6


@python_mode_only
def test_measuring_gives_up_on_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = np.zeros(disk_ring.ring_words(4), np.int64)
    monkeypatch.setattr(disk_ring, "take_completion", lambda *_: 0)
    outcome = disk_ring.measure_chain(ring, -1, -1, operation(1, disk_ring.SYNC), np.zeros(1, np.int64))
    assert outcome == -errno.ETIMEDOUT


@python_mode_only
def test_a_full_or_empty_ring_yields_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides of a stress loop spin, then yield the core: here to the next step of the other side."""
    ring, content, taken = Ring(1), np.zeros(7, np.int64), np.zeros(7, np.int64)
    monkeypatch.setattr(rings, "SPINS", 3)
    monkeypatch.setattr(rings, "yield_core", lambda: rings.ring_pop(ring.slots, ring.counters, taken))
    assert rings.produce_pattern(ring.slots, ring.counters, 0, 3, content) == 3
    assert rings.ring_pop(ring.slots, ring.counters, taken) == 1
    monkeypatch.setattr(rings, "yield_core", lambda: rings.ring_push(ring.slots, ring.counters, np.arange(21, 28)))
    assert rings.consume_pattern(ring.slots, ring.counters, 3, 1, taken) == 1


@python_mode_only
@pytest.mark.parametrize(("last_ns", "sleeps"), [(disk_ring.SHORT_PAUSE_NS, True), (0, False)])
def test_a_server_sleeps_only_if_pauses_are_long(monkeypatch: pytest.MonkeyPatch, last_ns: int, sleeps: bool) -> None:
    """An operation is submitted when the server reads the clock for the second time, or while it sleeps."""
    ring = np.zeros(disk_ring.ring_words(4), np.int64)
    slept: list[int] = []
    times = iter(range(0, 10_000, 100))

    def clock() -> int:
        now = next(times)
        if now == 100 and not sleeps:
            disk_ring.submit(ring, operation(1, disk_ring.SYNC))
        return now

    monkeypatch.setattr(disk_ring, "monotonic_ns", clock)
    monkeypatch.setattr(disk_ring, "take_event", slept.append)
    monkeypatch.setattr(disk_ring, "SERVER_SPINS", 2)
    assert disk_ring._pause(ring, 9, last_ns) > 0
    assert slept == ([9] if sleeps else [])
    assert ring[disk_ring.CONTROL_SLEEPING] == 0
