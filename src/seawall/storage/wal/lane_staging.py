"""The memory of a lane: small pieces back to back, large ones by reference, and what is handed out to be written."""

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
    """Batches with consecutive tickets that lie back to back: `memory[start:end]`."""

    memory: memoryview
    start: int
    end: int
    first_ticket: int
    last_ticket: int


class LaneSpace(NamedTuple):
    """Free bytes of a lane: `array[start:]`, for whoever writes a batch in place."""

    array: npt.NDArray[np.uint8]
    start: int


@dataclass(frozen=True, slots=True)
class LaneFlush:
    """What is written under one epoch: runs by rising tickets. Nobody changes them before the flush is complete."""

    epoch: LaneEpoch
    runs: tuple[LaneRun, ...]

    @property
    def byte_count(self) -> int:
        """Bytes of all batches."""
        return sum(run.end - run.start for run in self.runs)

    @property
    def batch_count(self) -> int:
        """How many batches there are."""
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
        """The bytes for one vectored write; what lies back to back in memory is one piece."""
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
    """A buffer that small batches are copied into, and the runs in it and beside it."""

    __slots__ = ("_array", "_memory", "_referenced", "_used", "runs")

    def __init__(self, size: int) -> None:
        # From numpy, which takes zeroed pages as they are touched: a lane that is hardly used costs hardly anything.
        self._array = np.zeros(size, np.uint8)
        self._memory = self._array.data
        self.reset()

    def reset(self) -> None:
        """Give all of it back."""
        self._used = 0
        self._referenced = 0
        self.runs: list[LaneRun] = []

    def has_space(self, length: int) -> bool:
        """Whether a piece of that length can be taken."""
        if length < limits.LARGE_BATCH_SIZE:
            return self._used + length <= self._memory.nbytes
        # One reference always fits, however long: a batch larger than the lane must not wait for ever.
        return self._referenced == 0 or self._referenced + length <= self._memory.nbytes

    def take(self, data: memoryview, first_ticket: int, last_ticket: int) -> None:
        """Take a piece: a copy of it, or where it is large a reference to it."""
        length = data.nbytes
        if length >= limits.LARGE_BATCH_SIZE:
            self._referenced += length
            self.runs.append(LaneRun(data, 0, length, first_ticket, last_ticket))
            return
        self._memory[self._used : self._used + length] = data
        self._extend(length, first_ticket, last_ticket)

    def space(self, length: int) -> LaneSpace | None:
        """Where a small piece may be written in place."""
        return LaneSpace(self._array, self._used) if self._used + length <= self._memory.nbytes else None

    def written(self) -> memoryview:
        """All small pieces, back to back."""
        return self._memory[: self._used].toreadonly()

    def take_written(self, length: int, first_ticket: int, last_ticket: int) -> None:
        """Count in a piece that was written in place."""
        self._extend(length, first_ticket, last_ticket)

    def _extend(self, length: int, first_ticket: int, last_ticket: int) -> None:
        """Count in bytes that are in the memory already."""
        start, end = self._used, self._used + length
        self._used = end
        last = self.runs[-1] if self.runs else None
        if last is not None and last.memory is self._memory and last.last_ticket + 1 == first_ticket:
            last.end = end
            last.last_ticket = last_ticket
        else:
            self.runs.append(LaneRun(self._memory, start, end, first_ticket, last_ticket))


def runs_of(stagings: Iterable[Staging]) -> Iterator[LaneRun]:
    """The runs of several memories, one after the other."""
    for staging in stagings:
        yield from staging.runs
