"""Encode what users publish into blocks of records.

Users publish one record, several records, or a table. A record is bytes, str (UTF-8), dict (JSON), or a `Message` with
key, headers, time and tag. Several records are an iterable of these, in which a list is a JSON record too. A table is
an Arrow table or record batch, or a pandas data frame. The embedded log and the client accept the same.

This module must not know where the blocks go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from seawall.core.types import TimestampNs
from seawall.errors import InvalidInputError, LimitError
from seawall.kernels.codec.values import HAS_KNOWN_LAYOUT, join_values, measure_values
from seawall.limits import BATCH_RECORDS_MAX, BLOCK_SIZE_MAX, LARGE_BATCH_SIZE, RECORD_HEADER_SIZE
from seawall.wire.format.arrow import EncodedBlock, encode_table, encode_values
from seawall.wire.format.envelope import Envelope
from seawall.wire.format.read_buffers import READ_BUFFERS
from seawall.wire.format.records import Record, RecordType, encode_raw, encode_record, raw_head

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_JSON: Final = (",", ":")

#: Up to this many records, encoding them one by one is faster than examining the list as a whole.
_FEW: Final = 16
_PLAIN: Final[set[type]] = {bytes}


@dataclass(frozen=True, slots=True)
class Message:
    """One record with more than its value. `headers` keep their order; `timestamp_ns` is the time of the writer."""

    value: bytes | str | Mapping[str, object] | Sequence[object]
    key: bytes | str | None = None
    headers: Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]] | None = None
    timestamp_ns: int | None = None
    tag: str | None = None
    node: str | None = None
    meta: bytes | str | None = None


#: One record.
OneRecord: TypeAlias = "bytes | bytearray | memoryview | str | Mapping[str, object] | list[object] | Message"
#: What `publish` accepts.
Publishable: TypeAlias = "OneRecord | Iterable[OneRecord] | pa.Table | pa.RecordBatch | pd.DataFrame"


class UnencodedBlock(NamedTuple):
    """Plain values of one block that is not encoded yet, and the size that it will have."""

    values: list[bytes]
    size: int

    @property
    def record_count(self) -> int:
        """The number of records in the block."""
        return len(self.values)


#: Records that become one block.
Records: TypeAlias = EncodedBlock | UnencodedBlock


def encode(records: Publishable) -> list[EncodedBlock]:
    """Encode what a user publishes into blocks."""
    return [made(each) if isinstance(each, UnencodedBlock) else each for each in hold(records)]


def hold(records: Publishable) -> Sequence[Records]:
    """Like `encode`, but keeps a long list of plain values as it is; the sender encodes their block with `made`.

    A block that is encoded only when it is sent stays in the CPU cache until it is freed; one that is kept until its
    ack does not.
    """
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
    return _hold_each(each)


def more_than_one_batch(record_count: int) -> LimitError:
    """The error for records under one idempotency key that make several blocks."""
    return LimitError(f"{record_count} records do not fit one batch: records with one key must fit one batch")


def _hold_each(records: list[OneRecord]) -> Sequence[Records]:
    count = len(records)
    if count > _FEW and (size := _plain_size(records)) >= 0:
        values = cast(list[bytes], records)
        size += RECORD_HEADER_SIZE * count
        return [UnencodedBlock(values, size)] if _is_one_block(size, count) else list(encode_values(values))
    return list(_pack(encode_record(_record_of(record)) for record in records))


def _plain_size(records: list[OneRecord]) -> int:
    """Returns the total size of plain values; −1 if a record is anything else."""
    if HAS_KNOWN_LAYOUT:
        return measure_values(id(records), len(records), id(bytes))
    return sum(map(len, cast(list[bytes], records))) if set(map(type, records)) == _PLAIN else -1


def _is_one_block(size: int, count: int) -> bool:
    return size <= BLOCK_SIZE_MAX and count <= BATCH_RECORDS_MAX


def made(held: UnencodedBlock) -> EncodedBlock:
    """Encode the block of held values, which must not change during the call.

    A few values are joined in Python, which is faster than a kernel call.
    """
    values, count = held.values, held.record_count
    if count > _FEW and HAS_KNOWN_LAYOUT:
        block = READ_BUFFERS.take(held.size)
        return EncodedBlock(block.data, count, join_values(id(values), count, block))
    pieces = [b""] * (2 * count)
    pieces[::2] = map(raw_head, map(len, values))
    pieces[1::2] = values
    return EncodedBlock(b"".join(pieces), count)


def _pack(encoded: Iterable[bytes]) -> Iterator[EncodedBlock]:
    """Join records into as few blocks as the limits allow."""
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
    """Merge small blocks with the following ones: a table of many chunks has many small blocks.

    A large block that no small one precedes is not copied.
    """
    pieces: list[bytes | memoryview] = []
    size = count = 0
    for block, record_count, _ in blocks:
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
