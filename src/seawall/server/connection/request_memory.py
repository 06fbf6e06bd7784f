"""Accounts for the memory of the requests of one connection, from before they are accepted until they are answered.

    has_memory   reserves memory before a frame is accepted; if there is none, the frame waits until `resume` is called
    begun        the frame has started a request, which takes over the reservation
    not_begun    the frame was answered at once, or was no request

A request in flight counts with its bytes and the memory of its task.

A crash loses nothing but counters. This module must not know what is requested.
"""

from __future__ import annotations

from collections.abc import Callable

from seawall import limits
from seawall.server.connection.budget import Account


class RequestMemory:
    """The memory of the requests of one connection."""

    __slots__ = ("_account", "_counted", "_resume", "_wanted")

    def __init__(self, account: Account, resume: Callable[[], None]) -> None:
        self._account = account
        self._resume = resume
        #: Bytes reserved for the next request, and bytes that it waits for.
        self._counted = 0
        self._wanted = 0

    def has_memory(self, size: int) -> bool:
        """Reserve memory for the next request; False if it has to wait, until `resume` is called."""
        if self._wanted:
            return False
        if not self._counted:
            size += limits.REQUEST_SIZE
            if not self._account.reserve(size, self._granted):
                self._wanted = size
                return False
            self._counted = size
        return True

    def begun(self) -> int:
        """Pass the reservation to a request that has started; `ended` returns it."""
        size, self._counted = self._counted, 0
        return size

    def not_begun(self) -> None:
        """Release the reservation, unless a request has taken it over."""
        self.ended(self.begun())

    def ended(self, size: int) -> None:
        """Release the memory of an answered request."""
        self._account.hold(-size)

    def _granted(self) -> None:
        self._counted, self._wanted = self._wanted, 0
        self._resume()
