"""Claimed jobs as rows and a block of records: the same bytes in the engine, on the wire and in the client.

| at | size | field        | bytes                                                               |
|----|------|--------------|---------------------------------------------------------------------|
| 0  | 8    | seq          | u64, the seq of the record                                          |
| 8  | 8    | lease_id     | u64, names this lease; 0 if the job is not leased (peek)            |
| 16 | 8    | deadline_ms  | u64, when the lease ends, in milliseconds since the Unix epoch      |
| 24 | 8    | timestamp_ns | u64, when the log stored the record                                 |
| 32 | 4    | deliveries   | u32, how often the job was delivered, this time included            |
| 36 | 4    | zero         | u32                                                                 |

The block holds one record for each row, in the order of the rows. This module must not know queues or connections.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

#: The row of one job.
JOB_ROW: Final = np.dtype(
    [
        ("seq", "<u8"),
        ("lease_id", "<u8"),
        ("deadline_ms", "<u8"),
        ("timestamp_ns", "<u8"),
        ("deliveries", "<u4"),
        ("zero", "<u4"),
    ]
)
assert JOB_ROW.itemsize == 40

JobRows: TypeAlias = npt.NDArray[np.void]


class ClaimedJobs(NamedTuple):
    """Jobs with their records, how many more can be claimed now, and how long the leases last."""

    rows: JobRows
    block: memoryview
    ready: int
    lease_ms: int
