"""Tickets: the queue entries of threads that need exclusive access to the store."""

from __future__ import annotations

import threading
from typing import ClassVar, Final

#: A thread that waits for another leader checks this often whether it has to finish that leader's commit itself.
ASSIST_AFTER_S: Final = 0.05


class Ticket:
    """A thread that waits in the commit queue for exclusive access to the store."""

    __slots__ = ("_woken", "is_taken")

    #: No driver: the waiting thread itself commits the entries before its ticket.
    driver: ClassVar[None] = None

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.is_taken = False

    def wait(self) -> None:
        """Block until woken, or until it is time to assist."""
        self._woken.wait(ASSIST_AFTER_S)
        self._woken.clear()

    def wake_one(self) -> None:
        """Wake the thread to check the queue again."""
        self._woken.set()
