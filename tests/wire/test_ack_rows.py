"""ACK frames encoded from arrays equal those encoded from objects."""

from __future__ import annotations

import numpy as np
import pytest

from seawall.core.types import ClientSeq, Position, Seq, SessionEpoch, TimestampNs, TopicId
from seawall.errors import ProtocolError
from seawall.wire.format.ack_rows import ACK_ROW, ack_rows, encode_ack_rows
from seawall.wire.format.codes import AckLevel, AckStatus
from seawall.wire.lwp2.frames import encode_ack
from seawall.wire.lwp2.session import Ack, AckEntry


def test_acks_from_arrays_equal_acks_from_objects() -> None:
    entries = tuple(
        AckEntry(
            client_seq=ClientSeq(seq),
            base_seq=Seq(100 + seq),
            position=Position(200 + seq),
            timestamp_ns=TimestampNs(300 + seq),
            topic_id=TopicId(4),
            run=1,
            record_count=5,
            status=AckStatus.OK,
            level=AckLevel.ORDERED,
        )
        for seq in (7, 9)
    )
    rows = np.zeros(2, ACK_ROW)
    for row, entry in zip(rows, entries, strict=True):
        for name in ACK_ROW.names or ():
            row[name] = int(getattr(entry, name))
    frame = encode_ack_rows(rows, session_epoch=SessionEpoch(3), window_batches=8, window_bytes=9, through=7)
    assert frame == encode_ack(Ack(SessionEpoch(3), 8, 9, entries), through=7)
    assert ack_rows(frame[44:]).tolist() == rows.tolist()


@pytest.mark.parametrize("size", [0, 15, 17, 16 + 47])
def test_incomplete_entries_are_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"ACK: {size} bytes are not a whole number of entries"):
        ack_rows(bytes(size))
