"""Which thread's reads may wait: the class of a thread at the disk.

Linux keeps a class for each thread, and some of its schedulers honour it: bfq and mq-deadline do, none and kyber do
not. It is about what really comes from the disk: pages that are in memory cost nothing. Elsewhere nothing is asked for.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

__all__ = ["read_when_idle"]

#: `ioprio_set`, by the machine's name: it has no function in the C library.
_NUMBERS: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_WHO_PROCESS: Final = 1
_THIS_THREAD: Final = 0
_CLASS_IDLE: Final = 3 << 13


def read_when_idle() -> bool:
    """Let this thread have the disk only when nobody else wants it; whether the system takes note of that."""
    number = _NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        return False
    return bool(ctypes.CDLL(None).syscall(number, _WHO_PROCESS, _THIS_THREAD, _CLASS_IDLE) == 0)
