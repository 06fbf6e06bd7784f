"""Staged batches on their way to the places they will have: verified, and written there, not durably yet.

Where they are many, a thread verifies the next ones while those before them are written, in their order and one after
the other: two writers of one file get in each other's way, and so do their pages on the way to the disk. Staged batches
are mapped where that can be (`run_pieces`), and so are copied once.

What is written to a place was verified right before; a batch that is missing or damaged ends the transaction, and
nothing that was written counts.

A crash leaves bytes behind the end of a segment that nobody looks at. This module must not know numbers, nor the log.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, Self

import numpy as np

from seawall import limits
from seawall.core.types import TopicId
from seawall.engine.read.planning import Planned
from seawall.engine.read.run_pieces import brought
from seawall.engine.transactions.plan import TransactionPlan
from seawall.errors import NotFoundError
from seawall.io.disk.files import write_all
from seawall.io.interfaces import File
from seawall.kernels.runtime.memory import Bytes
from seawall.storage.segments.batch_index import Entries

_HEADER: Final = limits.BATCH_HEADER_SIZE

#: The least size of batches, on average, of which one write each may pass the memory of the system by.
_UNCACHED_SIZE: Final = 256 * limits.KIB

#: From so many bytes on a thread verifies ahead, and of how many plans at the most.
_AHEAD_SIZE: Final = 32 * limits.MIB
_AHEAD_MAX: Final = 4


class _Verified(NamedTuple):
    """Sound batches that follow one another in a transaction, from a number on."""

    first: int
    batches: list[memoryview]


class BatchCopier:
    """The batches of one transaction. Whatever happens, nothing is looked at any more once it is left."""

    def __init__(self, plan: TransactionPlan) -> None:
        self._plan = plan
        is_large = sum(share.need.size for share in plan.shares.values()) >= _AHEAD_SIZE
        self._ahead = ThreadPoolExecutor(1, "seawall-verifying") if is_large else None
        self._under_way: deque[Future[list[_Verified]]] = deque()

    def copy(self, first: int, planned: Planned) -> int:
        """Have some batches, from number `first` on, written to their places; how many there are.

        Raises what they met, or those before them.
        """
        count = sum(len(run.entries) for run in planned.runs)
        if self._ahead is None:
            _write(self._plan, _verify(self._plan, first, planned))
            return count
        self._under_way.append(self._ahead.submit(_verify, self._plan, first, planned))
        if len(self._under_way) == _AHEAD_MAX:
            _write(self._plan, self._under_way.popleft().result())
        return count

    def finish(self) -> None:
        """Write what is left; raises what went wrong."""
        while self._under_way:
            _write(self._plan, self._under_way.popleft().result())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ahead is not None:
            self._ahead.shutdown()


def _verify(plan: TransactionPlan, first: int, planned: Planned) -> list[_Verified]:
    """Bring planned batches, see that they are sound, and keep their headers; gives back what was pinned."""
    number = first
    found: list[_Verified] = []
    try:
        for run in planned.runs:
            behind = number + len(run.entries)
            for buffer, at, entries in brought(run):
                found.append(_Verified(number, _kept(plan, number, buffer, at, entries)))
                number += len(entries)
            if number < behind:
                _refuse(plan, number)
        if number == first:
            _refuse(plan, number)
    finally:
        planned.release()
    return [each for each in found if each.batches]


def _kept(plan: TransactionPlan, first: int, buffer: Bytes, at: int, entries: Entries) -> list[memoryview]:
    """Sound batches, of a buffer that holds them from file position `at` on; their headers are kept."""
    expected = plan.batches.entries[first : first + len(entries)]
    if not np.array_equal(entries["base_seq"], expected["base_seq"]):
        _refuse(plan, first)
    starts = (entries["at"].astype(np.int64) - at).tolist()
    batches = [buffer[start : start + size] for start, size in zip(starts, entries["length"].tolist(), strict=True)]
    for number, batch in enumerate(batches, first):
        plan.headers[number * _HEADER : (number + 1) * _HEADER] = batch[:_HEADER]
    return [batch.data for batch in batches]


def _write(plan: TransactionPlan, verified: list[_Verified]) -> None:
    """Write sound batches to their places."""
    for first, batches in verified:
        reservation = plan.shares[TopicId(int(plan.topic_ids[first]))].made_reservation
        is_uncached = reservation.is_uncached and sum(map(len, batches)) >= len(batches) * _UNCACHED_SIZE
        write = _write_uncached if is_uncached else write_all
        write(reservation.filling.segment.shared.file, batches, int(plan.places[first]))


def _refuse(plan: TransactionPlan, number: int) -> None:
    seq = int(plan.batches.entries["base_seq"][number])
    raise NotFoundError(f"staged batches from seq {seq} on are damaged; stage the records again")


def _write_uncached(file: File, batches: list[memoryview], at: int) -> None:
    """Write batches that follow one another, and keep nothing of them in memory but the pages of their headers, which
    are written again."""
    page = limits.PAGE_SIZE
    waiting: list[memoryview] = []
    waiting_at = at
    for data in batches:
        head = min(len(data), -(-(at + _HEADER) // page) * page - at)
        tail = max(head, (at + len(data)) // page * page - at)
        write_all(file, [*waiting, data[:head]], waiting_at)
        write_all(file, [data[head:tail]], at + head, uncached=True)
        waiting, waiting_at = [data[tail:]], at + tail
        at += len(data)
    write_all(file, waiting, waiting_at)
