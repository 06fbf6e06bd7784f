"""A publisher in one call, without the GIL, for benchmarks of servers.

    publish_waiting     one batch at a time, each after the ack of the one before (`bench.figures.waiting`)
    publish_pipelined   several batches in flight, in either version of the protocol

It has nothing of the client but the bytes: it makes a frame, sends it, and blocks until the ack. So a benchmark
measures the server, and many of these publishers, one per connection, cost almost nothing themselves.
"""

from __future__ import annotations

from seawall.kernels.codec.batch_header import CLIENT_SEQ_AT, FRAME_HEADER_SIZE, KIND_AT, LENGTH_AT
from seawall.kernels.codec.frames import FRAME_ROW, KIND_ACK, Rows
from seawall.kernels.network.waiting_exchange import (
    BLOCK_AT,
    BLOCK_SIZE,
    CLIENT_SEQ,
    FD,
    STORED,
    TIMEOUT_MS,
    read_one_answer,
    seal_one_frame,
)
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, record_array
from seawall.kernels.runtime.memory import Bytes, address_of, as_int64, load_i64, load_u32
from seawall.kernels.runtime.system import monotonic_ns, poll_readable, receive_some, send_some
from seawall.kernels.runtime.tables import Values

#: Indexes in the progress of `publish_pipelined`: acked batches, the number of the first batch, and the bytes of an
#: incomplete answer.
PIPELINE_ACKED = 0
PIPELINE_FIRST = 1
PIPELINE_RECEIVED = 2
PIPELINE_SIZE = 3


@kernel(int64(bytes_out, int64_out, bytes_out, record_array(FRAME_ROW), int64_out, int64_out, int64, int64))
def publish_waiting(
    frame: Bytes,
    arguments: Values,
    answer: Bytes,
    rows: Rows,
    state: Values,
    latencies_ns: Values,
    until_ns: int,
    response_size: int,
) -> int:
    """Publish the block in the frame until `until_ns`, at least once, with rising client seqs. Returns how many times.

    Each answer must be an ack that says STORED or, if `response_size` is not 0, have that size; else the result is -1.
    `latencies_ns` receives the latency of each batch, as far as it has space.
    """
    size = BLOCK_AT + arguments[BLOCK_SIZE]
    count = 0
    now = monotonic_ns()
    while count == 0 or now < until_ns:
        started = now
        seal_one_frame(frame, arguments)
        if send_some(arguments[FD], address_of(frame, 0), size) != size:
            return -1
        if poll_readable(arguments[FD], arguments[TIMEOUT_MS]) != 1:
            return -1
        received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
        if response_size != 0:
            if received != response_size:
                return -1
        elif read_one_answer(arguments, answer, received, rows, state) != STORED:
            return -1
        now = monotonic_ns()
        if count < latencies_ns.size:
            latencies_ns[count] = now - started
        arguments[CLIENT_SEQ] += 1
        count += 1
    return count


@kernel(int64(int64_out, bytes_out, int64))
def count_acked(progress: Values, answers: Bytes, version: int) -> int:
    """Count the batches acked by the complete frames in `answers`. Returns 1, or 0 if a frame is not an ACK.

    Moves an incomplete frame at the end to the front. A version 1 ack is for one batch, a version 2 ack for all batches
    up to its number.
    """
    at = 0
    end = progress[PIPELINE_RECEIVED]
    while end - at >= FRAME_HEADER_SIZE and end - at >= FRAME_HEADER_SIZE + load_u32(answers, at + LENGTH_AT):
        if as_int64(answers[at + KIND_AT]) != KIND_ACK:
            return 0
        if version == 1:
            progress[PIPELINE_ACKED] += 1
        else:
            progress[PIPELINE_ACKED] = load_i64(answers, at + CLIENT_SEQ_AT) - progress[PIPELINE_FIRST] + 1
        at += FRAME_HEADER_SIZE + load_u32(answers, at + LENGTH_AT)
    for index in range(end - at):
        answers[index] = answers[at + index]
    progress[PIPELINE_RECEIVED] = end - at
    return 1


@kernel(int64(bytes_out, int64_out, bytes_out, int64_out, int64, int64, int64))
def publish_pipelined(
    frame: Bytes, arguments: Values, answers: Bytes, progress: Values, version: int, in_flight_max: int, until_ns: int
) -> int:
    """Publish the same frame until `until_ns`, with up to `in_flight_max` unacked. Returns the number acked, or -1.

    A version 1 frame is sent unchanged each time; a version 2 frame gets rising client seqs.
    """
    size = frame.size
    progress[:] = 0
    progress[PIPELINE_FIRST] = arguments[CLIENT_SEQ]
    now = monotonic_ns()
    sent = 0
    # Bytes of the current frame that the socket has accepted.
    accepted = 0
    while now < until_ns or sent == 0 or progress[PIPELINE_ACKED] < sent or accepted > 0:
        while accepted > 0 or (sent - progress[PIPELINE_ACKED] < in_flight_max and (now < until_ns or sent == 0)):
            if accepted == 0 and version == 2:
                seal_one_frame(frame, arguments)
            done = send_some(arguments[FD], address_of(frame, accepted), size - accepted)
            if done <= 0:
                break
            accepted += done
            if accepted == size:
                accepted = 0
                sent += 1
                arguments[CLIENT_SEQ] += 1
        if poll_readable(arguments[FD], arguments[TIMEOUT_MS]) != 1:
            return -1
        kept = progress[PIPELINE_RECEIVED]
        received = receive_some(arguments[FD], address_of(answers, kept), answers.size - kept)
        if received <= 0:
            return -1
        progress[PIPELINE_RECEIVED] += received
        if count_acked(progress, answers, version) == 0:
            return -1
        now = monotonic_ns()
    return as_int64(progress[PIPELINE_ACKED])
