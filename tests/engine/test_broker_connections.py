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

    def watch(self, descriptor: int, /, *, bytes_come: bool = True, has_room: bool = False) -> None:
        self.descriptors[descriptor] = (bytes_come, has_room)

    def unwatch(self, descriptor: int, /) -> None:
        del self.descriptors[descriptor]


class Desk:
    """A broker with one connection, its far end, and the commit frontier as one function."""

    def __init__(self, *, decided_through: int = 0) -> None:
        sizes = FabricSizes(brokers=1, goi_entries=128, pbr_entries=SLOTS, checkpoint_size=8 * KIB, blog_size=BLOG)
        layout = FabricLayout.of(sizes)
        self.arrays = FabricArrays(memoryview(mmap.mmap(-1, layout.size)), layout)
        self.bell = Watched()
        self.ring = BrokerRing(self.arrays, 0)
        self.connections = BrokerConnections(self.ring, self.arrays.pbr[0], self.bell)
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
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    made = Desk(decided_through=getattr(request, "param", 0))
    yield made
    made.far.close()
    made.near.close()


def test_whole_batches_are_published_and_the_rest_is_waited_for(desk: Desk) -> None:
    data = batch(1) + batch(2, 333) + batch(3)
    desk.far.send(data[:-1])
    assert desk.connections.receive() == 2
    assert desk.connections.receive() == 0
    desk.far.send(data[-1:])
    assert desk.connections.receive() == 1
    assert desk.arrays.pbr[0]["client_seq"][:3].tolist() == [1, 2, 3]
    blog, entry = desk.arrays.blogs[0], desk.arrays.pbr[0][1]
    at = int(entry["blog_offset"])
    assert blog[at : at + 333].tobytes() == batch(2, 333)


def test_answers_of_a_turn_are_one_frame_by_rising_seq(desk: Desk) -> None:
    desk.far.send(b"".join(map(batch, (1, 3, 2))))
    assert desk.connections.receive() == 3
    assert desk.connections.answer() == 0
    assert desk.acks() == []
    for index in range(3):
        desk.decide(index, 50 + index)
    assert desk.connections.answer() == 3
    assert desk.acks() == [(3, [(1, 50), (2, 52), (3, 51)])]


@pytest.mark.parametrize("desk", [10], indirect=True)
def test_through_stops_at_the_first_seq_that_is_not_answered(desk: Desk) -> None:
    desk.far.send(b"".join(map(batch, (11, 12, 13, 14))))
    desk.connections.receive()
    for index, told in ((1, 10), (3, 10), (0, 12), (2, 14)):
        desk.decide(index, 50 + index)
        desk.connections.answer()
        assert desk.acks() == [(told, [(11 + index, 50 + index)])]


def test_a_seq_that_is_answered_again_changes_nothing_of_what_is_decided(desk: Desk) -> None:
    for index, told in enumerate((1, 1, 2)):
        desk.far.send(batch(max(1, index)))
        desk.connections.receive()
        desk.decide(index, 50 + index, AckStatus.RETRY)
        desk.connections.answer()
        assert [through for through, _ in desk.acks()] == [told]


def test_a_full_ring_stops_its_connection_until_there_is_room(desk: Desk) -> None:
    desk.far.send(b"".join(batch(seq) for seq in range(1, SLOTS + 11)))
    assert desk.connections.receive() == SLOTS
    desk.connections.answer()
    assert desk.bell.descriptors == {desk.near.fileno(): (False, False)}
    desk.far.send(batch(SLOTS + 11))
    assert desk.connections.receive() == 0
    for index in range(SLOTS):
        desk.decide(index, index)
    assert desk.connections.answer() == SLOTS
    desk.complete(SLOTS)
    assert desk.connections.receive() == 11
    desk.connections.answer()
    assert desk.bell.descriptors == {desk.near.fileno(): (True, False)}


def test_connections_share_the_room_that_comes_free(desk: Desk) -> None:
    far, near = desk.connect()
    for stream in (desk.far, far):
        stream.send(b"".join(batch(seq) for seq in range(1, 4 * SLOTS)))
    for lap in range(1, 5):
        assert desk.connections.receive() == SLOTS
        for index in range((lap - 1) * SLOTS, lap * SLOTS):
            desk.decide(index, index)
        desk.connections.answer()
        desk.complete(lap * SLOTS)
    told = [sum(len(entries) for _, entries in desk.acks())]
    desk.far, desk.near, far, near = far, near, desk.far, desk.near
    told.append(sum(len(entries) for _, entries in desk.acks()))
    assert sorted(told) == [2 * SLOTS, 2 * SLOTS]
    far.close()
    near.close()


def test_those_behind_a_connection_that_ends_go_on_in_the_same_turn(desk: Desk) -> None:
    far, near = desk.connect()
    desk.far.send(b"".join(batch(seq) for seq in range(1, SLOTS + 2)))
    assert desk.connections.receive() == SLOTS
    assert desk.connections.is_blocked
    far.send(batch(1))
    assert desk.connections.receive() == 0
    for index in range(SLOTS):
        desk.decide(index, index)
    desk.connections.answer()
    desk.complete(SLOTS)
    # Of the first only half a batch comes, which is no batch, and its end.
    first = next(iter(desk.connections._connections.values()))
    first.start = first.verified
    desk.far.close()
    assert desk.connections.receive() == 1
    assert (len(desk.connections), desk.connections.is_blocked) == (1, False)
    far.close()
    near.close()


def test_batches_go_round_the_buffer_whatever_their_size(desk: Desk) -> None:
    """Many times its size in all, with a batch at its end that has to be moved."""
    sent = published = 0
    unsent = b""
    sizes = [200, 70_001, MIB, 333, 900_000]
    while published * 400_000 < 3 * BUFFER_SIZE:
        if not unsent:
            sent += 1
            unsent = batch(sent, sizes[sent % 5])
        unsent = unsent[desk.far.send(unsent) :]
        done = desk.connections.receive()
        for index in range(published, published + done):
            at, size = (int(desk.arrays.pbr[0][index % SLOTS][name]) for name in ("blog_offset", "size"))
            at %= BLOG
            assert desk.arrays.blogs[0][at : at + size].tobytes() == batch(index + 1, size)
            desk.decide(index, index)
        published += done
        desk.connections.answer()
        desk.acks()
        desk.complete(published)
    assert len(desk.connections) == 1


def test_answers_that_find_no_room_are_sent_when_there_is_some(desk: Desk) -> None:
    count = filled = 0
    while not filled:
        for _ in range(SLOTS):
            desk.far.send(batch(count + 1))
            desk.connections.receive()
            desk.decide(count, count)
            count += 1
            desk.complete(count - 1)
            desk.connections.answer()
        filled = desk.bell.descriptors[desk.near.fileno()] == (True, True)
    seen: list[int] = []
    while len(seen) < count:
        for _, entries in desk.acks():
            seen += [seq for seq, _ in entries]
        desk.connections.answer()
    assert seen == list(range(1, count + 1))
    assert desk.bell.descriptors == {desk.near.fileno(): (True, False)}


def spoilt() -> bytes:
    data = bytearray(batch(1))
    data[-1] ^= 1
    return bytes(data)


@pytest.mark.parametrize("make", [spoilt, lambda: b"GET / HTTP/1.1\r\n\r\n"])
def test_a_connection_that_breaks_the_protocol_is_dropped(desk: Desk, make: Callable[[], bytes]) -> None:
    desk.far.send(batch(1))
    desk.connections.receive()
    desk.far.send(make())
    assert desk.connections.receive() == 0
    assert len(desk.connections) == 0
    assert desk.bell.descriptors == {}
    desk.decide(0, 50)
    assert desk.connections.answer() == 1


@pytest.mark.parametrize("size", [BLOG + 1, BUFFER_SIZE + 1], ids=["the ring", "the buffer"])
def test_a_batch_that_can_never_be_held_ends_its_connection(desk: Desk, size: int) -> None:
    unsent = batch(1, size)
    while len(desk.connections):
        unsent = unsent[desk.far.send(unsent) :]
        assert desk.connections.receive() == 0


def test_a_connection_that_ends_is_dropped_and_its_answers_are_nobodys(desk: Desk) -> None:
    desk.far.send(batch(1))
    assert desk.connections.receive() == 1
    desk.far.close()
    assert desk.connections.receive() == 0
    far, near = desk.connect()
    desk.decide(0, 50)
    assert desk.connections.answer() == 1
    assert far.receive_into(bytearray(9)) is None
    assert list(desk.bell.descriptors) == [near.fileno()]
    far.close()
    near.close()


def test_a_connection_that_ends_while_it_is_answered_is_dropped(desk: Desk) -> None:
    desk.far.send(batch(1))
    desk.connections.receive()
    desk.far.close()
    desk.decide(0, 50)
    assert desk.connections.answer() == 1
    assert len(desk.connections) == 0
