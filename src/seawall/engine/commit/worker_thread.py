"""A background thread that runs one job whenever it is woken.

The embedded log commits on it what no thread waits for, so a publisher encodes its next records while the last ones
are written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class WorkerThread:
    """Calls `work` on its own thread after each `wake`. The thread starts with the first wake."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._woken = threading.Event()
        self._is_stopping = False
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Run the work soon; several wakes before it runs count as one."""
        self._woken.set()
        with self._start:
            if (self._thread is None or not self._thread.is_alive()) and not self._is_stopping:
                self._thread = threading.Thread(target=self._run, name="seawall-worker", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Run the work once more and end the thread; later wakes do nothing."""
        with self._start:
            self._is_stopping = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._woken.wait()
            self._woken.clear()
            self._work()
            if self._is_stopping:
                return
