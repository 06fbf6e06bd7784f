"""Control batches of queues: how many jobs became dead letters, and leases that outlive the process.

    DEAD_LETTERED   topic_id u32, count u32

A dead letter is one compound: the record in the dead-letter topic, the delete of the job, and this count. All leases of
a queue are in memory, unless the topic keeps them (`leases_durable`).

    LEASES          topic_id u32, count u32, then for each job:
                    seq u64, lease_id u64, at_ms u64, worker u64, deliveries u32, state u8, priority u8, 0 u16

| state | the job is                       | at_ms                        | lease_id, worker          |
|-------|----------------------------------|------------------------------|---------------------------|
| 1     | leased                           | when the lease ends          | of the lease              |
| 2     | returned, or delayed until at_ms | when it may be claimed again | 0                         |

Valid: at least one row, seqs from 1 that rise and are below 2^63, numbers below 2^63, a known state, a priority from 0
to 9, zero where specified. `worker` is a digest of its name. The last row of a job takes effect; the delete of a job
ends them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from seawall.core.types import TopicId
from seawall.errors import CorruptionError, InvalidInputError
from seawall.limits import JOBS_MAX
from seawall.storage.control.codec import ControlCommand, require_topic
from seawall.wire.format.fields import Buffer, pack, require_at_least, require_exact
from seawall.wire.jobs.options import PRIORITY_MAX

_NUMBERS: Final = Struct("<II")
_SEQ_LIMIT: Final = 1 << 63

#: The states of a row.
LEASED: Final = 1
RETURNED: Final = 2

#: One job of a LEASES control.
LEASE_ROW: Final = np.dtype(
    [
        ("seq", "<u8"),
        ("lease_id", "<u8"),
        ("at_ms", "<u8"),
        ("worker", "<u8"),
        ("deliveries", "<u4"),
        ("state", "u1"),
        ("priority", "u1"),
        ("zero", "<u2"),
    ]
)
assert LEASE_ROW.itemsize == 40

LeaseRows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """Jobs of a queue became dead letters, by the compound that this is a part of."""

    COMMAND: ClassVar = ControlCommand.DEAD_LETTERED
    topic_id: TopicId
    count: int

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        if not 1 <= self.count < 1 << 32:
            raise InvalidInputError(f"{self.count} dead letters in one step: there is at least 1")

    def encode(self) -> bytes:
        """The block."""
        return pack(_NUMBERS, "DEAD_LETTERED", self.topic_id, self.count)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_exact(_NUMBERS, "DEAD_LETTERED", block)
        topic_id, count = _NUMBERS.unpack(block)
        return cls(TopicId(topic_id), count)


@dataclass(frozen=True, slots=True, eq=False)
class Leases:
    """Leases that were given, extended or ended; `rows` are rows of LEASE_ROW."""

    COMMAND: ClassVar = ControlCommand.LEASES
    topic_id: TopicId
    rows: LeaseRows

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        rows = self.rows
        if not 1 <= len(rows) <= JOBS_MAX or not self._is_valid():
            raise InvalidInputError(f"{len(rows)} leases: 1 to {JOBS_MAX}, by rising seq, with valid numbers")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Leases) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.encode())

    def _is_valid(self) -> bool:
        rows = self.rows
        seqs = rows["seq"]
        rising = int(seqs[0]) >= 1 and bool((seqs[1:] > seqs[:-1]).all())
        small = all(int(rows[name].max()) < _SEQ_LIMIT for name in ("seq", "lease_id", "at_ms", "worker"))
        known = bool(np.isin(rows["state"], (LEASED, RETURNED)).all())
        return rising and small and known and int(rows["priority"].max()) <= PRIORITY_MAX and not rows["zero"].any()

    def encode(self) -> bytes:
        """The block."""
        return pack(_NUMBERS, "LEASES", self.topic_id, len(self.rows)) + self.rows.tobytes()

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_NUMBERS.size, "LEASES", block)
        topic_id, count = _NUMBERS.unpack_from(block)
        if len(block) != _NUMBERS.size + count * LEASE_ROW.itemsize:
            raise CorruptionError(f"LEASES: block of {len(block)} bytes for {count} rows")
        return cls(TopicId(topic_id), np.frombuffer(block, LEASE_ROW, offset=_NUMBERS.size).copy())
