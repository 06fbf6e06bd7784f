"""A publisher that waits for each batch, again and again in one call: what servers are measured with (`bench.waiting`).

Nothing of the client is in it but the bytes: a frame is made, sent, and its ack awaited, asleep, before the next. So
what is measured is the server, and as many of these as there are connections cost next to nothing themselves.
"""

from __future__ import annotations

from seawall.kernels.frames import FRAME_ROW, Rows
from seawall.kernels.jit import bytes_out, int64, int64_out, kernel, record_array
from seawall.kernels.lone_exchange import (
    BLOCK_AT,
    BLOCK_SIZE,
    CLIENT_SEQ,
    FD,
    STORED,
    TIMEOUT_MS,
    read_lone_answer,
    seal_lone_frame,
)
from seawall.kernels.memory import Bytes, address_of
from seawall.kernels.system import monotonic_ns, poll_readable, receive_some, send_some
from seawall.kernels.tables import Values


@kernel(int64(bytes_out, int64_out, bytes_out, record_array(FRAME_ROW), int64_out, int64_out, int64, int64))
def publish_waiting(
    frame: Bytes,
    desk: Values,
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
    size = BLOCK_AT + desk[BLOCK_SIZE]
    count = 0
    now = monotonic_ns()
    while count == 0 or now < until_ns:
        began = now
        seal_lone_frame(frame, desk)
        if send_some(desk[FD], address_of(frame, 0), size) != size:
            return -1
        if poll_readable(desk[FD], desk[TIMEOUT_MS]) != 1:
            return -1
        received = receive_some(desk[FD], address_of(answer, 0), answer.size)
        if answer_size != 0:
            if received != answer_size:
                return -1
        elif read_lone_answer(desk, answer, received, rows, state) != STORED:
            return -1
        now = monotonic_ns()
        if count < waited.size:
            waited[count] = now - began
        desk[CLIENT_SEQ] += 1
        count += 1
    return count
