"""One small batch of a client and its ack in one call: the frame is made, sent, waited for, and its answer read.

Where nothing else is under way on a connection, the next bytes that come are the ack of the one batch that is sent; so
no frame has to be told from others, and no thread from its waiting. Whatever is not that simple (half a send, other
frames, no answer in time) is reported as it is, for the connection to go on with.

    frame   header of a batch, 96 bytes │ its block, which the caller has put there

What the call is told and what it found lie on a *desk*.

The frame is, byte for byte, the one that `Outgoing.frame_of` makes of the same batch. An answer counts only if it is
one whole ACK, checked like any frame, of this one batch.
"""

from __future__ import annotations

from seawall.kernels.codec.batch_header import TIMESTAMP_AT, seal_header
from seawall.kernels.codec.frames import (
    FRAME_ROW,
    KIND_ACK,
    SPLIT_MORE,
    STATE_CONSUMED,
    STATE_FRAMES,
    Rows,
    split_frames,
)
from seawall.kernels.log.staging import write_header
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, address_of, as_int64, load_i64, load_u32, store_u64
from seawall.kernels.runtime.system import either_readable, monotonic_ns, receive_some, send_some, yield_core
from seawall.kernels.runtime.tables import Values

#: What never changes: both descriptors, how long it may wait, client, session, and how batches are to be taken.
FD = 0
WAKER_FD = 1
TIMEOUT_MS = 2
CLIENT_ID = 3
SESSION_EPOCH = 4
CHOICES = 5
#: What the call is told of its batch.
BLOCK_SIZE = 6
RECORD_COUNT = 7
CLIENT_SEQ = 8
TOPIC_ID = 9
WALL_NS = 10
#: What it found: bytes sent and received, or minus errno; and of an ack what it says.
SENT = 11
RECEIVED = 12
BASE_SEQ = 13
POSITION = 14
TIMESTAMP = 15
WINDOW_BATCHES = 16
WINDOW_BYTES = 17
#: How long the last answer was waited for.
WAITED_NS = 18
DESK_SIZE = 19

#: Where the block lies in the frame.
BLOCK_AT = 96

#: The batch is stored and the desk says where, or something else came of it.
STORED = 1
OTHERWISE = 0

_ACK_SIZE = 44 + 16 + 48
_ENTRY_AT = 44 + 16
_PAYLOAD_MAX = 1 << 16
#: For how long a core is kept while an answer is waited for.
_SPIN_NS = 200_000


@kernel(void(bytes_out, int64_out))
def seal_one_frame(frame: Bytes, arguments: Values) -> None:
    """The header of the block in the frame."""
    end = BLOCK_AT + arguments[BLOCK_SIZE]
    write_header(
        frame,
        0,
        frame,
        BLOCK_AT,
        end,
        arguments[RECORD_COUNT],
        arguments[TOPIC_ID],
        arguments[CLIENT_ID],
        arguments[CLIENT_SEQ],
        arguments[SESSION_EPOCH],
        arguments[BLOCK_SIZE],
        arguments[CHOICES],
    )
    store_u64(frame, TIMESTAMP_AT, arguments[WALL_NS])
    seal_header(frame, 0)


@kernel(int64(int64_out, bytes_out, int64, record_array(FRAME_ROW), int64_out))
def read_one_answer(arguments: Values, answer: Bytes, size: int, rows: Rows, state: Values) -> int:
    """STORED if these bytes are one ACK that says so of the batch alone; then the desk has its numbers."""
    if size != _ACK_SIZE or split_frames(answer, 0, size, _PAYLOAD_MAX, rows, state) != SPLIT_MORE:
        return OTHERWISE
    if state[STATE_FRAMES] != 1 or state[STATE_CONSUMED] != size or as_int64(answer[5]) != KIND_ACK:
        return OTHERWISE
    status = as_int64(answer[_ENTRY_AT + 44])
    if load_i64(answer, _ENTRY_AT) != arguments[CLIENT_SEQ] or load_u32(answer, _ENTRY_AT + 36) > 1 or status != 0:
        return OTHERWISE
    if load_i64(answer, _ENTRY_AT + 16) < 0:  # nobody knows its position
        return OTHERWISE
    arguments[BASE_SEQ] = load_i64(answer, _ENTRY_AT + 8)
    arguments[POSITION] = load_i64(answer, _ENTRY_AT + 16)
    arguments[TIMESTAMP] = load_i64(answer, _ENTRY_AT + 24)
    arguments[WINDOW_BATCHES] = load_u32(answer, 52)
    arguments[WINDOW_BYTES] = load_u32(answer, 56)
    return STORED


@kernel(int64(int64_out, bytes_out))
def _await_answer(arguments: Values, answer: Bytes) -> int:
    """Bytes of an answer, once there are some; 0 at the end of the stream or of the time, or minus errno.

    Answers of late came quickly, or else the core is left to others at once: who sleeps is woken late.
    """
    began = monotonic_ns()
    received = -1
    if arguments[WAITED_NS] < _SPIN_NS:
        received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
        while received < 0 and monotonic_ns() - began < _SPIN_NS:
            yield_core()
            received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
    if received < 0:
        if either_readable(arguments[FD], arguments[WAKER_FD], arguments[TIMEOUT_MS]) != 1:
            return 0
        received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
    arguments[WAITED_NS] = monotonic_ns() - began
    return received


@kernel(int64(bytes_out, int64_out, bytes_out, record_array(FRAME_ROW), int64_out))
def exchange_one_batch(frame: Bytes, arguments: Values, answer: Bytes, rows: Rows, state: Values) -> int:
    """Send the block in the frame as a batch, and wait for its ack: STORED, or OTHERWISE."""
    seal_one_frame(frame, arguments)
    size = BLOCK_AT + arguments[BLOCK_SIZE]
    arguments[RECEIVED] = 0
    sent = send_some(arguments[FD], address_of(frame, 0), size)
    arguments[SENT] = sent
    if sent != size:
        return OTHERWISE
    received = _await_answer(arguments, answer)
    arguments[RECEIVED] = received
    return read_one_answer(arguments, answer, received, rows, state)
