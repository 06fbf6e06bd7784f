"""The lease view: which jobs of one queue are ready, leased or delayed.

A job is a live record of a queue. The view learns of new records by `admit`, in the order of their seqs, and of
removed ones by `removed`. In between a job is

    fresh        never delivered                     ┐
    returned     given back, or its delay elapsed    ├ ready: a claim may take it
    expired      its lease has ended                 ┘ its holder may still use it until a claim takes it
    leased       a worker holds it until a deadline
    delayed      it becomes returned at a given time
    finishing    acked, not yet deleted from the log
    dying        delivered too often, not yet in the dead-letter topic

A claim takes jobs of a higher priority first, within a priority returned and expired ones before fresh ones, and then
by seq. A job has at most one lease at a time. Its deliveries are counted for as long as it exists.

Fresh jobs of the default priority are ranges of seqs, so a queue of a million fresh jobs is a few rows. All other jobs
have a row of 48 bytes in a table, and entries in two heaps (`kernels.queues.leases`). A call for k of n jobs takes
O(k log n) steps. Arrays double when they are full, and shrink when most of their content is gone.

Time is passed in, in milliseconds from 0. Each call that gets it first makes jobs ready whose lease or delay has
ended. If the clock then goes back, they stay ready.

This module must not know records, workers' names, clocks or disks. It is not safe for threads: its owner has a lock. A
crash loses it; `admit` builds it again from the log, and `restore` adds the leases that the owner stored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall.kernels.queues import lease_records as records
from seawall.kernels.queues import leases as kernels
from seawall.kernels.runtime.memory import set_addresses
from seawall.limits import JOBS_MAX
from seawall.storage.segments.delete_sidecar import DeletedSeqs, Ranges

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
JobRows = npt.NDArray[np.void]

#: States in rows of `snapshot` and `rows`. NO_ROW: no such job, or a fresh one.
NO_ROW: Final = records.NO_ROW
RETURNED: Final = records.RETURNED
LEASED: Final = records.LEASED
DELAYED: Final = records.DELAYED

#: The row of a job outside the view. `time_ms` is the deadline of a leased job, and the end of a delay.
LEASE_ROW: Final = np.dtype(
    [
        *((name, np.int64) for name in ("seq", "time_ms", "lease_id")),
        *((name, np.int32) for name in ("deliveries", "worker", "size")),
        *((name, np.uint8) for name in ("priority", "state")),
        ("zero", np.uint16),
    ]
)
assert LEASE_ROW.itemsize == 40

#: Smallest capacity of an array: a queue that is used little stays small.
_CAPACITY_MIN: Final = 64
_FIELDS: Final = ["seq", "time_ms", "lease_id", "deliveries", "worker", "size", "priority", "state"]
#: What a state is outside the view: the jobs of a commit that is not made yet are as they were before.
_STATES: Final = np.array(
    [NO_ROW, NO_ROW, RETURNED, LEASED, LEASED, DELAYED, LEASED, RETURNED],
    np.uint8,
)
_NONE: Final[Integers] = np.empty(0, np.int64)
_NONE.flags.writeable = False


class Claimed(NamedTuple):
    """Claimed jobs, by rising seq."""

    seqs: Integers
    lease_ids: Integers
    #: How often each was delivered, this time included.
    deliveries: Integers
    #: Jobs that were delivered too often and are now dying; at most JOBS_MAX, claim again for more.
    dead: Integers


class Counts(NamedTuple):
    """The jobs of a view by their state."""

    ready: int
    leased: int
    delayed: int


class _Heap:
    """The arrays of one heap."""

    __slots__ = ("keys", "number", "seqs", "size")

    def __init__(self, number: int) -> None:
        #: HEAP_READY or HEAP_TIMERS.
        self.number: Final = number
        self.keys: Integers = np.empty(_CAPACITY_MIN, np.int64)
        self.seqs: Integers = np.empty(_CAPACITY_MIN, np.int64)
        #: The number of entries, as an array of one element.
        self.size: Final[Integers] = np.zeros(1, np.int64)

    def resize(self, capacity: int) -> None:
        """Move the entries to arrays of another size."""
        size = int(self.size[0])
        for name in ("keys", "seqs"):
            array: Integers = np.empty(capacity, np.int64)
            array[:size] = getattr(self, name)[:size]
            setattr(self, name, array)


class LeaseView:
    """The jobs of one queue and their leases."""

    __slots__ = ("_popped", "_ranges", "_ready", "_rows", "_tallies", "_timers", "_views")

    def __init__(self, first_lease_id: int) -> None:
        """An empty view; lease ids count up from `first_lease_id`, which must not be 0."""
        self._views = np.zeros(1, records.LEASE_VIEW)
        self._views["next_lease_id"] = first_lease_id
        self._rows: JobRows = np.zeros(_CAPACITY_MIN, records.JOB)
        self._ready: Final = _Heap(records.HEAP_READY)
        self._timers: Final = _Heap(records.HEAP_TIMERS)
        self._ranges: Ranges = np.zeros((_CAPACITY_MIN, 2), np.int64)
        self._tallies: Final = np.zeros(records.STATES, np.int64)
        self._popped: Final = np.zeros(2, np.int64)
        self._set_addresses()

    # --- what the log says ----------------------------------------------------------------------------------------

    @property
    def scanned_seq(self) -> int:
        """Jobs up to this seq were admitted; 0 at first."""
        return int(self._views["scanned_seq"][0])

    def admit(
        self, first_seq: int, live: Ranges, not_before_ms: Integers, priorities: Integers, next_seq: int, now_ms: int
    ) -> None:
        """Add the records `first_seq` … `next_seq` − 1 whose seqs are in `live`, rows of first seq and the seq after.

        The options have an element for each of the records, live or not. Records up to `scanned_seq` are skipped.
        """
        added = int(np.count_nonzero((priorities != 0) | (not_before_ms > now_ms)))
        if added:
            self._reserve_rows(added)
            self._reserve(self._ready, added)
            self._reserve(self._timers, added)
        else:
            not_before_ms = priorities = _NONE
        restored = self._restored_from(first_seq)
        # Each job that needs a row may end a range, and so may each restored one.
        self._reserve_ranges(len(live) + min(added, next_seq - first_seq - added) + restored)
        kernels.admit_jobs(self._views, first_seq, next_seq, live, not_before_ms, priorities, now_ms)

    def removed(self, first_seq: int, last_seq: int) -> None:
        """Forget the jobs of a range of seqs: the log has deleted, evicted or lost them."""
        self.removed_ranges(np.array([[first_seq, last_seq + 1]], np.int64))

    def removed_ranges(self, removed: Ranges) -> None:
        """Forget the jobs of many ranges, rows of first seq and the seq after the last."""
        self._reserve_ranges(len(removed))
        kernels.remove_jobs(self._views, removed)

    # --- the commands of workers ----------------------------------------------------------------------------------

    def claim(self, count_max: int, now_ms: int, deadline_ms: int, worker: int, deliveries_max: int) -> Claimed:
        """Lease up to `count_max` jobs to a worker.

        Jobs that were already delivered `deliveries_max` times (0: no limit) become dying instead, until `removed` or
        `revive`.
        """
        tallies = self._tallies.tolist()
        jobs = sum(tallies)
        count_max = min(count_max, jobs)
        self._reserve_rows(min(count_max, tallies[NO_ROW]))
        self._reserve(self._timers, count_max)
        self._reserve(self._ready, 0)
        seqs, lease_ids, deliveries = np.empty((3, count_max), np.int64)
        dead = np.empty(min(jobs, JOBS_MAX), np.int64) if deliveries_max else _NONE.copy()
        while True:
            count = kernels.pick_jobs(self._views, count_max, now_ms, deliveries_max, seqs, dead)
            if count != records.LACKS_SPACE:
                break
            self._grow_ready()
        seqs, lease_ids, deliveries = seqs[:count], lease_ids[:count], deliveries[:count]
        seqs.sort()
        kernels.lease_jobs(self._views, seqs, deadline_ms, worker, lease_ids, deliveries)
        dead = dead[: int(self._views["dead"][0])]
        dead.sort()
        return Claimed(seqs, lease_ids, deliveries, dead)

    def ack(self, seqs: Integers, lease_ids: Integers | None, worker: int, now_ms: int) -> Mask:
        """Mark jobs as finishing; true for those that are leased to the worker.

        With `lease_ids` the ids must match, too; 0 matches any. The caller deletes the jobs and calls `removed`, or
        `unfinish` if it could not.
        """
        self._expire(now_ms)
        return self._change(records.ACTION_FINISH, seqs, lease_ids, worker)

    def unfinish(self, seqs: Integers) -> None:
        """Lease finishing jobs again, with their old deadline."""
        self._reserve(self._timers, len(seqs))
        self._change(records.ACTION_UNFINISH, seqs)

    def nack(self, seqs: Integers, lease_ids: Integers | None, worker: int, ready_at_ms: int, now_ms: int) -> Mask:
        """Return jobs, at once or at a later time; true for those that are leased to the worker, as for `ack`."""
        self._expire(now_ms)
        if ready_at_ms <= now_ms:
            self._reserve(self._ready, len(seqs))
            return self._change(records.ACTION_RETURN, seqs, lease_ids, worker)
        self._reserve(self._timers, len(seqs))
        return self._change(records.ACTION_DELAY, seqs, lease_ids, worker, ready_at_ms)

    def extend(self, seqs: Integers, lease_ids: Integers | None, worker: int, deadline_ms: int) -> Mask:
        """Give leases a new deadline; true for jobs that are leased to the worker, as for `ack`."""
        self._reserve(self._timers, len(seqs))
        return self._change(records.ACTION_EXTEND, seqs, lease_ids, worker, deadline_ms)

    def release(self, seqs: Integers, lease_ids: Integers) -> Mask:
        """Return the jobs of a worker that disappeared; true for those whose lease is still this one."""
        self._reserve(self._ready, len(seqs))
        return self._change(records.ACTION_RETURN, seqs, lease_ids)

    def unclaim(self, seqs: Integers, lease_ids: Integers) -> Mask:
        """Undo the claim of jobs that nobody has received: the delivery does not count. True for live leases."""
        self._reserve(self._ready, len(seqs))
        return self._change(records.ACTION_UNCLAIM, seqs, lease_ids)

    def revive(self, seqs: Integers, ready_at_ms: int) -> None:
        """Delay dying jobs, because they could not be moved to the dead-letter topic: the next claim tries again."""
        self._reserve(self._timers, len(seqs))
        self._change(records.ACTION_REVIVE, seqs, time_ms=ready_at_ms)

    # --- sizes and stored leases ----------------------------------------------------------------------------------

    def has_rows(self, seqs: Integers) -> bool:
        """True if none of these jobs was removed; none may be a fresh one."""
        return bool((self._slots(seqs) >= 0).all())

    def sizes(self, seqs: Integers) -> Integers:
        """The plain bytes of jobs as `set_sizes` gave them; 0 if unknown."""
        slots = self._slots(seqs)
        return np.where(slots < 0, 0, self._rows["size"][slots]).astype(np.int64)

    def set_sizes(self, seqs: Integers, sizes: Integers) -> None:
        """Remember the plain bytes of jobs that are not fresh."""
        slots = self._slots(seqs)
        found = slots >= 0
        self._rows["size"][slots[found]] = sizes[found]

    def rows(self, seqs: Integers) -> JobRows:
        """One LEASE_ROW for each seq; its state is NO_ROW for a fresh job, and for none."""
        slots = self._slots(seqs)
        found = _outside(self._rows[slots])
        absent = (slots < 0) | (found["state"] == NO_ROW)
        found[absent] = np.zeros(1, LEASE_ROW)
        found["seq"] = seqs
        return found

    def snapshot(self) -> JobRows:
        """A LEASE_ROW for each job that is not fresh. What no commit has confirmed yet is as it was before."""
        found = _outside(self._rows[self._rows["seq"] != 0])
        rows: JobRows = found[found["state"] != NO_ROW]
        return rows

    def restore(self, rows: JobRows) -> None:
        """Set the rows of live jobs, which may not be admitted yet; `admit` then keeps those that are live."""
        restored = np.zeros(len(rows), records.JOB)
        for name in _FIELDS:
            restored[name] = rows[name]
        self._reserve_rows(len(rows))
        self._reserve(self._ready, len(rows))
        self._reserve(self._timers, len(rows))
        self._reserve_ranges(len(rows))
        kernels.restore_jobs(self._views, restored)

    # --- queries --------------------------------------------------------------------------------------------------

    def counts(self, now_ms: int) -> Counts:
        """The jobs that are ready, leased and delayed at this time; finishing ones are done.

        Dying ones are held by whoever moves them, until they are dead letters: they count as leased.
        """
        self._expire(now_ms)
        unseen, fresh, returned, expired, leased, delayed, _, dying = self._tallies.tolist()
        return Counts(unseen + fresh + returned + expired, leased + dying, delayed)

    def next_time_ms(self, now_ms: int) -> int:
        """The next moment at which a lease has ended or a delay has elapsed; -1 if there is none."""
        return self._expire(now_ms)

    def peek(self, count_max: int, now_ms: int) -> Integers:
        """The jobs that a claim without limit of deliveries would take now, by rising seq."""
        self._expire(now_ms)
        seqs = np.empty(min(count_max, int(self._tallies.sum())), np.int64)
        seqs = seqs[: kernels.peek_jobs(self._views, len(seqs), seqs)]
        seqs.sort()
        return seqs

    def unclaimed(self, now_ms: int) -> Ranges:
        """All jobs that are ready or delayed, as rising ranges, rows of first seq and the seq after the last."""
        self._expire(now_ms)
        states = self._rows["state"]
        is_free = (states != LEASED) & (states != records.FINISHING) & (states != records.DYING)
        seqs = self._rows["seq"][is_free & (self._rows["seq"] != 0)]
        ranges = self._used_ranges()
        return DeletedSeqs(np.concatenate((ranges, np.stack((seqs, seqs + 1), axis=1)))).ranges

    def oldest_seq(self) -> int:
        """The lowest seq of all jobs; 0 if there is none."""
        return int(kernels.oldest_job(self._views))

    @property
    def memory_size(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays()) + self._views.nbytes

    # --- helpers --------------------------------------------------------------------------------------------------

    def _change(
        self,
        action: int,
        seqs: Integers,
        lease_ids: Integers | None = None,
        worker: int = records.ANY_WORKER,
        time_ms: int = 0,
    ) -> Mask:
        changed = np.empty(len(seqs), np.uint8)
        ids = _NONE if lease_ids is None else lease_ids
        kernels.change_jobs(self._views, action, seqs, ids, worker, time_ms, changed)
        return changed.view(np.bool_)

    def _expire(self, now_ms: int) -> int:
        """Make jobs ready whose lease or delay has ended; returns when the next one ends, or -1."""
        while (due := kernels.expire_due(self._views, now_ms)) == records.LACKS_SPACE:
            self._grow_ready()
        return int(due)

    def _slots(self, seqs: Integers) -> Integers:
        slots = np.empty(len(seqs), np.int64)
        kernels.find_jobs(self._views, seqs, slots)
        return slots

    def _used_ranges(self) -> Ranges:
        view = self._views[0]
        used = self._ranges[view["first_range"] : view["end_range"]]
        filled: Ranges = used[used[:, 0] < used[:, 1]]
        return filled

    def _restored_from(self, seq: int) -> int:
        """A bound for the restored rows that `admit` may meet from a seq on."""
        return int(self._tallies[1:].sum()) if int(self._views["restored_seq"][0]) >= seq else 0

    def _arrays(self) -> tuple[npt.NDArray[np.int64] | JobRows, ...]:
        ready, timers = self._ready, self._timers
        return (
            *(self._rows, ready.keys, ready.seqs, ready.size, timers.keys, timers.seqs, timers.size),
            *(self._ranges, self._tallies, self._popped),
        )

    def _set_addresses(self) -> None:
        set_addresses(self._views, records.LEASE_ARRAYS, self._arrays())

    def _reserve_rows(self, count: int) -> None:
        """Make space for more rows; shrink a table that is nearly empty."""
        used = sum(self._tallies.tolist()[1:]) + count
        slots = len(self._rows)
        if used * 4 > slots * 3 or (slots > _CAPACITY_MIN and used * 16 < slots):
            rows = np.zeros(_capacity(used * 2), records.JOB)
            kernels.move_rows(self._rows, rows)
            self._rows = rows
            self._set_addresses()

    def _reserve(self, heap: _Heap, count: int) -> None:
        """Make space for more entries of a heap, first by removing those that are not valid any more."""
        tallies = self._tallies.tolist()
        live = sum(tallies[records.LEASED : records.DELAYED + 1])
        if heap is self._ready:
            live = sum(tallies[records.FRESH : records.EXPIRED + 1])
        if int(heap.size[0]) > 2 * live + _CAPACITY_MIN:
            kernels.compact_heap(self._views, heap.number)
        used = int(heap.size[0]) + count
        capacity = len(heap.keys)
        if used > capacity or (capacity > _CAPACITY_MIN and used * 16 < capacity):
            heap.resize(_capacity(used * 2))
            self._set_addresses()

    def _grow_ready(self) -> None:
        """Make space in the ready heap, which is full, for half of the timers' entries or more."""
        self._reserve(self._ready, max(_CAPACITY_MIN, int(self._timers.size[0]) // 2))

    def _reserve_ranges(self, count: int) -> None:
        """Make space for more ranges behind the used ones; shrink an array that is nearly empty."""
        first, end = (int(self._views[name][0]) for name in ("first_range", "end_range"))
        capacity = len(self._ranges)
        if end + count > capacity or (capacity > _CAPACITY_MIN and (end - first + count) * 16 < capacity):
            used = self._used_ranges()
            self._ranges = np.zeros((_capacity((len(used) + count) * 2), 2), np.int64)
            # The space before them lets a split move the shorter side.
            start = (len(self._ranges) - len(used) - count) // 2
            self._ranges[start : start + len(used)] = used
            self._views["first_range"], self._views["end_range"] = start, start + len(used)
            self._set_addresses()


def _capacity(count: int) -> int:
    """The power of two from `count` on, at least the smallest capacity."""
    return max(_CAPACITY_MIN, 1 << (count - 1).bit_length()) if count > 0 else _CAPACITY_MIN


def _outside(rows: JobRows) -> JobRows:
    """Rows of the table as LEASE_ROW."""
    found = np.zeros(len(rows), LEASE_ROW)
    for name in _FIELDS:
        found[name] = rows[name]
    found["state"] = _STATES[rows["state"]]
    return found
