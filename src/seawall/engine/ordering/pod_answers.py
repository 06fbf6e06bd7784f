"""Answers to publishers: result rings as rows of an ACK, and outcomes that the result ring does not have.

Those are the outcome of a batch that was sent again, and the answer to a batch of order 0 on its arrival. This module
must not know connections, nor how batches are ordered.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, SessionEpoch, TimestampNs
from seawall.engine.commit.appends import Append
from seawall.engine.store.sessions import Sessions
from seawall.fabric.records import Records
from seawall.limits import BATCH_HEADER_SIZE
from seawall.sequencer.client_window import WindowCode
from seawall.sequencer.frontier import Numbered
from seawall.wire.format.ack_rows import ACK_ROW, Rows
from seawall.wire.format.codes import AckStatus, ErrorCode


def ack_rows(answers: Records, pending: Records) -> Rows:
    """Answers of a ring as entries of an ACK; `pending` is the ring, which has topic and record count of each batch.

    Call it before the next answers are taken: until then no slot of these is claimed again.
    """
    rows = np.zeros(answers.size, ACK_ROW)
    for name in ("client_seq", "base_seq", "position", "timestamp_ns", "status", "reason"):
        rows[name] = answers[name]
    rows["level"] = answers["ack_level"]
    rows["run"] = 1
    slots = answers["index"] & (len(pending) - 1)
    rows["topic_id"] = pending["topic_id"][slots]
    rows["record_count"] = pending["record_count"][slots]
    return rows


class KnownOutcome(NamedTuple):
    """The known outcome of a batch that was sent again."""

    status: int
    reason: int
    position: int
    base_seq: int
    timestamp_ns: int


def remembered(
    sessions: Sessions, client_id: ClientId, session_epoch: int, client_seq: ClientSeq, block_crc: int, position: int
) -> KnownOutcome:
    """What the store knows about a batch that was sent again, if the worker of its client has only its row."""
    verdict = sessions.window.check(client_id, SessionEpoch(session_epoch), client_seq, block_crc)
    if verdict.code is WindowCode.MISMATCH:
        return KnownOutcome(AckStatus.REJECTED, ErrorCode.PAYLOAD_MISMATCH, position, 0, 0)
    found = verdict.original
    if found is None:
        return KnownOutcome(AckStatus.DUPLICATE, 0, position, 0, 0)
    return KnownOutcome(AckStatus.DUPLICATE, 0, found.position, found.base_seq, found.timestamp_ns)


def accepted_on_arrival(append: Append) -> Numbered:
    """The answer to a batch of order 0 once it is in its ring: accepted, without numbers."""
    size = BATCH_HEADER_SIZE + len(append.block)
    numbers = (Position(0), append.topic_id, Seq(0), Offset(0), TimestampNs(0))
    return Numbered(AckStatus.OK, 0, *numbers, append.record_count, append.raw_length or len(append.block), size)
