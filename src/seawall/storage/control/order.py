"""Control batches for entries of the total order that add no records.

If a pod's sequencer makes the order, every entry of it is a batch of the log, so that positions have no gaps: a stored
append, or one of

| command       | block                                                                                               |
|---------------|-----------------------------------------------------------------------------------------------------|
| 15 ORDER_NOP  | status u8, decides u8, reason u16, topic_id u32, client_id u64, client_seq u64, original u64,       |
|               | block_crc u32, 0 u32                                                                                |
| 16 ORDER_SKIP | topic_id u32, count u32, client_id u64, first client_seq u64                                        |

A NOP is a batch that was ordered and not stored: a duplicate, a rejected one, or one that must be sent again. Topic,
client and seq are as its sender stated them, right or wrong. With `decides` the batch was new when it was rejected, so
its client seq is decided for good; any other NOP changes nothing. A SKIP gives up client seqs that never arrived; it is
reported to readers of the topic. Topic 0 stands for a session that was abandoned and held nothing.

Changes that a store logs on its own while it applies an order (rolls, ceilings, evictions, terms) are unpositioned
control batches (`control/batches.py`): they carry the position of the next entry, and take none.

What a crash does: the same as to any batch. This module must not know what a NOP or a SKIP does to a session.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, Self

from seawall.core.types import ClientId, ClientSeq, Position, TopicId
from seawall.errors import CorruptionError, InvalidInputError
from seawall.storage.control.codec import ControlCommand, require_unsigned
from seawall.wire.format.codes import U64_MAX, AckStatus
from seawall.wire.format.fields import Buffer, pack, require_exact, require_zero

_NOP: Final = Struct("<BBHIQQQII")
_SKIP: Final = Struct("<IIQQ")

#: The possible results of a batch that adds no records.
_STATUSES: Final = (AckStatus.DUPLICATE, AckStatus.REJECTED, AckStatus.RETRY)

#: One past the largest client seq (`kernels.admission.client_window`).
_CLIENT_SEQ_END: Final = (1 << 62) + 1


@dataclass(frozen=True, slots=True)
class OrderNop:
    """A batch that was ordered and not stored; `original` is the position of the one it repeats, if known."""

    COMMAND: ClassVar = ControlCommand.ORDER_NOP
    topic_id: TopicId
    status: AckStatus
    reason: int
    client_id: ClientId
    client_seq: ClientSeq
    block_crc: int
    original: Position | None = None
    decides: bool = False

    def __post_init__(self) -> None:
        require_unsigned(self.client_id, self.client_seq)
        if self.status not in _STATUSES or (self.decides and self.status is not AckStatus.REJECTED):
            raise InvalidInputError(f"a NOP with status {self.status.name} is impossible, or decides nothing")
        if self.original is not None and not 0 <= self.original < U64_MAX:
            raise InvalidInputError(f"position {self.original} of an original is not from 0 to 2^64 - 2")

    def encode(self) -> bytes:
        """The block."""
        original = U64_MAX if self.original is None else self.original
        numbers = (self.topic_id, self.client_id, self.client_seq, original, self.block_crc, 0)
        return pack(_NOP, "ORDER_NOP", self.status, int(self.decides), self.reason, *numbers)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_exact(_NOP, "ORDER_NOP", block)
        status, decides, reason, topic_id, client_id, client_seq, original, block_crc, zero = _NOP.unpack(block)
        require_zero("ORDER_NOP", zero)
        if decides > 1 or status not in _STATUSES:
            raise CorruptionError(f"ORDER_NOP: status {status}, decides {decides}")
        return cls(
            topic_id,
            AckStatus(status),
            reason,
            client_id,
            client_seq,
            block_crc,
            None if original == U64_MAX else Position(original),
            bool(decides),
        )


@dataclass(frozen=True, slots=True)
class OrderSkip:
    """Client seqs of a session that are given up: `count` of them from `first_client_seq` on."""

    COMMAND: ClassVar = ControlCommand.ORDER_SKIP
    topic_id: TopicId
    client_id: ClientId
    first_client_seq: ClientSeq
    count: int

    def __post_init__(self) -> None:
        has_session = 0 < self.client_id < 1 << 63
        if not has_session or not 1 <= self.first_client_seq < self.end_client_seq <= _CLIENT_SEQ_END:
            raise InvalidInputError(
                f"client {self.client_id:016x} cannot skip {self.count} seqs from {self.first_client_seq} on"
            )

    @property
    def end_client_seq(self) -> ClientSeq:
        """The client seq after the last one."""
        return ClientSeq(self.first_client_seq + self.count)

    def encode(self) -> bytes:
        """The block."""
        return pack(_SKIP, "ORDER_SKIP", self.topic_id, self.count, self.client_id, self.first_client_seq)

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_exact(_SKIP, "ORDER_SKIP", block)
        topic_id, count, client_id, first_client_seq = _SKIP.unpack(block)
        return cls(topic_id, client_id, first_client_seq, count)
