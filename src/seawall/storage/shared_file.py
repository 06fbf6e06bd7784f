"""A file that several use while its owner may let go of it at any moment, and that need not be open all the time.

Whoever plans a read pins the files it will use, and reads later, without any lock of the owner. The descriptor is given
back when the owner has let go *and* the last pin is gone. So a segment may be sealed, dropped or closed meanwhile: a
reader never meets a closed descriptor, nor one that the system has given to another file.

INV-PINNED-OPEN: a file that a reader has pinned stays open, and its descriptor stays its own, until the reader releases
it.

A file that nobody has pinned may be closed to make room for others (`open_files.py`); the next pin opens it again, by
the path it was first opened by. Whoever renames it keeps it pinned from before the rename on.

After a failed sync the shared file refuses every change, however often it is opened.

Pins are taken by the owner's thread, and given back by any. This module must not know what is in the file.
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
    """One file, its owner, and those who have it pinned."""

    __slots__ = ("_cache", "_file", "_holders", "_is_dirty", "_lock", "_owned", "_read_only", "_sync_error", "_syncing")

    def __init__(
        self, file: File, cache: OpenFiles | None = None, *, read_only: bool = False, is_synced: bool = False
    ) -> None:
        """`file` is open; without a `cache` it stays so until its owner closes it. What is in it may be durable."""
        self._file = file
        self._cache = cache
        self._read_only = read_only
        # Entered again by `sync` and `try_evict`, which pin nothing.
        self._lock = threading.RLock()
        #: Held while it is synced: who finds nothing left to sync must not return before that has succeeded.
        self._syncing = threading.Lock()
        self._owned = True
        self._holders = 1
        #: Whether something may have been written since the last sync.
        self._is_dirty = not (read_only or is_synced)
        self._sync_error: SyncError | None = None
        if cache is not None:
            cache.keep(self)

    @property
    def path(self) -> str:
        """Path it was opened by."""
        return self._file.path

    @property
    def file(self) -> File:
        """The open file; whoever uses it has it pinned, unless there is no cache that could close it."""
        return self._file

    @property
    def is_open(self) -> bool:
        """Whether it has a descriptor now."""
        return self._cache is None or self in self._cache

    def pin(self) -> SharedFile:
        """Keep it open until `unpin`; only what its owner has not closed can be pinned.

        It is opened if it is not; `DescriptorsError` if there is no descriptor for it.
        """
        with self._lock:
            check(self._owned, "INV-PINNED-OPEN", "a file is pinned after its owner has closed it")
            self._open()
            self._holders += 1
        return self

    def pin_to_write(self) -> SharedFile:
        """`pin` for who writes to it; `SyncError` if a sync of it has failed."""
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
            # Another thread may have synced it meanwhile, before all was written.
            self._is_dirty = True
            self.unpin()

    def sync(self) -> None:
        """Make everything written so far durable; `SyncError` if that fails, once and for ever.

        Where nothing was written since the last time nothing is done, and the file need not be open.
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
        """Give one pin back."""
        with self._lock:
            self._holders -= 1
            left = self._holders
        check(left >= 0, "INV-PINNED-OPEN", "a file was given back more often than it was pinned")
        if not left:
            self._close()
        elif self._cache is not None:
            self._cache.shrink()

    def close(self) -> None:
        """The owner lets go; twice is fine. Syncs nothing."""
        with self._lock:
            owned, self._owned = self._owned, False
        if owned:
            # An owner holds it as a pin does.
            self.unpin()

    def try_evict(self) -> bool:
        """Close it if nobody has it pinned or is about to, synced; whether that was so."""
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
    """Files that somebody has pinned to write to them, each once."""

    __slots__ = ("_pinned",)

    def __init__(self) -> None:
        self._pinned: set[SharedFile] = set()

    def __contains__(self, shared: SharedFile) -> bool:
        """Whether a file is among them."""
        return shared in self._pinned

    def pin(self, shared: SharedFile) -> None:
        """Have a file open until `unpin_all`; `DescriptorsError` if there is no descriptor for it."""
        if shared not in self._pinned:
            self._pinned.add(shared.pin_to_write())

    def unpin_all(self) -> None:
        """Give all of them back; twice is fine."""
        while self._pinned:
            self._pinned.pop().unpin()
