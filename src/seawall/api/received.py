"""The items that readers get: batches, gaps and SKIPs, and batches as Arrow columns.

Record objects are created only on iteration (`received_record`). The embedded log makes the items from stored batches,
the client from what a server sends; both are the same. This module must not know where a batch comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.api.received_record import FEW_RECORDS, ReceivedRecord, parsed_records, received_records
from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs
from seawall.limits import MIB
from seawall.wire.format.arrow import decode_table
from seawall.wire.format.batches import BatchHeader, block_of
from seawall.wire.format.fields import Buffer
from seawall.wire.format.gaps import Gap
from seawall.wire.format.record_fields import RecordFields
from seawall.wire.format.records import RecordType

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of records in one Arrow batch: Spark is fastest with batches of 4 to 8 MiB.
ARROW_SIZE: Final = 8 * MIB

#: Record type and length, prepended to the bytes of an opaque block to make it a record.
_OPAQUE: Final = Struct("<BI")


@dataclass(frozen=True, slots=True, repr=False)
class ReceivedBatch:
    """The live records of one batch. `len` is the number of live seqs; iterate over it to get the records."""

    topic: str
    base_seq: Seq
    record_count: int
    position: Position
    timestamp_ns: TimestampNs
    block: memoryview
    #: Ranges of live seqs as pairs of first and last, ascending, never empty.
    live: tuple[tuple[Seq, Seq], ...]
    #: The seq to continue reading at.
    next_seq: Seq

    #: Distinguishes a batch from a SKIP.
    is_skip: ClassVar[Literal[False]] = False
    skip_count: ClassVar[int] = 0

    @property
    def seqs(self) -> list[Seq]:
        """The seq of each live record."""
        return [Seq(seq) for first, last in self.live for seq in range(first, last + 1)]

    @property
    def next_position(self) -> Position:
        """The position to continue reading at."""
        return Position(self.position + 1)

    @property
    def first_seq(self) -> Seq:
        """The seq of the first live record."""
        return self.live[0][0]

    @property
    def last_seq(self) -> Seq:
        """The seq of the last live record."""
        return self.live[-1][1]

    def __len__(self) -> int:
        if len(self.live) == 1:
            ((first, last),) = self.live
            return last - first + 1
        return sum(last - first + 1 for first, last in self.live)

    def __iter__(self) -> Iterator[ReceivedRecord]:
        return self.records()

    def __repr__(self) -> str:
        return (
            f"<ReceivedBatch of {self.topic!r}: {len(self)} records, seqs {self.first_seq} to {self.last_seq}, "
            f"position {self.position}, {len(self.block)} bytes>"
        )

    def records(self) -> Iterator[ReceivedRecord]:
        """Iterate over the records; skips records that a delete has emptied."""
        if self.record_count <= FEW_RECORDS:
            found = parsed_records(self.block, self.base_seq, self.timestamp_ns)
            return (record for record in found if any(first <= record.seq <= last for first, last in self.live))
        fields = RecordFields(self.block, self.record_count)
        if len(self) < self.record_count:
            fields.select(_is_live(fields.seqs(self.base_seq), self.live))
        return received_records(fields, fields.seqs(self.base_seq), repeat(self.timestamp_ns))

    def to_arrow(self, columns: Sequence[str] = ("value", "key", "timestamp", "tag")) -> pa.RecordBatch:
        """Convert the records to Arrow columns, without creating an object for each."""
        return _join([self], columns)


@dataclass(frozen=True, slots=True)
class ReceivedSkip:
    """A position in the order where batches of a publisher were given up: `skip_count` client seqs from
    `first_client_seq` on.

    These batches were never stored, so the topic misses no seq. The later batches of the publisher follow.
    """

    topic: str
    position: Position
    client_id: ClientId
    first_client_seq: ClientSeq
    skip_count: int
    #: The seq to continue reading the topic at: that of the batch after the SKIP.
    next_seq: Seq
    is_skip: ClassVar[Literal[True]] = True

    @property
    def next_position(self) -> Position:
        """The position to continue reading at."""
        return Position(self.position + 1)


@dataclass(frozen=True, slots=True)
class TopicGap(Gap):
    """A gap in a read by position, with its topic and the position to continue reading at."""

    topic: str
    next_position: Position


#: What a reader of one topic gets, in order; and what a reader by position gets.
Item: TypeAlias = ReceivedBatch | Gap | ReceivedSkip
PositionItem: TypeAlias = ReceivedBatch | TopicGap | ReceivedSkip


def seq_after(item: Item) -> Seq:
    """Returns the seq to continue reading at after a batch, a SKIP or a gap."""
    return Seq(item.last_seq + 1) if isinstance(item, Gap) else item.next_seq


def with_next_positions(items: Sequence[PositionItem]) -> Iterator[tuple[PositionItem, Position]]:
    """Yield each item with the position at which a reader continues that stops after it.

    A reader that stops between items of one position reads all items of that position again, so it misses none.
    """
    starts = [Position(item.position) if not isinstance(item, TopicGap) else item.next_position for item in items]
    for index, item in enumerate(items):
        following = starts[index + 1] if index + 1 < len(items) else item.next_position
        yield item, min(item.next_position, following)


def to_arrow(batches: Iterable[ReceivedBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Convert batches to Arrow columns.

    Small batches with consecutive seqs are joined, since separate Arrow arrays cost more than a copy.
    """
    run: list[ReceivedBatch] = []
    size = 0
    for batch in batches:
        follows = run and batch.base_seq == run[-1].base_seq + run[-1].record_count
        if run and (not follows or size + len(batch.block) > ARROW_SIZE):
            yield _join(run, columns)
            run, size = [], 0
        run.append(batch)
        size += len(batch.block)
    if run:
        yield _join(run, columns)


def _join(run: list[ReceivedBatch], columns: Sequence[str]) -> pa.RecordBatch:
    import pyarrow as pa

    first = run[0]
    block = first.block if len(run) == 1 else memoryview(b"".join(batch.block for batch in run))
    count = sum(batch.record_count for batch in run)
    table = decode_table(block, base_seq=first.base_seq, wanted=columns, record_count=count)
    if sum(map(len, run)) == count:
        return table
    # Records that a delete has emptied have no row, so find the live rows by seq, not by counting.
    live = [each for batch in run for each in batch.live]
    return table.filter(pa.array(_is_live(table.column("seq").to_numpy(), live)))


def _is_live(seqs: npt.NDArray[np.uint64], live: Sequence[tuple[Seq, Seq]]) -> npt.NDArray[np.bool_]:
    """Which of the seqs are in one of the ranges, which are ascending."""
    ranges = np.array(live, np.uint64)
    near = ranges[:, 1].searchsorted(seqs)
    found: npt.NDArray[np.bool_] = (near < len(ranges)) & (ranges[np.minimum(near, len(ranges) - 1), 0] <= seqs)
    return found


def readable_block(header: BatchHeader, block: Buffer) -> memoryview:
    """Returns the block of a stored batch as readers see it: uncompressed, an opaque block as a single record."""
    plain = memoryview(block_of(header, block))
    if header.is_opaque:
        return memoryview(_OPAQUE.pack(RecordType.OPAQUE, len(plain)) + bytes(plain))
    return plain
