"""Copies staged batches to their segment positions: verifies and writes them, without a sync.

For large transactions a thread verifies the next batches while the ones before are written. Writes are in order and one
at a time: two writers of one file slow each other down, and so does the write-back of their pages. Staged batches are
mapped where possible (`run_pieces`), and so are copied once.

Every batch is verified right before it is written. A missing or damaged batch ends the transaction, and nothing that
was written counts.

A crash leaves bytes after the end of a segment, which nothing reads. This module must not know numbers, nor the log.
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

#: The least average size of batches that are written around the page cache, with a write for each.
_UNCACHED_SIZE: Final = 256 * limits.KIB

#: From this size on a thread verifies the next batches; and the most plans that it verifies in advance.
_PIPELINED_SIZE: Final = 32 * limits.MIB
_PIPELINED_MAX: Final = 4


class _Verified(NamedTuple):
    """Verified batches that are consecutive in a transaction, from number `first` on."""

    first: int
    batches: list[memoryview]


class BatchCopier:
    """Copies the batches of one transaction. When the context exits, no thread uses them any more."""

    def __init__(self, plan: TransactionPlan) -> None:
        self._plan = plan
        is_large = sum(write.need.size for write in plan.appends.writes.values()) >= _PIPELINED_SIZE
        self._verifier = ThreadPoolExecutor(1, "seawall-verifying") if is_large else None
        self._in_flight: deque[Future[list[_Verified]]] = deque()

    def copy(self, first: int, planned: Planned) -> int:
        """Copy planned batches, from number `first` on, to their segment positions; returns how many there are.

        Raises the error of these batches, or of earlier ones.
        """
        count = sum(len(run.entries) for run in planned.runs)
        if self._verifier is None:
            _write(self._plan, _verify(self._plan, first, planned))
            return count
        self._in_flight.append(self._verifier.submit(_verify, self._plan, first, planned))
        if len(self._in_flight) == _PIPELINED_MAX:
            _write(self._plan, self._in_flight.popleft().result())
        return count

    def finish(self) -> None:
        """Write what is left; raises the first error."""
        while self._in_flight:
            _write(self._plan, self._in_flight.popleft().result())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._verifier is not None:
            self._verifier.shutdown()


def _verify(plan: TransactionPlan, first: int, planned: Planned) -> list[_Verified]:
    """Read planned batches, verify them, and keep their headers; releases the pins of the plan."""
    number = first
    found: list[_Verified] = []
    try:
        for run in planned.runs:
            end = number + len(run.entries)
            for buffer, at, entries in brought(run):
                found.append(_Verified(number, _keep_headers(plan, number, buffer, at, entries)))
                number += len(entries)
            if number < end:
                _refuse(plan, number)
        if number == first:
            _refuse(plan, number)
    finally:
        planned.release()
    return [each for each in found if each.batches]


def _keep_headers(plan: TransactionPlan, first: int, buffer: Bytes, at: int, entries: Entries) -> list[memoryview]:
    """The batches in a buffer that starts at file position `at`; copies their headers into the plan."""
    expected = plan.batches.entries[first : first + len(entries)]
    if not np.array_equal(entries["base_seq"], expected["base_seq"]):
        _refuse(plan, first)
    starts = (entries["at"].astype(np.int64) - at).tolist()
    batches = [buffer[start : start + size] for start, size in zip(starts, entries["length"].tolist(), strict=True)]
    for number, batch in enumerate(batches, first):
        plan.appends.header(number)[:] = batch[:_HEADER]
    return [batch.data for batch in batches]


def _write(plan: TransactionPlan, verified: list[_Verified]) -> None:
    """Write verified batches to their segment positions."""
    for first, batches in verified:
        reservation = plan.appends.writes[TopicId(int(plan.appends.topic_ids[first]))].made_reservation
        is_uncached = reservation.is_uncached and sum(map(len, batches)) >= len(batches) * _UNCACHED_SIZE
        write = _write_uncached if is_uncached else write_all
        write(reservation.segment.segment.shared.file, batches, int(plan.appends.file_positions[first]))


def _refuse(plan: TransactionPlan, number: int) -> None:
    seq = int(plan.batches.entries["base_seq"][number])
    raise NotFoundError(f"staged batches from seq {seq} on are damaged; stage the records again")


def _write_uncached(file: File, batches: list[memoryview], at: int) -> None:
    """Write consecutive batches around the page cache, except the pages of their headers, which are written again."""
    page = limits.PAGE_SIZE
    buffered: list[memoryview] = []
    buffered_at = at
    for data in batches:
        head = min(len(data), -(-(at + _HEADER) // page) * page - at)
        tail = max(head, (at + len(data)) // page * page - at)
        write_all(file, [*buffered, data[:head]], buffered_at)
        write_all(file, [data[head:tail]], at + head, uncached=True)
        buffered, buffered_at = [data[tail:]], at + tail
        at += len(data)
    write_all(file, buffered, buffered_at)
