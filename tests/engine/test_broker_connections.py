"""Connections of a broker: batches go into its ring, answers come back, and a slow peer blocks no other."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from seawall.broker.ring import BrokerRing, TopicDefaults
from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TimestampNs, TopicId
from seawall.engine.ordering.broker_connections import BUFFER_SIZE, BrokerConnections, Publisher
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.io.network.sockets import OsStream, stream_pair
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.kernels.runtime.slots import publish_slot
from seawall.limits import KIB, MIB
from seawall.wire.format.ack_rows import ack_rows
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import AckLevel, AckStatus
from seawall.wire.format.frames import parse_frame_header

SLOTS = 64
TOPIC = TopicId(4)
BLOG = 2 * MIB


class Watched:
    """A wake-up event that records, by descriptor, whether received bytes and free space would wake its owner."""

    def __init__(self) -> None:
        self.descriptors: dict[int, tuple[bool, bool]] = {}

    def watch(self, descriptor: int, /, *, bytes_come: bool = True, has_space: bool = False) -> None:
        self.descriptors[descriptor] = (bytes_come, has_space)

    def unwatch(self, descriptor: int, /) -> None:
        del self.descriptors[descriptor]


class BrokerUnderTest:
    """A broker with one connection and its far end; the test decides batches instead of a sequencer."""

    def __init__(self, *, decided_through: int = 0) -> None:
        sizes = FabricSizes(brokers=1, goi_entries=128, pbr_entries=SLOTS, checkpoint_size=8 * KIB, blog_size=BLOG)
        layout = FabricLayout.of(sizes)
        self.arrays = FabricArrays(memoryview(mmap.mmap(-1, layout.size)), layout)
        self.wakeup = Watched()
        self.ring = BrokerRing(self.arrays, 0)
        self.connections = BrokerConnections(self.ring, self.arrays.pbr[0], self.wakeup)
        self.publisher = Publisher(
            SessionEpoch(6), ClientSeq(decided_through), TopicDefaults(2, AckLevel.ORDERED), 10, 20
        )
        self.far, self.near = self.connect()

    def connect(self) -> tuple[OsStream, OsStream]:
        far, near = stream_pair("a writer")
        self.connections.add(near, self.publisher)
        return far, near

    def decide(self, index: int, position: int, status: AckStatus = AckStatus.OK) -> None:
        result = np.zeros(1, records.RESULT)
        result["position"], result["base_seq"], result["timestamp_ns"] = position, position + 100, position + 200
        result["status"] = int(status)
        publish_slot(self.arrays.result_words[0], records.RESULT_TOKEN, index, result.view(np.int64))

    def complete(self, count: int) -> None:
        store_release_u64(self.arrays.completion_words[0], records.COMPLETION_COMPLETED, count)

    def acks(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """The received ACK frames: decided through, and client seq and position of each entry."""
        buffer = bytearray(MIB)
        data = bytes(buffer[: self.far.receive_into(buffer) or 0])
        found = []
        while data:
            header = parse_frame_header(data)
            rows = ack_rows(data[44 : header.frame_size])
            assert (rows["topic_id"] == TOPIC).all()
            assert (rows["record_count"] == 2).all()
            found.append((header.id, rows[["client_seq", "position"]].tolist()))
            data = data[header.frame_size :]
        return found


def batch(seq: int, size: int = 200) -> bytes:
    block = bytes([seq % 251]) * (size - 96)
    header = batch_header(
        block,
        topic_id=TOPIC,
        client_id=ClientId(9),
        client_seq=ClientSeq(seq),
        session_epoch=6,
        record_count=2,
        timestamp_ns=TimestampNs(0),
    )
    return encode_batch(header, block)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerUnderTest]:
    made = BrokerUnderTest(decided_through=getattr(request, "param", 0))
    yield made
    made.far.close()
    made.near.close()


def test_whole_batches_are_published_and_a_partial_one_waits(broker: BrokerUnderTest) -> None:
    data = batch(1) + batch(2, 333) + batch(3)
    broker.far.send(data[:-1])
    assert broker.connections.receive() == 2
    assert broker.connections.receive() == 0
    broker.far.send(data[-1:])
    assert broker.connections.receive() == 1
    assert broker.arrays.pbr[0]["client_seq"][:3].tolist() == [1, 2, 3]
    blog, entry = broker.arrays.blogs[0], broker.arrays.pbr[0][1]
    at = int(entry["blog_offset"])
    assert blog[at : at + 333].tobytes() == batch(2, 333)


def test_answers_of_one_call_are_one_frame_by_rising_seq(broker: BrokerUnderTest) -> None:
    broker.far.send(b"".join(map(batch, (1, 3, 2))))
    assert broker.connections.receive() == 3
    assert broker.connections.answer() == 0
    assert broker.acks() == []
    for index in range(3):
        broker.decide(index, 50 + index)
    assert broker.connections.answer() == 3
    assert broker.acks() == [(3, [(1, 50), (2, 52), (3, 51)])]


@pytest.mark.parametrize("broker", [10], indirect=True)
def test_decided_through_stops_at_the_first_unanswered_seq(broker: BrokerUnderTest) -> None:
    broker.far.send(b"".join(map(batch, (11, 12, 13, 14))))
    broker.connections.receive()
    for index, through in ((1, 10), (3, 10), (0, 12), (2, 14)):
        broker.decide(index, 50 + index)
        broker.connections.answer()
        assert broker.acks() == [(through, [(11 + index, 50 + index)])]


def test_a_repeated_answer_does_not_change_decided_through(broker: BrokerUnderTest) -> None:
    for index, expected in enumerate((1, 1, 2)):
        broker.far.send(batch(max(1, index)))
        broker.connections.receive()
        broker.decide(index, 50 + index, AckStatus.RETRY)
        broker.connections.answer()
        assert [through for through, _ in broker.acks()] == [expected]


def test_a_full_ring_stops_reading_until_it_has_space(broker: BrokerUnderTest) -> None:
    broker.far.send(b"".join(batch(seq) for seq in range(1, SLOTS + 11)))
    assert broker.connections.receive() == SLOTS
    broker.connections.answer()
    assert broker.wakeup.descriptors == {broker.near.fileno(): (False, False)}
    broker.far.send(batch(SLOTS + 11))
    assert broker.connections.receive() == 0
    for index in range(SLOTS):
        broker.decide(index, index)
    assert broker.connections.answer() == SLOTS
    broker.complete(SLOTS)
    assert broker.connections.receive() == 11
    broker.connections.answer()
    assert broker.wakeup.descriptors == {broker.near.fileno(): (True, False)}


def test_connections_share_the_freed_slots(broker: BrokerUnderTest) -> None:
    far, near = broker.connect()
    for stream in (broker.far, far):
        stream.send(b"".join(batch(seq) for seq in range(1, 4 * SLOTS)))
    for lap in range(1, 5):
        assert broker.connections.receive() == SLOTS
        for index in range((lap - 1) * SLOTS, lap * SLOTS):
            broker.decide(index, index)
        broker.connections.answer()
        broker.complete(lap * SLOTS)
    answered = [sum(len(entries) for _, entries in broker.acks())]
    broker.far, broker.near, far, near = far, near, broker.far, broker.near
    answered.append(sum(len(entries) for _, entries in broker.acks()))
    assert sorted(answered) == [2 * SLOTS, 2 * SLOTS]
    far.close()
    near.close()


def test_a_closed_connection_does_not_block_the_next_one(broker: BrokerUnderTest) -> None:
    far, near = broker.connect()
    broker.far.send(b"".join(batch(seq) for seq in range(1, SLOTS + 2)))
    assert broker.connections.receive() == SLOTS
    assert broker.connections.is_blocked
    far.send(batch(1))
    assert broker.connections.receive() == 0
    for index in range(SLOTS):
        broker.decide(index, index)
    broker.connections.answer()
    broker.complete(SLOTS)
    # The first connection closes before its blocked batch is published.
    first = next(iter(broker.connections._connections.values()))
    first.start = first.verified
    broker.far.close()
    assert broker.connections.receive() == 1
    assert (len(broker.connections), broker.connections.is_blocked) == (1, False)
    far.close()
    near.close()


def test_batches_of_any_size_wrap_around_the_buffer(broker: BrokerUnderTest) -> None:
    """Several times the size of the buffer in total, so that a batch at its end has to be moved."""
    sent = published = 0
    unsent = b""
    sizes = [200, 70_001, MIB, 333, 900_000]
    while published * 400_000 < 3 * BUFFER_SIZE:
        if not unsent:
            sent += 1
            unsent = batch(sent, sizes[sent % 5])
        unsent = unsent[broker.far.send(unsent) :]
        done = broker.connections.receive()
        for index in range(published, published + done):
            at, size = (int(broker.arrays.pbr[0][index % SLOTS][name]) for name in ("blog_offset", "size"))
            at %= BLOG
            assert broker.arrays.blogs[0][at : at + size].tobytes() == batch(index + 1, size)
            broker.decide(index, index)
        published += done
        broker.connections.answer()
        broker.acks()
        broker.complete(published)
    assert len(broker.connections) == 1


def test_answers_wait_until_the_socket_has_space(broker: BrokerUnderTest) -> None:
    count = filled = 0
    while not filled:
        for _ in range(SLOTS):
            broker.far.send(batch(count + 1))
            broker.connections.receive()
            broker.decide(count, count)
            count += 1
            broker.complete(count - 1)
            broker.connections.answer()
        filled = broker.wakeup.descriptors[broker.near.fileno()] == (True, True)
    seen: list[int] = []
    while len(seen) < count:
        for _, entries in broker.acks():
            seen += [seq for seq, _ in entries]
        broker.connections.answer()
    assert seen == list(range(1, count + 1))
    assert broker.wakeup.descriptors == {broker.near.fileno(): (True, False)}


def damaged_batch() -> bytes:
    data = bytearray(batch(1))
    data[-1] ^= 1
    return bytes(data)


@pytest.mark.parametrize("make", [damaged_batch, lambda: b"GET / HTTP/1.1\r\n\r\n"])
def test_a_connection_that_breaks_the_protocol_is_dropped(broker: BrokerUnderTest, make: Callable[[], bytes]) -> None:
    broker.far.send(batch(1))
    broker.connections.receive()
    broker.far.send(make())
    assert broker.connections.receive() == 0
    assert len(broker.connections) == 0
    assert broker.wakeup.descriptors == {}
    broker.decide(0, 50)
    assert broker.connections.answer() == 1


@pytest.mark.parametrize("size", [BLOG + 1, BUFFER_SIZE + 1], ids=["the ring", "the buffer"])
def test_a_batch_that_can_never_fit_closes_its_connection(broker: BrokerUnderTest, size: int) -> None:
    unsent = batch(1, size)
    while len(broker.connections):
        unsent = unsent[broker.far.send(unsent) :]
        assert broker.connections.receive() == 0


def test_a_closed_connection_is_dropped_with_its_answers(broker: BrokerUnderTest) -> None:
    broker.far.send(batch(1))
    assert broker.connections.receive() == 1
    broker.far.close()
    assert broker.connections.receive() == 0
    far, near = broker.connect()
    broker.decide(0, 50)
    assert broker.connections.answer() == 1
    assert far.receive_into(bytearray(9)) is None
    assert list(broker.wakeup.descriptors) == [near.fileno()]
    far.close()
    near.close()


def test_a_connection_that_closes_before_its_answer_is_dropped(broker: BrokerUnderTest) -> None:
    broker.far.send(batch(1))
    broker.connections.receive()
    broker.far.close()
    broker.decide(0, 50)
    assert broker.connections.answer() == 1
    assert len(broker.connections) == 0
