"""Encode and decode ACK frames with many entries as arrays, without an object per entry.

`lwp2/frames.py` (`encode_ack`) does the same for objects; the bytes are those of `lwp2/session.py` (`Ack`). This module
must not know connections or sessions.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.core.types import SessionEpoch
from seawall.wire.format.codes import Kind
from seawall.wire.format.fields import Buffer, malformed
from seawall.wire.format.frames import checksum, encode_header_v2

Rows: TypeAlias = npt.NDArray[np.void]

#: One entry of an ACK.
ACK_ROW: Final = np.dtype(
    [
        ("client_seq", "<u8"),
        ("base_seq", "<u8"),
        ("position", "<u8"),
        ("timestamp_ns", "<u8"),
        ("topic_id", "<u4"),
        ("run", "<u4"),
        ("record_count", "<u4"),
        ("status", "u1"),
        ("level", "u1"),
        ("reason", "<u2"),
    ]
)
assert ACK_ROW.itemsize == 48

_PREFIX: Final = Struct("<QII")


def encode_ack_rows(
    rows: Rows, *, session_epoch: SessionEpoch, window_batches: int, window_bytes: int, through: int
) -> bytes:
    """The ACK frame with these entries, in ascending client seq; every client seq up to `through` is decided."""
    data = _PREFIX.pack(session_epoch, window_batches, window_bytes) + rows.tobytes()
    header = encode_header_v2(
        *(Kind.ACK, 0),
        request_id=through,
        record_count=rows.size,
        payload_length=len(data),
        payload_crc=checksum(data),
    )
    return header + data


def ack_rows(payload: Buffer) -> Rows:
    """The entries of an ACK payload, as a view without a copy."""
    size = len(payload) - _PREFIX.size
    if size < 0 or size % ACK_ROW.itemsize:
        raise malformed(f"ACK: {len(payload)} bytes are not a whole number of entries")
    return np.frombuffer(payload, ACK_ROW, offset=_PREFIX.size)


def ack_window(payload: Buffer) -> tuple[int, int]:
    """The window of the ACK's session: batches and bytes that it may have in flight."""
    if len(payload) < _PREFIX.size:
        raise malformed(f"ACK: {len(payload)} bytes, needs at least {_PREFIX.size}")
    _epoch, batches, size = _PREFIX.unpack_from(payload)
    return batches, size
