"""The rest of a large batch from a socket, as far as it has come: each piece is summed while it is in a cache.

One call takes what would be several turns of an event loop. It waits for nothing: whoever calls goes on with other
connections when there is no more.
"""

from __future__ import annotations

from seawall.kernels.codec.frames import State, sum_arrived
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel
from seawall.kernels.runtime.memory import Bytes, address_of
from seawall.kernels.runtime.system import receive_some

#: Bytes that are received and summed at a time.
PIECE_SIZE = 256 * 1024


@kernel(int64(int64, bytes_out, int64, int64, int64_out))
def receive_batch(fd: int, buffer: Bytes, at: int, end: int, state: State) -> int:
    """Receive the frame that lies at the beginning of a buffer, and has come up to `at`, up to `end`: how far it came.

    `state` is that of the split which has found its beginning. What ends a connection ends the call, too, and is left
    to whoever receives next.
    """
    while at < end:
        wanted = min(PIECE_SIZE, end - at)
        count = receive_some(fd, address_of(buffer, at), wanted)
        if count <= 0:
            break
        at += count
        sum_arrived(buffer, 0, at, state)
        if count < wanted:
            break
    return at
