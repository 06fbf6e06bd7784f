"""The staging memory of a lane: it copies small batches into one buffer and references large ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import LaneEpoch


@dataclass(slots=True)
class LaneRun:
    """Contiguous batches with consecutive tickets: `memory[start:end]`."""

    memory: memoryview
    start: int
    end: int
    first_ticket: int
    last_ticket: int


class LaneSpace(NamedTuple):
    """Free bytes of a lane, `array[start:]`, to write a batch in place."""

    array: npt.NDArray[np.uint8]
    start: int


@dataclass(frozen=True, slots=True)
class LaneFlush:
    """The runs that one epoch writes, by rising tickets. They do not change before the flush is complete."""

    epoch: LaneEpoch
    runs: tuple[LaneRun, ...]

    @property
    def byte_count(self) -> int:
        """Bytes of all batches."""
        return sum(run.end - run.start for run in self.runs)

    @property
    def batch_count(self) -> int:
        """Number of batches."""
        return sum(run.last_ticket - run.first_ticket + 1 for run in self.runs)

    @property
    def first_ticket(self) -> int | None:
        """Ticket of the first batch, None if there is none."""
        return self.runs[0].first_ticket if self.runs else None

    @property
    def last_ticket(self) -> int | None:
        """Ticket of the last batch, None if there is none."""
        return self.runs[-1].last_ticket if self.runs else None

    def pieces(self) -> list[memoryview]:
        """The buffers for one vectored write; contiguous runs are joined."""
        pieces: list[memoryview] = []
        previous: LaneRun | None = None
        start = 0
        for run in self.runs:
            if previous is not None and previous.memory is run.memory and previous.end == run.start:
                pieces[-1] = run.memory[start : run.end].toreadonly()
            else:
                start = run.start
                pieces.append(run.memory[start : run.end].toreadonly())
            previous = run
        return pieces


class Staging:
    """A buffer for copies of small batches, and the list of runs, in the buffer or referenced."""

    __slots__ = ("_array", "_memory", "_referenced", "_used", "runs")

    def __init__(self, size: int) -> None:
        # numpy gets zeroed pages lazily, as they are touched: a lane that is hardly used costs hardly any memory.
        self._array = np.zeros(size, np.uint8)
        self._memory = self._array.data
        self.reset()

    def reset(self) -> None:
        """Empty it."""
        self._used = 0
        self._referenced = 0
        self.runs: list[LaneRun] = []

    def has_space(self, length: int) -> bool:
        """True if batches of that length can be added."""
        if length < limits.LARGE_BATCH_SIZE:
            return self._used + length <= self._memory.nbytes
        # One reference always fits, however long: a batch larger than the lane must not wait forever.
        return self._referenced == 0 or self._referenced + length <= self._memory.nbytes

    def take(self, data: memoryview, first_ticket: int, last_ticket: int) -> None:
        """Add contiguous batches: a copy of small ones, a reference to large ones."""
        length = data.nbytes
        if length >= limits.LARGE_BATCH_SIZE:
            self._referenced += length
            self.runs.append(LaneRun(data, 0, length, first_ticket, last_ticket))
            return
        self._memory[self._used : self._used + length] = data
        self._extend(length, first_ticket, last_ticket)

    def space(self, length: int) -> LaneSpace | None:
        """Space to write small batches in place, or None."""
        return LaneSpace(self._array, self._used) if self._used + length <= self._memory.nbytes else None

    def written(self) -> memoryview:
        """All copied batches, contiguous."""
        return self._memory[: self._used].toreadonly()

    def take_written(self, length: int, first_ticket: int, last_ticket: int) -> None:
        """Add batches that were written in place."""
        self._extend(length, first_ticket, last_ticket)

    def _extend(self, length: int, first_ticket: int, last_ticket: int) -> None:
        """Add bytes that are in the buffer already."""
        start, end = self._used, self._used + length
        self._used = end
        last = self.runs[-1] if self.runs else None
        if last is not None and last.memory is self._memory and last.last_ticket + 1 == first_ticket:
            last.end = end
            last.last_ticket = last_ticket
        else:
            self.runs.append(LaneRun(self._memory, start, end, first_ticket, last_ticket))


def runs_of(stagings: Iterable[Staging]) -> Iterator[LaneRun]:
    """The runs of several stagings, in order."""
    for staging in stagings:
        yield from staging.runs
