"""The plan of a transaction after all checks: which staged batches go to which topic, segment and file position.

This module must not know how the plan is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.transactions import WantedTransaction
from seawall.core.types import TopicId
from seawall.engine.commit.reservations import Reservation
from seawall.engine.commit.reserver import CONTROL_SIZE_MAX, Need
from seawall.engine.transactions.adoption import Adopted
from seawall.engine.transactions.staging import StagedBatches
from seawall.kernels.runtime.memory import Bytes
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import CursorCommit, SegmentRoll
from seawall.storage.control.documents import FloorRaise
from seawall.storage.shared_file import FilePins
from seawall.topics.state import TopicState

#: The most bytes that one part of the compound takes in the log: a reference, a cursor, a deleted range.
_REFERENCE_SIZE: Final = 120
_CURSOR_SIZE: Final = 48 + limits.CURSOR_OWNER_SIZE_MAX
_RANGE_SIZE: Final = 64
#: What a compound adds to each part.
_PART_SIZE: Final = 8

_NOTHING: Final = Need(0, 0, 0)


@dataclass(slots=True)
class TopicWrite:
    """What a transaction writes to one topic: its parts and batches, their size, and the reservation for them.

    If the topic adopts staged segments instead, it needs no reservation.
    """

    topic: TopicState
    parts: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    need: Need = _NOTHING
    reservation: Reservation | None = None
    adopted: list[Adopted] = field(default_factory=list)
    #: Controls to log before the first batch.
    controls_before: list[SegmentRoll | FloorRaise] = field(default_factory=list)

    @property
    def made_reservation(self) -> Reservation:
        """The reservation, after it was made."""
        assert self.reservation is not None, "reservations are made before anything is copied"
        return self.reservation


@dataclass(slots=True, eq=False)
class TransactionPlan:
    """A transaction that passed all checks."""

    wanted: WantedTransaction
    batches: StagedBatches
    writes: dict[TopicId, TopicWrite]
    cursors: list[CursorCommit]
    #: For each batch: its topic, segment, file position there, and header. The headers are consecutive.
    topic_ids: npt.NDArray[np.uint32]
    segments: npt.NDArray[np.uint64]
    file_positions: npt.NDArray[np.uint64]
    headers: Bytes
    #: Changes that join the transaction: deletes of finished jobs, and what belongs to them.
    also: Sequence[SimpleControl] = ()
    #: Pins of the files that it writes or moves: they are open before numbers are assigned.
    pins: FilePins = field(default_factory=FilePins)

    @property
    def logged_size(self) -> int:
        """The most bytes that its compound takes in the log."""
        adopted = sum(len(write.adopted) for write in self.writes.values())
        fixed = CONTROL_SIZE_MAX * (1 + len(self.writes)) + (len(self.batches.ranges) + 2 * adopted) * _RANGE_SIZE
        also = sum(len(control.encode()) + _PART_SIZE for control in self.also)
        return fixed + len(self.batches) * _REFERENCE_SIZE + len(self.cursors) * _CURSOR_SIZE + also
