"""What readers get: batches, gaps and SKIPs, and batches as columns. Records are made only if asked for.

The embedded log makes them of what it has stored, the client of what a server sends; both give the same. This module
must not know where a batch comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

import numpy as np

from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs
from seawall.errors import CorruptionError
from seawall.limits import MIB
from seawall.wire.format.arrow import decode_table
from seawall.wire.format.batches import BatchHeader, block_of
from seawall.wire.format.envelope import parse_envelope
from seawall.wire.format.fields import Buffer
from seawall.wire.format.gaps import Gap
from seawall.wire.format.records import Record, RecordType, iter_records

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of records in one Arrow batch: what Spark takes fastest lies between 4 and 8 MiB.
ARROW_SIZE: Final = 8 * MIB

#: Type and length before the bytes of an opaque block, which makes it a record.
_OPAQUE: Final = Struct("<BI")


@dataclass(frozen=True, slots=True)
class ReceivedRecord:
    """One record as a reader sees it; `timestamp_ns` is the log's, `client_timestamp_ns` the writer's."""

    seq: Seq
    record_type: int
    value: bytes
    timestamp_ns: TimestampNs
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    client_timestamp_ns: int | None = None
    tag: bytes | None = None
    node: bytes | None = None
    meta: bytes | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ReceivedBatch:
    """Records of one batch, as far as they are live: `len` says how many seqs those are."""

    topic: str
    base_seq: Seq
    record_count: int
    position: Position
    timestamp_ns: TimestampNs
    block: memoryview
    #: What is shown of it, first and last seqs of ranges: ascending, never empty.
    live: tuple[tuple[Seq, Seq], ...]
    #: Where reading goes on.
    next_seq: Seq

    #: What tells it from a SKIP.
    is_skip: ClassVar[Literal[False]] = False
    skip_count: ClassVar[int] = 0

    @property
    def seqs(self) -> list[Seq]:
        """The seq of each record that is shown."""
        return [Seq(seq) for first, last in self.live for seq in range(first, last + 1)]

    @property
    def next_position(self) -> Position:
        """Where reading by position goes on."""
        return Position(self.position + 1)

    @property
    def first_seq(self) -> Seq:
        """Seq of the first record that is shown."""
        return self.live[0][0]

    @property
    def last_seq(self) -> Seq:
        """Seq of the last record that is shown."""
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
        """Each record; what a delete left behind is passed over."""
        live = iter(self.live)
        first, last = next(live)
        for seq, record in enumerate(iter_records(self.block), self.base_seq):
            if seq > last:
                following = next(live, None)
                if following is None:
                    return
                first, last = following
            deleted = record.record_type == RecordType.DELETED and not record.value
            if seq >= first and not deleted:
                yield _received(Seq(seq), record, self.timestamp_ns)

    def to_arrow(self, columns: Sequence[str] = ("value", "key", "timestamp", "tag")) -> pa.RecordBatch:
        """The records as columns, without an object for each."""
        return _join([self], columns)


@dataclass(frozen=True, slots=True)
class ReceivedSkip:
    """A place in the order where batches of a publisher were given up: `skip_count` client seqs from the first on.

    They were never stored, so no seq of the topic is missing for them; what the publisher sent behind them follows.
    """

    topic: str
    position: Position
    client_id: ClientId
    first_client_seq: ClientSeq
    skip_count: int
    #: Where reading the topic goes on: at the batch behind it.
    next_seq: Seq
    is_skip: ClassVar[Literal[True]] = True

    @property
    def next_position(self) -> Position:
        """Where reading by position goes on."""
        return Position(self.position + 1)


@dataclass(frozen=True, slots=True)
class TopicGap(Gap):
    """A gap as whoever reads by position gets it: of which topic, and where reading goes on."""

    topic: str
    next_position: Position


#: What a reader of a topic gets, in order, and what one by position does.
Item: TypeAlias = ReceivedBatch | Gap | ReceivedSkip
PositionItem: TypeAlias = ReceivedBatch | TopicGap | ReceivedSkip


def seq_after(item: Item) -> Seq:
    """Where reading goes on behind a batch, a SKIP or a gap."""
    return Seq(item.last_seq + 1) if isinstance(item, Gap) else item.next_seq


def with_next_positions(items: Sequence[PositionItem]) -> Iterator[tuple[PositionItem, Position]]:
    """Each item, and where a reader goes on that stops behind it.

    What shares a position is read again from its beginning where a reader stops inside it: nothing is missed.
    """
    starts = [Position(item.position) if not isinstance(item, TopicGap) else item.next_position for item in items]
    for index, item in enumerate(items):
        following = starts[index + 1] if index + 1 < len(items) else item.next_position
        yield item, min(item.next_position, following)


def to_arrow(batches: Iterable[ReceivedBatch], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Many batches as columns; small ones with consecutive seqs are joined: Arrow arrays cost more than a copy."""
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
    # Records that a delete has emptied have no row, so live ones are found by their seq, not by counting.
    seqs = table.column("seq").to_numpy()
    live = np.array([each for batch in run for each in batch.live], np.uint64)
    near = live[:, 1].searchsorted(seqs)
    shown = (near < len(live)) & (live[np.minimum(near, len(live) - 1), 0] <= seqs)
    return table.filter(pa.array(shown))


def shown_block(header: BatchHeader, block: Buffer) -> memoryview:
    """The block of a stored batch as readers see it: plain, an opaque one as a single record of that type."""
    plain = memoryview(block_of(header, block))
    if header.is_opaque:
        return memoryview(_OPAQUE.pack(RecordType.OPAQUE, len(plain)) + bytes(plain))
    return plain


def _received(seq: Seq, record: Record, timestamp_ns: TimestampNs) -> ReceivedRecord:
    if record.record_type == RecordType.ENVELOPE:
        try:
            envelope = parse_envelope(record.value)
        except CorruptionError:
            # Stored as it came: whoever sent it, the reader gets its bytes.
            return ReceivedRecord(seq, record.record_type, record.value, timestamp_ns)
        return ReceivedRecord(
            seq,
            record.record_type,
            envelope.data,
            timestamp_ns,
            envelope.key,
            envelope.headers or (),
            envelope.timestamp_ns,
            envelope.tag,
            envelope.node,
            envelope.meta,
        )
    return ReceivedRecord(seq, record.record_type, record.value, timestamp_ns)
