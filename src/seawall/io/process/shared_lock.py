"""A lock for Python threads and resident kernels: the API of `threading.Lock`, and its memory for kernels."""

from __future__ import annotations

import errno
from threading import Lock
from typing import Final, TypeAlias

import numpy as np

from seawall.io.disk.files import system_error
from seawall.kernels.runtime.locks import (
    LOCK_WORDS,
    acquire_lock,
    acquire_lock_within,
    release_lock,
    try_acquire_lock,
)

__all__ = ["MemoryLock", "SharedLock"]


class SharedLock:
    """A lock of this process. Its memory starts as zeros, which is an initialised mutex on Linux."""

    __slots__ = ("words",)

    def __init__(self) -> None:
        #: The memory of the mutex; kernels lock it through this array.
        self.words: Final = np.zeros(LOCK_WORDS, np.int64)

    def acquire(self, blocking: bool = True) -> bool:
        """Acquire the lock; false if it is held and `blocking` is false."""
        code = (acquire_lock if blocking else try_acquire_lock)(self.words)
        if code and (blocking or code != errno.EBUSY):
            raise system_error(code)
        return not code

    def acquire_within(self, wait_ns: int) -> bool:
        """Acquire the lock, waiting for so long without the GIL; false if it is still held then."""
        code = acquire_lock_within(self.words, wait_ns)
        if code not in (0, errno.ETIMEDOUT, errno.EBUSY):
            raise system_error(code)
        return not code

    def release(self) -> None:
        """Release the lock; only the thread that holds it may."""
        release_lock(self.words)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


#: A lock that guards memory which several threads read and change.
MemoryLock: TypeAlias = "Lock | SharedLock"
