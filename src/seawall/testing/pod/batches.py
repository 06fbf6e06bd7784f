"""Batches of simulated publishers.

The content of a batch follows from its client and client seq, so a resent batch is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from seawall.core.types import ClientId, ClientSeq, TimestampNs, TopicId
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.frames import checksum
from seawall.wire.format.records import Record, encode_block

__all__ = ["Batch", "Frame"]


@dataclass(frozen=True)
class Batch:
    """One batch of a publisher."""

    client: int
    client_seq: int
    topic: int
    order: int
    level: int
    records: int
    size: int  #: bytes of each record
    is_forged: bool = False  #: different content under the same client seq

    @cached_property
    def block(self) -> bytes:
        """The encoded records."""
        prefix = f"{self.client:x}/{self.client_seq}{'!' if self.is_forged else ''}/".encode()
        return encode_block(Record(1, prefix + bytes([number]) * self.size) for number in range(self.records))

    @cached_property
    def crc(self) -> int:
        """The checksum that identifies its content."""
        return checksum(self.block)


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch in flight to a broker, in one session."""

    batch: Batch
    epoch: int
    broker: int
    data: bytes

    @classmethod
    def of(cls, batch: Batch, epoch: int, broker: int) -> Frame:
        """Encode a batch as a session sends it."""
        header = batch_header(
            batch.block,
            topic_id=TopicId(batch.topic),
            client_id=ClientId(batch.client),
            client_seq=ClientSeq(batch.client_seq),
            session_epoch=epoch,
            record_count=batch.records,
            timestamp_ns=TimestampNs(0),
            ack_level=batch.level,
        )
        return cls(batch, epoch, broker, bytes(encode_batch(header, batch.block)))
