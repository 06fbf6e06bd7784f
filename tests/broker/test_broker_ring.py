"""A broker's ring in a fabric: the slots that the sequencer sees, answers to publishers, space, and loans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from seawall.broker.ring import BrokerRing, Published, Stop, TopicDefaults
from seawall.broker.watermarks import Pressure
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.fabric import records
from seawall.fabric.arrays import Bytes, FabricArrays
from seawall.kernels.runtime.slots import ready_slots
from seawall.limits import BROKER_PRESSURE_MS
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.codes import POSITION_UNKNOWN, AckLevel, AckStatus, ErrorCode

Make = Callable[..., Bytes]
BLOG = 64 * 1024
SLOTS = 64


def test_the_sequencer_finds_batches_and_their_fields(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    sent = np.concatenate([make_batch(7), make_batch(8, 300, order=5)])
    assert ring.publish(sent, 70, defaults) == Published(Stop.DONE, 2, 0, 500)
    assert ready_slots(arrays.pbr_words[1], records.PBR_TOKEN, 0, SLOTS) == 2
    assert ready_slots(arrays.pbr_words[0], records.PBR_TOKEN, 0, SLOTS) == 0
    assert arrays.broker_tails[1]["claimed"] == ring.claimed == 2
    for index, (client_seq, flags) in enumerate([(7, 0), (8, records.FLAG_STRONG_ORDER)]):
        entry = arrays.pbr[1][index]
        at, size = int(entry["blog_offset"]), int(entry["size"])
        header = parse_batch_header(arrays.blogs[1][at : at + size], source=BatchSource.CLIENT)
        assert (header.client_seq, header.block_crc) == (client_seq, entry["block_crc"])
        assert (entry["client_id"], entry["client_seq"], entry["session_epoch"]) == (9, client_seq, 6)
        assert (entry["broker"], entry["term"], entry["flags"]) == (1, 3, flags)
        assert (entry["topic_id"], entry["record_count"]) == (4, 2)


def test_a_part_of_a_buffer_is_published_and_the_rest_is_left(
    ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    sent = np.concatenate([make_batch(1), make_batch(2), make_batch(3)])
    assert ring.publish(sent, 70, defaults, start=200, end=500) == Published(Stop.CUT, 1, 0, 400)
    with pytest.raises(InvalidInputError, match="bytes 0 to 601 of a buffer of 600"):
        ring.publish(sent, 70, defaults, end=601)
    assert ring.publish(make_batch(1, BLOG + 1), 70, defaults).stop is Stop.NEVER_FITS


def test_answers_come_with_the_level_that_was_asked_for(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make, decide: Callable[..., None]
) -> None:
    for level in (AckLevel.FAILURES, AckLevel.ORDERED, AckLevel.DURABLE):
        ring.publish(make_batch(level + 1, ack_level=int(level)), 70, defaults)
    assert ring.answers().size == 0
    for index in range(3):
        decide(index, 40 + index)
    [ordered] = ring.answers()
    assert (ordered["owner"], ordered["client_id"], ordered["client_seq"]) == (70, 9, 2)
    assert (ordered["position"], ordered["base_seq"], ordered["timestamp_ns"]) == (41, 1041, 2041)
    arrays.control["durable"] = 42
    assert ring.answers().size == 0
    arrays.control["durable"] = 43
    [durable] = ring.answers()
    assert (durable["client_seq"], durable["status"]) == (3, int(AckStatus.OK))


def test_order_0_is_answered_before_it_is_ordered(ring: BrokerRing, make_batch: Make) -> None:
    ring.publish(make_batch(5), 71, TopicDefaults(0, AckLevel.ORDERED))
    [answer] = ring.answers()
    assert (answer["client_seq"], answer["position"], answer["status"]) == (5, POSITION_UNKNOWN, int(AckStatus.OK))


def test_a_refusal_comes_with_its_reason(
    ring: BrokerRing, defaults: TopicDefaults, make_batch: Make, decide: Callable[..., None]
) -> None:
    ring.publish(make_batch(5), 71, defaults)
    decide(0, 8, AckStatus.REJECTED, int(ErrorCode.TOPIC_DELETED))
    [answer] = ring.answers()
    assert (answer["status"], answer["reason"]) == (int(AckStatus.REJECTED), int(ErrorCode.TOPIC_DELETED))


def test_many_laps_lose_nothing_and_answer_everything_once(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make, decide: Callable[..., None]
) -> None:
    waiting = np.concatenate([make_batch(number, 96 + number * 37 % 3000) for number in range(1, 401)])
    at = decided = 0
    answered: list[int] = []
    while at < waiting.size or decided < ring.claimed:
        done = ring.publish(waiting, 70, defaults, start=at)
        at = done.consumed
        for index in range(decided, ring.claimed):
            slot = index % SLOTS
            assert arrays.pbr[1][slot]["token"] == index + 1
            decide(index, index)
        decided = ring.claimed
        arrays.control["durable"] = decided
        arrays.completion_vector[1]["completed"] = decided
        answered += ring.answers()["client_seq"].tolist()
    assert answered == list(range(1, 401))
    assert arrays.broker_tails[1]["blog_claimed"] > 5 * BLOG


def test_a_slot_is_not_used_again_before_its_answer_was_taken(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make, decide: Callable[..., None]
) -> None:
    ring.publish(np.concatenate([make_batch(1, 96)] * SLOTS), 70, defaults)
    decide(0, 0)
    arrays.completion_vector[1]["completed"] = 1
    assert ring.publish(make_batch(2), 70, defaults).stop is Stop.FULL
    assert ring.answers().size == 1
    assert ring.publish(make_batch(2), 70, defaults).stop is Stop.DONE


@pytest.mark.parametrize("size", [96, 6000])
def test_pressure_follows_the_fuller_of_ring_and_blog(
    arrays: FabricArrays,
    ring: BrokerRing,
    make_batch: Make,
    size: int,
) -> None:
    on_arrival = TopicDefaults(0, AckLevel.ORDERED)
    fits = SLOTS if size == 96 else BLOG // 6016
    count = next(count for count in range(fits) if count * max(1 / SLOTS, size / BLOG) >= 0.8)
    assert ring.pressure(0) is Pressure.CALM
    ring.publish(np.concatenate([make_batch(1, size)] * (count - 1)), 70, on_arrival)
    assert ring.pressure(1) is Pressure.CALM
    ring.publish(make_batch(1, size), 70, on_arrival)
    assert ring.pressure(2) is Pressure.HIGH
    assert ring.pressure(2 + BROKER_PRESSURE_MS * 1_000_000) is Pressure.SUSTAINED
    assert ring.publish(make_batch(1, size), 70, on_arrival).stop is Stop.DONE  # advice: nothing is refused
    assert ring.answers().size == count + 1
    arrays.completion_vector[1]["completed"] = count + 1
    assert ring.pressure(3) is Pressure.CALM


def test_a_ring_is_taken_over_with_what_is_in_it(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    ring.publish(make_batch(1), 70, defaults)
    assert ring.reserve(500, 10) == 1
    ring.publish(make_batch(2), 70, defaults)
    assert ready_slots(arrays.pbr_words[1], records.PBR_TOKEN, 0, SLOTS) == 1
    next_one = BrokerRing(arrays, 1)
    assert (next_one.stuck, next_one.claimed) == (1, 3)
    assert ready_slots(arrays.pbr_words[1], records.PBR_TOKEN, 0, SLOTS) == 3
    assert arrays.pbr[1]["flags"][:3].tolist() == [0, records.FLAG_NOP | records.FLAG_RECOVERED, 0]
    assert next_one.publish(make_batch(3), 70, defaults).first == 3
    assert next_one.answers().size == 0


def test_a_ring_with_impossible_counts_is_refused(arrays: FabricArrays) -> None:
    arrays.broker_tails[1]["claimed"] = SLOTS + 1
    with pytest.raises(CorruptionError, match="claimed 65 slots of which 0"):
        BrokerRing(arrays, 1)


@pytest.mark.parametrize("broker", [-1, 2])
def test_a_broker_outside_the_fabric_is_refused(arrays: FabricArrays, broker: int) -> None:
    with pytest.raises(InvalidInputError, match=r"raise fabric\.brokers"):
        BrokerRing(arrays, broker)


def test_a_reservation_that_can_never_fit_is_refused(ring: BrokerRing) -> None:
    with pytest.raises(LimitError, match=r"raise fabric\.blog_size"):
        ring.reserve(BLOG + 1, 0)


def test_a_reservation_must_contain_one_batch(ring: BrokerRing, defaults: TopicDefaults) -> None:
    index: Any = ring.reserve(200, 0)
    with pytest.raises(InvalidInputError, match="abandon it"):
        ring.publish_reserved(index, 70, defaults)
    assert ring.abandon(index)
    assert not ring.abandon(index)
    assert not ring.publish_reserved(index, 70, defaults)


def finished(arrays: FabricArrays, ring: BrokerRing, decide: Callable[..., None]) -> None:
    """Everything published so far is decided, answered and completed."""
    for index in range(ring.claimed):
        if int(arrays.results[1][index % SLOTS]["token"]) != index + 1:
            decide(index, index)
    while ring.answers().size:
        pass
    arrays.completion_vector[1]["completed"] = ring.claimed


def test_an_owner_that_waits_for_space_is_served_before_later_ones(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make, decide: Callable[..., None]
) -> None:
    """Small batches would take what comes free, again and again, and the large one would never fit."""
    large, small, other = 70, 71, 72
    assert ring.publish(make_batch(1, 40_000), small, defaults).stop is Stop.DONE
    waiting = make_batch(1, 60_000)
    assert ring.publish(waiting, large, defaults) == Published(Stop.FULL, 0, 1, 0)
    assert arrays.broker_tails[1]["blog_wanted"] == BLOG + 60_032
    for owner in (small, other, small):
        assert ring.publish(make_batch(2), owner, defaults) == Published(Stop.FULL, 0, 1, 0)
    finished(arrays, ring, decide)
    assert ring.publish(make_batch(2), small, defaults).stop is Stop.FULL
    assert ring.publish(waiting, large, defaults) == Published(Stop.DONE, 1, 1, 60_000)
    assert arrays.broker_tails[1]["blog_wanted"] == 0
    # Now the later ones, in their order; an owner with more batches queues behind the others again.
    assert ring.publish(make_batch(2), other, defaults).stop is Stop.FULL
    both = np.concatenate([make_batch(2), make_batch(3, 10_000)])
    assert ring.publish(both, small, defaults) == Published(Stop.FULL, 1, 2, 200)
    assert ring.publish(make_batch(2), other, defaults).stop is Stop.DONE
    finished(arrays, ring, decide)
    assert ring.publish(both, small, defaults, start=200).stop is Stop.DONE


def test_an_owner_that_leaves_the_queue_frees_its_slot(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    assert not ring.leave(70)
    ring.publish(make_batch(1, 60_000), 69, defaults)
    for owner in (70, 71, 72):
        assert ring.publish(make_batch(1, 10_000), owner, defaults).stop is Stop.FULL
    assert not ring.leave(71)
    assert arrays.broker_tails[1]["blog_wanted"] > 0
    assert ring.leave(70)
    assert arrays.broker_tails[1]["blog_wanted"] == 0
    assert ring.publish(make_batch(1), 72, defaults).stop is Stop.DONE
    assert not ring.leave(72)


def test_a_ring_that_is_taken_over_has_no_waiting_owner(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    ring.publish(make_batch(1, 60_000), 69, defaults)
    ring.publish(make_batch(1, 10_000), 70, defaults)
    assert arrays.broker_tails[1]["blog_wanted"] > 0
    BrokerRing(arrays, 1)
    assert arrays.broker_tails[1]["blog_wanted"] == 0


# --- loans -----------------------------------------------------------------------------------------------------------


def publish_alone(ring: BrokerRing, defaults: TopicDefaults, make_batch: Make, owner: int = 70) -> None:
    for client_seq in range(1, 6):
        ring.publish(make_batch(client_seq), owner, defaults)


def unexpected() -> None:
    raise AssertionError("no loan may be revoked here")


def test_bytes_are_lent_to_an_owner_that_publishes_alone(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    assert ring.lend(70, 200, unexpected) is None
    publish_alone(ring, defaults, make_batch)
    assert ring.lend(71, 200, unexpected) is None
    lent = ring.lend(70, 200, unexpected)
    assert lent is not None
    assert np.shares_memory(lent, arrays.blogs[1][5 * 256 : 5 * 256 + 200])
    assert ring.claimed == 5
    lent[:] = make_batch(6)
    assert ring.publish(lent.copy(), 70, defaults).first == 5
    ring.publish(make_batch(1), 71, defaults)
    assert ring.lend(71, 200, unexpected) is None


@pytest.mark.parametrize("how", ["publish", "reserve"])
def test_a_loan_is_revoked_before_anything_else_is_claimed(
    how: str, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    publish_alone(ring, defaults, make_batch)
    claimed: list[int] = []
    assert ring.lend(70, 200, lambda: claimed.append(ring.claimed)) is not None
    if how == "publish":
        ring.publish(make_batch(1), 71, defaults)
    else:
        ring.reserve(100, 1)
    assert claimed == [5]
    ring.publish(make_batch(2), 71, defaults)
    assert claimed == [5]


def test_the_loan_of_an_owner_that_left_is_not_revoked(
    ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    publish_alone(ring, defaults, make_batch)
    assert ring.lend(70, 200, unexpected) is not None
    ring.leave(70)
    ring.publish(make_batch(1), 71, defaults)


def test_nothing_is_lent_without_space_or_while_an_owner_waits(
    ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    publish_alone(ring, defaults, make_batch)
    assert ring.lend(70, BLOG + 1, unexpected) is None
    assert ring.lend(70, BLOG - 1_000, unexpected) is None
    assert ring.publish(make_batch(6, BLOG - 2_000), 70, defaults).stop is Stop.DONE
    assert ring.publish(make_batch(7, 2_000), 71, defaults).stop is Stop.FULL
    assert ring.lend(70, 100, unexpected) is None


def test_bytes_are_lent_for_a_queued_batch_and_other_loans_are_revoked(
    ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    publish_alone(ring, defaults, make_batch)
    returned: list[int] = []
    assert ring.lend(70, 200, lambda: returned.append(70)) is not None
    lent = ring.lend(71, 200, lambda: returned.append(71), at_hand=True)
    assert lent is not None
    assert returned == [70]
    lent[:] = make_batch(1)
    assert ring.publish(lent, 71, defaults).first == 5
    assert returned == [70]


def test_an_owner_can_check_for_space_before_it_publishes(
    arrays: FabricArrays, ring: BrokerRing, defaults: TopicDefaults, make_batch: Make
) -> None:
    assert ring.has_space(70, BLOG)
    assert ring.has_space(70, BLOG + 1), "such a batch is refused, and waits for nothing"
    ring.publish(make_batch(1, BLOG - 1_024), 70, defaults)
    assert ring.has_space(70, 1_024)
    assert not ring.has_space(70, 1_025)
    assert int(arrays.tail_words[1][records.TAIL_BLOG_WANTED]) > BLOG
    assert not ring.has_space(71, 1), "an owner that waits longer is served first"
    assert ring.leave(70)
    assert int(arrays.tail_words[1][records.TAIL_BLOG_WANTED]) == 0
    assert ring.has_space(71, 1)
