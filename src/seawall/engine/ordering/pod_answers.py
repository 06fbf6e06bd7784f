"""Answers about batches: as rows of an ACK, and those that the order alone cannot give, of what came again or just now.

This module must not know who asks, nor how anything is ordered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, SessionEpoch, TimestampNs
from seawall.engine.commit.appends import Append
from seawall.fabric.records import Records
from seawall.limits import BATCH_HEADER_SIZE
from seawall.sequencer.client_window import WindowCode
from seawall.sequencer.frontier import Numbered
from seawall.wire.format.ack_rows import ACK_ROW, Rows
from seawall.wire.format.codes import AckStatus, ErrorCode

if TYPE_CHECKING:
    from seawall.engine.store.sessions import Sessions


def ack_rows(answers: Records, pending: Records) -> Rows:
    """Answers of a ring as entries of an ACK; `pending` is the ring, which knows what each is about.

    To be called in the turn in which the answers were taken: a slot is not claimed again before that is over.
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
    """What can be said of a batch that came again."""

    status: int
    reason: int
    position: int
    base_seq: int
    timestamp_ns: int


def remembered(
    sessions: Sessions, client_id: ClientId, session_epoch: int, client_seq: ClientSeq, block_crc: int, position: int
) -> KnownOutcome:
    """What the store knows of a batch that was stored before, where its worker had no more than its row."""
    verdict = sessions.window.check(client_id, SessionEpoch(session_epoch), client_seq, block_crc)
    if verdict.code is WindowCode.MISMATCH:
        return KnownOutcome(AckStatus.REJECTED, ErrorCode.PAYLOAD_MISMATCH, position, 0, 0)
    found = verdict.original
    if found is None:
        return KnownOutcome(AckStatus.DUPLICATE, 0, position, 0, 0)
    return KnownOutcome(AckStatus.DUPLICATE, 0, found.position, found.base_seq, found.timestamp_ns)


def arrived(append: Append) -> Numbered:
    """What is known of a batch of order 0 when it is in its ring."""
    size = BATCH_HEADER_SIZE + len(append.block)
    numbers = (Position(0), append.topic_id, Seq(0), Offset(0), TimestampNs(0))
    return Numbered(AckStatus.OK, 0, *numbers, append.record_count, append.raw_length or len(append.block), size)
