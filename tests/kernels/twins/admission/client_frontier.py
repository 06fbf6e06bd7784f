"""Admission through the client window: calls the twins of window and frontier in turn, batch by batch."""

from __future__ import annotations

from seawall.kernels.admission.client_frontier import (
    REASON_FENCED,
    REASON_MISMATCH,
    REASON_OUTSIDE_WINDOW,
    REASON_SKIPPED,
    STATUS_DUPLICATE,
)
from seawall.kernels.admission.client_window import (
    CHECK_DUPLICATE,
    CHECK_FENCED,
    CHECK_MISMATCH,
    CHECK_NEW,
    CHECK_OUTSIDE,
    CHECK_UNKNOWN_CLIENT,
    WindowArrays,
)
from seawall.kernels.admission.frontier import (
    PROGRESS_CONSUMED,
    PROGRESS_ROWS,
    RUN_DONE,
    RUN_UNKNOWN_CLIENT,
    STATUS_REJECTED,
    FrontierArrays,
    Rows,
)
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import Values
from twins.admission.client_window import check_batch, decide_batch
from twins.admission.frontier import admit_batch, describe_row, header_at, next_batch_end, settle_row

_REASONS = {
    CHECK_FENCED: REASON_FENCED,
    CHECK_OUTSIDE: REASON_OUTSIDE_WINDOW,
    CHECK_MISMATCH: REASON_MISMATCH,
}


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
    """Check the batch, admit it if it is new, record the outcome."""
    header = header_at(buffer, at)
    code = CHECK_NEW
    if not header.is_control:
        code = check_batch(
            header.client_id, header.session_epoch, header.client_seq, header.block_crc, window, answers, 0
        )
    if code == CHECK_UNKNOWN_CLIENT:
        return RUN_UNKNOWN_CLIENT
    if code == CHECK_NEW:
        stop = admit_batch(buffer, at, term, wall_ns, frontier, rows, index)
        if stop == RUN_DONE and not header.is_control:
            row = rows[index]
            answers[0] = (
                *(row["position"], row["base_seq"], row["timestamp_ns"]),
                *(header.block_crc, row["reason"], row["status"], 1),
            )
            decide_batch(header.client_id, header.client_seq, window, answers, 0)
        return stop
    describe_row(buffer, at, rows, index)
    if code == CHECK_DUPLICATE:
        settle_row(rows, index, STATUS_DUPLICATE, 0)
        for name in ("position", "base_seq", "timestamp_ns"):
            rows[index][name] = answers[0][name]
    else:
        reason = _REASONS.get(code, int(answers[0]["reason"]) or REASON_SKIPPED)
        settle_row(rows, index, STATUS_REJECTED, reason)
    return RUN_DONE


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
    """`admit_client_batch` for each batch, until one stops the run."""
    at, count, code = start, 0, RUN_DONE
    while at < end and code == RUN_DONE:
        after = next_batch_end(buffer, at, end, len(rows) - count)
        if after < 0:
            code = -after
        else:
            code = admit_client_batch(buffer, at, term, wall_ns, frontier, window, answers, rows, count)
        if code == RUN_DONE:
            at, count = after, count + 1
    progress[PROGRESS_ROWS], progress[PROGRESS_CONSUMED] = count, at
    return code
