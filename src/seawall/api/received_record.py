"""Records as readers see them, made from the located fields of a block.

A record is a named tuple of columns: kernels locate the fields, and the columns of a run of records become tuples
without Python code for each of them. A run is short, so that its values are still in the processor's cache when the
reader looks at them, and an iteration that ends early has made few records in vain.

A block of few records is parsed record by record instead: the calls of the kernels alone would take longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise, repeat
from json import loads
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall.core.types import Seq, TimestampNs
from seawall.errors import CorruptionError
from seawall.kernels.codec import columns
from seawall.wire.format.envelope import parse_envelope
from seawall.wire.format.record_fields import Integers, RecordFields
from seawall.wire.format.records import Record, RecordType, iter_records

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

#: Records that are made at once.
_RUN: Final = 256
#: Records of a block up to which `parsed_records` is faster than `received_records`.
FEW_RECORDS: Final = 16


class ReceivedRecord(NamedTuple):
    """One record as a reader sees it. The log has set `timestamp_ns`, the writer `client_timestamp_ns`."""

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

    @property
    def timestamp(self) -> datetime:
        """When the log stored it, in UTC, to the microsecond."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1_000)

    def json(self) -> Any:
        """The value parsed as JSON; `ValueError` if it is none."""
        return loads(self.value)


def received_records(
    fields: RecordFields, seqs: npt.NDArray[np.uint64], timestamps_ns: Iterable[int]
) -> Iterator[ReceivedRecord]:
    """The records with these fields, given the seq and the timestamp of each."""
    runs = _envelope_runs(fields) if fields.has_envelopes else _plain_runs(fields)
    types, stored_ns = fields.types, iter(timestamps_ns)
    return chain.from_iterable(
        map(
            ReceivedRecord._make,
            # The seqs end first, so each run takes from the timestamps what it needs.
            zip(seqs[rows].tolist(), types[rows].tolist(), values, stored_ns, *others, strict=False),
        )
        for rows, values, others in runs
    )


def parsed_records(block: memoryview, base_seq: int, timestamp_ns: TimestampNs) -> Iterator[ReceivedRecord]:
    """The same records, parsed one by one."""
    for seq, record in enumerate(iter_records(block), base_seq):
        if record.record_type != RecordType.DELETED or record.value:
            yield received_record(record, Seq(seq), timestamp_ns)


def received_record(record: Record, seq: Seq, timestamp_ns: TimestampNs) -> ReceivedRecord:
    """One record as a reader sees it."""
    envelope = None
    if record.record_type == RecordType.ENVELOPE:
        # The log stores records as they arrive: the reader gets the bytes of an invalid envelope.
        with suppress(CorruptionError):
            envelope = parse_envelope(record.value)
    if envelope is None:
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


def _plain_runs(fields: RecordFields) -> Iterator[tuple[slice, Iterable[bytes], Sequence[Iterable[object]]]]:
    """The rows of each run, their values, and the columns after the timestamp."""
    starts, lengths = fields.spans(columns.COLUMN_DATA)
    absent = repeat(None)
    for rows in _runs(fields):
        values = _values(fields, starts[rows], lengths[rows])
        yield rows, values, [absent, repeat(()), absent, absent, absent, absent]


def _envelope_runs(fields: RecordFields) -> Iterator[tuple[slice, Iterable[bytes], Sequence[Iterable[object]]]]:
    spans = [fields.spans(column) for column in range(columns.COLUMN_COUNT)]
    starts, lengths = spans[columns.COLUMN_DATA]
    timestamps = fields.timestamps
    headers = _headers(fields)
    for rows in _runs(fields):
        key, node, tag, meta = (
            _optional_values(fields, spans[column][0][rows], spans[column][1][rows])
            for column in (columns.COLUMN_KEY, columns.COLUMN_NODE, columns.COLUMN_TAG, columns.COLUMN_META)
        )
        moments = [None if moment < 0 else moment for moment in timestamps[rows].tolist()]
        others = [key, repeat(()) if headers is None else headers[rows], moments, tag, node, meta]
        yield rows, _values(fields, starts[rows], lengths[rows]), others


def _runs(fields: RecordFields) -> Iterator[slice]:
    return (slice(first, first + _RUN) for first in range(0, len(fields), _RUN))


def _values(fields: RecordFields, starts: Integers, lengths: Integers) -> list[bytes]:
    """The bytes of one field of each record; nulls are empty."""
    source = fields.source.data
    ends = starts + np.maximum(lengths, 0)
    return [source[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _optional_values(fields: RecordFields, starts: Integers, lengths: Integers) -> Iterable[bytes | None]:
    if not np.any(lengths >= 0):
        return repeat(None)
    source = fields.source.data
    spans = zip(starts.tolist(), lengths.tolist(), strict=True)
    return [None if length < 0 else source[start : start + length].tobytes() for start, length in spans]


def _headers(fields: RecordFields) -> list[tuple[tuple[bytes, bytes], ...]] | None:
    """The headers of each record; None if no record has any."""
    offsets, (name_starts, name_lengths, value_starts, value_lengths) = fields.header_spans()
    if not name_starts.size:
        return None
    names = _values(fields, name_starts, name_lengths)
    pairs = list(zip(names, _values(fields, value_starts, value_lengths), strict=True))
    return [tuple(pairs[first:last]) for first, last in pairwise(offsets.tolist())]
