"""The plan of a transaction after all checks: which staged batches go to which topic, segment and file position.

`CompoundAppends` is the part that routers share: the batches that one compound appends, whatever they come from.

This module must not know how the plan is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

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
REFERENCE_SIZE: Final = 120
_CURSOR_SIZE: Final = 48 + limits.CURSOR_OWNER_SIZE_MAX
_RANGE_SIZE: Final = 64
#: What a compound adds to each part.
_PART_SIZE: Final = 8

_NOTHING: Final = Need(0, 0, 0)


@dataclass(slots=True)
class TopicWrite:
    """What a compound writes to one topic: its parts and batches, their size, and the reservation for them.

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
class CompoundAppends:
    """Batches that one compound appends to topics, in their order, all at one position."""

    writes: dict[TopicId, TopicWrite]
    #: For each batch: its topic, segment, file position there, and header. The headers are consecutive.
    topic_ids: npt.NDArray[np.uint32]
    segments: npt.NDArray[np.uint64]
    file_positions: npt.NDArray[np.uint64]
    headers: Bytes
    #: Pins of the files that it writes or moves: they are open before numbers are assigned.
    pins: FilePins = field(default_factory=FilePins)

    @classmethod
    def of(cls, writes: dict[TopicId, TopicWrite], topic_ids: npt.NDArray[np.uint32]) -> Self:
        """Batches with these topics; their positions and headers are set later."""
        count = len(topic_ids)
        segments: npt.NDArray[np.uint64] = np.zeros(count, np.uint64)
        file_positions: npt.NDArray[np.uint64] = np.zeros(count, np.uint64)
        headers: Bytes = np.zeros(count * limits.BATCH_HEADER_SIZE, np.uint8)
        return cls(writes, topic_ids, segments, file_positions, headers)

    def __len__(self) -> int:
        """The number of batches."""
        return len(self.topic_ids)

    def header(self, number: int) -> Bytes:
        """The bytes of one header."""
        return self.headers[number * limits.BATCH_HEADER_SIZE : (number + 1) * limits.BATCH_HEADER_SIZE]

    @property
    def logged_size(self) -> int:
        """The most bytes that references and preceding controls take in the log."""
        return CONTROL_SIZE_MAX * (1 + len(self.writes)) + len(self) * REFERENCE_SIZE


@dataclass(slots=True, eq=False)
class TransactionPlan:
    """A transaction that passed all checks."""

    wanted: WantedTransaction
    batches: StagedBatches
    appends: CompoundAppends
    cursors: list[CursorCommit]
    #: Changes that join the transaction: deletes of finished jobs, and what belongs to them.
    also: Sequence[SimpleControl] = ()

    @property
    def logged_size(self) -> int:
        """The most bytes that its compound takes in the log."""
        adopted = sum(len(write.adopted) for write in self.appends.writes.values())
        ranges = (len(self.batches.ranges) + 2 * adopted) * _RANGE_SIZE
        also = sum(len(control.encode()) + _PART_SIZE for control in self.also)
        return self.appends.logged_size + ranges + len(self.cursors) * _CURSOR_SIZE + also
