"""Expensive requests do not block an event loop: other clients are served meanwhile."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hostile_node import HostileNode
from hostile_peers import PATIENCE_S, Peers

import seawall
from seawall.api.publishable import Message
from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TimestampNs, TopicId
from seawall.limits import MIB
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import Codec, Features, HelloFlags, Kind, V1Flags
from seawall.wire.format.compression import compress
from seawall.wire.format.decoder import FrameDecoder
from seawall.wire.format.frames import encode_header_v1
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp2.frames import encode_control, encode_ping, parse_answer
from seawall.wire.lwp2.session import Hello, Welcome


class Pings:
    """The number of answered pings of a peer."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def pinging(node: HostileNode) -> Iterator[Pings]:
    """A peer that sends a ping after each answer, on a thread."""
    with Peers(node) as peers:
        peer, pings, is_over = peers.greet(), Pings(), threading.Event()

        def ping() -> None:
            while not is_over.is_set():
                peer.sendall(encode_ping(1))
                received = 0
                while received < 44:
                    received += len(peer.recv(44 - received))
                pings.count += 1

        thread = threading.Thread(target=ping)
        thread.start()
        try:
            yield pings
        finally:
            is_over.set()
            thread.join(PATIENCE_S)


def opened(peer: socket.socket) -> Welcome:
    """Open a session on a connection."""
    hello = Hello(flags=HelloFlags.OPEN, client_id=ClientId(7), features=int(Features.LZ4))
    peer.sendall(encode_control(hello, request_id=1))
    decoder = FrameDecoder()
    while True:
        decoder.feed(peer.recv(4096))
        for frame in decoder.frames():
            welcome = parse_answer(frame.header.command, frame.payload)
            assert isinstance(welcome, Welcome), welcome
            return welcome


def acked(peer: socket.socket) -> int:
    """Read until the node has answered everything that was sent, up to the last number."""
    decoder, through = FrameDecoder(), 0
    while data := peer.recv(1 << 16):
        decoder.feed(data)
        for frame in decoder.frames():
            if frame.header.kind == Kind.ACK:
                through = frame.header.id
        if through >= 64:
            break
    return through


def test_blocks_that_decompress_to_large_ones_delay_no_other_client(shared_node: HostileNode) -> None:
    node = shared_node
    block = encode_raw(bytes(16 * MIB - 5))
    packed = compress(Codec.LZ4, block)
    with seawall.connect(node.url) as log:
        topic_id = log.create_topic("large-blocks").topic_id
    with Peers(node) as peers, pinging(node) as pings:
        peer = peers.connect()
        welcome = opened(peer)
        batches = b"".join(
            encode_batch(
                batch_header(
                    packed,
                    topic_id=TopicId(topic_id),
                    client_id=welcome.client_id,
                    client_seq=ClientSeq(number),
                    session_epoch=SessionEpoch(welcome.session_epoch),
                    record_count=1,
                    timestamp_ns=TimestampNs(0),
                    codec=Codec.LZ4,
                    raw_length=len(block),
                ),
                packed,
            )
            for number in range(1, 65)
        )
        before = pings.count
        threading.Thread(target=peer.sendall, args=(batches,)).start()
        assert acked(peer) == 64
        # A loop that decompresses answers one ping for each block, at the most.
        assert pings.count - before > 8 * 64


def test_version_1_payloads_that_decompress_to_large_ones_delay_no_other_client(shared_node: HostileNode) -> None:
    node = shared_node
    packed = compress(Codec.LZ4, bytes(16 * MIB))
    with seawall.connect(node.url) as log:
        topic_id = log.create_topic("large-payloads").topic_id
    with Peers(node) as peers, pinging(node) as pings:
        peer = peers.connect()
        frames = b"".join(_v1_frame(bytes(packed), number, topic_id) for number in range(1, 33))
        before = pings.count
        threading.Thread(target=peer.sendall, args=(frames,)).start()
        received = 0
        while received < 32 * 44:
            received += len(peer.recv(1 << 16))
        assert pings.count - before > 8 * 32


def _v1_frame(packed: bytes, number: int, topic_id: int) -> bytes:
    flags = int(V1Flags.BATCH | V1Flags.LZ4)
    header = encode_header_v1(
        flags, batch_id=number, payload_length=len(packed), payload_crc=zlib.crc32(packed), topic_id=topic_id
    )
    return header + packed


def test_long_lists_of_topics_delay_no_other_client(shared_node: HostileNode) -> None:
    node = shared_node
    with seawall.connect(node.url) as log:
        before_count = len(log.topics())
        assert len(log.create_topics([f"topic-{number:04}" for number in range(2_000)])) == 2_000
        with pinging(node) as pings:
            before = pings.count
            for _ in range(20):
                assert len(log.topics()) == before_count + 2_000
        # A loop that encodes a list in one go answers one ping for each list, and one while the client reads it.
        assert pings.count - before > 8 * 20


@pytest.mark.slow
def test_deletes_by_tag_delay_no_other_client(shared_node: HostileNode) -> None:
    node = shared_node
    with seawall.connect(node.url) as log:
        log.create_topic("tagged")
        for first in range(0, 200_000, 10_000):
            messages = [Message(b"v", tag=f"tag-{number:07}") for number in range(first, first + 10_000)]
            log.publish("tagged", messages)
    with pinging(node) as pings, seawall.connect(node.url, timeout_s=PATIENCE_S) as log:
        published, is_over = 0, threading.Event()
        before = pings.count

        def delete() -> None:
            with seawall.connect(node.url, timeout_s=PATIENCE_S) as other:
                assert other.delete("tagged", tag_prefix="tag-") == 200_000
            is_over.set()

        log.create_topic("other")
        thread = threading.Thread(target=delete)
        thread.start()
        while not is_over.is_set():
            log.publish("other", b"value")
            published += 1
        thread.join()
        # Each waits for one slice of the delete at the most.
        assert published > 3
        assert pings.count - before > 64
