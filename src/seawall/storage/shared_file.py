"""A file that several read while its owner may let go of it at any moment.

Whoever plans a read pins the files it will use, and reads later, without any lock of the owner. The descriptor is given
back when the owner has let go *and* the last pin is gone. So a segment may be sealed, dropped or closed meanwhile: a
reader never meets a closed descriptor, nor one that the system has given to another file (INV-PINNED-OPEN).

Pins are taken by the owner's thread, and given back by any. This module must not know what is in the file.
"""

from __future__ import annotations

import threading
from typing import Final

from seawall.core.checks import check
from seawall.io.interfaces import File

__all__ = ["SharedFile"]


class SharedFile:
    """One open file, its owner, and those who have it pinned."""

    __slots__ = ("_holders", "_lock", "_owned", "file")

    def __init__(self, file: File) -> None:
        self.file: Final = file
        self._lock = threading.Lock()
        self._owned = True
        self._holders = 1

    def pin(self) -> SharedFile:
        """Keep it open until `unpin`; only what its owner has not closed can be pinned."""
        with self._lock:
            check(self._owned, "INV-PINNED-OPEN", "a file is pinned after its owner has closed it")
            self._holders += 1
        return self

    def unpin(self) -> None:
        """Give one pin back."""
        with self._lock:
            self._holders -= 1
            left = self._holders
        check(left >= 0, "INV-PINNED-OPEN", "a file was given back more often than it was pinned")
        if not left:
            self.file.close()

    def close(self) -> None:
        """The owner lets go; twice is fine."""
        with self._lock:
            owned, self._owned = self._owned, False
        if owned:
            # An owner holds it as a pin does.
            self.unpin()
