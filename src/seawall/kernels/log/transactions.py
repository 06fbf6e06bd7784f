"""Admission of batches that take effect together: all of them get one position and one time of the clock.

Only their headers are here, 96 bytes each, back to back; where their blocks lie does not matter. Whoever calls has made
sure that each topic is there and has seqs below its ceiling: a batch that is refused all the same ends the run, and
what was numbered before it stays so.

Whatever their number, also without any, the batches of a call take exactly one position.
"""

from __future__ import annotations

from seawall.kernels.admission.frontier import (
    ADMISSION_ROW,
    LAST_TIMESTAMP,
    NEXT_POSITION,
    RUN_DONE,
    STATUS_OK,
    TOPIC_ROW,
    Rows,
    admit_batch,
    next_timestamp,
)
from seawall.kernels.codec.batch_header import HEADER_SIZE
from seawall.kernels.runtime.jit import bytes_out, int64, int64_out, kernel, record_array, uint64_out
from seawall.kernels.runtime.memory import Bytes, as_int64
from seawall.kernels.runtime.tables import Keys, Values

#: A batch was refused; its row says why. Beside it there are the codes of a run.
TOGETHER_REFUSED = -1


_topics = record_array(TOPIC_ROW)
_rows = record_array(ADMISSION_ROW)


@kernel(int64(bytes_out, int64, int64, uint64_out, int64_out, bytes_out, _topics, int64_out, _rows))
def admit_together(
    headers: Bytes,
    term: int,
    wall_ns: int,
    keys: Keys,
    values: Values,
    used: Bytes,
    topics: Rows,
    numbers: Values,
    rows: Rows,
) -> int:
    """Number one header for each row, all at the next position; RUN_DONE, or why it stopped before the last."""
    position = numbers[NEXT_POSITION]
    last_ns = numbers[LAST_TIMESTAMP]
    code = RUN_DONE
    for index in range(rows.size):
        numbers[NEXT_POSITION] = position
        numbers[LAST_TIMESTAMP] = last_ns
        code = admit_batch(
            headers, index * HEADER_SIZE, term, wall_ns, keys, values, used, topics, numbers, rows, index
        )
        if code == RUN_DONE and as_int64(rows[index]["status"]) != STATUS_OK:
            code = TOGETHER_REFUSED
        if code != RUN_DONE:
            break
    numbers[NEXT_POSITION] = position + 1
    numbers[LAST_TIMESTAMP] = next_timestamp(last_ns, wall_ns)
    return code
