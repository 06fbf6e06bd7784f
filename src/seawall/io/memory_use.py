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
from pathlib import Path
from typing import Final

__all__ = ["MemoryUse", "give_back_memory"]

_KIB: Final = 1024
#: What a group of each version cannot give back: keys of its `memory.stat`.
_KEPT_2: Final = frozenset({"anon", "shmem", "slab_unreclaimable", "sock", "kernel_stack", "pagetables"})
_KEPT_1: Final = frozenset({"total_rss", "total_shmem"})
_OWN: Final = frozenset({"RssAnon:", "RssShmem:"})


class MemoryUse:
    """The limit of this process, found once, and what it takes now."""

    def __init__(self, configured: int = 0, *, proc: str = "/proc", groups: str = "/sys/fs/cgroup") -> None:
        """`configured` is a limit that somebody has set; 0 if nobody has."""
        self._status = Path(proc, "self", "status")
        self._group: Path | None = None
        self._kept: frozenset[str] = frozenset()
        #: Bytes that may be taken, and who says so.
        self.limit = configured
        self.source = "the configuration"
        if not configured:
            self.limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            self.source = "the memory of the machine"
            self._look_at_groups(Path(proc, "self", "cgroup"), Path(groups))

    def taken(self) -> int:
        """Bytes that are taken now."""
        own = sum(_numbers(self._status, _OWN)) * _KIB
        return own if self._group is None else max(own, sum(_numbers(self._group / "memory.stat", self._kept)))

    def _look_at_groups(self, listing: Path, groups: Path) -> None:
        for line in _lines(listing):
            number, controllers, path = [*line.split(":", 2), "", ""][:3]
            if (number, controllers) == ("0", ""):
                self._look_at(groups, path, "memory.max", _KEPT_2)
            elif "memory" in controllers.split(","):
                self._look_at(groups / "memory", path, "memory.limit_in_bytes", _KEPT_1)

    def _look_at(self, root: Path, path: str, name: str, kept: frozenset[str]) -> None:
        """Look at a group and those above it; in a container that shows its own group as the root, at that."""
        group = root / path.lstrip("/")
        for each in (group, *group.parents):
            text = "".join(_lines(each / name)).strip()
            if text.isdigit() and int(text) < self.limit:
                self.limit, self.source = int(text), f"the control group {each}"
                self._group, self._kept = each, kept
            if each == root:
                return


def give_back_memory() -> bool:
    """Have the allocator return what it keeps for later to the system; whether there was anything."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


def _lines(path: Path) -> list[str]:
    """The lines of a file of the system; none where it is not there."""
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _numbers(path: Path, names: frozenset[str]) -> list[int]:
    """The numbers behind some names, a line each."""
    rows = (line.split() for line in _lines(path))
    return [int(words[1]) for words in rows if len(words) > 1 and words[0] in names]
