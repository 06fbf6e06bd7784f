"""How much memory this process takes, and how much it may take before the system ends it.

    limit   what somebody has set; else that of the control group (version 2 or 1: the lowest from its own up to the
            root) where there is one below what the machine has; else what the machine has
    taken   anonymous and shared memory; pages of files do not count, the system takes them back when it needs them

A limit that somebody has set is about this process; one of a control group is about everything in that group, and so
is what is taken of it. Where the system does not tell (no /proc), nothing counts as taken.

This module must not know what memory is used for.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["MemoryUse", "give_back_memory"]

_KIB: Final = 1024
#: What a group of each version cannot give back: keys of its `memory.stat`.
_KEPT_2: Final = (b"anon ", b"shmem ", b"slab_unreclaimable ", b"sock ", b"kernel_stack ", b"pagetables ")
_KEPT_1: Final = (b"total_rss ", b"total_shmem ")
_OWN: Final = (b"RssAnon:", b"RssShmem:")
_CONTENT_SIZE_MAX: Final = 64 * _KIB


class MemoryUse:
    """The limit of this process, found once, and what it takes now."""

    def __init__(self, configured: int = 0, *, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> None:
        """`configured` is a limit that somebody has set; 0 if nobody has."""
        self._status = f"{proc}/self/status"
        #: Where the group tells what it takes, if the limit is its own.
        self._figures: str | None = None
        self._kept: tuple[bytes, ...] = ()
        #: Bytes that may be taken, and who says so.
        self.limit = configured
        self.source = "the configuration"
        if not configured:
            self.limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            self.source = "the memory of the machine"
            self._look_at_groups(Path(proc, "self", "cgroup"), Path(groups))

    def taken(self) -> int:
        """Bytes that are taken now."""
        own = _numbers(self._status, _OWN) * _KIB
        return own if self._figures is None else max(own, _numbers(self._figures, self._kept))

    def _look_at_groups(self, listing: Path, groups: Path) -> None:
        for line in _lines(listing):
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if (number, controllers) == ("0", ""):
                self._look_at(groups, path, "memory.max", _KEPT_2)
            elif "memory" in controllers.split(","):
                self._look_at(groups / "memory", path, "memory.limit_in_bytes", _KEPT_1)

    def _look_at(self, root: Path, path: str, name: str, kept: tuple[bytes, ...]) -> None:
        """Look at a group and those above it; in a container that shows its own group as the root, at that."""
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            text = "".join(_lines(each / name)).strip()
            if text.isdigit() and int(text) < self.limit:
                self.limit, self.source = int(text), f"the control group {each}"
                self._figures, self._kept = f"{each}/memory.stat", kept
            if each == root:
                return


def give_back_memory() -> bool:
    """Have the allocator return what it keeps for later to the system; whether there was anything."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


def _lines(path: Path) -> list[str]:
    """The lines of a file of the system; none where it is not there."""
    return _content(str(path)).decode(errors="replace").splitlines()


def _numbers(path: str, names: Iterable[bytes]) -> int:
    """The sum of the numbers behind some names, each at the beginning of a line."""
    content = b"\n" + _content(path) + b"\n"
    total = 0
    for name in names:
        at = content.find(b"\n" + name)
        if at >= 0:
            at += 1 + len(name)
            total += int(content[at : content.find(b"\n", at)].split()[0])
    return total


def _content(path: str) -> bytes:
    """What a file of the system says, by as few calls as there can be: it is asked for on an event loop."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _CONTENT_SIZE_MAX)
    finally:
        os.close(file)
