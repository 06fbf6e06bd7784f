"""Answers as a function of each slot's result, checked one after the other. Single-threaded."""

from __future__ import annotations

import struct

from seawall.kernels.ordering import broker_acks as acks
from seawall.kernels.ordering import broker_ring as ring
from seawall.kernels.ordering.broker_ring import Rows
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.rings import SLOT_WORDS, Words

_RESULT = struct.Struct("<QQQQBxH")
_UNKNOWN = 2**64 - 1


def judge_result(order: int, ack_level: int, status: int, position: int, durable: int) -> int:
    """Order 0 at level 1 is answered on arrival; failures always; success when its level is reached."""
    if (order, ack_level) == (0, acks.LEVEL_ORDERED):
        return acks.ANSWER_ARRIVED
    if status in (0, 1):
        reached = ack_level != acks.LEVEL_DURABLE or 0 <= position < durable
        verdict = acks.ANSWER_RESULT if ack_level else acks.ANSWER_NOTHING
        return verdict if reached else acks.KEEP_WAITING
    return acks.ANSWER_RESULT if status > 1 else acks.KEEP_WAITING


def write_answer(pending: Rows, index: int, results: Bytes, at: int, verdict: int, answers: Rows, count: int) -> None:
    """Combine the broker's row and the fields of the result."""
    result = (_UNKNOWN, 0, 0, _UNKNOWN, acks.STATUS_OK, 0)
    if verdict == acks.ANSWER_RESULT:
        result = _RESULT.unpack(results[at : at + _RESULT.size].tobytes())
    row = pending[index % len(pending)]
    *numbers, status, reason = result
    client = (row["owner"], index, row["client_id"], row["client_seq"])
    answers[count] = (*client, *numbers, reason, status, row["ack_level"])


def collect_answers(state: Words, pending: Rows, slots: Words, results: Bytes, control: Words, answers: Rows) -> int:
    """Check every waiting slot until the answers are full, then advance past the answered slots."""
    tokens = slots.reshape(-1, SLOT_WORDS)[:, ring.TOKEN_WORD]
    claimed = range(int(state[ring.ANSWERED]), int(state[ring.CLAIMED]))
    count = 0
    for index in claimed:
        row, at = pending[index % len(pending)], index % len(tokens) * 64
        if row["stage"] != ring.STAGE_WAITING:
            continue
        if count == len(answers):
            break
        ready = tokens[index % len(tokens)] == index + 1
        status = int(results[at + 32]) if ready else -1
        position = int(slots[at // 8]) if ready else 0
        durable = int(control[acks.CONTROL_DURABLE])
        verdict = judge_result(int(row["order"]), int(row["ack_level"]), status, position, durable)
        if verdict in (acks.ANSWER_ARRIVED, acks.ANSWER_RESULT):
            write_answer(pending, index, results, at, verdict, answers, count)
            count += 1
        if verdict != acks.KEEP_WAITING:
            row["stage"] = ring.STAGE_DONE
    for index in claimed:
        if pending[index % len(pending)]["stage"] != ring.STAGE_DONE:
            break
        state[ring.ANSWERED] = index + 1
    return count
