"""Maps parts of files for one sequential scan, so that the scan uses the pages of the page cache without a copy.

Touching a mapped page that the disk cannot read, or that is past the end of its file, is a SIGBUS that no code can
handle. So nothing past the end of a file is mapped, and callers touch a range only after `MappedPart.fetch` has loaded
all its pages (without the GIL). A failing disk or a truncated file shows there; the caller then reads the bytes
instead, and that read reports the error. Where the system cannot load pages this way, nothing is mapped.

INV-MAPPED-NOT-SERVED: a process that serves others maps no data file, so a truncated file cannot end it. Another
process may truncate the file between fetching and touching, and then this process dies. So mapping is limited to: a
store that opens its log, before it serves clients; `read_arrow`, in the process of its caller; tasks of Spark, which
Spark repeats. See decision 0009.

Callers fetch bytes right before they touch them. They map only what Seawall itself never truncates: log files, and
the batches inside segments.

A mapped range may still change: by rewrites of the same bytes, or where its content is not guaranteed yet. So code that
verifies a batch keeps the numbers it has checked, and does not read them again.

A mapping needs neither the name nor the handle of its file, and ends with the last view of it. A crash does not affect
it.
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

#: `madvise` advice on Linux: load pages now and report errors (since 5.14); start to load them.
_POPULATE_READ: Final = 22
_WILL_NEED: Final = 3


class MappedPart:
    """A mapped range of a file that starts on a page. Made by `map_part`."""

    __slots__ = ("__array_interface__", "__weakref__", "_address", "at", "size")

    def __init__(self, address: int, size: int, at: int) -> None:
        self._address = address
        #: Length in bytes.
        self.size: Final = size
        #: File position of its first byte.
        self.at: Final = at
        self.__array_interface__ = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}

    @property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """The whole range, read-only; touch only what `fetch` has loaded."""
        import numpy as np

        return np.asarray(self)

    def fetch(self, start: int, end: int) -> bool:
        """Load bytes `start` up to `end`; false if that fails and the caller must read them."""
        return self._advise(start, end, _POPULATE_READ)

    def announce(self, start: int, end: int) -> None:
        """Start to load bytes that the caller will fetch soon; ignores those past the end."""
        if start < self.size:
            self._advise(start, min(end, self.size), _WILL_NEED)

    def _advise(self, start: int, end: int, advice: int) -> bool:
        first = start - start % mmap.PAGESIZE
        result: int = c_library().madvise(self._address + first, end - first, advice)
        return result == 0


def map_part(file: Readable, at: int, length: int) -> MappedPart | None:
    """Map `length` bytes of a file from position `at` on, and the bytes before them in the same page.

    None where that is impossible, as on a simulated disk or for a shorter file; the caller must read the bytes then.
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
