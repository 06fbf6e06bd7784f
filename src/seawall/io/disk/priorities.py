"""Sets the disk I/O priority of a thread.

Linux keeps an I/O class for each thread. The schedulers bfq and mq-deadline honour it; none and kyber do not. It
affects real disk reads only, not reads from the page cache. On other systems this module does nothing.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Final

__all__ = ["set_idle_io_priority"]

#: System call number of `ioprio_set` by machine name; the C library has no wrapper for it.
_NUMBERS: Final = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_WHO_PROCESS: Final = 1
_THIS_THREAD: Final = 0
_CLASS_IDLE: Final = 3 << 13


def set_idle_io_priority() -> bool:
    """Put this thread into the idle I/O class, so that other reads go first; true if the system accepted that."""
    number = _NUMBERS.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        return False
    return bool(ctypes.CDLL(None).syscall(number, _WHO_PROCESS, _THIS_THREAD, _CLASS_IDLE) == 0)
