"""A queue as a set of fresh seqs and a dict of rows, searched as a whole for every question.

The functions take a `Queue` where the kernels take `views`. It has no heaps, so nothing in it is invalid or full, and a
row has no slot: `find_jobs` writes 0 for a row that is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seawall.kernels.queues.fresh_ranges import Ranges
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
    LEASED,
    NO_TIMER,
    RETURNED,
)
from seawall.kernels.runtime.memory import Array, Bytes
from seawall.kernels.runtime.tables import ABSENT, Values
from twins.queues.fresh_ranges import add_fresh, remove_fresh
from twins.runtime.tables import home_slot

Seqs = npt.NDArray[np.int64]


@dataclass(slots=True)
class Row:
    """A job that is not in the ranges."""

    seq: int
    state: int
    priority: int = 0
    time_ms: int = 0
    lease_id: int = 0
    deliveries: int = 0
    worker: int = 0
    size: int = 0

    @property
    def is_ready(self) -> bool:
        return self.state in (FRESH, RETURNED, EXPIRED)

    @property
    def due(self) -> int:
        return {LEASED: self.time_ms + 1, DELAYED: self.time_ms}.get(self.state, NO_TIMER)

    @property
    def order(self) -> tuple[int, bool, int]:
        return -self.priority, self.state == FRESH, self.seq

    def end_lease(self, state: int, time_ms: int) -> None:
        self.state, self.time_ms, self.worker, self.lease_id = state, time_ms, 0, 0


@dataclass(slots=True)
class Queue:
    """The jobs of one queue."""

    next_lease_id: int
    fresh: set[int] = field(default_factory=set)
    rows: dict[int, Row] = field(default_factory=dict)
    scanned_seq: int = 0
    dead: int = 0

    def drop(self, first: int, end: int) -> None:
        for seq in [each for each in self.rows if first <= each < end]:
            del self.rows[seq]


def expire_due(views: Queue, now_ms: int) -> int:
    """Make jobs ready whose lease or delay has ended. Returns when the next one ends."""
    for row in views.rows.values():
        if NO_TIMER < row.due <= now_ms:
            if row.state == LEASED:
                row.state = EXPIRED
            else:
                row.end_lease(RETURNED, 0)
    return min((row.due for row in views.rows.values() if row.due != NO_TIMER), default=NO_TIMER)


def compact_heap(views: Queue, heap: int) -> None:
    """Remove the invalid entries of one heap: there are none."""


def move_rows(source: Array, target: Array) -> None:
    """Put each row into the first free slot from its home slot on."""
    for row in source[source["seq"] != 0]:
        home = home_slot(int(row["seq"]), target.size)
        slots = ((home + step) % target.size for step in range(target.size))
        target[next(slot for slot in slots if not target[slot]["seq"])] = row


def admit_jobs(
    views: Queue, first_seq: int, next_seq: int, live: Ranges, not_before_ms: Seqs, priorities: Seqs, now_ms: int
) -> None:
    """Add the live records above the scanned ones."""
    is_live = {seq for first, end in live.tolist() for seq in range(first, end)}
    for seq in range(views.scanned_seq + 1, next_seq):
        if seq < first_seq or seq not in is_live:
            views.rows.pop(seq, None)
        elif seq not in views.rows:
            index = seq - first_seq
            ready_at = int(not_before_ms[index]) if not_before_ms.size else 0
            priority = int(priorities[index]) if priorities.size else 0
            if ready_at > now_ms:
                views.rows[seq] = Row(seq, DELAYED, priority, ready_at)
            elif priority:
                views.rows[seq] = Row(seq, FRESH, priority)
            else:
                add_fresh(views, seq, seq + 1)
    views.scanned_seq = max(views.scanned_seq, next_seq - 1)


def _in_order(views: Queue) -> Iterator[int]:
    """The ready jobs in the order of claims."""
    yield from (
        row.seq for row in sorted((each for each in views.rows.values() if each.is_ready), key=lambda r: r.order)
    )
    yield from sorted(views.fresh)


def pick_jobs(views: Queue, count_max: int, now_ms: int, deliveries_max: int, seqs: Values, dead_seqs: Values) -> int:
    """Take the next jobs, or let them die."""
    expire_due(views, now_ms)
    views.dead = count = 0
    for seq in list(_in_order(views)):
        if count == count_max or (deliveries_max and views.dead == dead_seqs.size):
            break
        row = views.rows.setdefault(seq, Row(seq, LEASED))
        if deliveries_max and row.deliveries >= deliveries_max:
            row.end_lease(DYING, 0)
            dead_seqs[views.dead] = seq
            views.dead += 1
        else:
            row.state = LEASED
            remove_fresh(views, seq, seq + 1)
            seqs[count] = seq
            count += 1
    return count


def lease_jobs(views: Queue, seqs: Seqs, deadline_ms: int, worker: int, lease_ids: Values, deliveries: Values) -> None:
    """Give a lease to each picked job."""
    for each, seq in enumerate(seqs.tolist()):
        row = views.rows[seq]
        row.deliveries += 1
        row.worker, row.time_ms, row.lease_id = worker, deadline_ms, views.next_lease_id
        views.next_lease_id += 1
        lease_ids[each], deliveries[each] = row.lease_id, row.deliveries


def change_jobs(
    views: Queue, action: int, seqs: Seqs, lease_ids: Seqs, worker: int, time_ms: int, changed: Bytes
) -> int:
    """Apply an action to the jobs that it concerns."""
    for each, seq in enumerate(seqs.tolist()):
        row = views.rows.get(seq)
        lease_id = int(lease_ids[each]) if lease_ids.size else 0
        changed[each] = row is not None and _concerns(row, action, worker, lease_id)
        if row is None or not changed[each]:
            continue
        if action == ACTION_FINISH:
            row.state = FINISHING
        elif action == ACTION_UNFINISH:
            row.state = LEASED
        elif action == ACTION_EXTEND:
            row.state, row.time_ms = LEASED, time_ms
        elif action in (ACTION_DELAY, ACTION_REVIVE):
            row.end_lease(DELAYED, time_ms)
        elif action == ACTION_UNCLAIM:
            row.deliveries -= 1
            row.end_lease(RETURNED if row.deliveries > 0 else FRESH, 0)
        else:
            row.end_lease(RETURNED, 0)
    return int(changed[: seqs.size].sum())


def _concerns(row: Row, action: int, worker: int, lease_id: int) -> bool:
    if action == ACTION_UNFINISH:
        return row.state == FINISHING
    if action == ACTION_REVIVE:
        return row.state == DYING
    is_named = row.lease_id == lease_id
    has_lease = row.state == LEASED or (row.state == EXPIRED and action != ACTION_UNCLAIM)
    return has_lease and (is_named if worker == ANY_WORKER else row.worker == worker and (lease_id == 0 or is_named))


def remove_jobs(views: Queue, removed: Ranges) -> None:
    """Forget the jobs of some ranges."""
    for first, end in removed.tolist():
        views.drop(first, end)
        remove_fresh(views, first, end)


def peek_jobs(views: Queue, count_max: int, seqs: Values) -> int:
    """Write the seqs that would be picked next."""
    found = list(_in_order(views))[:count_max]
    seqs[: len(found)] = found
    return len(found)


def restore_jobs(views: Queue, restored: Array) -> None:
    """Add or replace rows."""
    for given in restored:
        row = Row(*(int(given[name]) for name in Row.__slots__))
        remove_fresh(views, row.seq, row.seq + 1)
        views.rows[row.seq] = row
        views.next_lease_id = max(views.next_lease_id, row.lease_id + 1)


def find_jobs(views: Queue, seqs: Seqs, slots: Values) -> None:
    """Write 0 for each job with a row, ABSENT for the others."""
    slots[:] = [0 if seq in views.rows else ABSENT for seq in seqs.tolist()]


def oldest_job(views: Queue) -> int:
    """The lowest seq of all jobs, or 0."""
    return min(views.fresh | views.rows.keys(), default=0)
