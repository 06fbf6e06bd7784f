"""Which start of the machine this is: what lived in its memory belongs to one start and to no other."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final
from uuid import UUID

from seawall.io.process.own_process import random_bytes

__all__ = ["BOOT_ID_SIZE", "boot_id"]

BOOT_ID_SIZE: Final = 16

#: Where Linux tells it: a number drawn when the kernel starts, the same in all containers of the machine.
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"


@cache
def boot_id() -> bytes:
    """Sixteen bytes that are the same until the next reboot.

    Where the system tells none they are drawn anew by each process and kept by those it forks: nothing is ever taken
    for a leftover of this start, which costs warm starts and is safe.
    """
    return read_boot_id(_BOOT_ID_FILE)


def read_boot_id(path: str) -> bytes:
    """The number that a file holds, as text; random bytes if there is none."""
    try:
        return UUID(Path(path).read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return random_bytes(BOOT_ID_SIZE)
