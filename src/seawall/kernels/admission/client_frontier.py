"""Admits batches through the client window: new ones get their numbers, repeated ones the original answer.

For each batch of a run: check it against the window (`client_window`), admit it if it is new (`frontier`), record its
outcome in the window. A repetition within one run is therefore a duplicate of the first. A batch that the window
rejects is refused with the wire's reason code. Control batches and clients without a session bypass the window.

Only a stored batch is answered DUPLICATE; a repetition of a refused batch is refused again.
"""

from __future__ import annotations

import numpy as np

from seawall.kernels.admission.client_window import (
    CHECK_DUPLICATE,
    CHECK_FENCED,
    CHECK_MISMATCH,
    CHECK_NEW,
    CHECK_OUTSIDE,
    CHECK_UNKNOWN_CLIENT,
    WINDOW_RESULT,
    WindowArrays,
    check_batch,
    decide_batch,
    window_arrays,
)
from seawall.kernels.admission.frontier import (
    ADMISSION_ROW,
    PROGRESS_CONSUMED,
    PROGRESS_ROWS,
    RUN_DONE,
    RUN_UNKNOWN_CLIENT,
    STATUS_REJECTED,
    FrontierArrays,
    Rows,
    admit_batch,
    describe_row,
    frontier_arrays,
    next_batch_end,
    settle_row,
)
from seawall.kernels.codec.batch_header import BLOCK_CRC_AT, CLIENT_ID_AT, CLIENT_SEQ_AT, COMMAND_AT, SESSION_EPOCH_AT
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Bytes, as_int64, load_i64, load_u16, load_u32, load_u64
from seawall.kernels.runtime.tables import Values

STATUS_DUPLICATE = 1
REASON_FENCED = 0x24
REASON_OUTSIDE_WINDOW = 0x25
REASON_SKIPPED = 0x26
REASON_MISMATCH = 0x28

_rows = record_array(ADMISSION_ROW)
_results = record_array(WINDOW_RESULT)


@kernel(void(_rows, int64, int64, _results))
def _fill_known(rows: Rows, index: int, code: int, answers: Rows) -> None:
    """Fill the row of a batch that the client window did not find new."""
    reason = as_int64(answers[0]["reason"])
    if code == CHECK_DUPLICATE:
        settle_row(rows, index, STATUS_DUPLICATE, 0)
        row = rows[index]
        row["position"] = answers[0]["position"]
        row["base_seq"] = answers[0]["base_seq"]
        row["timestamp_ns"] = answers[0]["timestamp_ns"]
        return
    if code == CHECK_FENCED:
        reason = REASON_FENCED
    elif code == CHECK_OUTSIDE:
        reason = REASON_OUTSIDE_WINDOW
    elif code == CHECK_MISMATCH:
        reason = REASON_MISMATCH
    elif reason == 0:
        # Skipped, or refused and the reason has been evicted: it was not stored in either case.
        reason = REASON_SKIPPED
    settle_row(rows, index, STATUS_REJECTED, reason)


@kernel(void(_rows, int64, int64, _results))
def _copy_outcome(rows: Rows, index: int, block_crc: int, answers: Rows) -> None:
    """Copy the outcome of an admitted batch into `answers[0]`, for the window to record."""
    row = rows[index]
    outcome = answers[0]
    outcome["position"] = row["position"]
    outcome["base_seq"] = row["base_seq"]
    outcome["timestamp_ns"] = row["timestamp_ns"]
    outcome["block_crc"] = block_crc
    outcome["reason"] = row["reason"]
    outcome["status"] = row["status"]
    outcome["known"] = 1


@kernel(int64(bytes_out, int64, int64, int64, frontier_arrays, window_arrays, _results, _rows, int64), counted=False)
def admit_client_batch(
    buffer: Bytes,
    at: int,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    window: WindowArrays,
    answers: Rows,
    rows: Rows,
    index: int,
) -> int:
    """`admit_batch` through the client window: check the batch, admit it if it is new, record the outcome.

    Returns RUN_UNKNOWN_CLIENT, and changes nothing, if the window does not have the client. `answers` is scratch space.
    """
    if load_u16(buffer, at + COMMAND_AT) != 0:
        return admit_batch(buffer, at, term, wall_ns, frontier, rows, index)
    client_id = np.uint64(load_u64(buffer, at + CLIENT_ID_AT))
    client_seq = load_i64(buffer, at + CLIENT_SEQ_AT)
    epoch = load_u32(buffer, at + SESSION_EPOCH_AT)
    crc = load_u32(buffer, at + BLOCK_CRC_AT)
    verdict = check_batch(client_id, epoch, client_seq, crc, window, answers, 0)
    if verdict == CHECK_UNKNOWN_CLIENT:
        return RUN_UNKNOWN_CLIENT
    if verdict != CHECK_NEW:
        describe_row(buffer, at, rows, index)
        _fill_known(rows, index, verdict, answers)
        return RUN_DONE
    code = admit_batch(buffer, at, term, wall_ns, frontier, rows, index)
    if code == RUN_DONE:
        _copy_outcome(rows, index, crc, answers)
        decide_batch(client_id, client_seq, window, answers, 0)
    return code


@kernel(int64(bytes_out, int64, int64, int64, int64, frontier_arrays, window_arrays, _results, _rows, int64_out))
def admit_client_run(
    buffer: Bytes,
    start: int,
    end: int,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    window: WindowArrays,
    answers: Rows,
    rows: Rows,
    progress: Values,
) -> int:
    """`admit_run` through the client window."""
    at = start
    count = 0
    code = RUN_DONE
    while at < end:
        after = next_batch_end(buffer, at, end, rows.size - count)
        if after < 0:
            code = -after
            break
        code = admit_client_batch(buffer, at, term, wall_ns, frontier, window, answers, rows, count)
        if code != RUN_DONE:
            break
        count += 1
        at = after
    progress[PROGRESS_ROWS] = count
    progress[PROGRESS_CONSUMED] = at
    return code
