"""Admits jobs to a queue, claims them, and changes their leases: the operations of a lease view.

A job is fresh (never delivered), returned, leased, delayed, or on its way out (finishing, dying). Fresh jobs of the
default priority are ranges (`fresh_ranges`). Every other job is a row of a hash table, and has entries in two heaps:

    ready    (rank, seq)   rows that may be claimed. Higher priorities have lower ranks; within a priority, returned
                           jobs come before fresh ones. All rows come before the ranges, whose rank is the highest.
    timers   (time, seq)   the moment at which a lease or a delay has ended: one after the deadline of a lease

Entries are deleted lazily: a row says which entries of it are valid, and a heap drops an invalid one when it reaches
the top. A row has at most one valid entry in each heap. A lease that is extended keeps its earlier entry; at that time
the entry is replaced. So a call for k jobs costs O(k log n), and repeated extensions add no entries.

An ended lease makes its job EXPIRED: ready, and still in its holder's hands until a claim takes it. Such a step is
never undone, also if the clock goes back.

The caller grows the arrays before a call: rows for each job that may get one, and an entry in both heaps for each job
of the call. Only `expire_due` adds an unknown number of entries; it stops at a full heap.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import carray
from numba.core import types

from seawall.kernels.queues.fresh_ranges import Ranges, add_fresh, first_fresh, remove_fresh
from seawall.kernels.queues.lease_records import (
    ACTION_DELAY,
    ACTION_EXTEND,
    ACTION_FINISH,
    ACTION_REVIVE,
    ACTION_UNCLAIM,
    ACTION_UNFINISH,
    ANY_WORKER,
    DELAYED,
    DYING,
    EXPIRED,
    FINISHING,
    FRESH,
    HEAP_READY,
    JOB,
    LACKS_SPACE,
    LEASE_VIEW,
    LEASED,
    NO_ROW,
    NO_TIMER,
    PRIORITY_MAX,
    RETURNED,
)
from seawall.kernels.runtime.jit import bytes_out, int64, int64_in, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import Array, Bytes, as_int64, pointer_at
from seawall.kernels.runtime.tables import ABSENT, Values, heap_pop, heap_push, home_slot

_views = record_array(LEASE_VIEW)
_view = _views.dtype
_rows = record_array(JOB)
_job = _rows.dtype
_ranges_in = types.Array(types.int64, 2, "C", readonly=True)

Seqs = npt.NDArray[np.int64]


# --- rows ---------------------------------------------------------------------------------------------------------


@kernel(int64(_rows, int64), counted=False)
def _find(rows: Array, seq: int) -> int:
    """The slot of a job, or ABSENT."""
    slots = rows.size
    slot = home_slot(np.uint64(seq), slots)
    while True:
        found = as_int64(rows[slot]["seq"])
        if found == 0:
            return ABSENT
        if found == seq:
            return slot
        slot = (slot + 1) & (slots - 1)


@kernel(int64(_view, int64, int64, int64))
def _add(view: np.void, seq: int, state: int, priority: int) -> int:
    """Add the row of a job that has none, and return its slot."""
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    tallies = carray(pointer_at(view["tallies_at"]), view["tallies_count"], np.int64)
    slot = home_slot(np.uint64(seq), rows.size)
    while rows[slot]["seq"] != 0:
        slot = (slot + 1) & (rows.size - 1)
    row = rows[slot]
    row["seq"] = seq
    row["time_ms"] = 0
    row["due_ms"] = NO_TIMER
    row["lease_id"] = 0
    row["deliveries"] = 0
    row["worker"] = 0
    row["size"] = 0
    row["priority"] = priority
    row["state"] = state
    row["is_queued"] = 0
    tallies[state] += 1
    return slot


@kernel(void(_view, int64))
def _drop(view: np.void, slot: int) -> None:
    """Remove a row; later rows of its run move back."""
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    tallies = carray(pointer_at(view["tallies_at"]), view["tallies_count"], np.int64)
    mask = rows.size - 1
    tallies[as_int64(rows[slot]["state"])] -= 1
    hole = slot
    while True:
        slot = (slot + 1) & mask
        if rows[slot]["seq"] == 0:
            break
        home = home_slot(np.uint64(rows[slot]["seq"]), rows.size)
        # The row may move back into the hole only if its home slot is not after the hole.
        if ((slot - home) & mask) >= ((slot - hole) & mask):
            rows[hole] = rows[slot]
            hole = slot
    rows[hole]["seq"] = 0


@kernel(void(_view, int64, int64))
def _drop_between(view: np.void, first: int, end: int) -> None:
    """Remove the rows of `first` … `end`: one by one, or by a sweep if there are more seqs than slots."""
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    if end - first <= rows.size:
        for seq in range(max(first, 1), end):
            slot = _find(rows, seq)
            if slot != ABSENT:
                _drop(view, slot)
        return
    slot = 0
    while slot < rows.size:
        # A removal may move another row into this slot.
        if rows[slot]["seq"] != 0 and first <= rows[slot]["seq"] < end:
            _drop(view, slot)
        else:
            slot += 1


@kernel(void(_view, _job, int64))
def _enter(view: np.void, row: np.void, state: int) -> None:
    """Change the state of a row."""
    tallies = carray(pointer_at(view["tallies_at"]), view["tallies_count"], np.int64)
    tallies[as_int64(row["state"])] -= 1
    row["state"] = state
    tallies[state] += 1


@kernel(void(_view, _job, int64, int64))
def _end_lease(view: np.void, row: np.void, state: int, time_ms: int) -> None:
    """Take a job from its worker, and change its state."""
    row["worker"] = 0
    row["lease_id"] = 0
    row["time_ms"] = time_ms
    _enter(view, row, state)


# --- heaps --------------------------------------------------------------------------------------------------------


@kernel(int64(_job))
def _rank(row: np.void) -> int:
    """The key of a row in the ready heap."""
    return 2 * (PRIORITY_MAX - as_int64(row["priority"])) + (1 if row["state"] == FRESH else 0)


@kernel(int64(_job))
def _is_ready(row: np.void) -> int:
    return 1 if FRESH <= as_int64(row["state"]) <= EXPIRED else 0


@kernel(int64(_job))
def _due(row: np.void) -> int:
    """The moment at which the lease or delay of a row has ended, or NO_TIMER."""
    if row["state"] == LEASED:
        return as_int64(row["time_ms"]) + 1
    return as_int64(row["time_ms"]) if row["state"] == DELAYED else NO_TIMER


@kernel(void(_view, _job))
def _queue(view: np.void, row: np.void) -> None:
    """Add a row that is ready to the ready heap, unless it has an entry."""
    ranks = carray(pointer_at(view["ready_ranks_at"]), view["ready_ranks_count"], np.int64)
    seqs = carray(pointer_at(view["ready_seqs_at"]), view["ready_seqs_count"], np.int64)
    size = carray(pointer_at(view["ready_size_at"]), view["ready_size_count"], np.int64)
    if row["is_queued"] == 0:
        heap_push(ranks, seqs, size, _rank(row), as_int64(row["seq"]))
        row["is_queued"] = 1


@kernel(void(_view, _job))
def _start_timer(view: np.void, row: np.void) -> None:
    """Add a leased or delayed row to the timers, unless it has an entry that is not too late."""
    dues = carray(pointer_at(view["timer_dues_at"]), view["timer_dues_count"], np.int64)
    seqs = carray(pointer_at(view["timer_seqs_at"]), view["timer_seqs_count"], np.int64)
    size = carray(pointer_at(view["timer_size_at"]), view["timer_size_count"], np.int64)
    due = _due(row)
    if row["due_ms"] == NO_TIMER or due < row["due_ms"]:
        heap_push(dues, seqs, size, due, as_int64(row["seq"]))
        row["due_ms"] = due


@kernel(int64(_view))
def _pop_ready(view: np.void) -> int:
    """The slot of the next ready row, without its entry in the ready heap; ABSENT if there is none."""
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    ranks = carray(pointer_at(view["ready_ranks_at"]), view["ready_ranks_count"], np.int64)
    seqs = carray(pointer_at(view["ready_seqs_at"]), view["ready_seqs_count"], np.int64)
    size = carray(pointer_at(view["ready_size_at"]), view["ready_size_count"], np.int64)
    popped = carray(pointer_at(view["popped_at"]), view["popped_count"], np.int64)
    while size[0] > 0:
        heap_pop(ranks, seqs, size, popped)
        slot = _find(rows, popped[1])
        if slot == ABSENT:
            continue
        row = rows[slot]
        if _is_ready(row) == 0:
            row["is_queued"] = 0
        elif row["is_queued"] != 0 and _rank(row) == popped[0]:
            row["is_queued"] = 0
            return slot
    return ABSENT


@kernel(int64(_views, int64), brief=True)
def expire_due(views: Array, now_ms: int) -> int:
    """Make jobs ready whose lease or delay has ended. Returns when the next one ends, or NO_TIMER.

    Returns LACKS_SPACE if the ready heap is full before.
    """
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    dues = carray(pointer_at(view["timer_dues_at"]), view["timer_dues_count"], np.int64)
    seqs = carray(pointer_at(view["timer_seqs_at"]), view["timer_seqs_count"], np.int64)
    size = carray(pointer_at(view["timer_size_at"]), view["timer_size_count"], np.int64)
    ready_size = carray(pointer_at(view["ready_size_at"]), view["ready_size_count"], np.int64)
    popped = carray(pointer_at(view["popped_at"]), view["popped_count"], np.int64)
    while size[0] > 0:
        slot = _find(rows, seqs[0])
        if slot == ABSENT or rows[slot]["due_ms"] != dues[0]:
            heap_pop(dues, seqs, size, popped)
            continue
        row = rows[slot]
        due = _due(row)
        if due == dues[0] and due > now_ms:
            return due
        if ready_size[0] == view["ready_ranks_count"]:
            return LACKS_SPACE
        heap_pop(dues, seqs, size, popped)
        row["due_ms"] = NO_TIMER
        if due == NO_TIMER:
            continue
        if due > now_ms:
            _start_timer(view, row)
        else:
            if row["state"] == LEASED:
                _enter(view, row, EXPIRED)
            else:
                _end_lease(view, row, RETURNED, 0)
            _queue(view, row)
    return NO_TIMER


@kernel(void(_views, int64))
def compact_heap(views: Array, heap: int) -> None:
    """Remove the invalid entries of one heap (HEAP_READY, HEAP_TIMERS)."""
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    if heap == HEAP_READY:
        keys = carray(pointer_at(view["ready_ranks_at"]), view["ready_ranks_count"], np.int64)
        seqs = carray(pointer_at(view["ready_seqs_at"]), view["ready_seqs_count"], np.int64)
        size = carray(pointer_at(view["ready_size_at"]), view["ready_size_count"], np.int64)
    else:
        keys = carray(pointer_at(view["timer_dues_at"]), view["timer_dues_count"], np.int64)
        seqs = carray(pointer_at(view["timer_seqs_at"]), view["timer_seqs_count"], np.int64)
        size = carray(pointer_at(view["timer_size_at"]), view["timer_size_count"], np.int64)
    before = as_int64(size[0])
    size[0] = 0
    # The entries that stay are pushed in place: the heap never reaches the entry that is read next.
    for each in range(before):
        key, seq = as_int64(keys[each]), as_int64(seqs[each])
        slot = _find(rows, seq)
        if slot == ABSENT:
            continue
        row = rows[slot]
        if heap == HEAP_READY:
            if _is_ready(row) == 0:
                row["is_queued"] = 0
            elif row["is_queued"] != 0 and _rank(row) == key:
                heap_push(keys, seqs, size, key, seq)
        elif row["due_ms"] == key:
            if _due(row) == NO_TIMER:
                row["due_ms"] = NO_TIMER
            else:
                heap_push(keys, seqs, size, key, seq)


# --- operations ---------------------------------------------------------------------------------------------------


@kernel(void(_rows, _rows))
def move_rows(source: Array, target: Array) -> None:
    """Move all rows to a table of another size, which is empty."""
    for each in range(source.size):
        if source[each]["seq"] != 0:
            slot = home_slot(np.uint64(source[each]["seq"]), target.size)
            while target[slot]["seq"] != 0:
                slot = (slot + 1) & (target.size - 1)
            target[slot] = source[each]


@kernel(void(_views, int64, int64, _ranges_in, int64_in, int64_in, int64), brief=True)
def admit_jobs(
    views: Array, first_seq: int, next_seq: int, live: Ranges, not_before_ms: Seqs, priorities: Seqs, now_ms: int
) -> None:
    """Add the live records of `first_seq` … `next_seq`, unless they were admitted before.

    The options are those of all records from `first_seq` on; an empty array means the default for all. A restored row
    stays as it is if its record is live, and is removed if not.
    """
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    known = as_int64(view["scanned_seq"]) + 1
    for each in range(live.shape[0]):
        low = max(live[each, 0], first_seq, known)
        end = min(live[each, 1], next_seq)
        if low >= end:
            continue
        if view["restored_seq"] >= known:
            _drop_between(view, known, low)
        known = end
        # A restored job may be above this one.
        if view["oldest_seq"] == 0 or low < view["oldest_seq"]:
            view["oldest_seq"] = low
        if not_before_ms.size == 0 and priorities.size == 0 and view["restored_seq"] < low:
            add_fresh(view, low, end)
            continue
        start = low
        for seq in range(low, end):
            priority = priorities[seq - first_seq] if priorities.size > 0 else 0
            ready_at = not_before_ms[seq - first_seq] if not_before_ms.size > 0 else 0
            is_restored = seq <= view["restored_seq"] and _find(rows, seq) != ABSENT
            if priority == 0 and ready_at <= now_ms and not is_restored:
                continue
            if start < seq:
                add_fresh(view, start, seq)
            start = seq + 1
            if is_restored:
                continue
            slot = _add(view, seq, FRESH, priority)
            if ready_at > now_ms:
                _enter(view, rows[slot], DELAYED)
                rows[slot]["time_ms"] = ready_at
                _start_timer(view, rows[slot])
            else:
                _queue(view, rows[slot])
        if start < end:
            add_fresh(view, start, end)
    if next_seq > known and view["restored_seq"] >= known:
        _drop_between(view, known, next_seq)
    view["scanned_seq"] = max(as_int64(view["scanned_seq"]), next_seq - 1)


@kernel(int64(_views, int64, int64, int64, int64_out, int64_out), brief=True)
def pick_jobs(views: Array, count_max: int, now_ms: int, deliveries_max: int, seqs: Values, dead_seqs: Values) -> int:
    """Take the next jobs, without a lease yet, after those that are due became ready. Returns how many, or LACKS_SPACE.

    A job that was delivered `deliveries_max` times (0: no limit) goes to `dead_seqs` instead; `dead` counts them. A
    pick ends when `dead_seqs` is full.
    """
    view = views[0]
    view["dead"] = 0
    if expire_due(views, now_ms) == LACKS_SPACE:
        return LACKS_SPACE
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    ranges = carray(pointer_at(view["ranges_at"]), (view["ranges_count"], 2), np.int64)
    count = 0
    while count < count_max:
        if deliveries_max > 0 and view["dead"] == dead_seqs.size:
            return count
        slot = _pop_ready(view)
        if slot == ABSENT:
            break
        row = rows[slot]
        if deliveries_max > 0 and row["deliveries"] >= deliveries_max:
            _end_lease(view, row, DYING, 0)
            dead_seqs[view["dead"]] = row["seq"]
            view["dead"] += 1
        else:
            _enter(view, row, LEASED)
            seqs[count] = row["seq"]
            count += 1
    while count < count_max:
        first = first_fresh(view)
        if first == 0:
            break
        end = min(ranges[view["first_range"], 1], first + count_max - count)
        remove_fresh(view, first, end)
        for seq in range(first, end):
            _add(view, seq, LEASED, 0)
            seqs[count] = seq
            count += 1
    return count


@kernel(void(_views, int64_in, int64, int64, int64_out, int64_out), brief=True)
def lease_jobs(views: Array, seqs: Seqs, deadline_ms: int, worker: int, lease_ids: Values, deliveries: Values) -> None:
    """Give a lease to each picked job."""
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    for each in range(seqs.size):
        row = rows[_find(rows, seqs[each])]
        row["deliveries"] += 1
        row["worker"] = worker
        row["time_ms"] = deadline_ms
        row["lease_id"] = view["next_lease_id"]
        view["next_lease_id"] += 1
        _start_timer(view, row)
        lease_ids[each] = row["lease_id"]
        deliveries[each] = row["deliveries"]


@kernel(int64(_job, int64, int64, int64, int64))
def _may_change(row: np.void, action: int, worker: int, lease_id: int, has_ids: int) -> int:
    """1 if an action applies to a row."""
    state = as_int64(row["state"])
    if action == ACTION_UNFINISH:
        return 1 if state == FINISHING else 0
    if action == ACTION_REVIVE:
        return 1 if state == DYING else 0
    if state != LEASED and (state != EXPIRED or action == ACTION_UNCLAIM):
        return 0
    if worker == ANY_WORKER:
        return 1 if row["lease_id"] == lease_id else 0
    return 1 if row["worker"] == worker and (has_ids == 0 or lease_id == 0 or row["lease_id"] == lease_id) else 0


@kernel(int64(_views, int64, int64_in, int64_in, int64, int64, bytes_out), brief=True)
def change_jobs(
    views: Array, action: int, seqs: Seqs, lease_ids: Seqs, worker: int, time_ms: int, changed: Bytes
) -> int:
    """Apply an ACTION to each job that is leased to `worker`, or that the action concerns; returns how many were.

    `lease_ids` is empty, or has the id of each lease; 0 accepts any. `time_ms` is the new end of a lease or delay.
    UNCLAIM takes back a delivery that did not take place.
    """
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    count = 0
    has_ids = 1 if lease_ids.size > 0 else 0
    for each in range(seqs.size):
        changed[each] = 0
        slot = _find(rows, seqs[each]) if seqs[each] > 0 else ABSENT
        if slot == ABSENT:
            continue
        row = rows[slot]
        if _may_change(row, action, worker, lease_ids[each] if has_ids != 0 else 0, has_ids) == 0:
            continue
        changed[each] = 1
        count += 1
        if action == ACTION_FINISH:
            _enter(view, row, FINISHING)
        elif action == ACTION_EXTEND or action == ACTION_UNFINISH:
            if action == ACTION_EXTEND:
                row["time_ms"] = time_ms
            _enter(view, row, LEASED)
            _start_timer(view, row)
        elif action in (ACTION_DELAY, ACTION_REVIVE):
            _end_lease(view, row, DELAYED, time_ms)
            _start_timer(view, row)
        elif action == ACTION_UNCLAIM:
            row["deliveries"] -= 1
            _end_lease(view, row, RETURNED if row["deliveries"] > 0 else FRESH, 0)
            # An entry from before an extension may have another rank.
            row["is_queued"] = 0
            _queue(view, row)
        else:
            _end_lease(view, row, RETURNED, 0)
            _queue(view, row)
    return count


@kernel(void(_views, _ranges_in), brief=True)
def remove_jobs(views: Array, removed: Ranges) -> None:
    """Forget the jobs of some ranges, rows of (first seq, seq after the last)."""
    view = views[0]
    tallies = carray(pointer_at(view["tallies_at"]), view["tallies_count"], np.int64)
    for each in range(removed.shape[0]):
        has_rows = False
        for state in range(NO_ROW + 1, tallies.size):
            has_rows = has_rows or tallies[state] > 0
        if has_rows:
            _drop_between(view, removed[each, 0], removed[each, 1])
        remove_fresh(view, removed[each, 0], removed[each, 1])


@kernel(int64(_views, int64, int64_out), brief=True)
def peek_jobs(views: Array, count_max: int, seqs: Values) -> int:
    """Write the seqs that would be picked next; returns how many."""
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    ranges = carray(pointer_at(view["ranges_at"]), (view["ranges_count"], 2), np.int64)
    count = 0
    while count < count_max:
        slot = _pop_ready(view)
        if slot == ABSENT:
            break
        seqs[count] = rows[slot]["seq"]
        count += 1
    for each in range(count):
        _queue(view, rows[_find(rows, seqs[each])])
    row = as_int64(view["first_range"])
    while count < count_max and row < view["end_range"]:
        for seq in range(ranges[row, 0], min(ranges[row, 1], ranges[row, 0] + count_max - count)):
            seqs[count] = seq
            count += 1
        row += 1
    return count


@kernel(void(_views, _rows))
def restore_jobs(views: Array, restored: Array) -> None:
    """Add or replace the rows of jobs that are returned, leased or delayed."""
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    for each in range(restored.size):
        given = restored[each]
        seq = as_int64(given["seq"])
        remove_fresh(view, seq, seq + 1)
        slot = _find(rows, seq)
        if slot != ABSENT:
            _drop(view, slot)
        row = rows[_add(view, seq, as_int64(given["state"]), as_int64(given["priority"]))]
        row["time_ms"] = given["time_ms"]
        row["lease_id"] = given["lease_id"]
        row["deliveries"] = given["deliveries"]
        row["worker"] = given["worker"]
        row["size"] = given["size"]
        if row["state"] == RETURNED:
            _queue(view, row)
        else:
            _start_timer(view, row)
        view["next_lease_id"] = max(view["next_lease_id"], as_int64(given["lease_id"]) + 1)
        view["restored_seq"] = max(view["restored_seq"], seq)
        if view["oldest_seq"] == 0 or seq < view["oldest_seq"]:
            view["oldest_seq"] = seq


@kernel(void(_views, int64_in, int64_out), brief=True)
def find_jobs(views: Array, seqs: Seqs, slots: Values) -> None:
    """Write the slot of each job; ABSENT for one without a row."""
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    for each in range(seqs.size):
        slots[each] = _find(rows, seqs[each]) if seqs[each] > 0 else ABSENT


@kernel(int64(_views), brief=True)
def oldest_job(views: Array) -> int:
    """The lowest seq of all jobs, or 0. Jobs are only added above, so each search starts where the last one ended."""
    view = views[0]
    rows = carray(pointer_at(view["rows_at"]), view["rows_count"], JOB)
    fresh = first_fresh(view)
    oldest = as_int64(view["oldest_seq"])
    limit = fresh if fresh > 0 else as_int64(max(view["scanned_seq"], view["restored_seq"])) + 1
    steps = 0
    while oldest < limit and steps < rows.size:
        if _find(rows, oldest) != ABSENT:
            limit = oldest
        else:
            oldest += 1
            steps += 1
    if oldest < limit:
        # Few jobs are far apart: the rows are fewer than the seqs between them.
        oldest = limit
        for slot in range(rows.size):
            if rows[slot]["seq"] != 0:
                oldest = min(oldest, as_int64(rows[slot]["seq"]))
    view["oldest_seq"] = oldest
    return oldest if oldest == fresh or _find(rows, oldest) != ABSENT else 0
