"""Batches that arrive in pieces: into the BLog while they are quick, into private memory when they are not.

A batch that is received where it will lie is not copied again. But its slot is claimed all the while, completion cannot
pass it, and the whole ring would wait for one slow sender. So a reservation lives for a bounded time: then what has
arrived moves to private memory, its slot becomes a NOP, and the batch gets another slot when it is whole. It starts in
private memory at once where the ring has no room.

No slot is reserved for longer than its life, by the clock that is passed in and as often as `expire` is called. A batch
is published when its last byte has arrived, or never.

What a crash does: batches in private memory are gone, reserved slots become NOPs when the ring is taken over; nobody
was answered. One thread uses all of this. It must not know sockets: whoever receives asks for `room` and says how much
came.
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
    """One batch that is arriving. Made by `Uploads.begin`."""

    __slots__ = ("_target", "arrived", "index", "owner")

    def __init__(self, owner: int, index: int | None, target: Bytes) -> None:
        self._target = target
        self.owner: Final = owner
        #: Its slot, or None if it is in private memory.
        self.index = index
        #: Bytes that are there.
        self.arrived = 0

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return int(self._target.size)

    @property
    def space(self) -> Bytes:
        """Where the next bytes go: to be asked for again before each receive, since the batch may move meanwhile."""
        return self._target[self.arrived :]

    @property
    def batch(self) -> Bytes:
        """What has arrived."""
        return self._target[: self.arrived]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to come."""
        return self.arrived == self.size

    def received(self, count: int) -> None:
        """So many bytes more are at the beginning of `room`."""
        if not 0 <= count <= self.size - self.arrived:
            raise InvalidInputError(f"{count} bytes where {self.size - self.arrived} are still to come")
        self.arrived += count

    def move(self) -> None:
        """Go on in private memory, with what has arrived."""
        private = np.empty(self.size, np.uint8)
        private[: self.arrived] = self.batch
        self._target = private
        self.index = None


class Uploads:
    """All batches that are arriving at one broker."""

    __slots__ = ("_life_ns", "_ring", "_uploads")

    def __init__(self, ring: BrokerRing, life_ms: int = BROKER_RESERVATION_MS) -> None:
        self._ring = ring
        self._life_ns = life_ms * 1_000_000
        self._uploads: list[Upload] = []

    def __len__(self) -> int:
        """How many are arriving."""
        return len(self._uploads)

    def begin(self, owner: int, size: int, now_ns: int) -> Upload:
        """A batch of `size` bytes begins to arrive; `FullError` if as many as may are arriving."""
        if not BATCH_HEADER_SIZE <= size <= _SIZE_MAX:
            raise LimitError(f"a batch of {size} bytes: it has {BATCH_HEADER_SIZE} to {_SIZE_MAX}")
        if len(self._uploads) >= BROKER_UPLOADS_MAX:
            raise FullError(f"{BROKER_UPLOADS_MAX} batches are arriving in pieces: read from this connection later")
        index = self._ring.reserve(size, now_ns + self._life_ns)
        target = np.empty(size, np.uint8) if index is None else self._ring.reserved_bytes(index)
        upload = Upload(owner, index, target)
        self._uploads.append(upload)
        return upload

    def finish(self, upload: Upload, defaults: TopicDefaults) -> bool:
        """Publish a batch that is whole and was verified; false if it has no room now: call again later."""
        self._require_known(upload)
        if not upload.is_whole:
            raise WrongStateError(
                f"{upload.size - upload.arrived} bytes of the batch are still to come: receive them first"
            )
        if upload.index is not None:
            if not self._ring.publish_reserved(upload.index, upload.owner, defaults):
                raise InvariantError(
                    "INV-BROKER-CLAIM-ENDS", f"slot {upload.index} was given up before its batch was whole"
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
        """The batch will not come, or is bad: its slot, if it has one, becomes a NOP."""
        self._require_known(upload)
        self._uploads.remove(upload)
        if upload.index is not None:
            self._ring.abandon(upload.index)
        self._ring.leave(upload.owner)

    def expire(self, now_ns: int) -> int:
        """Move uploads whose reservation has ended to private memory; how many."""
        by_slot = {upload.index: upload for upload in self._uploads}
        overdue = [slot for slot in self._ring.overdue(now_ns, BROKER_UPLOADS_MAX) if slot in by_slot]
        for slot in overdue:
            by_slot[slot].move()  # before the slot is given up: then its bytes may become another batch's
            self._ring.abandon(slot)
        return len(overdue)

    def _require_known(self, upload: Upload) -> None:
        if upload not in self._uploads:
            raise WrongStateError("this upload has ended: begin another one")
