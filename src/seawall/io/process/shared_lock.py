"""A lock for threads of Python and for resident kernels: methods as of `threading.Lock`, and memory for kernels."""

from __future__ import annotations

import errno
from threading import Lock
from typing import Final, TypeAlias

import numpy as np

from seawall.io.disk.files import system_error
from seawall.kernels.runtime.locks import LOCK_WORDS, acquire_lock, release_lock, try_acquire_lock

__all__ = ["MemoryLock", "SharedLock"]


class SharedLock:
    """A lock of this process. The memory of a new one is all zeros, which is how a mutex begins on Linux."""

    __slots__ = ("words",)

    def __init__(self) -> None:
        #: What kernels take it by.
        self.words: Final = np.zeros(LOCK_WORDS, np.int64)

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; false if it is held and this is not to wait."""
        code = (acquire_lock if blocking else try_acquire_lock)(self.words)
        if code and (blocking or code != errno.EBUSY):
            raise system_error(code)
        return not code

    def release(self) -> None:
        """Give it back, on the thread that has it."""
        release_lock(self.words)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


#: What is held while memory is read or changed that others change or read.
MemoryLock: TypeAlias = "Lock | SharedLock"
