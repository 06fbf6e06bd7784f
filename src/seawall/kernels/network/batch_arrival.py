"""Receive the rest of a large batch from a socket without blocking, and checksum each piece while it is cached.

One call replaces several iterations of an event loop. It never blocks: when no more bytes are available, it returns,
and the caller goes on with other connections.
"""

from __future__ import annotations

from seawall.kernels.codec.frames import State, sum_arrived
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel
from seawall.kernels.runtime.memory import Bytes, address_of
from seawall.kernels.runtime.system import receive_some

#: Bytes received and checksummed at a time.
PIECE_SIZE = 256 * 1024


@kernel(int64(int64, bytes_out, int64, int64, int64_out))
def receive_batch(fd: int, buffer: Bytes, at: int, end: int, state: State) -> int:
    """Continue to receive the frame at the beginning of `buffer`, from `at` to `end`. Returns the end of its bytes.

    `state` is the state of the `split_frames` call that found the frame. The end of the stream or an error ends the
    call; the next receive on the socket reports it.
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
