"""Receive the rest of a data frame from a socket, and verify each piece while it is cached.

The pieces are small enough to stay in the cache. A reader thread makes one call for a whole frame, without the GIL.

A call ends soon after the first piece that arrives incomplete, and in any case after a short time, so the caller can
check the clock and pending signals.
"""

from __future__ import annotations

from seawall.kernels.codec.chunks import CHUNK_ROW, CHUNKS_MORE, STATE_SIZE, Rows, State, check_chunks
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, record_array
from seawall.kernels.runtime.memory import Bytes, address_of
from seawall.kernels.runtime.system import monotonic_ns, receive_whole

#: Indexes in `state` after those of `check_chunks`: bytes that have arrived, and the result of their last check.
ARRIVED = STATE_SIZE
CODE = STATE_SIZE + 1
ARRIVAL_SIZE = STATE_SIZE + 2

#: Bytes received and verified at a time.
PIECE_SIZE = 256 * 1024

#: After this time a call starts no further piece.
CALL_NS = 100_000_000


@kernel(int64(int64, bytes_out, record_array(CHUNK_ROW), int64_out))
def receive_chunks(fd: int, buffer: Bytes, rows: Rows, state: State) -> int:
    """Receive until the buffer is full, and verify the bytes. Returns the last result of the socket.

    It stops early after an incomplete piece or after CALL_NS. Once the rows are full or a batch is invalid, it only
    receives the rest.
    """
    started = monotonic_ns()
    result = 0
    while state[ARRIVED] < buffer.size:
        wanted = min(PIECE_SIZE, buffer.size - state[ARRIVED])
        result = receive_whole(fd, address_of(buffer, state[ARRIVED]), wanted)
        if result <= 0:
            break
        state[ARRIVED] += result
        if state[CODE] == CHUNKS_MORE:
            state[CODE] = check_chunks(buffer, state[ARRIVED], buffer.size, rows, state)
        if result < wanted or monotonic_ns() - started > CALL_NS:
            break
    return result
