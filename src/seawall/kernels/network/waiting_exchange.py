"""Send one small batch of a client and wait for its ack, in one call without the GIL.

If nothing else is in flight on a connection, the next bytes to arrive are the ack of this batch, so no frame needs to
be matched to a request and no other thread to be woken. If anything else happens (a partial send, other frames, no
answer in time), the call reports how many bytes it sent and received, and the connection continues from there.

    frame   header of a batch, 96 bytes │ its block, written there by the caller

One array of words, `arguments`, holds the inputs and the results of the call.

The frame is identical, byte for byte, to the one that `Outgoing.frame_of` makes for the same batch. An answer counts
only if it is one complete ACK for this one batch, checked like any frame.
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

#: Constants: both descriptors, the timeout, client, session, and the order, ack level, codec and flags of its batches.
FD = 0
WAKER_FD = 1
TIMEOUT_MS = 2
CLIENT_ID = 3
SESSION_EPOCH = 4
CHOICES = 5
#: Inputs: the batch.
BLOCK_SIZE = 6
RECORD_COUNT = 7
CLIENT_SEQ = 8
TOPIC_ID = 9
WALL_NS = 10
#: Results: bytes sent and received, or minus errno; and the content of the ack.
SENT = 11
RECEIVED = 12
BASE_SEQ = 13
POSITION = 14
TIMESTAMP = 15
WINDOW_BATCHES = 16
WINDOW_BYTES = 17
#: How long the last answer took.
WAITED_NS = 18
ARGUMENTS_SIZE = 19

#: Offset of the block in the frame.
BLOCK_AT = 96

#: The batch is stored and the results say where; or the outcome is open, and the connection has to find it.
STORED = 1
UNRESOLVED = 0

_ACK_SIZE = 44 + 16 + 48
_ENTRY_AT = 44 + 16
_PAYLOAD_MAX = 1 << 16
#: How long to poll for an answer before blocking.
_SPIN_NS = 200_000


@kernel(void(bytes_out, int64_out))
def seal_one_frame(frame: Bytes, arguments: Values) -> None:
    """Write the header for the block in the frame."""
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
    """STORED if these bytes are one ACK that reports this one batch as stored; its numbers are then in the results."""
    if size != _ACK_SIZE or split_frames(answer, 0, size, _PAYLOAD_MAX, rows, state) != SPLIT_MORE:
        return UNRESOLVED
    if state[STATE_FRAMES] != 1 or state[STATE_CONSUMED] != size or as_int64(answer[5]) != KIND_ACK:
        return UNRESOLVED
    status = as_int64(answer[_ENTRY_AT + 44])
    if load_i64(answer, _ENTRY_AT) != arguments[CLIENT_SEQ] or load_u32(answer, _ENTRY_AT + 36) > 1 or status != 0:
        return UNRESOLVED
    if load_i64(answer, _ENTRY_AT + 16) < 0:  # its position is unknown
        return UNRESOLVED
    arguments[BASE_SEQ] = load_i64(answer, _ENTRY_AT + 8)
    arguments[POSITION] = load_i64(answer, _ENTRY_AT + 16)
    arguments[TIMESTAMP] = load_i64(answer, _ENTRY_AT + 24)
    arguments[WINDOW_BATCHES] = load_u32(answer, 52)
    arguments[WINDOW_BYTES] = load_u32(answer, 56)
    return STORED


@kernel(int64(int64_out, bytes_out))
def _await_answer(arguments: Values, answer: Bytes) -> int:
    """Wait for an answer. Returns its size; 0 at the end of the stream, a timeout or a wake-up; or minus errno.

    If the last answer was quick, poll for this one first, because waking a blocked thread takes time. Else block
    immediately, and leave the core to others.
    """
    started = monotonic_ns()
    received = -1
    if arguments[WAITED_NS] < _SPIN_NS:
        received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
        while received < 0 and monotonic_ns() - started < _SPIN_NS:
            yield_core()
            received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
    if received < 0:
        if either_readable(arguments[FD], arguments[WAKER_FD], arguments[TIMEOUT_MS]) != 1:
            return 0
        received = receive_some(arguments[FD], address_of(answer, 0), answer.size)
    arguments[WAITED_NS] = monotonic_ns() - started
    return received


@kernel(int64(bytes_out, int64_out, bytes_out, record_array(FRAME_ROW), int64_out))
def exchange_one_batch(frame: Bytes, arguments: Values, answer: Bytes, rows: Rows, state: Values) -> int:
    """Send the block in the frame as a batch, and wait for its ack. Returns STORED, or UNRESOLVED."""
    seal_one_frame(frame, arguments)
    size = BLOCK_AT + arguments[BLOCK_SIZE]
    arguments[RECEIVED] = 0
    sent = send_some(arguments[FD], address_of(frame, 0), size)
    arguments[SENT] = sent
    if sent != size:
        return UNRESOLVED
    received = _await_answer(arguments, answer)
    arguments[RECEIVED] = received
    return read_one_answer(arguments, answer, received, rows, state)
