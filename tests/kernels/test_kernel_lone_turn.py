"""The whole turn for a batch that came alone: checked as elsewhere, answered by the same bytes."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TimestampNs, TopicId
from seawall.kernels import lone_arrival, lone_turn
from seawall.kernels.arriving import NO_TOPIC
from seawall.kernels.epochs import EPOCH_HEADER
from seawall.kernels.frames import FRAME_ROW, STATE_SIZE, STATE_VERSION
from seawall.kernels.twins import lone_turn as twin
from seawall.wire.ack_rows import ACK_ROW, encode_ack_rows
from seawall.wire.batches import batch_header, encode_batch
from seawall.wire.lwp2 import encode_ping
from seawall.wire.records import encode_raw

KERNELS = [lone_turn, twin]
CLIENT, EPOCH = 9, (3 << 32) + 1
ORDERED, UNORDERED, STRONG, WEAK, GONE = 1, 2, 3, 4, 5
ORDERS = np.array([NO_TOPIC, 2, 0, 5, 2, NO_TOPIC], np.uint8)
LEVELS = np.array([0, 2, 2, 2, 1, 2], np.uint8)
PASSES_ON = lone_arrival.PASSES_ON


def batch(topic: int = ORDERED, *, client: int = CLIENT, epoch: int = EPOCH, level: int = 0xFF, seq: int = 4) -> bytes:
    block = encode_raw(b"value") * 2
    header = batch_header(
        block,
        topic_id=TopicId(topic),
        client_id=ClientId(client),
        client_seq=ClientSeq(seq),
        session_epoch=epoch,
        record_count=2,
        timestamp_ns=TimestampNs(5),
        ack_level=level,
    )
    return encode_batch(header, block)


def words(highest: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    made = np.zeros(lone_turn.TURN_SIZE, np.int64)
    made[: lone_turn.SOCKET] = CLIENT, EPOCH, 0, 256, 4096, 1 << 20, highest
    return made


def check(kernels: ModuleType, data: bytes, lowest: int = lone_turn.DURABLE) -> int:
    state = np.zeros(STATE_SIZE, np.int64)
    state[STATE_VERSION] = 2
    source = np.frombuffer(bytearray(data + bytes(100)), np.uint8)
    turn, rows = words(), np.zeros(2, FRAME_ROW)
    done: int = kernels.check_lone_turn(turn, source, len(data), lowest, ORDERS, LEVELS, rows, state)
    if done != PASSES_ON:
        assert turn[lone_turn.LEVEL] == (LEVELS[rows["topic_id"][0]] if data[93] == 0xFF else data[93])
    return done


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    ("data", "order"),
    [
        (batch(), 2),
        (batch(STRONG), 5),
        (batch(WEAK, level=2), 2),
        (batch(WEAK), PASSES_ON),
        (batch(level=1), PASSES_ON),
        (batch(UNORDERED), PASSES_ON),
        (batch(GONE), PASSES_ON),
        (batch(client=8), PASSES_ON),
        (batch(epoch=2), PASSES_ON),
        (batch(epoch=1), 2),
        (batch()[:-1], PASSES_ON),
        (batch() + b"L", PASSES_ON),
        (batch() + batch(), PASSES_ON),
        (batch()[:-1] + b"?", PASSES_ON),
        (encode_ping(1), PASSES_ON),
        (b"", PASSES_ON),
    ],
)
def test_one_whole_batch_that_may_be_taken(kernels: ModuleType, data: bytes, order: int) -> None:
    assert check(kernels, data) == order


@pytest.mark.parametrize("kernels", KERNELS)
def test_lower_levels_count_where_they_are_enough(kernels: ModuleType) -> None:
    for level, order in ((0, PASSES_ON), (1, 2), (2, 2), (3, PASSES_ON)):
        assert check(kernels, batch(level=level), lone_turn.ORDERED) == order
    assert check(kernels, batch(WEAK), lone_turn.ORDERED) == 2


@pytest.mark.parametrize("kernels", KERNELS)
@given(
    given=st.lists(
        st.tuples(*[st.integers(0, 2**62)] * 3, st.sampled_from([1, 2])), min_size=1, max_size=lone_turn.ENTRIES_MAX
    ),
    highest=st.integers(0, 30),
)
def test_the_answer_is_the_usual_one(kernels: ModuleType, given: list[tuple[int, int, int, int]], highest: int) -> None:
    desk = np.zeros(lone_turn.LONG_DESK_SIZE, np.int64)
    ack = np.full(lone_turn.ACK_SIZE, 255, np.uint8)
    turn, rows = words(highest), np.zeros(len(given), ACK_ROW)
    for index, (position, base_seq, timestamp_ns, level) in enumerate(given):
        desk[lone_arrival.POSITION : lone_arrival.TERM] = position, base_seq, timestamp_ns
        turn[lone_turn.LEVEL] = level
        kernels.seal_lone_ack(turn, desk, np.frombuffer(batch(seq=4 + index), np.uint8), ack)
        rows[index] = (4 + index, base_seq, position, timestamp_ns, ORDERED, 1, 2, 0, level, 0)
        through = max(4 + index, highest)
        expected = encode_ack_rows(
            rows[: index + 1],
            session_epoch=SessionEpoch(EPOCH),
            window_batches=256,
            window_bytes=4096,
            through=through,
        )
        assert ack[: len(expected)].tobytes() == expected
        assert (ack[len(expected) :] == 255).all()
    assert turn[lone_turn.ENTRIES] == len(given)


def test_the_next_epoch_goes_behind() -> None:
    desks = [np.arange(lone_turn.LONG_DESK_SIZE, dtype=np.int64) for _ in KERNELS]
    for kernels, desk in zip(KERNELS, desks, strict=True):
        kernels.prepare_next(desk, 1_000)
    ours, theirs = desks
    assert ours.tolist() == theirs.tolist()
    assert (ours[lone_arrival.EPOCH], ours[lone_arrival.STAGED_ROW]) == (
        lone_arrival.EPOCH + 1,
        lone_arrival.STAGED_ROW + 1,
    )
    assert ours[lone_arrival.ADDRESS] == ours[lone_arrival.SYNCED_THROUGH] == lone_arrival.ADDRESS + 1_000


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (None, 0),
        (lone_turn.TOPIC_ID, WEAK),
        (lone_turn.UNTIL_NS, 1_000),
        (lone_turn.BATCHES_LEFT, 0),
        (lone_turn.RECORDS_LEFT, 1),
        (lone_turn.BYTES_LEFT, EPOCH_HEADER + len(batch()) - 1),
    ],
)
def test_there_is_room_for_what_needs_no_more_than_that(kernels: ModuleType, place: int | None, value: int) -> None:
    desk = np.zeros(lone_turn.LONG_DESK_SIZE, np.int64)
    desk[lone_arrival.WALL_NS] = 1_000
    desk[lone_turn.TOPIC_ID : lone_turn.TAKEN_BATCHES] = ORDERED, 1_001, 1, 2, EPOCH_HEADER + len(batch()), 0
    if place is not None:
        desk[place] = value
    assert kernels.has_room(desk, np.frombuffer(batch(), np.uint8), len(batch())) == (place is None)
