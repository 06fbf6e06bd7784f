"""The rest of a frame of data from a socket: each piece is verified as soon as it is there, while it is in a cache.

The pieces are small enough to stay in one. A reader's thread makes one call for a whole frame, and holds no GIL.

A call ends within a moment of the first piece that does not come whole, and in any case soon, so that whoever calls can
look at the clock and at signals.
"""

from __future__ import annotations

from seawall.kernels.codec.chunks import CHUNK_ROW, CHUNKS_MORE, STATE_SIZE, Rows, State, check_chunks
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, record_array
from seawall.kernels.runtime.memory import Bytes, address_of
from seawall.kernels.runtime.system import monotonic_ns, receive_whole

#: Places in `state` behind those of `check_chunks`: bytes that have arrived, and why the last check of them stopped.
ARRIVED = STATE_SIZE
CODE = STATE_SIZE + 1
ARRIVAL_SIZE = STATE_SIZE + 2

#: Bytes that are received and verified at a time.
PIECE_SIZE = 256 * 1024

#: The longest that a call begins with another piece.
CALL_NS = 100_000_000


@kernel(int64(int64, bytes_out, record_array(CHUNK_ROW), int64_out))
def receive_chunks(fd: int, buffer: Bytes, rows: Rows, state: State) -> int:
    """Receive into the buffer until it is full, and verify what comes; the last result of the socket.

    It stops when a piece does not come whole, when the rows are full, and when it has gone on for long. Once something
    is not sound the rest is only received.
    """
    began = monotonic_ns()
    result = 0
    while state[ARRIVED] < buffer.size:
        wanted = min(PIECE_SIZE, buffer.size - state[ARRIVED])
        result = receive_whole(fd, address_of(buffer, state[ARRIVED]), wanted)
        if result <= 0:
            break
        state[ARRIVED] += result
        if state[CODE] == CHUNKS_MORE:
            state[CODE] = check_chunks(buffer, state[ARRIVED], buffer.size, rows, state)
        if result < wanted or monotonic_ns() - began > CALL_NS:
            break
    return result
