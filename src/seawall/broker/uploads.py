"""Receives batches in pieces: directly into the BLog if they are quick, into private memory if they are slow.

A batch that is received into its BLog bytes needs no copy. But its slot stays claimed meanwhile, completion cannot pass
it, and the whole ring would wait for one slow sender. So a reservation has a bounded lifetime: after it, the received
bytes move to private memory, the slot becomes a NOP, and the batch gets another slot when it is complete. If the ring
has no space, the batch starts in private memory.

No slot is reserved for longer than its lifetime, by the caller's clock and to the resolution of `expire` calls. A batch
is published when its last byte has arrived, or never.

A crash loses batches in private memory; reserved slots become NOPs when the ring is taken over; none of them was
answered. One thread uses all of this. This module must not know sockets: the receiver writes to `space` and reports the
number of bytes.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from seawall.broker.ring import BrokerRing, Stop, TopicDefaults
from seawall.errors import FullError, InvalidInputError, InvariantError, LimitError, WrongStateError
from seawall.fabric.arrays import Bytes
from seawall.limits import (
    BATCH_HEADER_SIZE,
    BROKER_RESERVATION_MS,
    BROKER_UPLOADS_MAX,
    FRAME_HEADER_SIZE,
    PAYLOAD_SIZE_MAX,
)

_SIZE_MAX: Final = FRAME_HEADER_SIZE + PAYLOAD_SIZE_MAX


class Upload:
    """One batch that is arriving. Create it with `Uploads.begin`."""

    __slots__ = ("_target", "arrived", "index", "owner")

    def __init__(self, owner: int, index: int | None, target: Bytes) -> None:
        self._target = target
        self.owner: Final = owner
        #: Its slot, or None if it is in private memory.
        self.index = index
        #: The number of received bytes.
        self.arrived = 0

    @property
    def size(self) -> int:
        """The size of the batch in bytes."""
        return int(self._target.size)

    @property
    def space(self) -> Bytes:
        """The buffer for the next bytes; get it again before each receive, since the batch may have moved."""
        return self._target[self.arrived :]

    @property
    def batch(self) -> Bytes:
        """The received bytes."""
        return self._target[: self.arrived]

    @property
    def is_whole(self) -> bool:
        """True if all bytes are received."""
        return self.arrived == self.size

    def received(self, count: int) -> None:
        """Report that the first `count` bytes of `space` are filled."""
        if not 0 <= count <= self.size - self.arrived:
            raise InvalidInputError(f"received {count} bytes, but only {self.size - self.arrived} are missing")
        self.arrived += count

    def move(self) -> None:
        """Move the received bytes to private memory and continue there."""
        private = np.empty(self.size, np.uint8)
        private[: self.arrived] = self.batch
        self._target = private
        self.index = None


class Uploads:
    """All batches that are arriving at one broker."""

    __slots__ = ("_lifetime_ns", "_ring", "_uploads")

    def __init__(self, ring: BrokerRing, life_ms: int = BROKER_RESERVATION_MS) -> None:
        self._ring = ring
        self._lifetime_ns = life_ms * 1_000_000
        self._uploads: list[Upload] = []

    def __len__(self) -> int:
        """The number of arriving batches."""
        return len(self._uploads)

    def begin(self, owner: int, size: int, now_ns: int) -> Upload:
        """Start receiving a batch of `size` bytes; `FullError` if too many are arriving."""
        if not BATCH_HEADER_SIZE <= size <= _SIZE_MAX:
            raise LimitError(f"a batch of {size} bytes: it must have {BATCH_HEADER_SIZE} to {_SIZE_MAX}")
        if len(self._uploads) >= BROKER_UPLOADS_MAX:
            raise FullError(f"{BROKER_UPLOADS_MAX} batches are arriving in pieces: read from this connection later")
        index = self._ring.reserve(size, now_ns + self._lifetime_ns)
        target = np.empty(size, np.uint8) if index is None else self._ring.reserved_bytes(index)
        upload = Upload(owner, index, target)
        self._uploads.append(upload)
        return upload

    def finish(self, upload: Upload, defaults: TopicDefaults) -> bool:
        """Publish a complete, verified batch; False if it has no space now: call again later."""
        self._require_known(upload)
        if not upload.is_whole:
            raise WrongStateError(f"{upload.size - upload.arrived} bytes of the batch are missing: receive them first")
        if upload.index is not None:
            if not self._ring.publish_reserved(upload.index, upload.owner, defaults):
                raise InvariantError(
                    "INV-BROKER-CLAIM-ENDS", f"slot {upload.index} was abandoned before its batch was complete"
                )
        else:
            done = self._ring.publish(upload.batch, upload.owner, defaults)
            if done.stop is Stop.FULL:
                return False
            if done.stop is not Stop.DONE or done.count != 1:
                raise InvalidInputError("the bytes are not one batch of the announced size: cancel the upload")
        self._uploads.remove(upload)
        return True

    def cancel(self, upload: Upload) -> None:
        """End an upload whose sender has gone or whose batch is invalid; its slot, if any, becomes a NOP."""
        self._require_known(upload)
        self._uploads.remove(upload)
        if upload.index is not None:
            self._ring.abandon(upload.index)
        self._ring.leave(upload.owner)

    def expire(self, now_ns: int) -> int:
        """Move uploads with an expired reservation to private memory; returns how many."""
        by_slot = {upload.index: upload for upload in self._uploads}
        overdue = [slot for slot in self._ring.overdue(now_ns, BROKER_UPLOADS_MAX) if slot in by_slot]
        for slot in overdue:
            by_slot[slot].move()  # before the slot is abandoned: its bytes can be reused then
            self._ring.abandon(slot)
        return len(overdue)

    def _require_known(self, upload: Upload) -> None:
        if upload not in self._uploads:
            raise WrongStateError("this upload has ended: begin another one")
