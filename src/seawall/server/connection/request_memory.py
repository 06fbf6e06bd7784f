"""The memory of the requests of one connection: counted before one is taken, until it is answered.

    has_memory   before a frame is taken; if there is no room it stays where it is, and `go_on` is called later
    begun        the frame has become a request that is carried out, which has what was counted for it
    not_begun    it was answered at once, or was no request

A request that is under way is counted, with its bytes and what its task takes.

A crash takes nothing but numbers. This module must not know what is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from seawall import limits
from seawall.server.connection.budget import Account


class RequestMemory:
    """What the requests of one connection take."""

    __slots__ = ("_account", "_counted", "_go_on", "_wanted")

    def __init__(self, account: Account, go_on: Callable[[], None]) -> None:
        self._account = account
        self._go_on = go_on
        #: What is counted for the next request, and what it waits for.
        self._counted = 0
        self._wanted = 0

    def has_memory(self, size: int) -> bool:
        """Count the bytes of the next request; false if it has to wait, until `go_on`."""
        if self._wanted:
            return False
        if not self._counted:
            size += limits.REQUEST_SIZE
            if not self._account.take(size, self._granted):
                self._wanted = size
                return False
            self._counted = size
        return True

    def begun(self) -> int:
        """The request is carried out: what was counted for it, which `ended` returns."""
        size, self._counted = self._counted, 0
        return size

    def not_begun(self) -> None:
        """What was counted is not needed, unless a request has taken it over."""
        self.ended(self.begun())

    def ended(self, size: int) -> None:
        """A request is answered."""
        self._account.hold(-size)

    def _granted(self) -> None:
        self._counted, self._wanted = self._wanted, 0
        self._go_on()
