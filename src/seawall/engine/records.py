"""What users hand in and get back: values of many kinds into blocks, stored batches into records.

In: bytes, str (UTF-8), dict and list (JSON), a `Message` with key, headers, time and tag, an Arrow table or record
batch, a pandas data frame, or an iterable of the first four. Out: a `ReceivedBatch`, whose records are made only if
asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final, Literal, TypeAlias

import numpy as np

from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs
from seawall.engine.reading import ReadItem, StoredSkip
from seawall.engine.topic_log import StoredBatch
from seawall.errors import CorruptionError, InvalidInputError
from seawall.limits import BATCH_RECORDS_MAX, BLOCK_SIZE_MAX, LARGE_BATCH_SIZE, MIB
from seawall.topics.gaps import Gap
from seawall.wire.arrow import EncodedBlock, decode_table, encode_table, encode_values
from seawall.wire.batches import block_of
from seawall.wire.envelope import Envelope, parse_envelope
from seawall.wire.records import Record, RecordType, encode_raw, encode_record, iter_records

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Bytes of records in one Arrow batch: what Spark takes fastest lies between 4 and 8 MiB.
ARROW_SIZE: Final = 8 * MIB

_JSON: Final = (",", ":")

#: Type and length before the bytes of an opaque block, which makes it a record.
_OPAQUE: Final = Struct("<BI")

#: So many records are packed one by one sooner than arrays for a kernel are made.
_FEW: Final = 16


@dataclass(frozen=True, slots=True)
class Message:
    """One record with more than its value. `headers` keep their order; `timestamp_ns` is the writer's own clock."""

    value: bytes | str | Mapping[str, object] | Sequence[object]
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]] | None = None
    timestamp_ns: int | None = None
    tag: str | None = None
    node: str | None = None
    meta: bytes | str | None = None


#: One record.
OneRecord: TypeAlias = "bytes | bytearray | memoryview | str | Mapping[str, object] | list[object] | Message"
#: Whatever `publish` takes.
Publishable: TypeAlias = "OneRecord | Iterable[OneRecord] | pa.Table | pa.RecordBatch | pd.DataFrame"


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


def told(topic: str, items: Iterable[ReadItem], limit: int | None) -> list[Item]:
    """What was read of a topic as a reader gets it, up to the batch that makes `limit` records full."""
    found: list[Item] = []
    left = limit
    for item in items:
        if left is not None and left <= 0:
            break
        if isinstance(item, StoredBatch):
            batch = received(topic, item)
            found.append(batch)
            left = None if left is None else left - len(batch)
        elif isinstance(item, StoredSkip):
            skip = item.skip
            numbers = (skip.position, skip.client_id, skip.first_client_seq, skip.count)
            found.append(ReceivedSkip(topic, *numbers, item.next_seq))
        else:
            found.append(item)
    return found


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


def received(topic: str, stored: StoredBatch) -> ReceivedBatch:
    """A stored batch as a reader gets it: its block plain, an opaque one as a single record of that type."""
    block = stored.block
    if not stored.is_plain:
        header = stored.header
        block = memoryview(block_of(header, block))
        if header.is_opaque:
            block = memoryview(_OPAQUE.pack(RecordType.OPAQUE, len(block)) + bytes(block))
    return ReceivedBatch(
        topic,
        stored.base_seq,
        stored.record_count,
        stored.position,
        stored.timestamp_ns,
        block,
        stored.live,
        stored.next_seq,
    )


def encode(records: Publishable) -> list[EncodedBlock]:
    """Whatever a user hands in, as blocks."""
    if isinstance(records, bytes):
        return [EncodedBlock(encode_raw(records), 1)]
    if isinstance(records, (bytearray, memoryview, str, Mapping, Message)):
        return [EncodedBlock(encode_record(_record_of(records)), 1)]
    if hasattr(records, "schema") and hasattr(records, "num_rows"):
        return list(_joined(encode_table(records)))
    if hasattr(records, "iloc"):
        import pyarrow as pa

        return list(_joined(encode_table(pa.Table.from_pandas(records, preserve_index=False))))
    if not isinstance(records, Iterable):
        raise InvalidInputError(f"cannot publish a {type(records).__name__}: give bytes, str, dict, Message or a table")
    each: list[OneRecord] = [*records]
    return _encode_each(each)


def _encode_each(records: list[OneRecord]) -> list[EncodedBlock]:
    plain = [record for record in records if isinstance(record, bytes)]
    if len(plain) == len(records) > _FEW:
        return list(encode_values(plain))
    return list(_pack(encode_record(_record_of(record)) for record in records))


def _pack(encoded: Iterable[bytes]) -> Iterator[EncodedBlock]:
    """Join records into as few blocks as the bounds allow."""
    pieces: list[bytes] = []
    size = 0
    for piece in encoded:
        if pieces and (size + len(piece) > BLOCK_SIZE_MAX or len(pieces) == BATCH_RECORDS_MAX):
            yield EncodedBlock(b"".join(pieces), len(pieces))
            pieces, size = [], 0
        pieces.append(piece)
        size += len(piece)
    if pieces:
        yield EncodedBlock(b"".join(pieces), len(pieces))


def _joined(blocks: Iterable[EncodedBlock]) -> Iterator[EncodedBlock]:
    """The same records in fewer blocks: small ones, of which a table of many chunks has many, with those that follow.

    A block that is large enough to go to its place by itself, and that no small one waits for, is not copied.
    """
    pieces: list[bytes | memoryview] = []
    size = count = 0
    for block, record_count in blocks:
        if pieces and (size + len(block) > BLOCK_SIZE_MAX or count + record_count > BATCH_RECORDS_MAX):
            yield EncodedBlock(b"".join(pieces), count)
            pieces, size, count = [], 0, 0
        pieces.append(block)
        size, count = size + len(block), count + record_count
        if size >= LARGE_BATCH_SIZE:
            yield EncodedBlock(block if len(pieces) == 1 else b"".join(pieces), count)
            pieces, size, count = [], 0, 0
    if pieces:
        yield EncodedBlock(b"".join(pieces), count)


def _record_of(record: OneRecord) -> Record:
    if isinstance(record, Message):
        pairs = record.headers.items() if isinstance(record.headers, Mapping) else record.headers
        return Envelope(
            data=_value_of(record.value).value,
            timestamp_ns=None if record.timestamp_ns is None else TimestampNs(record.timestamp_ns),
            key=_bytes_of(record.key),
            node=_bytes_of(record.node),
            tag=_bytes_of(record.tag),
            meta=_bytes_of(record.meta),
            headers=None if pairs is None else tuple((name.encode(), _text(value)) for name, value in pairs),
        ).to_record()
    return _value_of(record)


def _value_of(value: object) -> Record:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return Record(RecordType.RAW, bytes(value))
    if isinstance(value, str):
        return Record(RecordType.RAW, value.encode())
    if isinstance(value, (Mapping, list, tuple)):
        try:
            return Record(RecordType.JSON, json.dumps(value, separators=_JSON, ensure_ascii=False).encode())
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"a value does not fit JSON: {error}") from error
    raise InvalidInputError(f"cannot publish a {type(value).__name__}: give bytes, str, dict, list or Message")


def _bytes_of(value: bytes | str | None) -> bytes | None:
    return None if value is None else _text(value)


def _text(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value


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
