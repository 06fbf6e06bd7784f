"""Staged batches on their way to the places they will have: verified, and written there, not durably yet.

Where they are many, two threads do that: one verifies and has the disk begin while the other writes. They write to one
file, whose writers the system lets in one by one, so more threads would only wait. Staged batches are mapped where that
can be (`run_pieces`), and so are copied once.

INV-TRANSACTION-SOUND: what is written to a place was verified right before; a batch that is missing or damaged ends the
transaction, and nothing that was written counts.

A crash leaves bytes behind the end of a segment that nobody looks at. This module must not know numbers, nor the log.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Self

import numpy as np

from seawall import limits
from seawall.core.types import TopicId
from seawall.engine.planning import Planned
from seawall.engine.run_pieces import brought
from seawall.engine.transaction_plan import TransactionPlan
from seawall.errors import NotFoundError
from seawall.io.files import write_all
from seawall.io.interfaces import File
from seawall.kernels.memory import Bytes
from seawall.storage.batch_index import Entries

_HEADER: Final = limits.BATCH_HEADER_SIZE

#: The least size of batches, on average, of which one write each may pass the memory of the system by.
_UNCACHED_SIZE: Final = 256 * limits.KIB

#: From so many bytes on threads do it.
_BESIDE_SIZE: Final = 32 * limits.MIB
_THREADS: Final = 2


class Copying:
    """The batches of one transaction. Whatever happens, nothing is written any more once it is left."""

    def __init__(self, plan: TransactionPlan) -> None:
        self._plan = plan
        is_large = sum(share.need.size for share in plan.shares.values()) >= _BESIDE_SIZE
        self._beside = ThreadPoolExecutor(_THREADS, "seawall-copying") if is_large else None
        self._under_way: deque[Future[None]] = deque()

    def copy(self, first: int, planned: Planned) -> int:
        """Have some batches, from number `first` on, written to their places; how many there are.

        Raises what those before them met.
        """
        count = sum(len(run.entries) for run in planned.runs)
        if self._beside is None:
            _copy(self._plan, first, planned)
        else:
            try:
                if len(self._under_way) == _THREADS:
                    self._under_way.popleft().result()
            except BaseException:
                planned.release()
                raise
            self._under_way.append(self._beside.submit(_copy, self._plan, first, planned))
        return count

    def finish(self) -> None:
        """Wait until everything is written; raises what went wrong."""
        while self._under_way:
            self._under_way.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._beside is not None:
            self._beside.shutdown()


def _copy(plan: TransactionPlan, first: int, planned: Planned) -> None:
    """Write planned batches to their places, and keep their headers; gives back what was pinned."""
    number = first
    try:
        for run in planned.runs:
            behind = number + len(run.entries)
            for buffer, at, entries in brought(run):
                _write(plan, number, buffer, at, entries)
                number += len(entries)
            if number < behind:
                _refuse(plan, number)
        if number == first:
            _refuse(plan, number)
    finally:
        planned.release()


def _write(plan: TransactionPlan, first: int, buffer: Bytes, at: int, entries: Entries) -> None:
    """Write sound batches that follow one another in a transaction; `buffer` holds them from file position `at` on."""
    expected = plan.batches.entries[first : first + len(entries)]
    if not np.array_equal(entries["base_seq"], expected["base_seq"]):
        _refuse(plan, first)
    if not len(entries):
        return
    starts = entries["at"].astype(np.int64) - at
    lengths = entries["length"].tolist()
    data = [buffer[start : start + size] for start, size in zip(starts.tolist(), lengths, strict=True)]
    for number, batch in enumerate(data, first):
        plan.headers[number * _HEADER : (number + 1) * _HEADER] = batch[:_HEADER]
    room = plan.shares[TopicId(int(plan.topic_ids[first]))].made_room
    is_uncached = room.is_uncached and sum(lengths) >= len(data) * _UNCACHED_SIZE
    write = _write_uncached if is_uncached else write_all
    write(room.filling.segment.file, [batch.data for batch in data], int(plan.places[first]))


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
