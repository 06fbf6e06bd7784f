"""A publisher that waits for each batch: it sends valid frames with rising client seqs, and counts answers."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import SessionEpoch
from seawall.kernels.codec.frames import FRAME_ROW, STATE_SIZE, STATE_VERSION
from seawall.kernels.network import waiting_exchange as exchange_kernels
from seawall.kernels.network import waiting_publisher as kernels
from seawall.kernels.network.waiting_publisher import PIPELINE_SIZE, publish_pipelined, publish_waiting
from seawall.wire.format.ack_rows import ACK_ROW, encode_ack_rows
from seawall.wire.format.batches import BatchSource, parse_batch_header, verify_block
from seawall.wire.format.codes import AS_TOPIC
from seawall.wire.lwp1.frames import encode_ack, encode_ingest, encode_keepalive
from twins.network import waiting_publisher as twin

BLOCK = b"\x01\x03\x00\x00\x00abc"
SIZE = exchange_kernels.BLOCK_AT + len(BLOCK)


def ack(seq: int) -> bytes:
    rows = np.zeros(1, ACK_ROW)
    rows["client_seq"], rows["base_seq"], rows["position"], rows["run"], rows["record_count"] = seq, seq, seq, 1, 1
    return encode_ack_rows(rows, session_epoch=SessionEpoch(2), window_batches=256, window_bytes=1 << 20, through=seq)


def published(
    answer: Callable[[int], bytes], *, response_size: int = 0, milliseconds: int = 0
) -> tuple[int, list[int]]:
    """The result of the kernel, and the received client seqs, each answered by `answer`."""
    ours, theirs = socket.socketpair()
    numbers: list[int] = []

    def serve() -> None:
        while len(data := theirs.recv(SIZE, socket.MSG_WAITALL)) == SIZE:
            header = parse_batch_header(data, source=BatchSource.CLIENT)
            verify_block(header, data[96:])
            numbers.append(header.client_seq)
            theirs.sendall(answer(header.client_seq))

    thread = threading.Thread(target=serve)
    thread.start()
    frame = np.zeros(SIZE, np.uint8)
    frame[exchange_kernels.BLOCK_AT :] = np.frombuffer(BLOCK, np.uint8)
    arguments = np.zeros(exchange_kernels.ARGUMENTS_SIZE, np.int64)
    arguments[: exchange_kernels.WALL_NS] = (ours.fileno(), -1, 10_000, 7, 2, AS_TOPIC | 2 << 8, len(BLOCK), 1, 5, 3)
    state = np.zeros(STATE_SIZE, np.int64)
    state[STATE_VERSION] = 2
    waited = np.zeros(2, np.int64)
    until_ns = time.monotonic_ns() + milliseconds * 1_000_000 if milliseconds else 0
    arrays = (np.zeros(1024, np.uint8), np.zeros(2, FRAME_ROW), state, waited)
    count = publish_waiting(frame, arguments, *arrays, until_ns, response_size)
    ours.close()
    thread.join()
    theirs.close()
    assert all(each > 0 for each in waited.tolist()[: max(0, count)])
    return count, numbers


def test_each_batch_is_sent_when_the_previous_one_is_acked() -> None:
    count, numbers = published(ack, milliseconds=30)
    assert count >= 1
    assert numbers == list(range(5, 5 + count))


def test_at_least_one_batch_is_sent() -> None:
    assert published(ack) == (1, [5])


def test_without_acks_answers_are_counted_by_their_size() -> None:
    assert published(lambda _seq: bytes(108), response_size=108) == (1, [5])


@pytest.mark.parametrize("answer", [lambda seq: ack(seq + 1), lambda _seq: bytes(108), lambda _seq: b"?"])
def test_an_answer_that_does_not_ack_the_batch_ends_the_run(answer: Callable[[int], bytes]) -> None:
    assert published(answer)[0] == -1


def test_an_answer_of_another_size_ends_the_run() -> None:
    assert published(lambda _seq: b"?", response_size=108)[0] == -1


# --- several batches in flight -------------------------------------------------------------------------------------


def published_ahead(version: int, ahead: int, milliseconds: int, sizes: list[int]) -> tuple[int, int, int]:
    """The result of the kernel, the number of received messages, and the most that were in flight.

    Answers are sent in pieces of `sizes`, so that some end inside a frame.
    """
    ours, theirs = socket.socketpair()
    message = encode_ingest(BLOCK, batch_id=9, topic_id=3, timestamp_ns=0, record_count=1)
    frame = np.zeros(SIZE, np.uint8) if version == 2 else np.frombuffer(bytearray(message), np.uint8)
    if version == 2:
        frame[exchange_kernels.BLOCK_AT :] = np.frombuffer(BLOCK, np.uint8)
    came, most = 0, 0

    def serve() -> None:
        nonlocal came, most
        unsent, unanswered = b"", 0
        theirs.settimeout(0.01)
        while True:
            try:
                data = theirs.recv(frame.size, socket.MSG_WAITALL)
            except TimeoutError:
                data = b""
                if not unanswered:
                    continue
            if len(data) == frame.size:
                came, unanswered = came + 1, unanswered + 1
                most = max(most, unanswered)
                if unanswered < ahead:
                    continue
            elif not unanswered:
                return
            answers = [encode_ack(9)] * unanswered if version == 1 else [ack(4 + came)]
            unsent, unanswered = b"".join(answers), 0
            while unsent:
                size = sizes[came % len(sizes)]
                theirs.sendall(unsent[:size])
                unsent = unsent[size:]

    thread = threading.Thread(target=serve)
    thread.start()
    arguments = np.zeros(exchange_kernels.ARGUMENTS_SIZE, np.int64)
    arguments[: exchange_kernels.WALL_NS] = (ours.fileno(), -1, 10_000, 7, 2, AS_TOPIC | 2 << 8, len(BLOCK), 1, 5, 3)
    until_ns = time.monotonic_ns() + milliseconds * 1_000_000
    arrays = (np.zeros(4_096, np.uint8), np.zeros(PIPELINE_SIZE, np.int64))
    count = publish_pipelined(frame, arguments, *arrays, version, ahead, until_ns)
    ours.close()
    thread.join()
    theirs.close()
    return count, came, most


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("ahead", [1, 7])
def test_no_more_are_in_flight_than_allowed(version: int, ahead: int) -> None:
    count, came, most = published_ahead(version, ahead, 20, [10, 44, 1_000])
    assert count == came >= ahead
    assert most == ahead


ANSWERS = st.lists(st.integers(0, 50), max_size=8)


@given(ANSWERS, st.integers(0, 200), st.sampled_from([1, 2]), st.booleans())
def test_kernel_and_twin_count_the_same(seqs: list[int], cut: int, version: int, is_other: bool) -> None:
    frames = [encode_ack(seq) if version == 1 else ack(seq) for seq in seqs]
    data = b"".join([*frames, encode_keepalive() if is_other else b""])
    data = data[: max(0, len(data) - cut)]
    results = []
    for module in (kernels, twin):
        answers, progress = np.zeros(4_096, np.uint8), np.array([0, 3, len(data)], np.int64)
        answers[: len(data)] = np.frombuffer(data, np.uint8)
        code = module.count_acked(progress, answers, version)
        results.append((code, progress.tolist(), answers[: progress[2]].tobytes() if code else b""))
    assert results[0] == results[1]
