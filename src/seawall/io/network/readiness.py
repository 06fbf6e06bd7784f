"""Which of many descriptors are readable: a set that one thread waits on, and others add to or wake.

The waiting itself is a kernel's (`kernels.runtime.system.epoll_ready`), which needs both descriptors. Linux only.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from typing import Final

__all__ = ["ReadinessSet"]


class ReadinessSet:
    """Descriptors to wait on, and a waker that is one of them."""

    __slots__ = ("_epoll", "descriptor", "waker")

    def __init__(self) -> None:
        self._epoll: Final = select.epoll()
        #: What a kernel waits on, and what is readable there once `wake` was called.
        self.descriptor: Final = self._epoll.fileno()
        self.waker: Final = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self.waker, select.EPOLLIN)

    @staticmethod
    def is_supported() -> bool:
        """Whether this system has what it needs."""
        return sys.platform.startswith("linux")

    def add(self, descriptor: int) -> None:
        """Wait for bytes on a descriptor, and for its end."""
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLRDHUP)

    def remove(self, descriptor: int) -> None:
        """Wait for it no more; one that is closed is gone already."""
        with suppress(OSError):
            self._epoll.unregister(descriptor)

    def wake(self) -> None:
        """End the wait; from any thread."""
        os.eventfd_write(self.waker, 1)

    def close(self) -> None:
        """Give both descriptors back."""
        self._epoll.close()
        os.close(self.waker)
