"""An epoll set of descriptors that one thread waits on, and that other threads add to or wake.

A kernel does the waiting (`kernels.runtime.system.epoll_ready`); it needs both descriptors. Linux only.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from typing import Final

__all__ = ["ReadinessSet"]


class ReadinessSet:
    """Descriptors to wait on; the waker is one of them."""

    __slots__ = ("_epoll", "descriptor", "waker")

    def __init__(self) -> None:
        self._epoll: Final = select.epoll()
        #: The kernel waits on `descriptor`; `wake` makes `waker` readable.
        self.descriptor: Final = self._epoll.fileno()
        self.waker: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self.waker, select.EPOLLIN)

    @staticmethod
    def is_supported() -> bool:
        """True if this system has epoll and eventfd."""
        return sys.platform.startswith("linux")

    def add(self, descriptor: int) -> None:
        """Watch a descriptor for bytes and for its end."""
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)

    def remove(self, descriptor: int) -> None:
        """Stop watching a descriptor; closing one removes it too."""
        with suppress(OSError):
            self._epoll.unregister(descriptor)

    def wake(self) -> None:
        """Wake the waiting thread; any thread may call this."""
        os.eventfd_write(self.waker, 1)

    def close(self) -> None:
        """Close both descriptors."""
        self._epoll.close()
        os.close(self.waker)
