"""Bounds on the memory that peers can make a node use, measured as resident memory of its process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hostile_node import StartNode
from hostile_peers import Peers, fetch, filled, send_what_it_takes, served, subscribe, watching

import seawall
from seawall.core.types import Offset, TopicId
from seawall.limits import GIB, KIB, MIB
from seawall.wire.format.codes import Command, Kind, V1Flags
from seawall.wire.format.frames import encode_header_v1, encode_header_v2
from seawall.wire.lwp1.frames import encode_request
from seawall.wire.lwp1.requests import Fetch as FetchBytes

MEMORY_LIMIT = 384 * MIB
LIMITED = ("--memory-limit", str(MEMORY_LIMIT))
TOKEN = "a-token-for-everybody"


def half_a_frame_v1() -> bytes:
    """The first half of the largest frame of version 1: a header, and a part of the payload."""
    header = encode_header_v1(int(V1Flags.BATCH), batch_id=1, record_count=1, payload_length=16 * MIB, topic_id=1)
    return header + bytes(8 * MIB)


def half_a_frame_v2() -> bytes:
    """The same in version 2: a control frame."""
    header = encode_header_v2(Kind.CONTROL, Command.HELLO, request_id=1, payload_length=16 * MIB)
    return header + bytes(8 * MIB)


@pytest.mark.slow
def test_256_subscriptions_that_never_read_stay_within_the_memory_limit(start_node: StartNode) -> None:
    node = start_node(*LIMITED)
    topic_id = filled(node, 256)
    with Peers(node) as peers, watching(node) as watch:
        silent = peers.greet(receive_size=64 * KIB)
        silent.sendall(b"".join(subscribe(topic_id, number) for number in range(1, 257)))
        for _ in range(3):
            with seawall.connect(node.url) as log:
                assert log.read_arrow("t").num_rows == 1024
    assert watch.most < MEMORY_LIMIT, f"{watch.most // MIB} MiB"
    assert node.stop() == 0


@pytest.mark.slow
def test_a_hundred_silent_readers_stay_within_the_memory_limit(start_node: StartNode) -> None:
    node = start_node(*LIMITED)
    topic_id = filled(node, 64)
    with Peers(node) as peers, watching(node) as watch:
        for number in range(100):
            silent = peers.greet(receive_size=64 * KIB)
            silent.sendall(subscribe(topic_id, 1) if number % 2 else fetch(topic_id, 1))
            old = peers.connect(receive_size=64 * KIB)
            old.sendall(encode_request(FetchBytes(TopicId(topic_id), Offset(0), 16 * MIB)))
        served(node)
    assert watch.most < MEMORY_LIMIT, f"{watch.most // MIB} MiB"
    assert node.stop() == 0


@pytest.mark.slow
def test_a_flood_of_fetches_stays_within_the_memory_limit(start_node: StartNode) -> None:
    node = start_node(*LIMITED)
    topic_id = filled(node, 64)
    with Peers(node) as peers, watching(node) as watch:
        silent = peers.greet(receive_size=64 * KIB)
        silent.sendall(b"".join(fetch(topic_id, number) for number in range(1, 1025)))
        served(node)
    assert watch.most < MEMORY_LIMIT, f"{watch.most // MIB} MiB"
    assert node.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("half", [half_a_frame_v1, half_a_frame_v2])
def test_halves_of_large_frames_stay_within_the_memory_limit(start_node: StartNode, half: Callable[[], bytes]) -> None:
    node = start_node(*LIMITED)
    data = half()
    with Peers(node) as peers, watching(node) as watch:
        for _ in range(100):
            send_what_it_takes(peers.connect(), data)
        served(node)
    assert watch.most < MEMORY_LIMIT, f"{watch.most // MIB} MiB"
    assert node.stop() == 0


def test_a_peer_without_a_token_holds_no_memory(start_node: StartNode, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    node = start_node(*LIMITED, "--token-file", str(tokens))
    served(node, token=TOKEN)
    before = node.resident_size
    with Peers(node) as peers, watching(node) as watch:
        for data in (half_a_frame_v1(), half_a_frame_v2()):
            for _ in range(20):
                send_what_it_takes(peers.connect(), data)
    assert watch.most - before < 16 * MIB, f"{(watch.most - before) // MIB} MiB"
    assert node.stop() == 0


def test_topics_in_memory_stay_below_the_limit_whatever_their_caps_say(start_node: StartNode) -> None:
    node = start_node("--memory-limit", "640MiB")
    values = [bytes(100 * KIB)] * 40
    with seawall.connect(node.url) as log:
        for number in range(6):
            log.create_topic(f"topic-{number}", durability="ephemeral", cap_bytes=GIB)
        # The first batch loads the kernels.
        log.publish("topic-0", b"first")
        before = node.resident_size
        for _ in range(25):
            for number in range(6):
                log.publish(f"topic-{number}", values)
        assert node.resident_size - before < 640 * MIB // 4 + 100 * MIB
        # All of them continue: none was held for the memory of others.
        assert all(log.describe(f"topic-{number}").record_count > 0 for number in range(6))
    assert node.stop() == 0
