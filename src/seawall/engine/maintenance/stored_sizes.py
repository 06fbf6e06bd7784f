"""Sizes of a topic's records in plain bytes, and the seq at which a number of bytes is reached, for caps and deletes.

Batches have byte offsets (`base_offset`) as they have seqs, without a break inside a run of live records. So the size
of a run is one difference. Only a batch in which a run begins or ends is read, for the offsets of its records. Nothing
here costs time for each record, nor for each batch that is removed as a whole.

A damaged batch counts by estimate, as if all its records had the same size, and seqs that no segment holds count
nothing. The numbers are for caps and for people; no record depends on them.

This module must not know why records are removed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.core.types import Offset, Seq, TimestampNs
from seawall.engine.read.reading import stored_batches
from seawall.engine.store.topic_log import StoredBatch, TopicLog
from seawall.errors import CorruptionError
from seawall.kernels.codec import blocks
from seawall.storage.segments.batch_index import BatchIndex
from seawall.storage.segments.delete_sidecar import Ranges
from seawall.wire.format.batches import block_of

Integers = npt.NDArray[np.int64]

_NS_PER_MS: Final = 1_000_000
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that was read: its plain size, and the start of each record and the end; None if it is damaged."""

    base_seq: int
    raw_length: int
    starts: Integers | None


class StoredSizes:
    """The sizes of one topic's records. Caches the batches it read last: evictions go from one to the next."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._recent: deque[_Batch] = deque(maxlen=2)

    def bytes_of(self, runs: Ranges) -> int:
        """Plain bytes of rising runs of live records, given as rows of the first seq and the seq after the last."""
        if len(runs) == 1:
            # An eviction has one run if nothing was deleted: plain numbers are faster than arrays of length one.
            ((first, end),) = runs.tolist()
            return self._between(Seq(first), Seq(end - 1))
        # The first and last seq of each run, in turn. They rise, so a batch that several of them cut is read once.
        seqs = (runs - (0, 1)).reshape(-1)
        bounds = self._offsets(seqs, np.tile(np.array((0, 1), np.int64), len(runs))).reshape(-1, 2)
        known = (bounds != _UNKNOWN).all(axis=1)
        return int(np.maximum(bounds[:, 1] - bounds[:, 0], 0)[known].sum())

    def reaching(self, first: Seq, last: Seq, size: int, tolerance: int = 0) -> tuple[Seq, int]:
        """The first seq of a run at which its bytes reach `size`, and the bytes up to there.

        Returns the last seq and all the bytes if the run is smaller. If a batch ends within `tolerance` bytes of
        `size`, the result is the end of that batch, and nothing has to be read.
        """
        start = self._offset(first, 0)
        if start == _UNKNOWN:
            return last, 0
        # The last segment that begins before that offset. There is one: the first segment begins before the run.
        *_, chosen = takewhile(lambda index: _first_offset(index) < start + size, self._indexes(first, last))
        number = chosen.find_offset(Offset(start + size - 1))
        entry = chosen.slice(number, number + 1)[0]
        base_seq, base_offset, count = int(entry["base_seq"]), int(entry["base_offset"]), int(entry["count"])
        if max(1, size - tolerance) <= base_offset - start < size and base_seq <= last + 1:
            return Seq(base_seq - 1), base_offset - start
        end = self._end(chosen, number) if tolerance else _UNKNOWN
        if size <= end - start <= size + tolerance and base_seq + count - 1 <= last:
            return Seq(base_seq + count - 1), end - start
        starts = self._read(chosen, number).starts
        wanted = start + size - base_offset
        within = count if starts is None else int(starts.searchsorted(wanted, "left"))
        seq = min(Seq(base_seq + within - 1), last)
        return seq, self._between(first, seq)

    def time_of(self, seq: Seq) -> TimestampNs | None:
        """The time of the batch that holds a seq, or of the next batch."""
        index = next(self._indexes(seq, None), None)
        if index is None:
            return None
        number = index.find_seq(seq)
        return TimestampNs(int(index.slice(number, number + 1)["timestamp_ns"][0]))

    def first_since(self, timestamp_ns: TimestampNs) -> Seq | None:
        """The first seq of the first batch that is not older than a time; None if all are. Batch times never fall."""
        sealed = self._log.sealed
        # Names have milliseconds, rounded down: the segment may reach up to the next one.
        reached = bisect_left(sealed, int(timestamp_ns), key=lambda each: (each.name.last_ms + 1) * _NS_PER_MS)
        for index in chain((each.load_index() for each in sealed[reached:]), self._unsealed()):
            number = index.find_time(timestamp_ns)
            if number < len(index):
                return Seq(int(index.slice(number, number + 1)["base_seq"][0]))
        return None

    # --- helpers -------------------------------------------------------------------------------------------------

    def _indexes(self, first: Seq, last: Seq | None) -> Iterator[BatchIndex]:
        """The index of every segment that may hold a part of a range; with None, of all that follow."""
        for segment in self._log.sealed:
            inside = segment.name.last_seq >= first and (last is None or segment.name.first_seq <= last)
            # Damage may have left the index empty.
            if inside and len(index := segment.load_index()):
                yield index
        for index in self._unsealed():
            if index.last_seq >= first and (last is None or index.first_seq <= last):
                yield index

    def _unsealed(self) -> Iterator[BatchIndex]:
        return (each.segment.index for each in self._log.unsealed if len(each.segment.index))

    def _between(self, first: Seq, last: Seq) -> int:
        """Plain bytes of one run."""
        start, end = self._offset(first, 0), self._offset(last, 1)
        return 0 if _UNKNOWN in (start, end) else max(0, end - start)

    def _offset(self, seq: Seq, at_end: int) -> int:
        """`_offsets` for a single seq."""
        index = next(self._indexes(seq, seq), None)
        if index is None:
            return _UNKNOWN
        number = index.find_seq(seq)
        if number == len(index) or int(index.slice(number, number + 1)["base_seq"][0]) > seq:
            number = max(number - 1, 0)
        entry = index.slice(number, number + 1)[0]
        base_seq, count, base_offset = int(entry["base_seq"]), int(entry["count"]), int(entry["base_offset"])
        records = min(seq - base_seq + at_end, count)
        if records <= 0:
            return base_offset
        if records == count and (end := self._end(index, number)) != _UNKNOWN:
            return end
        return base_offset + int(self._record_offsets(index, number, np.array([records], np.int64))[0])

    def _end(self, index: BatchIndex, number: int) -> int:
        """The offset at which a batch ends, if the next batch begins there; otherwise _UNKNOWN."""
        entry = index.slice(number, number + 1)[0]
        next_seq = Seq(int(entry["base_seq"]) + int(entry["count"]))
        following: BatchIndex | None = index
        if number + 1 == len(index):
            following, number = next(self._indexes(next_seq, next_seq), None), -1
        if following is None:
            return _UNKNOWN
        other = following.slice(number + 1, number + 2)[0]
        return int(other["base_offset"]) if int(other["base_seq"]) == next_seq else _UNKNOWN

    def _offsets(self, seqs: Integers, at_end: Integers) -> Integers:
        """The offset where each of some rising seqs begins (`at_end` 0) or ends (1); _UNKNOWN if nothing holds it."""
        offsets: Integers = np.full(len(seqs), _UNKNOWN, np.int64)
        for index in self._indexes(Seq(int(seqs[0])), Seq(int(seqs[-1]))) if len(seqs) else ():
            low, high = np.searchsorted(seqs, (index.first_seq, index.last_seq + 1))
            if low < high:
                offsets[low:high] = self._offsets_in(index, seqs[low:high], at_end[low:high])
        return offsets

    def _offsets_in(self, index: BatchIndex, seqs: Integers, at_end: Integers) -> Integers:
        entries = index.entries
        numbers = entries["base_seq"].searchsorted(seqs.astype(np.uint64), "right") - 1
        found = entries[numbers]
        counts = found["count"].astype(np.int64)
        # Records of the batch before the offset. A seq that is missing in the index counts as the end of the batch
        # before it.
        records_before = np.minimum(seqs - found["base_seq"].astype(np.int64) + at_end, counts)
        offsets: Integers = found["base_offset"].astype(np.int64)
        following = np.minimum(numbers + 1, len(entries) - 1)
        dense = entries["base_seq"][following] == found["base_seq"] + found["count"]
        whole = (records_before == counts) & dense
        offsets[whole] = entries["base_offset"][following[whole]].astype(np.int64)
        inside = (records_before > 0) & ~whole
        for number in np.unique(numbers[inside]).tolist():
            here = inside & (numbers == number)
            offsets[here] += self._record_offsets(index, number, records_before[here])
        return offsets

    def _record_offsets(self, index: BatchIndex, number: int, counts: Integers) -> Integers:
        """For each of some counts, the bytes of that many records at the start of a batch."""
        batch = self._read(index, number)
        if batch.starts is not None:
            offsets: Integers = batch.starts[counts]
            return offsets
        return counts * batch.raw_length // int(index.slice(number, number + 1)["count"][0])

    def _read(self, index: BatchIndex, number: int) -> _Batch:
        entry = index.slice(number, number + 1)[0]
        base_seq, count = int(entry["base_seq"]), int(entry["count"])
        for batch in self._recent:
            if batch.base_seq == base_seq:
                return batch
        found = stored_batches(self._log, Seq(base_seq), Seq(base_seq + 1), 1)
        if not found or found[0].base_seq != base_seq:
            batch = _Batch(base_seq, int(entry["length"]), None)
        else:
            batch = _Batch(base_seq, found[0].header.raw_length, _starts(found[0], count))
        self._recent.append(batch)
        return batch


def _first_offset(index: BatchIndex) -> int:
    return int(index.slice(0, 1)["base_offset"][0])


def _starts(stored: StoredBatch, count: int) -> Integers | None:
    """The start of each record of a batch in its plain block, and the end; None if the batch is damaged."""
    if stored.header.is_opaque:
        return np.array([0, stored.header.raw_length], np.int64)
    try:
        block = np.frombuffer(block_of(stored.header, stored.block), np.uint8)
    except CorruptionError:
        return None
    starts = np.empty(count + 1, np.int64)
    found = blocks.scan_block(block, 0, block.size, blocks.RECORDS_STORED, count, starts)
    return starts if found == count else None
