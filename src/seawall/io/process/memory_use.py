"""Measures how much memory this process uses, and how much it may use before the system kills it.

    limit   the configured one; else the lowest of the control group and its parents (version 2 or 1), if that is less
            than the memory of the machine; else the memory of the machine
    taken   anonymous and shared memory; file pages do not count, because the system can reclaim them

A configured limit counts this process only. The limit of a control group counts everything in that group, so `taken`
does too. Where the system does not say (no /proc), `taken` is 0.

This module must not know what memory is used for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["MemoryUse", "trim_memory"]

_KIB: Final = 1024
#: Unreclaimable memory of a group: keys of its `memory.stat`, for versions 2 and 1.
_UNRECLAIMABLE_V2: Final = (b"anon ", b"shmem ", b"slab_unreclaimable ", b"sock ", b"kernel_stack ", b"pagetables ")
_UNRECLAIMABLE_V1: Final = (b"total_rss ", b"total_shmem ")
_OWN: Final = (b"RssAnon:", b"RssShmem:")
_CONTENT_SIZE_MAX: Final = 64 * _KIB


class MemoryUse:
    """The memory limit of this process, found once, and its current use."""

    def __init__(self, configured: int = 0, *, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> None:
        """`configured` is the limit of the configuration; 0 if it has none."""
        self._status = f"{proc}/self/status"
        #: `memory.stat` of the control group that sets the limit, and the keys to add up; None without such a group.
        self._group_stat: str | None = None
        self._group_keys: tuple[bytes, ...] = ()
        #: The limit in bytes, and where it comes from.
        self.limit = configured
        self.source = "the configuration"
        if not configured:
            self.limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            self.source = "the memory of the machine"
            self._read_groups(Path(proc, "self", "cgroup"), Path(groups))

    def used(self) -> int:
        """Bytes in use now."""
        own = _numbers(self._status, _OWN) * _KIB
        return own if self._group_stat is None else max(own, _numbers(self._group_stat, self._group_keys))

    def _read_groups(self, listing: Path, groups: Path) -> None:
        for line in _lines(listing):
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if (number, controllers) == ("0", ""):
                self._read_group(groups, path, "memory.max", _UNRECLAIMABLE_V2)
            elif "memory" in controllers.split(","):
                self._read_group(groups / "memory", path, "memory.limit_in_bytes", _UNRECLAIMABLE_V1)

    def _read_group(self, root: Path, path: str, name: str, keys: tuple[bytes, ...]) -> None:
        """Apply the limits of a group and its parents; in a container that shows its own group as the root, of that."""
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            text = "".join(_lines(each / name)).strip()
            if text.isdigit() and int(text) < self.limit:
                self.limit, self.source = int(text), f"the control group {each}"
                self._group_stat, self._group_keys = f"{each}/memory.stat", keys
            if each == root:
                return


def trim_memory() -> bool:
    """Make the allocator return its free memory to the system; true if there was any."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


def _lines(path: Path) -> list[str]:
    """The lines of a system file; none if it does not exist."""
    return _content(str(path)).decode(errors="replace").splitlines()


def _numbers(path: str, names: Iterable[bytes]) -> int:
    """The sum of the numbers that follow these names, each at the beginning of a line."""
    content = b"\n" + _content(path) + b"\n"
    total = 0
    for name in names:
        at = content.find(b"\n" + name)
        if at >= 0:
            at += 1 + len(name)
            total += int(content[at : content.find(b"\n", at)].split()[0])
    return total


def _content(path: str) -> bytes:
    """The content of a system file, with as few system calls as possible: event loops call this."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _CONTENT_SIZE_MAX)
    finally:
        os.close(file)
