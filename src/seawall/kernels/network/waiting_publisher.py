"""A publisher that waits for each batch, or keeps some under way, in one call: what servers are measured with.

    publish_waiting   one batch after the other (`bench.figures.waiting`)
    publish_ahead     up to so many at once, in either version of the protocol

Nothing of the client is in it but the bytes: a frame is made, sent, and its ack awaited, asleep, before the next. So
what is measured is the server, and as many of these as there are connections cost next to nothing themselves.
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

#: Places in the progress of who publishes ahead: batches that are acked, the number of the first, and bytes of answers
#: that are no whole frame yet.
AHEAD_ACKED = 0
AHEAD_FIRST = 1
AHEAD_RECEIVED = 2
AHEAD_SIZE = 3


@kernel(int64(bytes_out, int64_out, bytes_out, record_array(FRAME_ROW), int64_out, int64_out, int64, int64))
def publish_waiting(
    frame: Bytes,
    arguments: Values,
    answer: Bytes,
    rows: Rows,
    state: Values,
    waited: Values,
    until_ns: int,
    answer_size: int,
) -> int:
    """Publish the block in the frame until a moment, and at least once, under numbers that rise: how often.

    Each answer has to be an ack that says STORED or, where `answer_size` is not 0, so many bytes. Minus one if one is
    not. `waited` gets how long each took, in ns, the first ones as far as there is room.
    """
    size = BLOCK_AT + arguments[BLOCK_SIZE]
    count = 0
    now = monotonic_ns()
    while count == 0 or now < until_ns:
        began = now
        seal_one_frame(frame, arguments)
        if send_some(arguments[FD], address_of(frame, 0), size) != size:
            return -1
        if poll_readable(arguments[FD], arguments[TIMEOUT_MS]) != 1:
            return -1
        received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
        if answer_size != 0:
            if received != answer_size:
                return -1
        elif read_one_answer(arguments, answer, received, rows, state) != STORED:
            return -1
        now = monotonic_ns()
        if count < waited.size:
            waited[count] = now - began
        arguments[CLIENT_SEQ] += 1
        count += 1
    return count


@kernel(int64(int64_out, bytes_out, int64))
def count_acked(progress: Values, answers: Bytes, version: int) -> int:
    """Count the batches that whole ACK frames at the beginning of `answers` call stored: 1, or 0 if one does not.

    What is no whole frame moves to the front. A frame of version 1 is about one; one of version 2 about all up to its
    number.
    """
    at = 0
    end = progress[AHEAD_RECEIVED]
    while end - at >= FRAME_HEADER_SIZE and end - at >= FRAME_HEADER_SIZE + load_u32(answers, at + LENGTH_AT):
        if as_int64(answers[at + KIND_AT]) != KIND_ACK:
            return 0
        if version == 1:
            progress[AHEAD_ACKED] += 1
        else:
            progress[AHEAD_ACKED] = load_i64(answers, at + CLIENT_SEQ_AT) - progress[AHEAD_FIRST] + 1
        at += FRAME_HEADER_SIZE + load_u32(answers, at + LENGTH_AT)
    for index in range(end - at):
        answers[index] = answers[at + index]
    progress[AHEAD_RECEIVED] = end - at
    return 1


@kernel(int64(bytes_out, int64_out, bytes_out, int64_out, int64, int64, int64))
def publish_ahead(
    frame: Bytes, arguments: Values, answers: Bytes, progress: Values, version: int, ahead: int, until_ns: int
) -> int:
    """Publish the same until a moment, with up to `ahead` messages that are not acked: how many were, or minus one.

    A frame of version 1 is sent as it is, again and again; one of version 2 has the block, under numbers that rise.
    """
    size = frame.size
    progress[:] = 0
    progress[AHEAD_FIRST] = arguments[CLIENT_SEQ]
    now = monotonic_ns()
    sent = 0
    # Bytes of the frame that is being sent which the socket has taken.
    taken = 0
    while now < until_ns or sent == 0 or progress[AHEAD_ACKED] < sent or taken > 0:
        while taken > 0 or (sent - progress[AHEAD_ACKED] < ahead and (now < until_ns or sent == 0)):
            if taken == 0 and version == 2:
                seal_one_frame(frame, arguments)
            done = send_some(arguments[FD], address_of(frame, taken), size - taken)
            if done <= 0:
                break
            taken += done
            if taken == size:
                taken = 0
                sent += 1
                arguments[CLIENT_SEQ] += 1
        if poll_readable(arguments[FD], arguments[TIMEOUT_MS]) != 1:
            return -1
        left = progress[AHEAD_RECEIVED]
        received = receive_some(arguments[FD], address_of(answers, left), answers.size - left)
        if received <= 0:
            return -1
        progress[AHEAD_RECEIVED] += received
        if count_acked(progress, answers, version) == 0:
            return -1
        now = monotonic_ns()
    return as_int64(progress[AHEAD_ACKED])
