"""Connections of a broker: batches into its ring, answers back, and who is not waited for."""

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
    """A bell that remembers what it watches: whether bytes and room would wake its owner."""

    def __init__(self) -> None:
        self.descriptors: dict[int, tuple[bool, bool]] = {}

    def watch(self, descriptor: int, /, *, bytes_come: bool = True, has_space: bool = False) -> None:
        self.descriptors[descriptor] = (bytes_come, has_space)

    def unwatch(self, descriptor: int, /) -> None:
        del self.descriptors[descriptor]


class Desk:
    """A broker with one connection, its far end, and the commit frontier as one function."""

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
        """ACK frames that have come: decided through, and client seq and position of each entry."""
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
def arguments(request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(decided_through=getattr(request, "param", 0))
    yield made
    made.far.close()
    made.near.close()


def test_whole_batches_are_published_and_the_rest_is_waited_for(arguments: Desk) -> None:
    data = batch(1) + batch(2, 333) + batch(3)
    arguments.far.send(data[:-1])
    assert arguments.connections.receive() == 2
    assert arguments.connections.receive() == 0
    arguments.far.send(data[-1:])
    assert arguments.connections.receive() == 1
    assert arguments.arrays.pbr[0]["client_seq"][:3].tolist() == [1, 2, 3]
    blog, entry = arguments.arrays.blogs[0], arguments.arrays.pbr[0][1]
    at = int(entry["blog_offset"])
    assert blog[at : at + 333].tobytes() == batch(2, 333)


def test_answers_of_a_turn_are_one_frame_by_rising_seq(arguments: Desk) -> None:
    arguments.far.send(b"".join(map(batch, (1, 3, 2))))
    assert arguments.connections.receive() == 3
    assert arguments.connections.answer() == 0
    assert arguments.acks() == []
    for index in range(3):
        arguments.decide(index, 50 + index)
    assert arguments.connections.answer() == 3
    assert arguments.acks() == [(3, [(1, 50), (2, 52), (3, 51)])]


@pytest.mark.parametrize("arguments", [10], indirect=True)
def test_through_stops_at_the_first_seq_that_is_not_answered(arguments: Desk) -> None:
    arguments.far.send(b"".join(map(batch, (11, 12, 13, 14))))
    arguments.connections.receive()
    for index, told in ((1, 10), (3, 10), (0, 12), (2, 14)):
        arguments.decide(index, 50 + index)
        arguments.connections.answer()
        assert arguments.acks() == [(told, [(11 + index, 50 + index)])]


def test_a_seq_that_is_answered_again_changes_nothing_of_what_is_decided(arguments: Desk) -> None:
    for index, told in enumerate((1, 1, 2)):
        arguments.far.send(batch(max(1, index)))
        arguments.connections.receive()
        arguments.decide(index, 50 + index, AckStatus.RETRY)
        arguments.connections.answer()
        assert [through for through, _ in arguments.acks()] == [told]


def test_a_full_ring_stops_its_connection_until_there_is_room(arguments: Desk) -> None:
    arguments.far.send(b"".join(batch(seq) for seq in range(1, SLOTS + 11)))
    assert arguments.connections.receive() == SLOTS
    arguments.connections.answer()
    assert arguments.wakeup.descriptors == {arguments.near.fileno(): (False, False)}
    arguments.far.send(batch(SLOTS + 11))
    assert arguments.connections.receive() == 0
    for index in range(SLOTS):
        arguments.decide(index, index)
    assert arguments.connections.answer() == SLOTS
    arguments.complete(SLOTS)
    assert arguments.connections.receive() == 11
    arguments.connections.answer()
    assert arguments.wakeup.descriptors == {arguments.near.fileno(): (True, False)}


def test_connections_share_the_room_that_comes_free(arguments: Desk) -> None:
    far, near = arguments.connect()
    for stream in (arguments.far, far):
        stream.send(b"".join(batch(seq) for seq in range(1, 4 * SLOTS)))
    for lap in range(1, 5):
        assert arguments.connections.receive() == SLOTS
        for index in range((lap - 1) * SLOTS, lap * SLOTS):
            arguments.decide(index, index)
        arguments.connections.answer()
        arguments.complete(lap * SLOTS)
    told = [sum(len(entries) for _, entries in arguments.acks())]
    arguments.far, arguments.near, far, near = far, near, arguments.far, arguments.near
    told.append(sum(len(entries) for _, entries in arguments.acks()))
    assert sorted(told) == [2 * SLOTS, 2 * SLOTS]
    far.close()
    near.close()


def test_those_behind_a_connection_that_ends_go_on_in_the_same_turn(arguments: Desk) -> None:
    far, near = arguments.connect()
    arguments.far.send(b"".join(batch(seq) for seq in range(1, SLOTS + 2)))
    assert arguments.connections.receive() == SLOTS
    assert arguments.connections.is_blocked
    far.send(batch(1))
    assert arguments.connections.receive() == 0
    for index in range(SLOTS):
        arguments.decide(index, index)
    arguments.connections.answer()
    arguments.complete(SLOTS)
    # Of the first only half a batch comes, which is no batch, and its end.
    first = next(iter(arguments.connections._connections.values()))
    first.start = first.verified
    arguments.far.close()
    assert arguments.connections.receive() == 1
    assert (len(arguments.connections), arguments.connections.is_blocked) == (1, False)
    far.close()
    near.close()


def test_batches_go_round_the_buffer_whatever_their_size(arguments: Desk) -> None:
    """Many times its size in all, with a batch at its end that has to be moved."""
    sent = published = 0
    unsent = b""
    sizes = [200, 70_001, MIB, 333, 900_000]
    while published * 400_000 < 3 * BUFFER_SIZE:
        if not unsent:
            sent += 1
            unsent = batch(sent, sizes[sent % 5])
        unsent = unsent[arguments.far.send(unsent) :]
        done = arguments.connections.receive()
        for index in range(published, published + done):
            at, size = (int(arguments.arrays.pbr[0][index % SLOTS][name]) for name in ("blog_offset", "size"))
            at %= BLOG
            assert arguments.arrays.blogs[0][at : at + size].tobytes() == batch(index + 1, size)
            arguments.decide(index, index)
        published += done
        arguments.connections.answer()
        arguments.acks()
        arguments.complete(published)
    assert len(arguments.connections) == 1


def test_answers_that_find_no_room_are_sent_when_there_is_some(arguments: Desk) -> None:
    count = filled = 0
    while not filled:
        for _ in range(SLOTS):
            arguments.far.send(batch(count + 1))
            arguments.connections.receive()
            arguments.decide(count, count)
            count += 1
            arguments.complete(count - 1)
            arguments.connections.answer()
        filled = arguments.wakeup.descriptors[arguments.near.fileno()] == (True, True)
    seen: list[int] = []
    while len(seen) < count:
        for _, entries in arguments.acks():
            seen += [seq for seq, _ in entries]
        arguments.connections.answer()
    assert seen == list(range(1, count + 1))
    assert arguments.wakeup.descriptors == {arguments.near.fileno(): (True, False)}


def spoilt() -> bytes:
    data = bytearray(batch(1))
    data[-1] ^= 1
    return bytes(data)


@pytest.mark.parametrize("make", [spoilt, lambda: b"GET / HTTP/1.1\r\n\r\n"])
def test_a_connection_that_breaks_the_protocol_is_dropped(arguments: Desk, make: Callable[[], bytes]) -> None:
    arguments.far.send(batch(1))
    arguments.connections.receive()
    arguments.far.send(make())
    assert arguments.connections.receive() == 0
    assert len(arguments.connections) == 0
    assert arguments.wakeup.descriptors == {}
    arguments.decide(0, 50)
    assert arguments.connections.answer() == 1


@pytest.mark.parametrize("size", [BLOG + 1, BUFFER_SIZE + 1], ids=["the ring", "the buffer"])
def test_a_batch_that_can_never_be_held_ends_its_connection(arguments: Desk, size: int) -> None:
    unsent = batch(1, size)
    while len(arguments.connections):
        unsent = unsent[arguments.far.send(unsent) :]
        assert arguments.connections.receive() == 0


def test_a_connection_that_ends_is_dropped_and_its_answers_are_nobodys(arguments: Desk) -> None:
    arguments.far.send(batch(1))
    assert arguments.connections.receive() == 1
    arguments.far.close()
    assert arguments.connections.receive() == 0
    far, near = arguments.connect()
    arguments.decide(0, 50)
    assert arguments.connections.answer() == 1
    assert far.receive_into(bytearray(9)) is None
    assert list(arguments.wakeup.descriptors) == [near.fileno()]
    far.close()
    near.close()


def test_a_connection_that_ends_while_it_is_answered_is_dropped(arguments: Desk) -> None:
    arguments.far.send(batch(1))
    arguments.connections.receive()
    arguments.far.close()
    arguments.decide(0, 50)
    assert arguments.connections.answer() == 1
    assert len(arguments.connections) == 0
