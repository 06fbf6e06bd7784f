"""The control that marks a compound as a transaction: its owner and epoch, and its counts.

| at | size | field        | notes                                                          |
|----|------|--------------|----------------------------------------------------------------|
| 0  | 8    | epoch        | u64 below 2^63; with the owner it is the key of the transaction |
| 8  | 8    | record_count | records of all its references                                  |
| 16 | 4    | batch_count  | its references                                                 |
| 20 | 2    | owner length | 1 to 255                                                       |
| 22 | 2    | reserved     | 0                                                              |
| 24 | …    | owner        | UTF-8                                                          |

It is the first part of its compound and never another one. After it follow, in any order, the changes that the appends
need (rolls, ceilings, evictions), one REFERENCE for each batch, CURSORs that join the transaction, and the deletes of
the staged data. A transaction that changes nothing is this control alone.

INV-TRANSACTION-WHOLE: a transaction is one batch of the log, at one position, with exactly the references and records
that it states. A batch is in the log as a whole or not at all, and so is the transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, Self

from seawall import limits
from seawall.core.types import TopicId
from seawall.errors import CorruptionError, InvalidInputError
from seawall.storage.control.codec import ControlCommand, Reference, require_unsigned
from seawall.wire.format.fields import Buffer, pack, read_text, require_at_least, require_zero, write_text

_FIXED: Final = Struct("<QQIHH")

#: Epochs are below this, so that arrays of them can be signed.
_EPOCH_LIMIT: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class TransactionMark:
    """The rest of its compound is one transaction, identified by owner and epoch."""

    COMMAND: ClassVar = ControlCommand.TRANSACTION
    owner: str
    epoch: int
    batch_count: int
    record_count: int

    def __post_init__(self) -> None:
        check_key(self.owner, self.epoch)
        require_unsigned(self.record_count)
        if not 0 <= self.batch_count <= limits.TRANSACTION_BATCHES_MAX or self.record_count < self.batch_count:
            raise InvalidInputError(
                f"a transaction of {self.batch_count} batches with {self.record_count} records: at most "
                f"{limits.TRANSACTION_BATCHES_MAX}, none of them empty"
            )

    @property
    def topic_id(self) -> TopicId:
        """No topic: each reference names its own."""
        return TopicId(0)

    def encode(self) -> bytes:
        """The block."""
        owner = self.owner.encode()
        numbers = (self.epoch, self.record_count, self.batch_count, len(owner), 0)
        return pack(_FIXED, "TRANSACTION", *numbers) + owner

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_FIXED.size, "TRANSACTION", block)
        epoch, record_count, batch_count, length, zero = _FIXED.unpack_from(block)
        require_zero("TRANSACTION", zero)
        if len(block) != _FIXED.size + length:
            raise CorruptionError(f"TRANSACTION: block of {len(block)} bytes for an owner of {length}")
        return cls(read_text(block[_FIXED.size :], "TRANSACTION"), epoch, batch_count, record_count)


def check_key(owner: str, epoch: int) -> None:
    """Refuse an invalid transaction key."""
    if not owner or not 0 <= epoch < _EPOCH_LIMIT:
        raise InvalidInputError(f"a transaction needs an owner and an epoch from 0 to 2^63 - 1: {owner!r}, {epoch}")
    write_text(owner, limits.TRANSACTION_OWNER_SIZE_MAX, "owner of a transaction")


def check_whole(parts: Sequence[object]) -> None:
    """Check INV-TRANSACTION-WHOLE for the parts of one control batch; accepts parts that are no transaction."""
    marks = [part for part in parts if isinstance(part, TransactionMark)]
    if not marks:
        return
    counts = [part.header.record_count for part in parts if isinstance(part, Reference)]
    mark = marks[0]
    if len(marks) > 1 or parts[0] is not mark or (mark.batch_count, mark.record_count) != (len(counts), sum(counts)):
        raise InvalidInputError(
            f"a transaction of {len(counts)} references with {sum(counts)} records, not what its {len(marks)} marks say"
        )
