"""The directory tree of a simulated disk: cached names, durable names, and unsynced changes.

Each directory has two tables, as a file has two images: lookups see *cached*, a crash goes back to *durable*. A create,
rename or unlink changes the cached tables immediately and stays pending as one *change* until its directory is synced.

Rules
- A change is atomic: after a crash a renamed file has its old name or its new one, never none and never both.
- Changes of the same name keep their order; changes of different names may survive a crash in any combination.
- Syncing a directory makes every change durable that touches it, and the earlier changes that these depend on. It does
  not make the name of the directory itself durable: that name belongs to the parent.
- A failed directory sync drops the changes that it should have written, as a failed file sync does.

Paths are absolute; a path without a leading slash starts at the root.

This module must not know handles, faults or bytes.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from seawall.testing.machine.content import Keep, SimContent

__all__ = ["SimNames", "canonical"]


@dataclass(slots=True, eq=False)
class _Directory:
    """The two tables of a directory. Compared by identity."""

    cached: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = SimContent | _Directory


@dataclass(frozen=True, slots=True)
class _Entry:
    """A name to set or, without a node, to remove."""

    directory: _Directory
    name: str
    node: _Node | None

    @property
    def key(self) -> tuple[int, str]:
        return id(self.directory), self.name

    def apply(self, table: dict[str, _Node]) -> None:
        if self.node is None:
            table.pop(self.name, None)
        else:
            table[self.name] = self.node


@dataclass(frozen=True, slots=True, eq=False)
class _Change:
    """Entries that become durable together. Compared by identity."""

    entries: tuple[_Entry, ...]

    def keys(self) -> set[tuple[int, str]]:
        return {entry.key for entry in self.entries}

    def touches(self, directory: _Directory) -> bool:
        return any(entry.directory is directory for entry in self.entries)

    def make_durable(self) -> None:
        for entry in self.entries:
            entry.apply(entry.directory.durable)


def canonical(path: str) -> str:
    """The normal form of a path."""
    return posixpath.normpath("/" + path.lstrip("/"))


class SimNames:
    """The directory tree of one disk."""

    __slots__ = ("_pending", "_root")

    def __init__(self) -> None:
        self._root = _Directory()
        self._pending: list[_Change] = []

    def exists(self, path: str) -> bool:
        """True if a file or directory has this name."""
        try:
            self._node(path)
        except OSError:
            return False
        return True

    def file(self, path: str) -> SimContent:
        """The content of a file."""
        node = self._node(path)
        if isinstance(node, _Directory):
            raise _os_error(errno.EISDIR, path)
        return node

    def durable_file(self, path: str) -> SimContent:
        """The content of a file under its durable name."""
        node: _Node | None = self._root
        for part in _parts(path):
            node = node.durable.get(part) if isinstance(node, _Directory) else None
        if not isinstance(node, SimContent):
            raise _os_error(errno.ENOENT, path)
        return node

    def entries(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(self._directory(path).cached)

    def create(self, path: str, content: SimContent) -> None:
        """Add the name of a new file."""
        directory, name = self._parent(path)
        self._apply_change(_Entry(directory, name, content))

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, one change each."""
        directory = self._root
        for part in _parts(path):
            node = directory.cached.get(part)
            if node is None:
                node = _Directory()
                self._apply_change(_Entry(directory, part, node))
            if isinstance(node, SimContent):
                raise _os_error(errno.EEXIST, path)
            directory = node

    def rename(self, old: str, new: str) -> None:
        """Rename a file; replaces a file of the new name."""
        content = self.file(old)
        if self.exists(new) and self.file(new) is content:
            return
        old_directory, old_name = self._parent(old)
        new_directory, new_name = self._parent(new)
        self._apply_change(_Entry(old_directory, old_name, None), _Entry(new_directory, new_name, content))

    def unlink(self, path: str) -> None:
        """Remove the name of a file."""
        self.file(path)
        directory, name = self._parent(path)
        self._apply_change(_Entry(directory, name, None))

    def sync(self, path: str) -> None:
        """Make the names in a directory durable."""
        for change in self._changes_to_sync(path):
            change.make_durable()
            self._pending.remove(change)

    def sync_some(self, path: str, chance: random.Random) -> None:
        """Make a random part of the changes durable, as a crash inside a directory sync does."""
        self._make_some_durable(self._changes_to_sync(path), chance)

    def lose_unsynced(self, path: str) -> None:
        """Drop the pending changes of a directory, though lookups see them, as a failed directory sync does."""
        for change in self._changes_to_sync(path):
            self._pending.remove(change)

    def crash(self, keep: Keep, chance: random.Random) -> None:
        """Decide which unsynced names survive; afterwards the cached tables equal the durable ones."""
        if keep == "all":
            for change in self._pending:
                change.make_durable()
        elif keep == "random":
            self._make_some_durable(list(self._pending), chance)
        self._pending.clear()
        for directory in self._directories():
            directory.cached = dict(sorted(directory.durable.items()))

    def files(self) -> list[SimContent]:
        """All files with a cached or durable name, in an order that depends only on the names."""
        found: dict[int, SimContent] = {}
        for directory in self._directories():
            for table in (directory.cached, directory.durable):
                for _, node in sorted(table.items()):
                    if isinstance(node, SimContent):
                        found[id(node)] = node
        return list(found.values())

    def _directories(self) -> Iterator[_Directory]:
        """All directories with a cached or durable name, parents first."""
        to_visit = [self._root]
        seen: set[int] = set()
        while to_visit:
            directory = to_visit.pop()
            if id(directory) in seen:
                continue
            seen.add(id(directory))
            for table in (directory.durable, directory.cached):
                to_visit.extend(node for _, node in sorted(table.items()) if isinstance(node, _Directory))
            yield directory

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        for part in _parts(path):
            if isinstance(node, SimContent):
                raise _os_error(errno.ENOTDIR, path)
            if part not in node.cached:
                raise _os_error(errno.ENOENT, path)
            node = node.cached[part]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if isinstance(node, SimContent):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory, name = posixpath.split(canonical(path))
        return self._directory(directory), name

    def _apply_change(self, *entries: _Entry) -> None:
        for entry in entries:
            entry.apply(entry.directory.cached)
        self._pending.append(_Change(entries))

    def _changes_to_sync(self, path: str) -> list[_Change]:
        """Pending changes that a sync of this directory writes, in order: its own, and those they depend on."""
        directory = self._directory(path)
        found: list[_Change] = []
        needed: set[tuple[int, str]] = set()
        for change in reversed(self._pending):
            if change.touches(directory) or change.keys() & needed:
                found.append(change)
                needed |= change.keys()
        return found[::-1]

    def _make_some_durable(self, changes: list[_Change], chance: random.Random) -> None:
        """Make a seeded choice of changes durable, never one without the earlier changes of the same name."""
        lost: set[tuple[int, str]] = set()
        for change in changes:
            if change.keys() & lost or chance.random() < 0.5:
                lost |= change.keys()
            else:
                change.make_durable()
                self._pending.remove(change)


def _parts(path: str) -> list[str]:
    return [part for part in canonical(path).split("/") if part]


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
