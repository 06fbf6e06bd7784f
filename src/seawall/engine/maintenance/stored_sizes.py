"""How many plain bytes the records of a topic take, and which seqs so many bytes reach: for caps and deletes.

Batches are numbered by bytes as they are by seqs (`base_offset`), without a break inside a run of live records. So the
bytes of a run are one difference, and only a batch that a run begins or ends in the middle of is read, for the places
of its records. Nothing here costs anything for each record, nor for each batch that goes whole.

What cannot be read counts by estimate (a damaged batch as if its records were of one size), and seqs that no segment
holds count nothing: the numbers are for caps and for people, and no record depends on them.

This module must not know why records go.
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
    """A batch that was read: plain bytes, and where each record begins, the end included; None where it is damaged."""

    base_seq: int
    raw_length: int
    starts: Integers | None


class StoredSizes:
    """The sizes of one topic's records. It remembers the batches it read last: evictions go from one into the next."""

    def __init__(self, log: TopicLog) -> None:
        self._log = log
        self._lately: deque[_Batch] = deque(maxlen=2)

    def bytes_of(self, runs: Ranges) -> int:
        """Plain bytes of rising runs of live records, given as rows of the first seq and the seq behind the last."""
        if len(runs) == 1:
            # An eviction has one run as long as nothing was deleted: plain numbers are faster than arrays of one.
            ((first, end),) = runs.tolist()
            return self._between(Seq(first), Seq(end - 1))
        # First and last seq of each run in turn: they rise, so a batch that several of them cut is read once.
        seqs = (runs - (0, 1)).reshape(-1)
        bounds = self._offsets(seqs, np.tile(np.array((0, 1), np.int64), len(runs))).reshape(-1, 2)
        known = (bounds != _UNKNOWN).all(axis=1)
        return int(np.maximum(bounds[:, 1] - bounds[:, 0], 0)[known].sum())

    def reaching(self, first: Seq, last: Seq, size: int, spare: int = 0) -> tuple[Seq, int]:
        """The first seq of a run with which its bytes are at least `size`, and the bytes up to there.

        The last seq and all the bytes, where they are fewer. Where so many less or more than `size` will do too, and a
        batch ends there, it is the end of that batch: nothing has to be read then.
        """
        start = self._offset(first, 0)
        if start == _UNKNOWN:
            return last, 0
        # The last segment that begins before the place; the first one does, since it begins before the run.
        *_, chosen = takewhile(lambda index: _first_offset(index) < start + size, self._indexes(first, last))
        number = chosen.find_offset(Offset(start + size - 1))
        entry = chosen.slice(number, number + 1)[0]
        base_seq, base_offset, count = int(entry["base_seq"]), int(entry["base_offset"]), int(entry["count"])
        if max(1, size - spare) <= base_offset - start < size and base_seq <= last + 1:
            return Seq(base_seq - 1), base_offset - start
        end = self._end(chosen, number) if spare else _UNKNOWN
        if size <= end - start <= size + spare and base_seq + count - 1 <= last:
            return Seq(base_seq + count - 1), end - start
        starts = self._read(chosen, number).starts
        wanted = start + size - base_offset
        within = count if starts is None else int(starts.searchsorted(wanted, "left"))
        seq = min(Seq(base_seq + within - 1), last)
        return seq, self._between(first, seq)

    def time_of(self, seq: Seq) -> TimestampNs | None:
        """Time of the batch that holds a seq, or of the first one behind it."""
        index = next(self._indexes(seq, None), None)
        if index is None:
            return None
        number = index.find_seq(seq)
        return TimestampNs(int(index.slice(number, number + 1)["timestamp_ns"][0]))

    def first_since(self, timestamp_ns: TimestampNs) -> Seq | None:
        """Seq of the first batch that is not older than a time; None if all are. Their times never fall."""
        sealed = self._log.sealed
        # A name tells milliseconds, rounded down: the segment may reach up to the next one.
        reached = bisect_left(sealed, int(timestamp_ns), key=lambda each: (each.name.last_ms + 1) * _NS_PER_MS)
        for index in chain((each.index for each in sealed[reached:]), self._filling()):
            number = index.find_time(timestamp_ns)
            if number < len(index):
                return Seq(int(index.slice(number, number + 1)["base_seq"][0]))
        return None

    # --- inside --------------------------------------------------------------------------------------------------

    def _indexes(self, first: Seq, last: Seq | None) -> Iterator[BatchIndex]:
        """The index of every segment that may hold something of a range; None: of all that follows."""
        for segment in self._log.sealed:
            inside = segment.name.last_seq >= first and (last is None or segment.name.first_seq <= last)
            # Damage may have left nothing of it.
            if inside and len(segment.index):
                yield segment.index
        for index in self._filling():
            if index.last_seq >= first and (last is None or index.first_seq <= last):
                yield index

    def _filling(self) -> Iterator[BatchIndex]:
        return (each.segment.index for each in self._log.filling if len(each.segment.index))

    def _between(self, first: Seq, last: Seq) -> int:
        """Plain bytes of one run."""
        start, end = self._offset(first, 0), self._offset(last, 1)
        return 0 if _UNKNOWN in (start, end) else max(0, end - start)

    def _offset(self, seq: Seq, behind: int) -> int:
        """What `_offsets` gives, for one seq."""
        index = next(self._indexes(seq, seq), None)
        if index is None:
            return _UNKNOWN
        number = index.find_seq(seq)
        if number == len(index) or int(index.slice(number, number + 1)["base_seq"][0]) > seq:
            number = max(number - 1, 0)
        entry = index.slice(number, number + 1)[0]
        base_seq, count, base_offset = int(entry["base_seq"]), int(entry["count"]), int(entry["base_offset"])
        ahead = min(seq - base_seq + behind, count)
        if ahead <= 0:
            return base_offset
        if ahead == count and (end := self._end(index, number)) != _UNKNOWN:
            return end
        return base_offset + int(self._places(index, number, np.array([ahead], np.int64))[0])

    def _end(self, index: BatchIndex, number: int) -> int:
        """Where a batch ends, in bytes, if another one begins there; else _UNKNOWN."""
        entry = index.slice(number, number + 1)[0]
        next_seq = Seq(int(entry["base_seq"]) + int(entry["count"]))
        following: BatchIndex | None = index
        if number + 1 == len(index):
            following, number = next(self._indexes(next_seq, next_seq), None), -1
        if following is None:
            return _UNKNOWN
        other = following.slice(number + 1, number + 2)[0]
        return int(other["base_offset"]) if int(other["base_seq"]) == next_seq else _UNKNOWN

    def _offsets(self, seqs: Integers, behind: Integers) -> Integers:
        """Where each of some rising seqs begins (`behind` 0) or ends (1), in bytes; _UNKNOWN where nothing holds it."""
        offsets: Integers = np.full(len(seqs), _UNKNOWN, np.int64)
        for index in self._indexes(Seq(int(seqs[0])), Seq(int(seqs[-1]))) if len(seqs) else ():
            low, high = np.searchsorted(seqs, (index.first_seq, index.last_seq + 1))
            if low < high:
                offsets[low:high] = self._offsets_in(index, seqs[low:high], behind[low:high])
        return offsets

    def _offsets_in(self, index: BatchIndex, seqs: Integers, behind: Integers) -> Integers:
        entries = index.entries
        numbers = entries["base_seq"].searchsorted(seqs.astype(np.uint64), "right") - 1
        found = entries[numbers]
        counts = found["count"].astype(np.int64)
        # Records of the batch before the place; a seq that the index leaves out belongs to the end of the one before.
        ahead = np.minimum(seqs - found["base_seq"].astype(np.int64) + behind, counts)
        offsets: Integers = found["base_offset"].astype(np.int64)
        following = np.minimum(numbers + 1, len(entries) - 1)
        dense = entries["base_seq"][following] == found["base_seq"] + found["count"]
        whole = (ahead == counts) & dense
        offsets[whole] = entries["base_offset"][following[whole]].astype(np.int64)
        inside = (ahead > 0) & ~whole
        for number in np.unique(numbers[inside]).tolist():
            here = inside & (numbers == number)
            offsets[here] += self._places(index, number, ahead[here])
        return offsets

    def _places(self, index: BatchIndex, number: int, ahead: Integers) -> Integers:
        """Bytes of the first so many records of a batch, for each of some numbers."""
        batch = self._read(index, number)
        if batch.starts is not None:
            places: Integers = batch.starts[ahead]
            return places
        return ahead * batch.raw_length // int(index.slice(number, number + 1)["count"][0])

    def _read(self, index: BatchIndex, number: int) -> _Batch:
        entry = index.slice(number, number + 1)[0]
        base_seq, count = int(entry["base_seq"]), int(entry["count"])
        for batch in self._lately:
            if batch.base_seq == base_seq:
                return batch
        found = stored_batches(self._log, Seq(base_seq), Seq(base_seq + 1), 1)
        if not found or found[0].base_seq != base_seq:
            batch = _Batch(base_seq, int(entry["length"]), None)
        else:
            batch = _Batch(base_seq, found[0].header.raw_length, _starts(found[0], count))
        self._lately.append(batch)
        return batch


def _first_offset(index: BatchIndex) -> int:
    return int(index.slice(0, 1)["base_offset"][0])


def _starts(stored: StoredBatch, count: int) -> Integers | None:
    """Where each record of a batch begins in its plain block, the end included; None if it is damaged."""
    if stored.header.is_opaque:
        return np.array([0, stored.header.raw_length], np.int64)
    try:
        block = np.frombuffer(block_of(stored.header, stored.block), np.uint8)
    except CorruptionError:
        return None
    starts = np.empty(count + 1, np.int64)
    found = blocks.scan_block(block, 0, block.size, blocks.RECORDS_STORED, count, starts)
    return starts if found == count else None
