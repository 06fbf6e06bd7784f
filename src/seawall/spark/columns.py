"""Converts verified batches to Arrow batches with the columns of `schema.py`, without a Python object per record.

The input is batches in memory, mapped or received, with their index entries (`storage/segments/batch_index.py`). The
fast path is for plain records: their values are copied directly into the Arrow buffers (`wire/format/gathering.py`).
Envelopes, nulls, compressed and opaque batches take the general path: blocks are decompressed and joined, and decoded
by `wire/format/arrow.py`. Both give the same rows.

Columns of the batch (position, time, publisher) are repeated for each of its records.

This module must not know where batches come from, nor what a gap means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall.api.received import readable_block
from seawall.errors import CorruptionError
from seawall.kernels.codec.columns import gather_spans
from seawall.kernels.codec.gather import GATHER_DONE, GATHER_MALFORMED
from seawall.kernels.codec.key_partitions import key_partitions
from seawall.kernels.log.segments import Entries
from seawall.limits import BATCH_HEADER_SIZE
from seawall.spark.schema import arrow_schema, headers_type
from seawall.wire.format.arrow import FIELD_COLUMNS, decode_table
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.gaps import Gap
from seawall.wire.format.gathering import PlainColumns

if TYPE_CHECKING:
    import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

#: The values of `timestampType`, as in Kafka.
_WRITERS_TIME: Final = 0
_LOGS_TIME: Final = 1

#: Offsets in a batch header: client seq, client id, length of the uncompressed block, and codec, followed by the flags.
_CLIENT_SEQ_AT: Final = 12
_CLIENT_ID_AT: Final = 48
_RAW_LENGTH_AT: Final = 80
_CODEC_AT: Final = 94

_NS_PER_US: Final = 1_000

#: The envelope fields by the column names of `wire/format/arrow.py`.
_FIELDS: Final = (*FIELD_COLUMNS, "headers")


class BatchBytes(NamedTuple):
    """Verified batches in a buffer. The offsets in the entries minus `shift` are offsets in the buffer."""

    buffer: Bytes
    shift: int
    entries: Entries

    @property
    def starts(self) -> Integers:
        """The offset of each batch in the buffer."""
        return self.entries["at"].astype(np.int64) - self.shift

    def header_numbers(self, at: int) -> Integers:
        """The signed 64-bit number at offset `at` of each header."""
        offsets = self.starts[:, None] + np.arange(at, at + 8)
        numbers: Integers = self.buffer[offsets].view("<i8")[:, 0]
        return numbers

    def split_by_size(self, size_max: int) -> Iterator[BatchBytes]:
        """Split into runs of batches of at most `size_max` uncompressed bytes; a single batch may be larger."""
        sizes = self.header_numbers(_RAW_LENGTH_AT) & 0xFFFF_FFFF
        ends = np.cumsum(sizes)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(ends.searchsorted(np.int64(before + size_max), "right")))
            yield self._replace(entries=self.entries[first:last])
            first = last


@dataclass(frozen=True)
class Rows:
    """Decoded records before they become the columns of a query, with their batches."""

    parts: Sequence[BatchBytes]
    seqs: Integers
    #: The number of these records in each batch of all parts, in order.
    counts: Integers
    value: pa.Array
    #: The requested envelope fields, and the writers' times; empty if there is no envelope.
    fields: dict[str, pa.Array]

    def __len__(self) -> int:
        return len(self.seqs)

    @cached_property
    def entries(self) -> Entries:
        """The index entries of all batches."""
        return self.parts[0].entries if len(self.parts) == 1 else np.concatenate([part.entries for part in self.parts])

    def of_batch(self, numbers: npt.NDArray[np.integer]) -> Integers:
        """Repeat a number of each batch for each of its records."""
        return np.repeat(numbers.astype(np.int64, copy=False), self.counts)

    def header_numbers(self, at: int) -> Integers:
        """The signed 64-bit number at offset `at` of the header of each batch."""
        return np.concatenate([part.header_numbers(at) for part in self.parts])


class ColumnMaker:
    """Builds the columns of one topic's records for one query."""

    def __init__(
        self, topic: str, columns: tuple[str, ...], *, virtual_partitions: int, shows_writers_time: bool
    ) -> None:
        self._topic = topic
        self._columns = columns
        self._schema = arrow_schema(columns)
        self._virtual_partitions = virtual_partitions
        self._shows_writers_time = shows_writers_time
        needs_key = virtual_partitions > 1 and "partition" in columns
        fields = [name for name in _FIELDS if name in columns or (name == "key" and needs_key)]
        needs_time = shows_writers_time and {"timestamp", "timestampType"} & set(columns)
        self._fields = ("value", *fields, *(("timestamp",) if needs_time else ()))
        self._constants: dict[str, pa.Array] = {}
        self._makers: dict[str, Callable[[Rows], pa.Array]] = {
            "value": lambda rows: rows.value,
            "topic": lambda rows: self._repeated("topic", topic, len(rows)),
            "partition": self._partitions,
            "offset": lambda rows: rows.seqs,
            "timestamp": self._timestamps,
            "timestampType": self._timestamp_types,
            "position": lambda rows: rows.of_batch(rows.entries["position"]),
            "client_id": lambda rows: self._of_publisher(rows, _CLIENT_ID_AT),
            "client_seq": lambda rows: self._of_publisher(rows, _CLIENT_SEQ_AT),
            "headers": self._headers,
            "node": lambda rows: self._text(rows, "node"),
            "tag": lambda rows: self._text(rows, "tag"),
        }

    def rows(self, parts: Sequence[BatchBytes], live: Integers) -> Rows:
        """The records of batches whose seqs are in the live ranges (first and last seq of each, ascending).

        `CorruptionError` if the content of a batch does not match its header.
        """
        rows = _plain_rows(parts, live)
        return _general_rows(parts, live, self._fields) if rows is None else rows

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """Convert records to an Arrow batch for Spark."""
        import pyarrow as pa

        arrays = []
        for field in self._schema:
            maker = self._makers.get(field.name)
            array = rows.fields.get(field.name) if maker is None else maker(rows)
            if array is None:
                array = self._repeated(field.name, None, len(rows))
            arrays.append(array if isinstance(array, pa.Array) else pa.array(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def gap(self, gap: Gap) -> pa.RecordBatch:
        """Convert a gap to an Arrow batch with one row."""
        import pyarrow as pa

        row = {
            "topic": self._topic,
            "partition": 0,
            "offset": int(gap.first_seq),
            "gap_last": int(gap.last_seq),
            "gap_reason": gap.reason.name.lower(),
        }
        return pa.RecordBatch.from_pylist([{name: row.get(name) for name in self._columns}], schema=self._schema)

    def _repeated(self, name: str, value: str | int | None, count: int) -> pa.Array:
        """A column with the same value in every row; a slice of a cached array."""
        import pyarrow as pa

        cached = self._constants.get(name)
        if cached is None or len(cached) < count:
            kind = self._schema.field(name).type
            cached = pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)
            self._constants[name] = cached
        return cached.slice(0, count)

    def _partitions(self, rows: Rows) -> pa.Array:
        keys = rows.fields.get("key")
        if self._virtual_partitions == 1 or keys is None:
            return self._repeated("partition", 0, len(rows))
        _, offsets, data = keys.buffers()
        first = np.frombuffer(offsets, np.int32, len(rows) + 1, 4 * keys.offset)
        content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
        found = np.empty(len(rows), np.int32)
        key_partitions(content, first, len(rows), self._virtual_partitions, found)
        return found

    def _timestamps(self, rows: Rows) -> pa.Array:
        import pyarrow as pa
        from pyarrow import compute

        stored = rows.of_batch(rows.entries["timestamp_ns"] // np.uint64(_NS_PER_US))
        log_times = pa.array(stored).view(pa.timestamp("us", tz="UTC"))
        written = rows.fields.get("timestamp")
        if written is None:
            return log_times
        # Truncated to microseconds, like the log's own times.
        writer_times = compute.divide(written.cast(pa.int64()), _NS_PER_US).cast(pa.timestamp("us", tz="UTC"))
        return compute.coalesce(writer_times, log_times)

    def _timestamp_types(self, rows: Rows) -> pa.Array:
        import pyarrow as pa
        from pyarrow import compute

        written = rows.fields.get("timestamp")
        if written is None:
            return self._repeated("timestampType", _LOGS_TIME, len(rows))
        kinds = compute.if_else(written.is_valid(), _WRITERS_TIME, _LOGS_TIME)
        return kinds.cast(pa.int32())

    @staticmethod
    def _of_publisher(rows: Rows, at: int) -> pa.Array:
        """A number of the publisher session; null without one. An id with the top bit set is an idempotency key."""
        import pyarrow as pa

        has_no_session = rows.header_numbers(_CLIENT_ID_AT) <= 0
        mask = np.repeat(has_no_session, rows.counts) if has_no_session.any() else None
        return pa.array(rows.of_batch(rows.header_numbers(at)), pa.int64(), mask=mask)

    @staticmethod
    def _headers(rows: Rows) -> pa.Array | None:
        headers = rows.fields.get("headers")
        return None if headers is None else headers.cast(headers_type())

    @staticmethod
    def _text(rows: Rows, name: str) -> pa.Array | None:
        """A field as text. Invalid UTF-8 is replaced, so that it does not make a topic unreadable."""
        import pyarrow as pa

        field = rows.fields.get(name)
        if field is None:
            return None
        try:
            return field.cast(pa.string())
        except pa.ArrowInvalid:
            texts = [None if each is None else each.decode("utf-8", "replace") for each in field.to_pylist()]
            return pa.array(texts, pa.string())


def _plain_rows(parts: Sequence[BatchBytes], live: Integers) -> Rows | None:
    """The fast path; None if a record is not plain."""
    import pyarrow as pa

    filled = PlainColumns([part.entries for part in parts], live)
    for part in parts:
        code = filled.add(part.buffer, part.shift, part.entries)
        if code == GATHER_MALFORMED:
            raise _malformed(part)
        if code != GATHER_DONE:
            return None
    seqs = filled.seqs.view(np.int64)
    buffers = [None, *map(pa.py_buffer, filled.values)]
    value = pa.BinaryArray.from_buffers(pa.binary(), len(seqs), buffers, null_count=0)
    return Rows(parts, seqs, _shown_counts(parts, seqs), value, {})


def _shown_counts(parts: Sequence[BatchBytes], seqs: Integers) -> Integers:
    """For each batch, how many of the ascending `seqs` it has."""
    counts = np.concatenate([part.entries["count"] for part in parts]).astype(np.int64)
    if int(counts.sum()) == len(seqs):
        return counts
    bases = np.concatenate([part.entries["base_seq"] for part in parts]).astype(np.int64)
    return seqs.searchsorted(bases + counts) - seqs.searchsorted(bases)


def _general_rows(parts: Sequence[BatchBytes], live: Integers, fields: tuple[str, ...]) -> Rows:
    """The general path, for any record."""
    import pyarrow as pa

    counts = np.concatenate([part.entries["count"] for part in parts]).astype(np.int64)
    bases = np.concatenate([part.entries["base_seq"] for part in parts]).astype(np.int64)
    blocks = [block for part in parts for block in _plain_blocks(part)]
    block = blocks[0] if len(blocks) == 1 else b"".join(blocks)
    # Seqs may jump between batches: the records are numbered from 0 first, and then get the seqs of their batches.
    table = decode_table(block, base_seq=0, wanted=fields, record_count=int(counts.sum()))
    numbers = table.column("seq").to_numpy().astype(np.int64)
    ends = np.cumsum(counts)
    batches = ends.searchsorted(numbers, "right")
    seqs = numbers - (ends - counts)[batches] + bases[batches]
    near = live[:, 1].searchsorted(seqs)
    shown = near < len(live)
    if len(live):
        shown &= live[np.minimum(near, len(live) - 1), 0] <= seqs
    if not shown.all():
        table, seqs = table.filter(pa.array(shown)), seqs[shown]
    found = {name: table.column(name) for name in fields if name != "value"}
    return Rows(parts, seqs, _shown_counts(parts, seqs), table.column("value"), found)


def _plain_blocks(part: BatchBytes) -> list[memoryview]:
    """The uncompressed blocks of batches; runs of batches that are stored uncompressed are joined in one call."""
    starts = part.starts
    codecs = part.buffer[starts + _CODEC_AT]
    flags = part.buffer[starts + _CODEC_AT + 1]
    lengths = part.entries["length"].astype(np.int64)
    is_plain = (codecs == 0) & (flags & 2 == 0)
    cuts = np.flatnonzero(is_plain[1:] != is_plain[:-1]) + 1
    found: list[memoryview] = []
    for run in np.split(np.arange(len(starts)), cuts):
        if is_plain[run[0]]:
            found.append(_joined(part.buffer, starts[run] + BATCH_HEADER_SIZE, lengths[run] - BATCH_HEADER_SIZE))
            continue
        for number in run.tolist():
            batch = part.buffer[starts[number] : starts[number] + lengths[number]].data
            header = parse_batch_header(batch, source=BatchSource.STORED)
            found.append(readable_block(header, batch[BATCH_HEADER_SIZE:]))
    return found


def _joined(buffer: Bytes, starts: Integers, lengths: Integers) -> memoryview:
    """Concatenate spans of a buffer."""
    count = len(starts)
    if count == 1:
        return buffer[int(starts[0]) : int(starts[0] + lengths[0])].data
    data = np.empty(int(lengths.sum()), np.uint8)
    gather_spans(
        buffer, starts, lengths, count, np.empty(count + 1, np.int32), data, np.empty(count // 8 + 1, np.uint8)
    )
    return data.data


def _malformed(part: BatchBytes) -> CorruptionError:
    seq = int(part.entries[0]["base_seq"])
    return CorruptionError(f"a batch from seq {seq} on does not have as many records as its header says")
