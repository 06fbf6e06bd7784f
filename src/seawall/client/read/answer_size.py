"""How much a reader asks for at once over a link that loses connections. No I/O.

A frame that is cut off is discarded, so over a link that dies every few megabytes a reader that asks for 16 MiB would
get nowhere. After a loss half as much is asked for, and twice as much again after a run of answers that came whole.
A batch is never split: one that is larger than what a connection survives cannot be read over that link, and only
smaller batches of its publisher (`batch_size`) help.

One for all readers of a log: they share the link.
"""

from __future__ import annotations

from typing import Final

from seawall.limits import ANSWER_SIZE_MIN, FETCH_SIZE_MAX

#: Answers of at least half the size that have to come whole, one after the other, before more is asked for.
_WHOLE_ANSWERS: Final = 8


class AnswerSize:
    """The most bytes of batches that are asked for in one frame, as the link allows."""

    def __init__(self) -> None:
        self._size = FETCH_SIZE_MAX
        self._whole = 0

    def at_most(self, size: int) -> int:
        """What to ask for where so much is wanted."""
        return min(size, self._size)

    def lost(self, asked: int) -> None:
        """A connection was lost, or time was up, before an answer came for which so much was asked.

        Several that asked for as much may be lost with one connection, and count once. One that asked for next to
        nothing says nothing about the size.
        """
        if asked > ANSWER_SIZE_MIN:
            self._size = min(self._size, max(ANSWER_SIZE_MIN, asked // 2))
        self._whole = 0

    def arrived(self, size: int) -> None:
        """A frame of so many bytes came whole."""
        if self._size == FETCH_SIZE_MAX or size < self._size // 2:
            return
        self._whole += 1
        if self._whole >= _WHOLE_ANSWERS:
            self._whole = 0
            self._size = min(FETCH_SIZE_MAX, 2 * self._size)
