"""Receive buffers: hold received bytes until they are complete frames.

    shared   for most frames: one buffer for all connections of a loop, with many frames a receive; an incomplete frame
             at its end is copied out before the next connection uses the buffer
    own      a buffer for one large frame, so that it is not copied at every receive
    lent     for a large batch: free bytes of the ring, where it would be copied to once complete
             (`broker.ring.BrokerRing.lend`)

Large batches follow each other, mostly of one size. So after one large batch the connection borrows ring bytes for the
next one before it arrives; if something else arrives, it is moved elsewhere. When several connections publish, a
connection borrows only if all of the next batch is in the receive queue of the socket, since no other connection can
publish during the loan. If the ring has no space for the batch, it stays in the socket (`awaited`). The checksum of a
large frame is computed as its bytes arrive, and one kernel call receives more of it than the loop has.

Before more of an incomplete frame is received, memory for all of it is reserved (`reserve`), so that every frame that
has begun can be completed. Frames that the session has not accepted are counted as waiting memory; while the node has
too much of that, receives are small (`budget`).

A loan ends when the ring revokes it, when its batch is consumed, and when the connection discards its input. Only the
first frame in lent bytes is fed from there; the bytes after it are copied out.

A crash loses all of it: the peer sends it again. This module must not know what a frame means, nor whose ring it is.
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
#: Frames larger than this get a buffer of their own, so that they are not copied at every receive.
_SHARED_FRAME_MAX: Final = limits.SERVER_RECEIVE_SIZE // 4
#: The size of one receive of a large frame: small enough to be in the CPU cache when its checksum is computed.
_PIECE_SIZE: Final = limits.SERVER_RECEIVE_SIZE // 2
#: The most bytes of a large frame to receive after that without the loop: about a millisecond. Other connections run in
#: between.
_RECEIVED_SIZE: Final = 4 * limits.MIB
#: A remainder smaller than this is received together with the last piece.
_PIECES_SIZE: Final = _PIECE_SIZE * 3 // 2


class Lender(Protocol):
    """Lends memory for large batches: what this module needs of a session."""

    def buffer_for(self, size: int, revoke: Callable[[], None], *, is_queued: Callable[[], bool]) -> Bytes | None:
        """Memory to receive the next batch in, until it is fed or `revoke` is called; None if there is none."""
        ...


class ReceiveBuffers:
    """The buffers that all connections of a loop share; a session may use them until it returns."""

    __slots__ = ("one_row", "rows", "slab")

    def __init__(self) -> None:
        self.slab = np.zeros(limits.SERVER_RECEIVE_SIZE, np.uint8)
        self.rows = np.zeros(limits.SERVER_FRAME_ROWS, frames.FRAME_ROW)
        self.one_row = self.rows[:1]


class IncomingBytes:
    """The incomplete frames of one connection."""

    __slots__ = (
        *("_expected", "_is_lent", "_kept", "_loans", "_memory", "_on_reserved", "_own", "_own_end", "_queued"),
        *("_reserved", "_rest", "_shared", "_wanted", "needed", "state"),
    )

    def __init__(
        self, buffers: ReceiveBuffers, queued: Callable[[], int], memory: ConnectionMemory, reserved: Callable[[], None]
    ) -> None:
        """`reserved` is called once the memory that a frame waited for is reserved."""
        self._shared = buffers
        self._memory = memory
        self._on_reserved = reserved
        #: Bytes reserved for the incoming frame, bytes that it waits for, and bytes counted for unaccepted frames.
        self._reserved = self._wanted = self._kept = 0
        #: Returns the bytes in the receive queue of the socket.
        self._queued = queued
        #: Bytes of an incomplete frame: copied out of the shared buffer, or in the buffer of a large frame.
        self._rest: Bytes = _NOTHING
        self._own: Bytes | None = None
        self._own_end = 0
        self._is_lent = False
        #: Number of the current loan: a late `revoke` of an earlier loan must not end it.
        self._loans = 0
        #: The size of the last frame if it was large: the expected size of the next one; else 0.
        self._expected = 0
        #: State of the frame splitter, and the size of the incomplete frame as far as known.
        self.state = np.zeros(frames.STATE_SIZE, np.int64)
        self.needed = 0

    @property
    def rows(self) -> frames.Rows:
        """The rows that the frame splitter fills: one for lent bytes."""
        return self._shared.one_row if self._is_lent else self._shared.rows

    @property
    def awaited(self) -> int:
        """The size of an expected large frame of which nothing has been received yet; 0 if there is none."""
        return 0 if self._own is not None or self._rest.size else self._expected

    @property
    def is_empty(self) -> bool:
        """True if no bytes of an incomplete frame are held."""
        return self._own is None and not self._rest.size

    def buffer(self, lender: Lender | None) -> memoryview:
        """The buffer for the next receive: after the bytes of the incomplete frame."""
        if self._own is None:
            size = self.needed if self.needed > limits.BATCH_HEADER_SIZE else self._expected
            if size > _SHARED_FRAME_MAX:
                self._begin_large(size, lender)
        if self._own is not None:
            left = self._own.size - self._own_end
            return self._own.data[self._own_end : self._own_end + (left if left < _PIECES_SIZE else _PIECE_SIZE)]
        slab = self._shared.slab
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
            revoke = partial(self._revoke, self._loans)
            memory = lender.buffer_for(size, revoke, is_queued=lambda: self._rest.size + self._queued() >= size)
        self._is_lent = memory is not None
        if memory is not None:
            self._count_reserved(0)
        else:
            if self.needed <= _SHARED_FRAME_MAX:
                return
            # Fresh memory is not touched: a peer that announces a large frame costs memory only as it sends it.
            memory = READ_BUFFERS.take(self.needed + limits.RECEIVE_SIZE)
        memory[: self._rest.size] = self._rest
        self._own, self._own_end, self._rest = memory, self._rest.size, _NOTHING

    def received(self, count: int) -> tuple[Bytes, int] | None:
        """Add received bytes. Returns all unsplit bytes and their end; None while a large frame is incomplete."""
        if self._own is None:
            return self._shared.slab, self._rest.size + count
        self._own_end += count
        if self._own_end < self.needed > limits.BATCH_HEADER_SIZE:
            frames.sum_arrived(self._own, 0, self._own_end, self.state)
            return None
        return self._own, self._own_end

    def receive(self, descriptor: int) -> tuple[Bytes, int] | None:
        """Receive more of a large frame from its socket. Returns its bytes and their end once it is complete."""
        if self._own is None or self.needed <= limits.BATCH_HEADER_SIZE or self._own_end >= self.needed:
            return None
        end = min(self.needed, self._own_end + _RECEIVED_SIZE)
        self._own_end = receive_batch(descriptor, self._own, self._own_end, end, self.state)
        return (self._own, self._own_end) if self._own_end >= self.needed else None

    def consumed(self, buffer: Bytes, rows: frames.Rows, start: int, end: int) -> tuple[Bytes, int, int]:
        """Record that frames up to `start` were consumed. Returns the rest, copied out of lent memory."""
        # Including a trailing checksum: the next frame has one, too.
        size = start - int(rows[-1]["at"]) if start > _SHARED_FRAME_MAX else 0
        self._expected = size if size > _SHARED_FRAME_MAX else 0
        if not self._is_lent:
            return buffer, start, end
        self._own, self._is_lent = None, False
        return buffer[start:end].copy() if start < end else _NOTHING, 0, end - start

    def reserve(self) -> bool:
        """Reserve memory for the incomplete frame; False if it has to wait, until `reserved` is called."""
        has_begun = not self._is_lent and (self._own is not None or self._rest.size > 0)
        size = self.needed if has_begun else 0
        if size <= self._reserved:
            self._count_reserved(size)
            return True
        self._count_reserved(0)
        if self._memory.working.reserve(size, self._granted):
            self._reserved = size
            return True
        self._wanted = size
        return False

    def _granted(self) -> None:
        """Record that the memory is reserved, and continue."""
        if self._wanted:
            self._reserved, self._wanted = self._wanted, 0
            self._on_reserved()

    def _count_reserved(self, size: int) -> None:
        """Reduce the reservation to `size`, and stop waiting for more."""
        if self._wanted and not self._memory.working.cancel(self._granted):
            self._reserved = self._wanted
        self._wanted = 0
        self._memory.working.hold(size - self._reserved)
        self._reserved = size

    def keep_incomplete(self, buffer: Bytes, start: int, end: int) -> None:
        """Keep the beginning of an incomplete frame, outside of the shared buffer."""
        self.needed = int(self.state[frames.STATE_NEEDED])
        if self.needed > _SHARED_FRAME_MAX:
            frames.sum_arrived(buffer, start, end, self.state)
        if self._own is not None and not start and self.needed <= self._own.size:
            return
        self._move(buffer, start, end)

    def keep_unaccepted(self, buffer: Bytes, start: int, end: int) -> None:
        """Keep the unconsumed tail of a buffer; copy it only if the buffer is shared."""
        self._count_reserved(0)
        self._kept = end - start
        self._memory.waiting.hold(self._kept)
        if self._is_lent or buffer is self._shared.slab:
            self._move(buffer, start, end)
        else:
            self._rest, self._own = buffer[start:end], None

    def _move(self, buffer: Bytes, start: int, end: int) -> None:
        """Copy the rest of a buffer to memory of its size."""
        self._rest = buffer[start:end].copy() if start < end else _NOTHING
        self._own, self._is_lent = None, False

    def take_rest(self) -> Bytes:
        """Returns the kept bytes, which now belong to the caller."""
        self._memory.waiting.hold(-self._kept)
        self._kept = 0
        rest, self._rest = self._rest, _NOTHING
        return rest

    def drop(self) -> None:
        """Release everything: input is discarded from now on."""
        self._count_reserved(0)
        self._memory.waiting.hold(-self._kept)
        self._kept = 0
        self._rest, self._own, self._is_lent = _NOTHING, None, False
        self.needed = self._expected = 0

    def _revoke(self, loan: int) -> None:
        """End a loan: move the received bytes elsewhere."""
        if self._is_lent and loan == self._loans:
            assert self._own is not None, "a loan has memory"
            self._move(self._own, 0, self._own_end)
            self._count_reserved(self.needed)
