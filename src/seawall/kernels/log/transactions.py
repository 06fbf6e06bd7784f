"""Admits the batches of a transaction: all of them get the same position and the same clock time.

The input is only their headers, 96 bytes each, back to back; the blocks can be anywhere. The caller has checked that
each topic exists and has enough seqs below its ceiling. A batch that is refused nevertheless ends the run; batches
before it keep their numbers.

The batches of one call take exactly one position, even if there are none.
"""

from __future__ import annotations

from seawall.kernels.admission.frontier import (
    ADMISSION_ROW,
    LAST_TIMESTAMP,
    NEXT_POSITION,
    RUN_DONE,
    STATUS_OK,
    FrontierArrays,
    Rows,
    admit_batch,
    frontier_arrays,
    next_timestamp,
)
from seawall.kernels.codec.batch_header import HEADER_SIZE
from seawall.kernels.runtime.jit import bytes_out, int64, kernel, record_array
from seawall.kernels.runtime.memory import Bytes, as_int64

#: A batch was refused; its row has the reason. An addition to the RUN codes of `frontier`.
TOGETHER_REFUSED = -1

_rows = record_array(ADMISSION_ROW)


@kernel(int64(bytes_out, int64, int64, frontier_arrays, _rows))
def admit_transaction(
    headers: Bytes,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    rows: Rows,
) -> int:
    """Admit one header for each row, all at the next position; returns RUN_DONE, or why it stopped early."""
    numbers = frontier[4]
    position = numbers[NEXT_POSITION]
    last_ns = numbers[LAST_TIMESTAMP]
    code = RUN_DONE
    for index in range(rows.size):
        numbers[NEXT_POSITION] = position
        numbers[LAST_TIMESTAMP] = last_ns
        code = admit_batch(headers, index * HEADER_SIZE, term, wall_ns, frontier, rows, index)
        if code == RUN_DONE and as_int64(rows[index]["status"]) != STATUS_OK:
            code = TOGETHER_REFUSED
        if code != RUN_DONE:
            break
    numbers[NEXT_POSITION] = position + 1
    numbers[LAST_TIMESTAMP] = next_timestamp(last_ns, wall_ns)
    return code
