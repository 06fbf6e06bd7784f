"""A thread that commits what nobody waits for: so a publisher encodes the next records while the last are written."""

from __future__ import annotations

import threading
from collections.abc import Callable


class WorkerThread:
    """Calls `work` on a thread of its own whenever it was woken. The thread starts with the first wake."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._woken = threading.Event()
        self._is_stopping = False
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Have the work done soon; wakes that come together are one."""
        self._woken.set()
        with self._start:
            if (self._thread is None or not self._thread.is_alive()) and not self._is_stopping:
                self._thread = threading.Thread(target=self._run, name="seawall-pump", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Do what is left and end the thread; what is woken later is never done."""
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
