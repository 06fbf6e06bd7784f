"""Identifies the current boot of the machine: the content of shared memory belongs to one boot only."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final
from uuid import UUID

from seawall.io.process.own_process import random_bytes

__all__ = ["BOOT_ID_SIZE", "boot_id"]

BOOT_ID_SIZE: Final = 16

#: Linux draws this random id when the kernel starts; it is the same in all containers of the machine.
_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"


@cache
def boot_id() -> bytes:
    """Sixteen bytes that are the same until the next reboot.

    Where the system has no boot id, each process draws random bytes, which its forked children share. Then nothing
    counts as left over from this boot: that is safe, and costs warm starts.
    """
    return read_boot_id(_BOOT_ID_FILE)


def read_boot_id(path: str) -> bytes:
    """The boot id in a file, written as text; random bytes if there is none."""
    try:
        return UUID(Path(path).read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return random_bytes(BOOT_ID_SIZE)
