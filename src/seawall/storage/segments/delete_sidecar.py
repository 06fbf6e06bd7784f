"""The deleted records of a segment, as a set of seqs in a sidecar; the segment itself never changes.

On disk it is a sidecar (`sidecars.py`) of kind DELETES. Each row is a range: its first seq u64 and the seq after its
last u64, both below 2^63. Valid if the ranges keep the order below.

Ranges are not empty, rise, and never touch or overlap. So a set has one form, equal sets are stored as equal bytes, and
the bounds of all rows are one rising list: a seq is deleted if an odd number of bounds is at or below it.

Unlike an index it cannot be rebuilt from the segment: a damaged one is an error, never an empty set, since deleted
records would reappear.

This module must not know why a record was deleted.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from seawall.core.types import Seq
from seawall.errors import CorruptionError, InvalidInputError
from seawall.io.interfaces import Files
from seawall.storage.preface import FileKind, Preface
from seawall.storage.segments.sidecars import read_rows, write_rows

__all__ = ["DeletedSeqs", "load_deletes", "write_deletes"]

#: Rows of (first seq, seq after the last).
Ranges = npt.NDArray[np.int64]

_RANGE_SIZE: Final = 16
_SEQ_LIMIT: Final = 1 << 63


class DeletedSeqs:
    """An immutable set of seqs as merged ranges."""

    __slots__ = ("_bounds",)

    def __init__(self, ranges: Ranges | None = None, *, are_merged: bool = False) -> None:
        """The seqs of ranges in any order; `are_merged` if the array is nobody else's, and in the one form already."""
        given = np.empty((0, 2), np.int64) if ranges is None else ranges
        merged = given if are_merged else _merged(given)
        merged.flags.writeable = False
        #: First seqs and ends, alternating and rising.
        self._bounds: npt.NDArray[np.int64] = merged.reshape(-1)

    @classmethod
    def between(cls, first_seq: Seq, last_seq: Seq) -> DeletedSeqs:
        """All seqs from the first to the last, both included."""
        if not 0 <= first_seq <= last_seq < _SEQ_LIMIT - 1:
            raise InvalidInputError(f"{first_seq} to {last_seq} is not a range of seqs")
        return cls(np.array([[first_seq, last_seq + 1]], np.int64))

    @classmethod
    def of(cls, seqs: npt.NDArray[np.int64]) -> DeletedSeqs:
        """The set of single seqs, in any order, repeated or not."""
        if len(seqs) and not 0 <= int(seqs.min()) <= int(seqs.max()) < _SEQ_LIMIT - 1:
            raise InvalidInputError(f"{seqs.min()} to {seqs.max()}: not all of these are seqs")
        return cls(np.stack((seqs, seqs + 1), axis=1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeletedSeqs) and np.array_equal(self._bounds, other._bounds)

    def __hash__(self) -> int:
        return hash(self._bounds.tobytes())

    def __len__(self) -> int:
        """Number of seqs in the set."""
        return int(self._bounds[1::2].sum() - self._bounds[::2].sum())

    @property
    def ranges(self) -> Ranges:
        """The merged ranges as rows of first seq and the seq after the last, read-only."""
        return self._bounds.reshape(-1, 2)

    @property
    def first_seq(self) -> Seq:
        """The lowest seq; the set must not be empty."""
        return Seq(int(self._bounds[0]))

    @property
    def last_seq(self) -> Seq:
        """The highest seq; the set must not be empty."""
        return Seq(int(self._bounds[-1]) - 1)

    def union(self, other: DeletedSeqs) -> DeletedSeqs:
        """The seqs of both sets."""
        if not other._bounds.size or np.array_equal(self._bounds, other._bounds):
            return self
        if not self._bounds.size:
            return other
        return DeletedSeqs(np.concatenate((self.ranges, other.ranges)))

    def overlap(self, other: DeletedSeqs) -> int:
        """Number of seqs in both sets."""
        return len(self) + len(other) - len(self.union(other))

    def is_deleted(self, seq: Seq) -> bool:
        """True if a seq is in the set."""
        return bool(self._bounds.searchsorted(np.int64(seq), "right") & 1)

    def apply(self, first_seq: Seq, count: int) -> npt.NDArray[np.bool_]:
        """A mask of the deleted seqs among `count` seqs from `first_seq` on."""
        return self.contains(np.arange(first_seq, first_seq + count, dtype=np.int64))

    def contains(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """A mask of the deleted seqs among some seqs."""
        return (self._bounds.searchsorted(seqs, "right") & 1).astype(np.bool_)

    def outside(self, first_seq: Seq, last_seq: Seq) -> Ranges:
        """The parts of a range that are not in the set, both ends of the range included, as rows like `ranges`."""
        low, end = np.int64(first_seq), np.int64(last_seq + 1)
        inside = np.clip(self._bounds, low, end)
        rows = np.concatenate(([low], inside, [end])).reshape(-1, 2)
        return rows[rows[:, 0] < rows[:, 1]]

    def covers(self, first_seq: Seq, last_seq: Seq) -> bool:
        """True if all seqs from the first to the last, both included, are deleted."""
        next_bound = int(self._bounds.searchsorted(np.int64(first_seq), "right"))
        # Ranges never touch, so the range that holds the first seq must hold all of them.
        return bool(next_bound & 1) and last_seq < int(self._bounds[next_bound])


def write_deletes(files: Files, path: str, deleted: DeletedSeqs, segment: Preface) -> None:
    """Write the delete sidecar of the segment with this preface, durably, replacing an existing one."""
    ranges = deleted.ranges.astype("<i8")
    write_rows(files, path, FileKind.DELETES, ranges.tobytes(), len(ranges), segment)


def load_deletes(files: Files, path: str, segment: Preface) -> DeletedSeqs:
    """Load the set at `path`; `CorruptionError` if it is damaged or belongs to another segment."""
    bounds = np.frombuffer(read_rows(files, path, FileKind.DELETES, _RANGE_SIZE, segment), "<i8")
    if len(bounds) and (bounds[0] < 0 or not (bounds[1:] > bounds[:-1]).all()):
        raise CorruptionError(f"{path}: ranges do not rise")
    return DeletedSeqs(bounds.astype(np.int64).reshape(-1, 2), are_merged=True)


def _merged(ranges: Ranges) -> Ranges:
    """The same seqs as sorted ranges that neither touch nor overlap."""
    if len(ranges) < 2:
        return ranges.copy()
    ordered = ranges[ranges[:, 0].argsort(kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    # A row starts a new merged range if it begins after the end of all rows before it.
    starts = np.concatenate(([True], ordered[1:, 0] > reach[:-1]))
    lasts = np.concatenate((starts[1:], [True]))
    return np.stack((ordered[starts, 0], reach[lasts]), axis=1)
