"""What a transaction does, once nothing stands against it: which staged batches go where.

This module must not know how that is carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.transactions import WantedTransaction
from seawall.core.types import TopicId
from seawall.engine.commit.reservations import Reservation
from seawall.engine.commit.reserver import CONTROL_ROOM, Need
from seawall.engine.transactions.adoption import Adopted
from seawall.engine.transactions.staging import StagedBatches
from seawall.kernels.runtime.memory import Bytes
from seawall.storage.control.codec import CursorCommit, SegmentRoll
from seawall.storage.control.documents import FloorRaise
from seawall.storage.shared_file import FilePins
from seawall.topics.state import TopicState

#: Bytes that a part of the compound takes in the log, at the most: a reference, a cursor, a range that is deleted.
_REFERENCE_SIZE: Final = 120
_CURSOR_SIZE: Final = 48 + limits.CURSOR_OWNER_SIZE_MAX
_RANGE_SIZE: Final = 64

_NOTHING: Final = Need(0, 0, 0)


@dataclass(slots=True)
class Share:
    """What one topic gets: which parts, which of the batches, how much that is, and the room for it.

    Or what is adopted instead: then it needs no room.
    """

    topic: TopicState
    parts: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    need: Need = _NOTHING
    reservation: Reservation | None = None
    adopted: list[Adopted] = field(default_factory=list)
    #: To be logged before the first batch.
    ahead: list[SegmentRoll | FloorRaise] = field(default_factory=list)

    @property
    def made_reservation(self) -> Reservation:
        """Its room, once it is made."""
        assert self.reservation is not None, "room is made before anything is filled"
        return self.reservation


@dataclass(slots=True, eq=False)
class TransactionPlan:
    """A transaction that nothing stands against."""

    wanted: WantedTransaction
    batches: StagedBatches
    shares: dict[TopicId, Share]
    cursors: list[CursorCommit]
    #: The topic of each batch, the segment and the place it has there, and its header, one behind the other.
    topic_ids: npt.NDArray[np.uint32]
    segments: npt.NDArray[np.uint64]
    places: npt.NDArray[np.uint64]
    headers: Bytes
    #: The files that it writes to or moves: open before numbers are given.
    pins: FilePins = field(default_factory=FilePins)

    @property
    def logged_size(self) -> int:
        """Bytes that its compound takes in the log, at the most."""
        adopted = sum(len(share.adopted) for share in self.shares.values())
        fixed = CONTROL_ROOM * (1 + len(self.shares)) + (len(self.batches.ranges) + 2 * adopted) * _RANGE_SIZE
        return fixed + len(self.batches) * _REFERENCE_SIZE + len(self.cursors) * _CURSOR_SIZE
