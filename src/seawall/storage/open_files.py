"""A bounded LRU cache of open segment files, shared by all topics of a process.

A segment has one file, and a directory may have a hundred thousand segments: only those in use are open. When the cache
is full, it closes the least recently used file that is not pinned; the next pin opens that file again
(`shared_file.py`).

    open        open a file; closes others first if there are too many, or if the system has no descriptor left
    keep        a file is open now
    touch       an open file was used
    shrink      a file was unpinned
    forget      a file is closed

More files than `capacity` are open only if all of them are pinned. The cache syncs a file with unsynced changes before
it closes it. A descriptor opened later would not report a writeback error that the earlier one would have: so a failure
of that sync goes to `on_sync_failed`, and the shared file refuses every later change and sync.

If no file can be closed and the system has no descriptor left, `open` raises `DescriptorsError`: it has changed
nothing, and the caller may retry. Thread-safe. This module must not know what is in the files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from seawall import limits
from seawall.errors import SyncError
from seawall.io.interfaces import File, Files
from seawall.io.process.descriptors import descriptors_error, is_exhausted

__all__ = ["Evictable", "OpenFiles"]


class Evictable(Protocol):
    """An open file that the cache may close while it is not pinned."""

    def try_evict(self) -> bool:
        """Sync and close the file if it is not pinned; false if it stays open."""
        ...


def _ignore(_error: SyncError) -> None:
    """The default of `on_sync_failed`, for a cache whose files are only read."""


class OpenFiles:
    """A bounded cache of open files."""

    def __init__(self, files: Files, capacity: int = limits.SEGMENT_FILES_OPEN_MIN) -> None:
        self._files = files
        self.capacity = capacity
        #: Called when the sync before closing a file fails: the store must stop writing.
        self.on_sync_failed: Callable[[SyncError], None] = _ignore
        self._lock = threading.Lock()
        #: The open files, least recently used first.
        self._open: dict[Evictable, None] = {}

    def __len__(self) -> int:
        """Number of open files."""
        return len(self._open)

    def __contains__(self, shared: Evictable) -> bool:
        """True if a file is open."""
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
                    raise descriptors_error(error, path) from error

    def keep(self, shared: Evictable) -> None:
        """Add a file that was just opened."""
        with self._lock:
            self._open[shared] = None

    def touch(self, shared: Evictable) -> None:
        """Mark an open file as the most recently used."""
        with self._lock:
            if self._open.pop(shared, self) is None:
                self._open[shared] = None

    def forget(self, shared: Evictable) -> None:
        """Remove a file that was closed."""
        with self._lock:
            self._open.pop(shared, None)

    def shrink(self) -> None:
        """Close files beyond the capacity; call it after unpinning a file."""
        self._shrink_to(self.capacity)

    def _shrink_to(self, count: int) -> None:
        while len(self._open) > count and self._close_oldest():
            pass

    def _close_oldest(self) -> bool:
        """Close the least recently used file that is not pinned; false if there is none."""
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
