"""Frees the disk space of removed files on a background thread, so that the remover does not wait for it.

    RELEASER.hold(path)         before a large file is unlinked: a descriptor that keeps its blocks, or None
    RELEASER.close_later(…)     after the unlink: the thread closes the descriptor, which frees the blocks
    RELEASER.wait()             after ENOSPC: wait until all pending space is free; true if there was any

An unlink removes the name at once; the file system frees the blocks when the last descriptor is closed. That takes 14
to 20 ms for 64 MiB on a disk that gets a discard for every free block (ext4 mounted with `discard`, without a journal),
and retention drops segments while appends wait.

The remover syncs the directory next, and that sync would wait for a disk busy with discards. So the thread starts after
a short pause, unless a caller is waiting for the space.

The number of pending descriptors is bounded; at the bound, callers wait. Nothing reports a full disk while space is
still pending.

A crash, or the end of the process, frees everything. After a fork the child starts without a thread and with nothing
pending; the parent's descriptors stay the parent's job.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from seawall.limits import MIB

__all__ = ["RELEASER", "Releaser"]

#: Smallest file whose blocks take long enough to free to be worth a thread.
_LARGE_SIZE: Final = 8 * MIB

#: Most descriptors that may be waiting to be closed.
_PENDING_MAX: Final = 64

#: Pause before the thread starts to close them.
_PAUSE_S: Final = 0.1

#: Flags that hold a file open; O_PATH, where it exists, needs no read permission.
_HOLD_FLAGS: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0)


class Releaser:
    """Closes descriptors on a thread that starts on first use. Thread-safe."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def _reset(self) -> None:
        self._change = threading.Condition()
        #: Descriptors not closed yet; the thread is closing the first one.
        self._pending: deque[int] = deque()
        #: Number of threads that wait for the releaser.
        self._waiters = 0
        self._thread: threading.Thread | None = None

    def hold(self, path: str) -> int | None:
        """A descriptor that keeps the blocks of a large file; None if it is small or cannot be opened."""
        with suppress(OSError):
            if os.lstat(path).st_blocks * 512 >= _LARGE_SIZE:
                return os.open(path, _HOLD_FLAGS)
        return None

    def close_later(self, descriptor: int) -> None:
        """Close a descriptor soon, on the thread; waits while too many are pending."""
        with self._change:
            self._await(lambda: len(self._pending) < _PENDING_MAX)
            self._pending.append(descriptor)
            self._change.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="seawall-releasing", daemon=True)
                self._thread.start()

    def wait(self) -> bool:
        """Wait until every pending descriptor is closed; false if none was pending."""
        with self._change:
            was_any = bool(self._pending)
            self._await(lambda: not self._pending)
            return was_any

    def _await(self, is_done: Callable[[], bool]) -> None:
        """Wait for the thread; the caller holds the lock, and waiting releases it."""
        if is_done():
            return
        self._waiters += 1
        self._change.notify_all()
        self._change.wait_for(is_done)
        self._waiters -= 1

    def _run(self) -> None:
        while True:
            with self._change:
                if not self._pending:
                    self._change.wait_for(lambda: self._pending)
                    self._change.wait_for(lambda: self._waiters, _PAUSE_S)
                descriptor = self._pending[0]
            os.close(descriptor)
            with self._change:
                self._pending.popleft()
                self._change.notify_all()

    def _leave_to_parent(self) -> None:
        pending = list(self._pending)
        # A parent thread may have held the old lock at the fork; that thread does not exist here.
        self._reset()
        for descriptor in pending:
            with suppress(OSError):
                os.close(descriptor)


#: The releaser of this process.
RELEASER: Final = Releaser()
