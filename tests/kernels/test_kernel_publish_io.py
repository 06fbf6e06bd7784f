"""Batches of many connections, received by one call and answered by another: against the twin, and over sockets."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator
from contextlib import suppress
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TimestampNs, TopicId
from seawall.kernels.admission.arriving import NO_TOPIC
from seawall.kernels.codec.frames import FRAME_ROW, STATE_SIZE
from seawall.kernels.log.cycle_records import LARGE_SIZE, RECEIVED_ROW
from seawall.kernels.network import publish_io as kernels
from seawall.limits import MIB
from seawall.wire.format.ack_rows import ack_rows, ack_window
from seawall.wire.format.batches import BatchSource, batch_header, encode_batch, parse_batch_header
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp1.frames import encode_ack, encode_ingest, encode_keepalive
from seawall.wire.lwp2.frames import encode_ping
from twins.network import publish_io as twin

CLIENT, EPOCH, HIGHEST = 9, 5, 20
#: A client without a session, and the topic that its frames name.
NOBODY, WIRE_TOPIC = -5, 77
TOTAL, STRONG, UNORDERED, GONE = 1, 2, 3, 4
ORDERS = np.array([NO_TOPIC, 2, 5, 0, NO_TOPIC], np.uint8)
LEVELS = np.array([0, 2, 1, 2, 0], np.uint8)


def batch(seq: int, topic: int = TOTAL, value: bytes = b"x", client: int = CLIENT, **changed: int) -> bytes:
    block = encode_raw(value)
    header = batch_header(
        block,
        topic_id=TopicId(topic),
        client_id=ClientId(client),
        client_seq=ClientSeq(seq),
        session_epoch=SessionEpoch(EPOCH),
        record_count=1,
        timestamp_ns=TimestampNs(0),
        **changed,
    )
    return encode_batch(header, block)


class Publishers:
    """Connections, and everything the kernels fill."""

    def __init__(self, count: int = 1) -> None:
        self.connections = np.zeros(count, kernels.CONNECTION_ROW)
        for name, value in (
            ("version", 2),
            ("client_id", CLIENT),
            ("session_epoch", EPOCH),
            ("payload_max", 1 << 24),
            ("window_batches", 64),
            ("window_bytes", MIB),
            ("highest", HIGHEST),
            ("state", kernels.ATTACHED),
            ("tail", -1),
        ):
            self.connections[name] = value
        self.buffer = np.zeros(MIB, np.uint8)
        self.received = np.zeros(2_048, RECEIVED_ROW)
        self.acks = np.zeros(MIB, np.uint8)
        self.rows = np.zeros(kernels.FRAMES_PER_RECEIVE, FRAME_ROW)
        self.made = np.zeros(kernels.FRAMES_PER_RECEIVE, FRAME_ROW)
        self.frame_counts = np.zeros(kernels.FRAMES_PER_RECEIVE, np.int64)
        self.state = np.zeros(STATE_SIZE, np.int64)

    def speak_v1(self) -> None:
        """Make them connections of version 1, whose frames are for one topic."""
        self.connections["version"], self.connections["client_id"] = 1, NOBODY
        self.connections["wire_topic"], self.connections["topic_id"] = WIRE_TOPIC, TOTAL

    def accept(self, module: ModuleType, data: bytes, at: int = 7) -> int:
        self.buffer[at : at + len(data)] = np.frombuffer(data, np.uint8)
        stretch = (self.buffer, at, at + len(data), self.received, 0, ORDERS)
        count: int
        if self.connections[0]["version"] == 1:
            scratch = (self.rows, self.made, self.frame_counts, self.state)
            count = module.accept_v1_frames(self.connections, 0, *stretch, *scratch)
        else:
            count = module.accept_batches(self.connections, 0, *stretch, LEVELS, self.rows, self.state)
        return count

    def write_v1_acks(self, module: ModuleType, count: int) -> bytes:
        end = module.write_v1_acks(self.buffer, self.received, 0, count, self.acks, 3)
        return self.acks[3:end].tobytes()

    def store(self, count: int) -> None:
        """Number the rows as a commit does."""
        for number in range(count):
            row = self.received[number]
            row["is_staged"], row["position"], row["base_seq"] = 1, 100 + number, 50 + number
            row["timestamp_ns"] = 10**18 + number

    def write_ack(self, module: ModuleType, count: int) -> bytes:
        end = module.write_ack(self.connections, 0, self.buffer, self.received, 0, count, self.acks, 3)
        return self.acks[3:end].tobytes()


BATCHES = st.builds(
    lambda topic, level, value: (topic, {"ack_level": level}, value),
    st.sampled_from([TOTAL, TOTAL, TOTAL, STRONG, STRONG, UNORDERED, GONE, 99]),
    st.sampled_from([0, 1, 2, 0xFF]),
    st.binary(min_size=1, max_size=300),
)


@given(
    st.lists(BATCHES, max_size=12),
    st.sampled_from([None, "ping", "large", "other client", "repeated", "damaged", "nothing"]),
    st.integers(0, 12),
    st.integers(0, 200),
    st.booleans(),
)
def test_kernel_and_twin_agree(
    batches: list[tuple[int, dict[str, int], bytes]], odd: str | None, odd_at: int, cut: int, has_runs: bool
) -> None:
    frames = [
        batch(HIGHEST + 1 + number, topic, value, **changed) for number, (topic, changed, value) in enumerate(batches)
    ]
    strange = {
        "ping": encode_ping(3),
        "large": batch(HIGHEST + 1 + min(odd_at, len(frames)), value=bytes(LARGE_SIZE)),
        "other client": batch(HIGHEST + 1 + min(odd_at, len(frames)), client=CLIENT + 1),
        "repeated": batch(HIGHEST),
        "damaged": bytes(100),
        "nothing": b"",
    }
    if odd is not None:
        frames.insert(odd_at, strange[odd])
    data = b"".join(frames)
    data = data[: max(0, len(data) - cut)]
    ours, theirs = Publishers(), Publishers()
    for each in (ours, theirs):
        each.connections["has_runs"] = has_runs
    count = ours.accept(kernels, data)
    assert count == theirs.accept(twin, data)
    assert ours.connections.tolist() == theirs.connections.tolist()
    assert ours.received.tolist() == theirs.received.tolist()
    ours.store(count)
    theirs.store(count)
    assert ours.write_ack(kernels, count) == theirs.write_ack(twin, count)


def frame(frame_id: int, payload: bytes, topic: int = WIRE_TOPIC, *, compressed: bool = False) -> bytes:
    return encode_ingest(
        payload, batch_id=frame_id, topic_id=topic, timestamp_ns=5, record_count=1, compressed=compressed
    )


V1_FRAMES = st.tuples(
    st.sampled_from(["records", "records", "records", "opaque", "large", "other topic", "compressed", "keepalive"]),
    st.binary(min_size=1, max_size=300),
)


def v1_frame(frame_id: int, kind: str, value: bytes) -> bytes:
    if kind == "keepalive":
        return encode_keepalive()
    if kind == "records":
        return frame(frame_id, encode_raw(value) * (1 + len(value) % 3))
    payload = bytes(LARGE_SIZE - 100) if kind == "large" else b"\x07" + value
    return frame(frame_id, payload, WIRE_TOPIC + (kind == "other topic"), compressed=kind == "compressed")


@given(st.lists(V1_FRAMES, max_size=12), st.integers(0, 200), st.sampled_from([TOTAL, STRONG, UNORDERED, GONE, 99]))
def test_kernel_and_twin_agree_about_version_1(given: list[tuple[str, bytes]], cut: int, topic: int) -> None:
    data = b"".join(v1_frame(900 + number, *each) for number, each in enumerate(given))
    data = data[: min(LARGE_SIZE, max(0, len(data) - cut))]
    ours, theirs = Publishers(), Publishers()
    for each in (ours, theirs):
        each.speak_v1()
        each.connections["topic_id"] = topic
    count = ours.accept(kernels, data)
    assert count == theirs.accept(twin, data)
    assert ours.connections.tolist() == theirs.connections.tolist()
    assert ours.received.tolist() == theirs.received.tolist()
    assert (ours.buffer == theirs.buffer).all()
    assert ours.write_v1_acks(kernels, count) == theirs.write_v1_acks(twin, count)


def test_frames_of_version_1_become_batches_and_are_acked_each() -> None:
    publishers = Publishers()
    publishers.speak_v1()
    frames = [frame(900 + number, encode_raw(b"%d" % number)) for number in range(3)]
    opaque, other = frame(903, b"no record"), frame(904, encode_raw(b"4"), WIRE_TOPIC + 1)
    assert publishers.accept(kernels, b"".join((*frames, opaque, other)), at=0) == 2
    joined, single = publishers.received[:2]
    assert (joined["frames"], single["frames"]) == (3, 1)
    batch = publishers.buffer[joined["at"] :][: joined["size"]].tobytes()
    header = parse_batch_header(batch, source=BatchSource.CLIENT)
    assert (header.record_count, header.client_seq, header.topic_id) == (3, HIGHEST + 1, TOTAL)
    assert batch[96:] == b"".join(encode_raw(b"%d" % number) for number in range(3))
    acks = publishers.write_v1_acks(kernels, 2)
    assert acks == b"".join(encode_ack(900 + number) for number in range(4))
    connection = publishers.connections[0]
    assert (connection["state"], connection["highest"]) == (kernels.RETURNED, HIGHEST + 2)
    assert publishers.buffer[connection["rest_at"] : connection["rest_end"]].tobytes() == other


def test_every_byte_is_in_a_row_or_in_the_tail() -> None:
    """INV-PUBLISH-IO-WHOLE."""
    frames = [batch(HIGHEST + 1), batch(HIGHEST + 2, STRONG), encode_ping(1), batch(HIGHEST + 3)]
    publishers = Publishers()
    assert publishers.accept(kernels, b"".join(frames), at=0) == 2
    connection = publishers.connections[0]
    assert (connection["state"], connection["highest"]) == (kernels.RETURNED, HIGHEST + 2)
    left = publishers.buffer[connection["rest_at"] : connection["rest_end"]].tobytes()
    assert left == frames[2] + frames[3]
    rows = publishers.received[:2]
    assert rows["is_strong"].tolist() == [0, 1]
    assert rows["level"].tolist() == [2, 1]


def test_an_ack_has_the_outcome_of_its_batches() -> None:
    publishers = Publishers()
    frames = [batch(HIGHEST + 1), batch(HIGHEST + 2), batch(HIGHEST + 3, ack_level=0), batch(HIGHEST + 4)]
    assert publishers.accept(kernels, b"".join(frames)) == 4
    publishers.store(4)
    decoder = FrameDecoder()
    decoder.feed(publishers.write_ack(kernels, 4))
    (frame,) = decoder.frames()
    assert frame.header.id == HIGHEST + 4
    assert ack_window(frame.payload) == (64, MIB)
    rows = ack_rows(frame.payload)
    assert rows["client_seq"].tolist() == [HIGHEST + 1, HIGHEST + 2, HIGHEST + 4]
    assert rows["position"].tolist() == [100, 101, 103]
    assert rows["base_seq"].tolist() == [50, 51, 53]
    publishers.connections["has_runs"] = 1
    decoder.feed(publishers.write_ack(kernels, 4))
    (frame,) = decoder.frames()
    assert ack_rows(frame.payload)["run"].tolist() == [2, 1]


# --- over sockets --------------------------------------------------------------------------------------------------


class Wired(Publishers):
    """Connections with sockets, and an epoll that watches them."""

    def __init__(self, count: int, tails: int = 2) -> None:
        super().__init__(count)
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.epoll = select.epoll()
        self.waker = os.eventfd(0, os.EFD_NONBLOCK)
        self.epoll.register(self.waker, select.EPOLLIN)
        self.by_descriptor = np.zeros(4_096, np.int32)
        for index, (served, _) in enumerate(self.pairs):
            self.epoll.register(served, select.EPOLLIN)
            self.by_descriptor[served.fileno()] = index + 1
            self.connections[index]["fd"] = served.fileno()
        self.events = np.zeros(64 * kernels.EVENT_SIZE, np.uint8)
        self.tails = np.zeros(tails * LARGE_SIZE, np.uint8)
        self.owners = np.zeros(tails, np.int64)
        self.progress = np.zeros(kernels.PROGRESS_SIZE, np.int64)

    def receive(self) -> list[int]:
        """The client seqs of the received batches."""
        sources = (self.epoll.fileno(), self.waker, 0, self.events, self.by_descriptor, self.connections)
        memory = (self.buffer, self.tails, self.owners, self.received, ORDERS, LEVELS)
        scratch = (self.rows, self.made, self.frame_counts, self.state)
        count = kernels.receive_batches(*sources, *memory, *scratch, self.progress)
        self.store(count)
        return [int.from_bytes(self.buffer[at + 12 :][:8].tobytes(), "little") for at in self.received["at"][:count]]

    def send(self, count: int) -> int:
        return kernels.send_acks(self.connections, self.buffer, self.received, count, self.acks, self.progress)

    def acked(self, index: int) -> list[int]:
        decoder = FrameDecoder()
        decoder.feed(self.pairs[index][1].recv(1 << 20))
        return [int(seq) for frame in decoder.frames() for seq in ack_rows(frame.payload)["client_seq"]]

    def close(self) -> None:
        for pair in self.pairs:
            for each in pair:
                each.close()
        self.epoll.close()
        os.close(self.waker)


@pytest.fixture
def wired() -> Iterator[Wired]:
    made = Wired(3)
    yield made
    made.close()


def test_all_readable_connections_are_received_and_answered(wired: Wired) -> None:
    assert wired.receive() == []
    for _, peer in wired.pairs[1:]:
        peer.send(batch(HIGHEST + 1) + batch(HIGHEST + 2))
    assert wired.receive() == [HIGHEST + 1, HIGHEST + 2] * 2
    assert wired.send(4) == 4
    assert wired.acked(1) == wired.acked(2) == [HIGHEST + 1, HIGHEST + 2]
    assert wired.progress[kernels.RETURNS] == 0
    os.eventfd_write(wired.waker, 1)
    assert wired.receive() == []
    assert wired.progress[kernels.WOKEN] == 1


def test_both_versions_are_received_and_answered_together(wired: Wired) -> None:
    wired.connections[1]["version"], wired.connections[1]["client_id"] = 1, NOBODY
    wired.connections[1]["wire_topic"], wired.connections[1]["topic_id"] = WIRE_TOPIC, TOTAL
    wired.pairs[0][1].send(batch(HIGHEST + 1))
    one, half = frame(900, encode_raw(b"1")), frame(901, encode_raw(b"2"))
    wired.pairs[1][1].send(one + half[:20])
    assert wired.receive() == [HIGHEST + 1, HIGHEST + 1]
    assert wired.send(2) == 2
    assert wired.acked(0) == [HIGHEST + 1]
    assert wired.pairs[1][1].recv(1_000) == encode_ack(900)
    wired.pairs[1][1].send(half[20:])
    assert wired.receive() == [HIGHEST + 2]
    assert wired.send(1) == 1
    assert wired.pairs[1][1].recv(1_000) == encode_ack(901)
    # Batches that are not staged are returned unchanged.
    wired.pairs[1][1].send(one + half)
    assert wired.receive() == [HIGHEST + 3]
    wired.received[0]["is_staged"] = 0
    assert wired.send(1) == 0
    connection = wired.connections[1]
    assert (connection["state"], connection["highest"]) == (kernels.RETURNED, HIGHEST + 2)
    assert wired.buffer[connection["rest_at"] : connection["rest_end"]].tobytes() == one + half


def test_an_incomplete_batch_waits_in_a_tail(wired: Wired) -> None:
    frames = [batch(HIGHEST + 1), batch(HIGHEST + 2)]
    for _, peer in wired.pairs:
        peer.send(frames[0][:60])
    assert wired.receive() == []
    # Two have a tail buffer, and one is returned for want of one.
    assert sorted(wired.connections["state"].tolist()) == [kernels.ATTACHED, kernels.ATTACHED, kernels.RETURNED]
    (index, *_) = np.flatnonzero(wired.connections["state"] == kernels.ATTACHED).tolist()
    peer = wired.pairs[index][1]
    peer.send(frames[0][60:] + frames[1][:10])
    assert wired.receive() == [HIGHEST + 1]
    assert wired.connections[index]["tail_size"] == 10
    peer.send(frames[1][10:])
    assert wired.receive() == [HIGHEST + 2]
    assert (wired.connections[index]["tail"], wired.owners.sum()) == (-1, 1)


@pytest.mark.parametrize("how", ["end", "reset", "closed by us"])
def test_a_closed_connection_is_returned_with_its_received_bytes(wired: Wired, how: str) -> None:
    frame = batch(HIGHEST + 1)
    wired.pairs[0][1].send(frame[:40])
    assert wired.receive() == []
    if how == "closed by us":
        wired.pairs[0][0].shutdown(socket.SHUT_RDWR)
    else:
        wired.pairs[0][1].close()
    assert wired.receive() == []
    connection = wired.connections[0]
    assert connection["state"] == kernels.RETURNED
    assert wired.buffer[connection["rest_at"] : connection["rest_end"]].tobytes() == frame[:40]
    assert (connection["tail"], wired.owners.sum(), wired.progress[kernels.RETURNS]) == (-1, 0, 1)
    # One that is returned is not received from.
    assert wired.receive() == []


def test_batches_that_are_not_staged_are_returned(wired: Wired) -> None:
    frames = [batch(HIGHEST + 1), batch(HIGHEST + 2), batch(HIGHEST + 3)]
    for _, peer in wired.pairs[:2]:
        peer.send(b"".join(frames) + frames[0][:5])
    assert len(wired.receive()) == 6
    first = int(wired.received["connection"][0])
    wired.received["is_staged"][1] = 0
    assert wired.send(6) == 4
    connection = wired.connections[first]
    assert (connection["state"], connection["highest"]) == (kernels.RETURNED, HIGHEST + 1)
    left = wired.buffer[connection["rest_at"] : connection["rest_end"]].tobytes()
    assert left == frames[1] + frames[2] + frames[0][:5]
    assert wired.acked(first) == [HIGHEST + 1]
    assert wired.acked(1 - first) == [HIGHEST + 1, HIGHEST + 2, HIGHEST + 3]
    assert wired.progress[kernels.RETURNS] == 1


def test_an_ack_that_cannot_be_sent_is_kept(wired: Wired) -> None:
    served, peer = wired.pairs[0]
    served.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    served.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            served.send(bytes(1_000))
    peer.send(batch(HIGHEST + 1))
    assert wired.receive() == [HIGHEST + 1]
    assert wired.send(1) == 1
    connection = wired.connections[0]
    assert connection["state"] == kernels.RETURNED
    assert connection["unsent_end"] - connection["unsent_at"] == kernels.ACK_PREFIX + kernels.ACK_ENTRY
    assert connection["rest_at"] == connection["rest_end"]


def test_no_more_is_received_than_there_is_space_for() -> None:
    wired = Wired(20, tails=20)
    try:
        data = b"".join(batch(HIGHEST + 1 + number, value=bytes(700)) for number in range(80))
        for _, peer in wired.pairs:
            peer.send(data)
        seqs = wired.receive()
        assert 0 < len(seqs) < 20 * 80
        while len(seqs) < 20 * 80:
            more = wired.receive()
            assert more
            seqs += more
        assert sorted(seqs) == sorted(list(range(HIGHEST + 1, HIGHEST + 81)) * 20)
        assert not wired.owners.any()
    finally:
        wired.close()
