"""A reference-counted file: readers pin it, and its owner may close it at any time.

A reader pins the files of a read while it plans the read, and reads later, without a lock of the owner. The descriptor
is closed when the owner has closed the file *and* the last pin is released. So a segment may be sealed, dropped or
closed meanwhile: a reader never uses a closed descriptor, nor one that the system has reused for another file.

INV-PINNED-OPEN: a file that a reader has pinned stays open, and its descriptor stays its own, until the reader releases
it.

The cache may close a file that is not pinned to free a descriptor (`open_files.py`). The next pin opens it again, with
the path of the first open. So code that renames a file keeps it pinned from before the rename on.

After a failed sync the shared file refuses every change, even after it was closed and opened again.

The owner's thread takes pins; any thread may release them. This module must not know what is in the file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from seawall.core.checks import check
from seawall.errors import SyncError
from seawall.io.interfaces import File
from seawall.storage.open_files import OpenFiles

__all__ = ["FilePins", "SharedFile"]


class SharedFile:
    """One file, held by its owner and by its pins."""

    __slots__ = ("_cache", "_file", "_holders", "_is_dirty", "_lock", "_owned", "_read_only", "_sync_error", "_syncing")

    def __init__(
        self, file: File, cache: OpenFiles | None = None, *, read_only: bool = False, is_synced: bool = False
    ) -> None:
        """`file` is open; without a `cache` it stays open until its owner closes it. `is_synced`: no sync needed."""
        self._file = file
        self._cache = cache
        self._read_only = read_only
        # Reentrant, because `pin_to_write` calls `pin`.
        self._lock = threading.RLock()
        #: Held during a sync: another `sync` that finds nothing to do must not return before this one has succeeded.
        self._syncing = threading.Lock()
        self._owned = True
        #: The pins, and one for the owner.
        self._holders = 1
        #: True if bytes may have been written since the last sync.
        self._is_dirty = not (read_only or is_synced)
        self._sync_error: SyncError | None = None
        if cache is not None:
            cache.keep(self)

    @property
    def path(self) -> str:
        """Path it was opened with."""
        return self._file.path

    @property
    def file(self) -> File:
        """The open file; pin it before use, unless there is no cache that could close it."""
        return self._file

    @property
    def is_open(self) -> bool:
        """True if it has a descriptor now."""
        return self._cache is None or self in self._cache

    def pin(self) -> SharedFile:
        """Keep the file open until `unpin`, opening it if need be; its owner must not have closed it.

        `DescriptorsError` if there is no descriptor for it.
        """
        with self._lock:
            check(self._owned, "INV-PINNED-OPEN", "a file is pinned after its owner has closed it")
            self._open()
            self._holders += 1
        return self

    def pin_to_write(self) -> SharedFile:
        """`pin` for a writer; `SyncError` if a sync of it has failed."""
        with self._lock:
            self._require_synced()
            self.pin()
            self._is_dirty = True
        return self

    @contextmanager
    def reading(self) -> Iterator[File]:
        """The file, pinned while it is read."""
        self.pin()
        try:
            yield self._file
        finally:
            self.unpin()

    @contextmanager
    def writing(self) -> Iterator[File]:
        """The file, pinned while it is changed."""
        self.pin_to_write()
        try:
            yield self._file
        finally:
            # Another thread may have synced it during the write, before all bytes were written.
            self._is_dirty = True
            self.unpin()

    def sync(self) -> None:
        """Make everything written so far durable; `SyncError` if that fails, and every later change fails too.

        Does nothing if nothing was written since the last sync; the file need not be open then.
        """
        with self._syncing:
            self._require_synced()
            if not self._is_dirty:
                return
            with self.reading() as file:
                self._is_dirty = False
                try:
                    file.sync()
                except SyncError as error:
                    self._sync_error = error
                    raise

    def unpin(self) -> None:
        """Release one pin."""
        with self._lock:
            self._holders -= 1
            left = self._holders
        check(left >= 0, "INV-PINNED-OPEN", "a file was unpinned more often than it was pinned")
        if not left:
            self._close()
        elif self._cache is not None:
            self._cache.shrink()

    def close(self) -> None:
        """Drop the owner's reference; closing twice is fine. Syncs nothing."""
        with self._lock:
            owned, self._owned = self._owned, False
        if owned:
            # The owner counts as one holder.
            self.unpin()

    def try_evict(self) -> bool:
        """Sync and close the file if it is neither pinned nor being pinned; false if it stays open."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._holders != 1 or not self._owned or not self.is_open:
                return False
            try:
                if self._is_dirty and self._sync_error is None:
                    self._file.sync()
                    self._is_dirty = False
            except SyncError as error:
                self._sync_error = error
                raise
            finally:
                self._close()
            return True
        finally:
            self._lock.release()

    def _open(self) -> None:
        cache = self._cache
        if cache is None:
            return
        if self in cache:
            cache.touch(self)
            return
        self._file = cache.open(self._file.path, read_only=self._read_only)
        cache.keep(self)

    def _close(self) -> None:
        if self._cache is not None:
            self._cache.forget(self)
        self._file.close()

    def _require_synced(self) -> None:
        """Refuse every change after a failed sync."""
        if self._sync_error is not None:
            raise SyncError(str(self._sync_error)) from self._sync_error


class FilePins:
    """A set of files pinned for writing, each once."""

    __slots__ = ("_pinned",)

    def __init__(self) -> None:
        self._pinned: set[SharedFile] = set()

    def __contains__(self, shared: SharedFile) -> bool:
        """True if a file is in the set."""
        return shared in self._pinned

    def pin(self, shared: SharedFile) -> None:
        """Keep a file open until `unpin_all`; `DescriptorsError` if there is no descriptor for it."""
        if shared not in self._pinned:
            self._pinned.add(shared.pin_to_write())

    def unpin_all(self) -> None:
        """Release all pins; calling it twice is fine."""
        while self._pinned:
            self._pinned.pop().unpin()
