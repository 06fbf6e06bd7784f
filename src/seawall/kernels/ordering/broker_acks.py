"""Collects the answers that a broker owes its publishers, as soon as each ack level allows.

Results arrive in any order, since a batch may wait for an earlier one of its client; so a call checks all slots from
the first that owes an answer to the last claimed one. A batch may wait long while thousands after it are answered: each
open slot stores the index of the next open one, and the slots between are not checked again.

    order 0, level 1     answered on arrival: position, seq and time are not known yet
    refused              answered with the result, at every level: REJECTED, UNKNOWN, RETRY
    level 0              no other answer
    level 1              answered with the result: the batch is ordered
    level 2              answered when the durable frontier has passed the result's position. A duplicate waits for its
                         own position, which is above that of the original

INV-ANSWER-DURABLE: no answer of level 2 says OK or DUPLICATE before the batch is as durable as its topic promises.

A batch is answered at most once. ANSWERED never passes a slot that owes an answer, so its result is not overwritten
(`broker_ring`).

A crash loses answers that are not sent yet; their publishers send again.
"""

from __future__ import annotations

import numpy as np

from seawall.kernels.ordering.broker_ring import (
    ANSWERED,
    CLAIMED,
    PENDING_ROW,
    STAGE_DONE,
    STAGE_WAITING,
    TOKEN_WORD,
    Rows,
)
from seawall.kernels.runtime.atomics import load_acquire
from seawall.kernels.runtime.jit import bytes_in, int64, int64_in, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, as_int64, load_i64, load_u16, load_u64
from seawall.kernels.runtime.rings import SLOT_WORDS, Words
from seawall.kernels.runtime.slots import slot_base

#: One answer. `owner` identifies the publisher of the batch; an unknown position has all bits set.
ANSWER_ROW = np.dtype(
    [
        ("owner", np.int64),
        ("index", np.int64),
        ("client_id", np.uint64),
        ("client_seq", np.uint64),
        ("position", np.uint64),
        ("base_seq", np.uint64),
        ("timestamp_ns", np.uint64),
        ("original_position", np.uint64),
        ("reason", np.uint16),
        ("status", np.uint8),
        ("ack_level", np.uint8),
    ]
)

#: Word of the control block.
CONTROL_DURABLE = 5

STATUS_OK = 0
STATUS_REJECTED = 2
LEVEL_FAILURES = 0
LEVEL_ORDERED = 1
LEVEL_DURABLE = 2

#: What to do with a slot.
KEEP_WAITING = 0
ANSWER_NOTHING = 1
ANSWER_ARRIVED = 2
ANSWER_RESULT = 3

_UNKNOWN = np.uint64(0xFFFFFFFFFFFFFFFF)

_pending = record_array(PENDING_ROW)
_answers = record_array(ANSWER_ROW)


@kernel(int64(int64, int64, int64, int64, int64))
def judge_result(order: int, ack_level: int, status: int, position: int, durable: int) -> int:
    """What to do with a batch; `status` is negative if there is no result yet."""
    if order == 0 and ack_level == LEVEL_ORDERED:
        return ANSWER_ARRIVED
    if status < 0:
        return KEEP_WAITING
    if status >= STATUS_REJECTED:
        return ANSWER_RESULT
    if ack_level == LEVEL_FAILURES:
        return ANSWER_NOTHING
    # An unknown position is negative here, and never durable.
    if ack_level == LEVEL_DURABLE and (position < 0 or position >= durable):
        return KEEP_WAITING
    return ANSWER_RESULT


@kernel(void(_pending, int64, bytes_in, int64, int64, _answers, int64))
def write_answer(pending: Rows, index: int, results: Bytes, at: int, verdict: int, answers: Rows, count: int) -> None:
    """Fill one answer from the broker's row and, unless answered on arrival, from the result at byte `at`."""
    row = pending[index % pending.size]
    answer = answers[count]
    answer["owner"] = row["owner"]
    answer["index"] = index
    answer["client_id"] = row["client_id"]
    answer["client_seq"] = row["client_seq"]
    answer["ack_level"] = row["ack_level"]
    if verdict == ANSWER_ARRIVED:
        answer["position"] = _UNKNOWN
        answer["base_seq"] = 0
        answer["timestamp_ns"] = 0
        answer["original_position"] = _UNKNOWN
        answer["reason"] = 0
        answer["status"] = STATUS_OK
    else:
        answer["position"] = load_u64(results, at)
        answer["base_seq"] = load_u64(results, at + 8)
        answer["timestamp_ns"] = load_u64(results, at + 16)
        answer["original_position"] = load_u64(results, at + 24)
        answer["reason"] = load_u16(results, at + 34)
        answer["status"] = results[at + 32]


@kernel(int64(int64_out, _pending, int64_in, bytes_in, int64_in, _answers))
def collect_answers(state: Words, pending: Rows, slots: Words, results: Bytes, control: Words, answers: Rows) -> int:
    """Write the due answers to `answers`, as many as fit, and advance ANSWERED; returns how many.

    `slots` are the words of the result ring, `results` its bytes, `control` the words of the control block.
    """
    durable = load_acquire(control, CONTROL_DURABLE)
    count = 0
    index = as_int64(state[ANSWERED])
    last_open = -1
    while index < state[CLAIMED]:
        row = pending[index % pending.size]
        # A value that is not above `index` is left over from the previous lap.
        next_index = max(as_int64(row["next_open"]), index + 1)
        if row["stage"] == STAGE_WAITING:
            if count == answers.size:
                break
            base = slot_base(slots.size // SLOT_WORDS, index)
            at = base * 8
            status = -1
            position = 0
            if load_acquire(slots, base + TOKEN_WORD) == index + 1:
                status = as_int64(results[at + 32])
                position = load_i64(results, at)
            verdict = judge_result(as_int64(row["order"]), as_int64(row["ack_level"]), status, position, durable)
            if verdict >= ANSWER_ARRIVED:
                write_answer(pending, index, results, at, verdict, answers, count)
                count += 1
            if verdict != KEEP_WAITING:
                row["stage"] = STAGE_DONE
        if row["stage"] != STAGE_DONE:
            if last_open < 0:
                state[ANSWERED] = index
            else:
                pending[last_open % pending.size]["next_open"] = index
            last_open = index
        index = next_index
    if last_open < 0:
        state[ANSWERED] = index
    else:
        pending[last_open % pending.size]["next_open"] = index
    return count
