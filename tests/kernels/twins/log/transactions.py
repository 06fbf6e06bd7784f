"""Admission of a transaction: batch by batch, with the shared counters reset before each."""

from __future__ import annotations

from seawall.kernels.admission.frontier import LAST_TIMESTAMP, NEXT_POSITION, RUN_DONE, STATUS_OK, FrontierArrays, Rows
from seawall.kernels.log.transactions import TOGETHER_REFUSED
from seawall.kernels.runtime.memory import Bytes
from twins.admission.frontier import admit_batch, next_timestamp


def admit_transaction(
    headers: Bytes,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    rows: Rows,
) -> int:
    """Admit every header at the position and time of the first."""
    numbers = frontier[4]
    shared = numbers.copy()
    code = RUN_DONE
    for index, row in enumerate(rows):
        numbers[:] = shared
        code = admit_batch(headers, 96 * index, term, wall_ns, frontier, rows, index)
        if code == RUN_DONE:
            code = RUN_DONE if row["status"] == STATUS_OK else TOGETHER_REFUSED
        if code:
            break
    numbers[NEXT_POSITION] = shared[NEXT_POSITION] + 1
    numbers[LAST_TIMESTAMP] = next_timestamp(int(shared[LAST_TIMESTAMP]), wall_ns)
    return code
