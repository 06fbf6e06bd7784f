"""A collector: takes slots in order, each once, also with slow or dead brokers and full queues."""

from __future__ import annotations

import numpy as np
import pytest
from order_pod import SYNTHETIC, Pod, small_fabric, taken_from

from seawall.errors import InvalidInputError
from seawall.kernels.ordering.collecting import STUCK, worker_of
from seawall.sequencer.collector import Collector, CollectorSettings
from seawall.sequencer.shared import SequencerShared


def refs(pod: Pod) -> list[int]:
    return [ref for (ref,) in taken_from(pod.shared.queues[0][0])]


def test_slots_are_taken_in_order_up_to_one_that_is_not_published() -> None:
    pod = Pod()
    first = [pod.publish(1, SYNTHETIC, 0) for _ in range(3)]
    pod.claim(1)
    last = pod.publish(1, SYNTHETIC, 0)
    other = pod.publish(0, SYNTHETIC, 0)
    assert pod.collector.step(0) == 4
    assert refs(pod) == [other, *first]
    pod.publish(1, SYNTHETIC, 0, index=3)
    assert pod.collector.step(0) == 2
    assert refs(pod) == [last - 1, last]
    assert (pod.collector.cursor(0), pod.collector.cursor(1), pod.collector.stuck(1)) == (1, 5, 0)


def test_a_slot_that_stays_unpublished_is_abandoned_in_time() -> None:
    pod = Pod(stuck_after_ns=10)
    ref = 1 << 48 | pod.claim(1)
    after = pod.publish(1, SYNTHETIC, 0)
    assert [pod.collector.step(now) for now in (5, 14)] == [0, 0]
    assert pod.collector.step(15) == 2
    assert refs(pod) == [ref | STUCK, after]
    assert pod.collector.stuck(1) == 1


def test_slots_of_a_dead_broker_are_not_waited_for() -> None:
    pod = Pod(stuck_after_ns=10)
    pod.collector.mark_dead(1)
    pod.claim(1)
    assert pod.collector.step(0) == 1
    pod.collector.mark_alive(1)
    pod.claim(1)
    assert pod.collector.step(0) == 0


def test_a_full_queue_stops_a_ring_and_loses_nothing() -> None:
    pod = Pod()
    expected = [pod.publish(0, SYNTHETIC, 0) for _ in range(40)] + [pod.publish(1, SYNTHETIC, 0) for _ in range(40)]
    assert [pod.collector.step(0), pod.collector.step(0)] == [64, 0]
    found = refs(pod)
    pod.collector.step(0)
    assert sorted(found + refs(pod)) == sorted(expected)


def test_a_new_collector_begins_at_the_completed_slots_and_skips_slots_with_an_entry() -> None:
    pod = Pod()
    published = [pod.publish(0, SYNTHETIC, 0) for _ in range(6)]
    pod.arrays.completion_words[0][0] = 2
    shared = SequencerShared.make(pod.goi_entries, queue_refs=64)
    successor = Collector(pod.arrays, shared, 0, [0])
    assert successor.cursor(0) == 2
    successor.resume(0, 2, np.array([4, 2], np.int64))
    successor.step(0)
    assert [ref for (ref,) in taken_from(shared.queues[0][0])] == [published[3], published[5]]


def test_each_client_has_one_worker_and_the_others_that_of_their_broker() -> None:
    arrays = small_fabric()
    shared = SequencerShared.make(128, collectors=2, workers=3, queue_refs=64)
    pod = Pod(arrays)
    clients = [*range(1, 20), SYNTHETIC | 1, SYNTHETIC | 2]
    for client in clients:
        for broker in (0, 1):
            pod.publish(broker, client, 1)
    nop = pod.publish(1, 0, 0, flags=32)
    for number in (0, 1):
        Collector(arrays, shared, number, [number], CollectorSettings()).step(0)
    seen: dict[int, set[int]] = {}
    for number in (0, 1):
        for worker in range(3):
            for (ref,) in taken_from(shared.queues[number][worker]):
                client = int(arrays.pbr[ref >> 48][ref & 0xFF]["client_id"])
                if client >= SYNTHETIC or ref == nop:
                    assert worker == number
                else:
                    seen.setdefault(client, set()).add(worker)
    assert seen == {client: {worker_of(client, 3)} for client in range(1, 20)}
    assert len(set.union(*seen.values())) == 3


def test_a_broker_of_another_collector_is_refused() -> None:
    pod = Pod()
    with pytest.raises(InvalidInputError, match="each once, from 0 to 1"):
        Collector(pod.arrays, pod.shared, 0, [0, 2])
    with pytest.raises(InvalidInputError, match="each once"):
        Collector(pod.arrays, pod.shared, 0, [0, 0])
    one = Collector(pod.arrays, pod.shared, 0, [0])
    with pytest.raises(InvalidInputError, match="belongs to another collector"):
        one.mark_dead(1)


@pytest.mark.parametrize("bad", [{"goi_entries": 100}, {"queue_refs": 0}, {"range_items": 3}])
def test_sizes_of_the_shared_memory_are_powers_of_two(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="power of two"):
        SequencerShared.make(**{"goi_entries": 128, **bad})


def test_there_is_at_least_one_of_each_role() -> None:
    with pytest.raises(InvalidInputError, match="at least 1 of each"):
        SequencerShared.make(128, 1, 0)
    made = SequencerShared.make(128, 2, 2, start=7)
    assert (made.reserved, len(made.queues[1][1]), made.ranges[1].capacity) == (7, 0, 4_096)
