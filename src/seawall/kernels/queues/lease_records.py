"""The records of the lease kernels: the row of a job, and a lease view, which holds the addresses of its arrays.

The owner of a view keeps the arrays alive, and grows them before a kernel needs the space.
"""

from __future__ import annotations

import numpy as np

#: States of a job. A fresh job of the default priority has no row: it is in `ranges`. A fresh job of a higher priority
#: has one. EXPIRED: the lease has ended, and its holder may still use it until another claim takes the job. FINISHING:
#: acked, not yet deleted from the log. DYING: delivered too often, not yet in the dead-letter topic.
NO_ROW = 0
FRESH = 1
RETURNED = 2
EXPIRED = 3
LEASED = 4
DELAYED = 5
FINISHING = 6
DYING = 7
STATES = 8

#: The highest priority; the default is 0.
PRIORITY_MAX = 9

#: In `due_ms` of a row: the timers hold no entry of it. Also a result: no lease or delay will end.
NO_TIMER = -1

#: The row of a job that is not in `ranges`. `time_ms`: when its lease or delay ends. `due_ms`: the key of its entry in
#: the timers. `is_queued`: 1 if the ready heap holds an entry of it. `size`: the plain bytes of its record, 0 if
#: unknown. A row whose seq is 0 is free.
JOB = np.dtype(
    [
        *((name, np.int64) for name in ("seq", "time_ms", "due_ms", "lease_id")),
        *((name, np.int32) for name in ("deliveries", "worker", "size")),
        *((name, np.uint8) for name in ("priority", "state", "is_queued", "zero")),
    ]
)
assert JOB.itemsize == 48

#: The arrays of a view: `LEASE_VIEW` has the fields `<name>_at` (address) and `<name>_count` (length) for each.
#:
#:     rows          hash table of jobs by seq: open addressing, linear probing, a power of two of slots, at most three
#:                   quarters used; a removal moves later rows back
#:     ready         heap of (rank, seq): the rows that may be claimed, the next one first
#:     timers        heap of (time, seq): when leases and delays end
#:     ranges        fresh jobs of the default priority, as rising rows (first seq, seq after the last)
#:     tallies       the number of jobs in each state; NO_ROW: of jobs in `ranges`
#:     popped        scratch space of the heaps
LEASE_ARRAYS = (
    "rows",
    *("ready_ranks", "ready_seqs", "ready_size"),
    *("timer_dues", "timer_seqs", "timer_size"),
    *("ranges", "tallies", "popped"),
)

#: `first_range`, `end_range`: the used rows of `ranges`. `scanned_seq`: jobs up to here were admitted. `restored_seq`:
#: the highest seq of a restored row. `oldest_seq`: no job is below it. `dead`: jobs that a claim found to be dying.
LEASE_VIEW = np.dtype(
    [
        *((name, np.int64) for name in ("first_range", "end_range", "next_lease_id")),
        *((name, np.int64) for name in ("scanned_seq", "restored_seq", "oldest_seq", "dead")),
        *((f"{name}_{what}", np.int64) for name in LEASE_ARRAYS for what in ("at", "count")),
    ]
)

#: What `change_jobs` does with each job. All but UNFINISH and REVIVE need a lease, UNCLAIM one that has not ended.
ACTION_FINISH = 0
ACTION_RETURN = 1
ACTION_DELAY = 2
ACTION_EXTEND = 3
ACTION_UNFINISH = 4
ACTION_REVIVE = 5
ACTION_UNCLAIM = 6

#: Instead of a worker: leases of any worker, whose ids must match.
ANY_WORKER = -1

#: A result: the ready heap is full; the caller grows it and calls again.
LACKS_SPACE = -2

#: Which heap `compact_heap` compacts.
HEAP_READY = 0
HEAP_TIMERS = 1
