"""Routing with objects: records are parsed, chosen and encoded again by the reference codecs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from seawall.errors import CorruptionError
from seawall.kernels.codec.columns import FLAG_NODE, FLAG_TAG, Spans
from seawall.kernels.codec.routing import MATCH_ANY, MATCH_EQUAL, ROUTED_CHANGED, ROUTED_SIZE
from seawall.kernels.runtime.memory import Bytes
from seawall.wire.format.envelope import Envelope, parse_envelope
from seawall.wire.format.records import RecordType, encode_record, iter_records

Integers = npt.NDArray[np.int64]


def _envelope(record_type: int, value: bytes) -> Envelope | None:
    if record_type != RecordType.ENVELOPE:
        return None
    try:
        return parse_envelope(value)
    except CorruptionError:
        return None


def _matches(field: bytes | None, text: Bytes, how: int) -> int:
    if how == MATCH_ANY:
        return 1
    if field is None:
        return 0
    return int(field == text.tobytes() if how == MATCH_EQUAL else field.startswith(text.tobytes()))


def route_records(
    block: Bytes,
    offsets: Integers,
    count: int,
    starts: Spans,
    lengths: Spans,
    base_seq: int,
    live_firsts: Integers,
    live_lasts: Integers,
    tag: Bytes,
    tag_match: int,
    node: Bytes,
    node_match: int,
    cut: int,
    out: Bytes,
    state: Integers,
) -> int:
    """Copy the live records that match, without some fields. Returns how many there are."""
    live = list(zip(live_firsts.tolist(), live_lasts.tolist(), strict=True))
    copies, changed = [], 0
    for seq, record in enumerate(iter_records(block.tobytes()), base_seq):
        envelope = _envelope(record.record_type, record.value)
        fields = (None, None) if envelope is None else (envelope.tag, envelope.node)
        if not any(first <= seq <= last for first, last in live):
            continue
        if not (_matches(fields[0], tag, tag_match) and _matches(fields[1], node, node_match)):
            continue
        made = envelope
        if made is not None and cut & FLAG_NODE:
            made = replace(made, node=None)
        if made is not None and cut & FLAG_TAG:
            made = replace(made, tag=None)
        changed += made != envelope
        copies.append(encode_record(record if made is None or made == envelope else made.to_record()))
    data = b"".join(copies)
    out[: len(data)] = np.frombuffer(data, np.uint8)
    state[ROUTED_SIZE], state[ROUTED_CHANGED] = len(data), changed
    return len(copies)
