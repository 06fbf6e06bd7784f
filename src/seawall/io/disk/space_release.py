"""Files that are removed give their space back on a thread of their own, so that nobody waits for that.

    RELEASER.keep(path)      before a large file is removed: a descriptor that keeps its bytes, or None
    RELEASER.take(…)         after it: closed on the thread, which is when the space comes back
    RELEASER.wait()          for who found the disk full: until all of it is back; whether there was any

The name of a file is gone at once, but what it held goes with the last that has it open, and that takes its time: 14 to
20 ms for 64 MiB on a disk that is told of every free block (ext4 mounted with `discard`, without a journal). Whoever
drops segments does so while appends wait.

Whoever removes files syncs their directory next, and that would wait for a disk that is busy with free blocks. So it
begins a moment later, unless somebody waits for it.

So many descriptors wait at the most; whoever comes then waits for room. Nobody is told that a disk is full while space
is on its way back.

A crash, or the end of the process, gives everything back. After a fork the child has no thread and nothing that waits;
what was kept open in the parent stays its parent's.
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

#: From so many bytes on it takes long enough to be worth a thread.
_LARGE_SIZE: Final = 8 * MIB

#: Descriptors that wait to be closed, at the most.
_WAITING_MAX: Final = 64

#: The moment before they are.
_PAUSE_S: Final = 0.1

#: What is needed of a file to keep it: where there is such a thing, nothing of what is in it.
_KEEPING: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_CLOEXEC", 0)


class Releaser:
    """Closes descriptors on a thread that begins when it is first needed. Threads may share it."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave_to_parent)

    def _reset(self) -> None:
        self._change = threading.Condition()
        #: Not closed yet; the first one is being closed, if there is one.
        self._waiting: deque[int] = deque()
        #: Threads that wait for it.
        self._hurried = 0
        self._thread: threading.Thread | None = None

    def keep(self, path: str) -> int | None:
        """A descriptor that keeps what a file holds, if that is much; None if not, or if it cannot be had."""
        with suppress(OSError):
            if os.lstat(path).st_blocks * 512 >= _LARGE_SIZE:
                return os.open(path, _KEEPING)
        return None

    def take(self, descriptor: int) -> None:
        """Have a descriptor closed soon."""
        with self._change:
            self._await(lambda: len(self._waiting) < _WAITING_MAX)
            self._waiting.append(descriptor)
            self._change.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="seawall-releasing", daemon=True)
                self._thread.start()

    def wait(self) -> bool:
        """Wait until everything is closed that was to be; false if nothing was."""
        with self._change:
            was_any = bool(self._waiting)
            self._await(lambda: not self._waiting)
            return was_any

    def _await(self, is_done: Callable[[], bool]) -> None:
        """Wait for the thread; called with the lock, which is free meanwhile."""
        if is_done():
            return
        self._hurried += 1
        self._change.notify_all()
        self._change.wait_for(is_done)
        self._hurried -= 1

    def _run(self) -> None:
        while True:
            with self._change:
                if not self._waiting:
                    self._change.wait_for(lambda: self._waiting)
                    self._change.wait_for(lambda: self._hurried, _PAUSE_S)
                descriptor = self._waiting[0]
            os.close(descriptor)
            with self._change:
                self._waiting.popleft()
                self._change.notify_all()

    def _leave_to_parent(self) -> None:
        waiting = list(self._waiting)
        # Whoever held the old lock when the parent forked is not here to let it go.
        self._reset()
        for descriptor in waiting:
            with suppress(OSError):
                os.close(descriptor)


#: That of this process.
RELEASER: Final = Releaser()
