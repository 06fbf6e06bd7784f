"""Convert blocks of records from and to Arrow, and encode plain values, without a Python object per record.

Columns, by name; a missing or null column means that the record does not have the field:

| column    | Arrow type                           | in a record                                 |
|-----------|--------------------------------------|---------------------------------------------|
| value     | binary or string, required, no nulls | the data                                    |
| key       | binary or string                     | envelope key                                |
| timestamp | timestamp, or int64 nanoseconds      | envelope timestamp                          |
| node, tag | binary or string                     | envelope node, tag                          |
| meta      | binary or string                     | envelope meta                               |
| headers   | list<struct<key, value>>             | envelope headers; keys string, values binary|

A table with only `value` becomes raw records; any other column makes every record an envelope. Reading returns the same
columns, plus `seq`, the number of each record, and `type`, its record type. A record that is not an envelope has its
value in `value`; a null record has a null there. Deleted records (type 00, empty) are omitted, together with their seq.

A block holds at most `BATCH_RECORDS_MAX` records and `BLOCK_SIZE_MAX` bytes; a record that exceeds a block is refused
before anything is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.errors import InvalidInputError, LimitError
from seawall.kernels.codec import blocks, columns, headers
from seawall.wire.format.fields import Buffer
from seawall.wire.format.read_buffers import READ_BUFFERS
from seawall.wire.format.record_fields import RecordFields
from seawall.wire.format.records import RecordType

if TYPE_CHECKING:
    import pyarrow as pa

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

#: Envelope fields that are bytes, by column name, in the order of the span table.
FIELD_COLUMNS: Final = {
    "key": columns.COLUMN_KEY,
    "node": columns.COLUMN_NODE,
    "tag": columns.COLUMN_TAG,
    "meta": columns.COLUMN_META,
}
KNOWN_COLUMNS: Final = ("value", "key", "timestamp", "node", "tag", "meta", "headers")

#: Bytes of every envelope record, and those that its timestamp and each of its sized fields add.
_ENVELOPE_SIZE_MIN: Final = limits.EXTENDED_HEADER_SIZE + 2
_TIMESTAMP_SIZE: Final = 8
_LENGTH_SIZE: Final = 4


class EncodedBlock(NamedTuple):
    """One block, its record count, and its CRC-32C if encoding has computed it."""

    block: bytes | memoryview
    record_count: int
    crc: int | None = None

    @property
    def size(self) -> int:
        """Bytes of the block."""
        return len(self.block)


def encode_values(values: Sequence[bytes], record_type: int = RecordType.RAW) -> Iterator[EncodedBlock]:
    """Encode plain values of one type into as few blocks as the bounds allow."""
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    yield from _encode_runs(np.frombuffer(b"".join(values), np.uint8), offsets, record_type)


def encode_table(table: pa.Table | pa.RecordBatch) -> Iterator[EncodedBlock]:
    """Encode the rows of a table into blocks, one record per row."""
    unknown = sorted(set(table.schema.names) - set(KNOWN_COLUMNS))
    if unknown or "value" not in table.schema.names:
        problem = "it needs value" if not unknown else f"unknown columns {', '.join(unknown)}"
        raise InvalidInputError(f"a table to publish has the columns {', '.join(KNOWN_COLUMNS)}: {problem}")
    batches = table.to_batches() if hasattr(table, "to_batches") else [table]
    for batch in batches:
        if batch.num_rows:
            yield from _encode_batch(batch)


def decode_table(
    block: Buffer, *, base_seq: int, wanted: Sequence[str] = KNOWN_COLUMNS, record_count: int | None = None
) -> pa.RecordBatch:
    """Decode the records of an uncompressed block, or of several joined ones, into the columns seq, type and `wanted`.

    Pass `record_count` if it is known: otherwise offsets for the most records possible are allocated.
    """
    import pyarrow as pa

    check_columns(wanted)
    located = RecordFields(block, record_count)
    source = located.source
    arrays: dict[str, pa.Array] = {"seq": located.seqs(base_seq), "type": pa.array(located.types.astype(np.uint32))}
    for name in wanted:
        if name == "timestamp":
            moments = located.timestamps
            arrays[name] = pa.array(moments, pa.timestamp("ns", tz="UTC"), mask=moments < 0)
        elif name == "headers":
            arrays[name] = _decode_headers(located)
        else:
            column = columns.COLUMN_DATA if name == "value" else FIELD_COLUMNS[name]
            arrays[name] = _gather(source, *located.spans(column))
    return pa.RecordBatch.from_pydict(arrays)


def plain_table(
    seqs: npt.NDArray[np.uint64],
    types: npt.NDArray[np.uint32],
    values: tuple[npt.NDArray[np.int32], Bytes],
    wanted: Sequence[str],
) -> pa.RecordBatch:
    """Records without envelopes, in the form of `decode_table`, from columns that are already filled.

    `values` are the offsets and the data of their values. Nothing is copied.
    """
    import pyarrow as pa

    rows = len(seqs)
    arrays: dict[str, pa.Array] = {"seq": pa.array(seqs), "type": pa.array(types)}
    for name in wanted:
        if name == "value":
            buffers = [None, *map(pa.py_buffer, values)]
            arrays[name] = pa.BinaryArray.from_buffers(pa.binary(), rows, buffers, null_count=0)
        else:
            arrays[name] = pa.nulls(rows, _type_of(name))
    return pa.RecordBatch.from_pydict(arrays)


def empty_table(wanted: Sequence[str]) -> pa.RecordBatch:
    """An empty table with these columns."""
    return decode_table(b"", base_seq=1, wanted=wanted)


def check_columns(wanted: Sequence[str]) -> None:
    """Raise `InvalidInputError` if a column is unknown."""
    unknown = sorted(set(wanted) - set(KNOWN_COLUMNS))
    if unknown:
        raise InvalidInputError(f"no column {', '.join(unknown)}: records have {', '.join(KNOWN_COLUMNS)}")


def _runs(sizes: Integers) -> Iterator[tuple[int, int]]:
    """Split rows into runs that each fit a block; `sizes` are the bytes of each row's record."""
    if sizes.size and int(sizes.max()) > limits.BLOCK_SIZE_MAX:
        row = int(sizes.argmax())
        raise LimitError(
            f"the record of row {row} takes {int(sizes[row])} bytes, at most {limits.BLOCK_SIZE_MAX}; split it"
        )
    ends = np.cumsum(sizes)
    first, before = 0, 0
    while first < sizes.size:
        last = int(np.searchsorted(ends, np.int64(before + limits.BLOCK_SIZE_MAX), side="right"))
        last = min(last, first + limits.BATCH_RECORDS_MAX)
        yield first, last
        before = int(ends[last - 1])
        first = last


def _encode_batch(batch: pa.RecordBatch) -> Iterator[EncodedBlock]:
    value = _Column.of(batch, "value")
    if value.has_nulls:
        raise InvalidInputError("the value of a row is null: a record needs a value, which may be empty")
    if batch.schema.names == ["value"]:
        yield from _encode_runs(value.data, value.offsets, RecordType.RAW)
        return
    fields = _Fields(batch.num_rows)
    fields.add(columns.COLUMN_DATA, value)
    for name, column in FIELD_COLUMNS.items():
        if name in batch.schema.names:
            fields.add(column, _Column.of(batch, name))
    if "headers" in batch.schema.names:
        fields.add_headers(batch.column("headers"))
    timestamps = _timestamps(batch)
    yield from fields.encode(timestamps)


def _encode_runs(data: Bytes, offsets: Integers, record_type: int) -> Iterator[EncodedBlock]:
    header = limits.RECORD_HEADER_SIZE if record_type <= RecordType.NULL else limits.EXTENDED_HEADER_SIZE
    record_type = int(record_type)  # an enum member would be another, much slower type for the kernel
    for first, last in _runs(np.diff(offsets) + header):
        part = offsets[first : last + 1]
        block = READ_BUFFERS.take(int(blocks.encoded_size(part, last - first, record_type)))
        blocks.encode_block(data, part, last - first, record_type, block, 0)
        yield EncodedBlock(block.data, last - first)


@dataclass(frozen=True, slots=True)
class _Column:
    """A binary or string array as bytes, 64-bit offsets, and a mask of null rows."""

    data: Bytes
    offsets: Integers
    nulls: npt.NDArray[np.bool_]

    @property
    def has_nulls(self) -> bool:
        return bool(self.nulls.any())

    @classmethod
    def of(cls, batch: pa.RecordBatch, name: str) -> _Column:
        return cls.of_array(batch.column(name), name)

    @classmethod
    def of_array(cls, array: pa.Array, name: str) -> _Column:
        import pyarrow as pa

        kinds = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
        if not any(is_kind(array.type) for is_kind in kinds):
            raise InvalidInputError(f"column {name} is {array.type}: it must be binary or string")
        large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
        _, offsets, data = array.buffers()
        width = np.int64 if large else np.int32
        count = len(array) + 1
        first = array.offset * np.dtype(width).itemsize
        wide = np.frombuffer(offsets, width, count, first).astype(np.int64) if offsets else np.zeros(count, np.int64)
        content = np.frombuffer(data, np.uint8) if data and data.size else np.zeros(0, np.uint8)
        # A slice refers to the bytes of all rows of the original array.
        content = content[wide[0] : wide[-1]]
        wide -= wide[0]
        if not array.null_count:
            return cls(content, wide, np.zeros(len(array), np.bool_))
        return cls(content, wide, array.is_null().to_numpy(zero_copy_only=False))


class _Fields:
    """The field locations of envelopes to encode, in one buffer that holds all their fields."""

    def __init__(self, rows: int) -> None:
        self._pieces: list[Bytes] = []
        self._size = 0
        self.starts = np.zeros((columns.COLUMN_COUNT, rows), np.int64)
        self.lengths = np.full((columns.COLUMN_COUNT, rows), -1, np.int64)

    def add(self, column: int, field: _Column) -> None:
        """Add one column; nulls become absent fields."""
        self.starts[column] = field.offsets[:-1] + self._size
        self.lengths[column] = np.where(field.nulls, -1, np.diff(field.offsets))
        self._append(field.data)

    def add_headers(self, array: pa.ListArray) -> None:
        """Add the header lists of all rows."""
        import pyarrow as pa

        if not pa.types.is_list(array.type) or not pa.types.is_struct(array.type.value_type):
            raise InvalidInputError(f"column headers is {array.type}: it must be list<struct<key, value>>")
        entries = array.values
        keys = _Column.of_array(entries.field("key"), "headers.key")
        values = _Column.of_array(entries.field("value"), "headers.value")
        if keys.has_nulls:
            raise InvalidInputError("the key of a header is null")
        offsets = array.offsets.to_numpy().astype(np.int64)
        per_row = np.diff(offsets)
        if per_row.size and int(per_row.max()) > limits.ENVELOPE_HEADERS_MAX:
            raise LimitError(f"a row has {int(per_row.max())} headers, at most {limits.ENVELOPE_HEADERS_MAX}")
        if np.any(np.diff(keys.offsets) > 0xFFFF):
            raise LimitError("a header key is longer than 65,535 bytes")
        rows = len(array)
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), np.int64(-1), np.int64(0))
        starts = np.zeros(rows, np.int64)
        space = 2 * rows + 6 * len(entries) + int(np.ptp(keys.offsets)) + int(np.ptp(values.offsets))
        out = np.empty(space, np.uint8)
        used = headers.encode_headers(
            offsets, rows, keys.data, keys.offsets, values.data, values.offsets, out, starts, lengths
        )
        self.starts[columns.COLUMN_HEADERS] = starts + self._size
        self.lengths[columns.COLUMN_HEADERS] = lengths
        self._append(out[:used])

    def encode(self, timestamps: Integers) -> Iterator[EncodedBlock]:
        """Encode the envelopes of all rows."""
        content = np.concatenate(self._pieces)
        sized = self.lengths[columns.COLUMN_KEY : columns.COLUMN_HEADERS] >= 0
        sizes = _ENVELOPE_SIZE_MIN + np.maximum(self.lengths, 0).sum(axis=0)
        sizes += _LENGTH_SIZE * sized.sum(axis=0) + _TIMESTAMP_SIZE * (timestamps >= 0)
        for first, last in _runs(sizes):
            starts = np.ascontiguousarray(self.starts[:, first:last])
            lengths = np.ascontiguousarray(self.lengths[:, first:last])
            moments = timestamps[first:last]
            block = READ_BUFFERS.take(int(columns.envelopes_size(lengths, moments, last - first)))
            columns.encode_envelopes(content, starts, lengths, moments, last - first, block, 0)
            yield EncodedBlock(block.data, last - first)

    def _append(self, data: Bytes) -> None:
        self._pieces.append(data)
        self._size += data.size


def _timestamps(batch: pa.RecordBatch) -> Integers:
    """Timestamp of each row in nanoseconds; −1 means none."""
    import pyarrow as pa
    from pyarrow import compute

    if "timestamp" not in batch.schema.names:
        return np.full(batch.num_rows, -1, np.int64)
    array = batch.column("timestamp")
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ns", tz=array.type.tz))
    elif not pa.types.is_int64(array.type):
        raise InvalidInputError(f"column timestamp is {array.type}: it must be a timestamp or int64 nanoseconds")
    moments = array.cast(pa.int64())
    if moments.null_count < len(moments) and compute.min(moments).as_py() < 0:
        raise InvalidInputError("a timestamp is before 1970: nanoseconds since then must not be negative")
    filled: Integers = moments.fill_null(-1).to_numpy()
    return filled


def _gather(source: Bytes, starts: Integers, lengths: Integers) -> pa.Array:
    import pyarrow as pa

    count = starts.size
    offsets = np.empty(count + 1, np.int32)
    data = np.empty(columns.spans_size(lengths, count), np.uint8)
    validity = np.empty((count + 7) // 8, np.uint8)
    nulls = columns.gather_spans(source, starts, lengths, count, offsets, data, validity)
    buffers = [pa.py_buffer(array) for array in (validity, offsets, data)]
    return pa.BinaryArray.from_buffers(pa.binary(), count, buffers, null_count=nulls)


def _decode_headers(located: RecordFields) -> pa.Array:
    import pyarrow as pa

    _, lengths = located.spans(columns.COLUMN_HEADERS)
    offsets, spans = located.header_spans()
    names = _text(_gather(located.source, spans[0], spans[1]))
    values = _gather(located.source, spans[2], spans[3])
    entries = pa.StructArray.from_arrays([names, values], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(offsets), entries, mask=pa.array(lengths < 0))


def _type_of(name: str) -> pa.DataType:
    """The type of a column that plain records do not fill."""
    import pyarrow as pa

    if name == "timestamp":
        return pa.timestamp("ns", tz="UTC")
    if name == "headers":
        return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.binary()


def _text(array: pa.Array) -> pa.Array:
    """Header names as text. Invalid UTF-8 is replaced, so that such a name does not make a topic unreadable."""
    import pyarrow as pa

    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in array.to_pylist()], pa.string())
