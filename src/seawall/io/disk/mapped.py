"""Parts of files, mapped to be gone through once: what the page cache holds is used where it lies, without a copy.

A page that the disk cannot give, or that lies behind the end of its file, is a SIGBUS at the first touch, which nothing
can handle. So nothing behind the end of a file is mapped, and a stretch is touched only after `MappedPart.fetch` has
brought all its pages, without the GIL: a failing disk, and a file that got shorter, show there, and the caller reads
instead, which says what is wrong. Where the system cannot bring pages this way nothing is mapped.

INV-MAPPED-NOT-SERVED: a process that serves others maps no data file, so a truncated file cannot end it. Between
fetching and touching somebody else may truncate the file, and then the process ends. So only these map: a store that
opens its log, before it serves anybody; `read_arrow`, in the process of its caller; tasks of Spark, which are repeated.
See decision 0009.

Nobody touches bytes that were not fetched right before. Only what Seawall itself never cuts off is mapped: files of the
log, and the places of batches in segments.

What lies there may still be written to, with the same bytes or where nothing is promised. Whoever verifies something
holds on to the numbers it has checked and does not look them up again.

A mapping needs neither name nor handle of its file, and ends with the last view of it. A crash does nothing to it.
"""

from __future__ import annotations

import mmap
import sys
import weakref
from typing import TYPE_CHECKING, Final

from seawall.io.disk.files import OsFile
from seawall.io.interfaces import Readable
from seawall.io.process.shared_memory import c_library, map_pages

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["MappedPart", "map_part"]

#: Advice of `madvise`, on Linux: bring pages now and say whether that went well (from 5.14 on); begin to bring them.
_POPULATE_READ: Final = 22
_WILL_NEED: Final = 3


class MappedPart:
    """A stretch of a file from the beginning of a page on. Made by `map_part`."""

    __slots__ = ("__array_interface__", "__weakref__", "_address", "at", "size")

    def __init__(self, address: int, size: int, at: int) -> None:
        self._address = address
        #: Bytes of it.
        self.size: Final = size
        #: File position of its first byte.
        self.at: Final = at
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """All of it, read-only; to be touched only where it was fetched."""
        import numpy as np

        return np.asarray(self)

    def fetch(self, start: int, end: int) -> bool:
        """Bring bytes `start` up to `end`; false if they cannot be had this way and must be read."""
        return self._advise(start, end, _POPULATE_READ)

    def announce(self, start: int, end: int) -> None:
        """Let the disk begin with bytes that are fetched soon; those behind the end are left out."""
        if start < self.size:
            self._advise(start, min(end, self.size), _WILL_NEED)

    def _advise(self, start: int, end: int, advice: int) -> bool:
        first = start - start % mmap.PAGESIZE
        result: int = c_library().madvise(self._address + first, end - first, advice)
        return result == 0


def map_part(file: Readable, at: int, length: int) -> MappedPart | None:
    """Map `length` bytes of a file from position `at` on, and what is before them in their page.

    None where that is not possible, as on a simulated disk or where the file is shorter: those bytes must be read.
    """
    if sys.platform != "linux" or not isinstance(file, OsFile) or length <= 0 or file.size() < at + length:
        return None
    first = at - at % mmap.ALLOCATIONGRANULARITY
    size = at + length - first
    address = map_pages(file.fileno(), first, size)
    if address is None:
        return None
    part = MappedPart(address, size, first)
    weakref.finalize(part, c_library().munmap, address, size).atexit = False
    return part
