"""Turns: a thread that wants the store for itself waits for one, in the queue of those who publish."""

from __future__ import annotations

import threading
from typing import ClassVar, Final

#: A thread that waits for another's commit looks after this long whether it is stuck behind an idle driver.
HELP_AFTER_S: Final = 0.05


class Ticket:
    """A thread that wants the store for itself."""

    __slots__ = ("_woken", "is_taken")

    #: Whoever waits for a turn commits what is before it.
    driver: ClassVar[None] = None

    def __init__(self) -> None:
        self._woken = threading.Event()
        self.is_taken = False

    def wait(self) -> None:
        """Sleep until woken, or for a while."""
        self._woken.wait(HELP_AFTER_S)
        self._woken.clear()

    def wake_one(self) -> None:
        """Let it look again."""
        self._woken.set()
