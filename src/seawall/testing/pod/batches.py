"""Batches of simulated publishers: what is in one follows from who sent it and its number, so that a repetition is the
same batch whoever makes it.
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
    size: int  #: of each record
    is_forged: bool = False  #: another content under the same number

    @cached_property
    def block(self) -> bytes:
        """Its records."""
        said = f"{self.client:x}/{self.client_seq}{'!' if self.is_forged else ''}/".encode()
        return encode_block(Record(1, said + bytes([number]) * self.size) for number in range(self.records))

    @cached_property
    def crc(self) -> int:
        """What stands for its content."""
        return checksum(self.block)


@dataclass(frozen=True, slots=True)
class Frame:
    """A batch on its way to a broker, in one session."""

    batch: Batch
    epoch: int
    broker: int
    data: bytes

    @classmethod
    def of(cls, batch: Batch, epoch: int, broker: int) -> Frame:
        """The bytes of a batch as a session sends it."""
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
