"""The files of segments that a process has open: at most so many, over all topics.

A segment has one file, and a directory may have a hundred thousand segments: only those that are in use are open. When
one more is opened than fits, the least recently used one that nobody has pinned is closed, and its next user opens it
again (`shared_file.py`).

    open        a file, closing others first where there are too many, or where the system has no descriptor left
    keep        a shared file is open now
    touch       it was used
    shrink      some file was unpinned
    forget      it is closed

More files than `capacity` are open only if all of them are pinned. A file with unsynced changes is synced before it is
closed. A descriptor that is opened later does not report a failed writeback that an earlier one would have: so the
failure of that sync is told to `on_sync_failed`, and the shared file refuses every later change and sync.

Where no file can be closed and the system has no descriptor left, `open` raises `DescriptorsError`: nothing was
changed, and it may be tried again. Threads may share it. This module must not know what is in the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from seawall import limits
from seawall.errors import SyncError
from seawall.io.interfaces import File, Files
from seawall.io.process.descriptors import is_exhausted, no_descriptor

if TYPE_CHECKING:
    from seawall.storage.shared_file import SharedFile

__all__ = ["OpenFiles"]


def _ignore(_error: SyncError) -> None:
    """Nobody changes files through this cache."""


class OpenFiles:
    """A bounded cache of open files."""

    def __init__(self, files: Files, capacity: int = limits.SEGMENT_FILES_OPEN_MIN) -> None:
        self._files = files
        self.capacity = capacity
        #: Told when a file could not be synced before it was closed: whoever writes must stop.
        self.on_sync_failed: Callable[[SyncError], None] = _ignore
        self._lock = threading.Lock()
        #: Those that are open, the one used last at the end.
        self._open: dict[SharedFile, None] = {}

    def __len__(self) -> int:
        """How many files are open."""
        return len(self._open)

    def __contains__(self, shared: SharedFile) -> bool:
        """Whether a file is open."""
        return shared in self._open

    def open(self, path: str, *, exclusive: bool = False, read_only: bool = False) -> File:
        """Open a file, with `exclusive` a new one; `DescriptorsError` if there is no descriptor for it."""
        self._shrink_to(self.capacity - 1)
        while True:
            try:
                return self._files.open(path, exclusive=exclusive, read_only=read_only)
            except OSError as error:
                if not is_exhausted(error):
                    raise
                if not self._close_oldest():
                    raise no_descriptor(error, path) from error

    def keep(self, shared: SharedFile) -> None:
        """A file is open, and was used just now."""
        with self._lock:
            self._open[shared] = None

    def touch(self, shared: SharedFile) -> None:
        """An open file is used."""
        with self._lock:
            if self._open.pop(shared, self) is None:
                self._open[shared] = None

    def forget(self, shared: SharedFile) -> None:
        """A file is closed."""
        with self._lock:
            self._open.pop(shared, None)

    def shrink(self) -> None:
        """Some file is pinned no more: close what is open beyond the capacity."""
        self._shrink_to(self.capacity)

    def _shrink_to(self, count: int) -> None:
        while len(self._open) > count and self._close_oldest():
            pass

    def _close_oldest(self) -> bool:
        """Close the least recently used file that nobody has pinned; false if there is none."""
        with self._lock:
            candidates = list(self._open)
        for shared in candidates:
            try:
                if shared.try_evict():
                    return True
            except SyncError as error:
                self.on_sync_failed(error)
                return True
        return False
