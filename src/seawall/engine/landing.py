"""Memory in which a loop receives large batches that may stay there: one behind the other, in slabs.

    lend     the place of the next batch, for whoever receives it
    land     where a whole batch lies now: in its place, or copied there from where else it was received
    keep     it becomes part of a file as it lies (`MemoryFile.adopt`), and the next one goes behind it

A batch that is not kept, since it went through the ring, is damaged or never came to its end, leaves its place to the
next. A slab that is full is left to the files that have bytes of it. It has batches of one topic alone: those of others
are copied into their files. A slab stays as long as any batch in it, so the memory of a topic that evicts would wait
for one that keeps.

INV-LANDING-ONE: one batch at a time is received here. Whoever has begun one leaves when another begins, or lands.

One owner, the loop. This module must not know who receives, nor what a batch is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from seawall.io.memory_files import MemoryFile
from seawall.io.spare_pieces import SLAB_SIZE, SparePieces, give_back_pages
from seawall.kernels.memory import Bytes, copy_out
from seawall.limits import MIB, PAYLOAD_SIZE_MIN

_NOTHING: Final = np.zeros(0, np.uint8)
#: If so much of a slab is left over, its pages go back to the system: files do not count them.
_REST_SIZE: Final = 4 * MIB
assert SLAB_SIZE >= PAYLOAD_SIZE_MIN + MIB, "whatever frame is received, a slab has room for it"


class Landing:
    """The slab of a loop, and how far it is full."""

    __slots__ = ("_lent", "_spare", "_take_back", "_topic_id", "offset", "slab")

    def __init__(self, spare: SparePieces) -> None:
        self._spare = spare
        #: Where the next batch goes, and the topic of those that were kept there; 0 if none was.
        self.slab: Bytes = _NOTHING
        self.offset = 0
        self._topic_id = 0
        self._lent: Bytes = _NOTHING
        self._take_back: Callable[[], None] = _nothing

    def lend(self, size: int, take_back: Callable[[], None]) -> Bytes:
        """The place of a batch of so many bytes, until `take_back` is called, or it lands."""
        lent = self._place(size)
        self._lent, self._take_back = lent, take_back
        return lent

    def land(self, buffer: Bytes, size: int) -> Bytes:
        """The batch that a buffer holds, in its place."""
        if buffer is self._lent:
            return buffer
        place = self._place(size)
        copy_out(place, 0, buffer, 0, size)
        return place

    def keep(self, file: MemoryFile, at: int, size: int, topic_id: int) -> None:
        """The batch that has landed becomes part of a file of a topic."""
        self._lent, self._take_back = _NOTHING, _nothing
        if self._topic_id not in (0, topic_id):
            file.write([self.slab.data[self.offset : self.offset + size]], at)
            return
        file.adopt(at, self.slab, self.offset, size)
        self._topic_id = topic_id
        self.offset += size

    def let_go(self) -> None:
        """Nothing more comes for now."""
        self._leave()
        if len(self.slab) - self.offset >= _REST_SIZE:
            give_back_pages(self.slab, self.offset)
        self.slab, self.offset, self._topic_id = _NOTHING, 0, 0

    def _place(self, size: int) -> Bytes:
        self._leave()
        if self.offset + size > len(self.slab):
            self.let_go()
            self.slab = self._spare.take(SLAB_SIZE)
        return self.slab[self.offset : self.offset + size]

    def _leave(self) -> None:
        """Whoever receives here has to leave (INV-LANDING-ONE)."""
        take_back = self._take_back
        self._lent, self._take_back = _NOTHING, _nothing
        take_back()


def _nothing() -> None:
    """Nobody receives anything here."""
