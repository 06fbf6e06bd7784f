"""Where received bytes lie until they are whole frames: in memory that all connections share, their own, or the ring's.

    shared     for most: many frames a receive; what is left over is copied out, and lent to the next connection
    its own    for a large frame, so that it is not moved at every receive
    lent       for a large batch: free bytes of the ring, where it would be copied to when it is whole
               (`broker.ring.BrokerRing.lend`)

Large batches come one behind the other, mostly of one size. So once one has come, bytes are lent for the next before it
begins; what comes then and is something else is moved. Where several connections publish, that is done only if all of
the next batch has come as far as the system's memory: nobody else publishes while it is received. And if the ring has
no room for it, it stays there (`awaited`). Bytes of a large frame are summed as they arrive; more of it than the loop
has received is taken from the socket by one call.

The memory of a frame that has begun to arrive is reserved as a whole before more of it is received (`reserve`), so
frames that have begun can end. What is kept because its session does not take it is counted as waiting; while the
node has too much of that, a receive is small (`budget`).

What is lent is left before it is somebody else's: when it is taken back, when its batch is taken, and when nobody
listens any more. Only the first frame in it is handed over there; what is behind it is copied out.

A crash takes all of it: the peer sends it again. This module must not know what a frame means, nor whose ring it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

import numpy as np

from seawall import limits
from seawall.kernels.codec import frames
from seawall.kernels.network.batch_arrival import receive_batch
from seawall.server.connection.budget import ConnectionMemory
from seawall.server.connection.session import Bytes
from seawall.wire.format.read_buffers import READ_BUFFERS

_NOTHING: Final = np.zeros(0, np.uint8)
#: Frames that need more than this of the shared memory get memory of their own, which is not moved at every receive.
_SHARED_FRAME_MAX: Final = limits.SERVER_RECEIVE_SIZE // 4
#: What one receive takes of a large frame: so much is still near when it is summed.
_PIECE_SIZE: Final = limits.SERVER_RECEIVE_SIZE // 2
#: What is taken of it behind that at once, past the loop: as much as publishers share a batch for, about a millisecond.
#: Others have their turn in between.
_RECEIVED_SIZE: Final = 4 * limits.MIB
#: Less than this is not worth another receive.
_PIECES_SIZE: Final = _PIECE_SIZE * 3 // 2


class Lender(Protocol):
    """Who has memory for large batches: a session, as far as this has to know it."""

    def place_for(self, size: int, take_back: Callable[[], None], *, at_hand: Callable[[], bool]) -> Bytes | None:
        """Memory in which the next batch may be received, until `take_back` is called or it is fed; or None."""
        ...


class ReceiveBuffers:
    """What all connections of a loop share: bytes are lent to one of them until its session returns."""

    __slots__ = ("one_row", "rows", "slab")

    def __init__(self) -> None:
        self.slab = np.zeros(limits.SERVER_RECEIVE_SIZE, np.uint8)
        self.rows = np.zeros(limits.SERVER_FRAME_ROWS, frames.FRAME_ROW)
        self.one_row = self.rows[:1]


class Arriving:
    """The bytes of one connection that are no frames yet."""

    __slots__ = (
        *("_expected", "_go_on", "_is_lent", "_kept", "_loans", "_memory", "_own", "_own_end", "_queued", "_reserved"),
        *("_rest", "_space", "_wanted", "needed", "state"),
    )

    def __init__(
        self, space: ReceiveBuffers, queued: Callable[[], int], memory: ConnectionMemory, go_on: Callable[[], None]
    ) -> None:
        """`go_on` is called when memory was reserved that a frame had to wait for."""
        self._space = space
        self._memory = memory
        self._go_on = go_on
        #: Bytes reserved for the frame that arrives, bytes that it waits for, and bytes counted for what is kept.
        self._reserved = self._wanted = self._kept = 0
        #: Bytes that have come as far as the system's memory.
        self._queued = queued
        #: Bytes that are no whole frame yet: copied out of the shared memory, or the start of memory for it alone.
        self._rest: Bytes = _NOTHING
        self._own: Bytes | None = None
        self._own_end = 0
        self._is_lent = False
        #: How often something was lent: who takes back what was left long ago means nothing that was lent since.
        self._loans = 0
        #: The size of the last frame, if it was a large one.
        self._expected = 0
        #: What a split keeps, and the bytes that the next frame takes as far as is known.
        self.state = np.zeros(frames.STATE_SIZE, np.int64)
        self.needed = 0

    @property
    def rows(self) -> frames.Rows:
        """Where a split of these bytes tells of frames: of one, where they are lent."""
        return self._space.one_row if self._is_lent else self._space.rows

    @property
    def awaited(self) -> int:
        """The size of a large frame that is expected, and of which nothing was received yet; 0 if there is none."""
        return 0 if self._own is not None or self._rest.size else self._expected

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a frame has come."""
        return self._own is None and not self._rest.size

    def buffer(self, lender: Lender | None) -> memoryview:
        """Where the next bytes go: behind the beginning of their frame."""
        if self._own is None:
            size = self.needed if self.needed > limits.BATCH_HEADER_SIZE else self._expected
            if size > _SHARED_FRAME_MAX:
                self._begin_large(size, lender)
        if self._own is not None:
            left = self._own.size - self._own_end
            return self._own.data[self._own_end : self._own_end + (left if left < _PIECES_SIZE else _PIECE_SIZE)]
        slab = self._space.slab
        start, end = self._rest.size, slab.size
        if start:
            slab[:start] = self._rest
        if self._memory.waiting.is_over:
            end = start + limits.RECEIVE_SHORT_SIZE
        return slab.data[start:end]

    def _begin_large(self, size: int, lender: Lender | None) -> None:
        memory = None
        if lender is not None:
            self._loans += 1
            take_back = partial(self._take_back, self._loans)
            memory = lender.place_for(size, take_back, at_hand=lambda: self._rest.size + self._queued() >= size)
        self._is_lent = memory is not None
        if memory is not None:
            self._count_reserved(0)
        else:
            if self.needed <= _SHARED_FRAME_MAX:
                return
            # Fresh memory is not touched: the peer that announces a large frame costs some as it sends it.
            memory = READ_BUFFERS.take(self.needed + limits.RECEIVE_SIZE)
        memory[: self._rest.size] = self._rest
        self._own, self._own_end, self._rest = memory, self._rest.size, _NOTHING

    def received(self, count: int) -> tuple[Bytes, int] | None:
        """So many bytes have come: all that are no frames yet, and where they end; None if they are still none."""
        if self._own is None:
            return self._space.slab, self._rest.size + count
        self._own_end += count
        if self._own_end < self.needed > limits.BATCH_HEADER_SIZE:
            frames.sum_ahead(self._own, 0, self._own_end, self.state)
            return None
        return self._own, self._own_end

    def receive(self, descriptor: int) -> tuple[Bytes, int] | None:
        """Take more of a large frame from its socket, as far as it has come; all of it if it is whole."""
        if self._own is None or self.needed <= limits.BATCH_HEADER_SIZE or self._own_end >= self.needed:
            return None
        end = min(self.needed, self._own_end + _RECEIVED_SIZE)
        self._own_end = receive_batch(descriptor, self._own, self._own_end, end, self.state)
        return (self._own, self._own_end) if self._own_end >= self.needed else None

    def fed(self, buffer: Bytes, rows: frames.Rows, start: int, end: int) -> tuple[Bytes, int, int]:
        """Frames up to `start` were taken: what is left, which is not in memory that was lent for them."""
        # With what may be behind it: the next one has that, too.
        size = start - int(rows[-1]["at"]) if start > _SHARED_FRAME_MAX else 0
        self._expected = size if size > _SHARED_FRAME_MAX else 0
        if not self._is_lent:
            return buffer, start, end
        self._own, self._is_lent = None, False
        return buffer[start:end].copy() if start < end else _NOTHING, 0, end - start

    def reserve(self) -> bool:
        """Reserve the memory of the frame that has begun to arrive; false if it has to wait, until `go_on`."""
        has_begun = not self._is_lent and (self._own is not None or self._rest.size > 0)
        size = self.needed if has_begun else 0
        if size <= self._reserved:
            self._count_reserved(size)
            return True
        self._count_reserved(0)
        if self._memory.working.take(size, self._granted):
            self._reserved = size
            return True
        self._wanted = size
        return False

    def _granted(self) -> None:
        """The memory that a frame waits for is reserved."""
        if self._wanted:
            self._reserved, self._wanted = self._wanted, 0
            self._go_on()

    def _count_reserved(self, size: int) -> None:
        """Reserve no more than this, and wait for nothing."""
        if self._wanted and not self._memory.working.leave(self._granted):
            self._reserved = self._wanted
        self._wanted = 0
        self._memory.working.hold(size - self._reserved)
        self._reserved = size

    def wait(self, buffer: Bytes, start: int, end: int) -> None:
        """The rest is the beginning of a frame: keep it, out of the memory that others use."""
        self.needed = int(self.state[frames.STATE_NEEDED])
        if self.needed > _SHARED_FRAME_MAX:
            frames.sum_ahead(buffer, start, end, self.state)
        if self._own is not None and not start and self.needed <= self._own.size:
            return
        self._move(buffer, start, end)

    def keep(self, buffer: Bytes, start: int, end: int) -> None:
        """Keep the unconsumed tail of a buffer; copy it only if the buffer is shared."""
        self._count_reserved(0)
        self._kept = end - start
        self._memory.waiting.hold(self._kept)
        if self._is_lent or buffer is self._space.slab:
            self._move(buffer, start, end)
        else:
            self._rest, self._own = buffer[start:end], None

    def _move(self, buffer: Bytes, start: int, end: int) -> None:
        """Keep what is left of a buffer in memory of its size."""
        self._rest = buffer[start:end].copy() if start < end else _NOTHING
        self._own, self._is_lent = None, False

    def take_rest(self) -> Bytes:
        """What was kept, which is the caller's now."""
        self._memory.waiting.hold(-self._kept)
        self._kept = 0
        rest, self._rest = self._rest, _NOTHING
        return rest

    def drop(self) -> None:
        """Nobody wants to know what comes."""
        self._count_reserved(0)
        self._memory.waiting.hold(-self._kept)
        self._kept = 0
        self._rest, self._own, self._is_lent = _NOTHING, None, False
        self.needed = self._expected = 0

    def _take_back(self, loan: int) -> None:
        """Others need what was lent: what is there goes elsewhere."""
        if self._is_lent and loan == self._loans:
            assert self._own is not None, "something was lent"
            self._move(self._own, 0, self._own_end)
            self._count_reserved(self.needed)
