"""The names on a simulated disk: directories, what is in them, and what of that is durable.

Each directory has two tables, as a file has two images: *cached*, which every lookup sees, and *durable*, which a crash
goes back to. A create, rename or unlink changes cached tables at once and waits as one *change* until its directory is
synced.

Rules
- A change is atomic: after a crash a renamed file has its old name or its new one, never none and never both.
- Changes of the same name keep their order; changes of different names may survive a crash in any combination.
- Syncing a directory makes durable every change that touches it, and those that these build on. It does not make the
  directory's own name durable: that name belongs to the parent.
- A failed directory sync forgets the changes it should have written, as a failed file sync does.

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
    """Two tables of names. Compared by identity."""

    cached: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)


_Node: TypeAlias = SimContent | _Directory


@dataclass(frozen=True, slots=True)
class _Entry:
    """One name gets another meaning, or none."""

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
    """The one spelling of a path."""
    return posixpath.normpath("/" + path.lstrip("/"))


class SimNames:
    """The tree of directories of one disk."""

    __slots__ = ("_pending", "_root")

    def __init__(self) -> None:
        self._root = _Directory()
        self._pending: list[_Change] = []

    def exists(self, path: str) -> bool:
        """Whether something has this name."""
        try:
            self._node(path)
        except OSError:
            return False
        return True

    def file(self, path: str) -> SimContent:
        """The file of this name."""
        node = self._node(path)
        if isinstance(node, _Directory):
            raise _refusal(errno.EISDIR, path)
        return node

    def durable_file(self, path: str) -> SimContent:
        """The file a crash that keeps nothing unsynced would leave under this name."""
        node: _Node | None = self._root
        for part in _parts(path):
            node = node.durable.get(part) if isinstance(node, _Directory) else None
        if not isinstance(node, SimContent):
            raise _refusal(errno.ENOENT, path)
        return node

    def entries(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(self._directory(path).cached)

    def create(self, path: str, content: SimContent) -> None:
        """Give a new file its name."""
        directory, name = self._parent(path)
        self._change(_Entry(directory, name, content))

    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents, one change each."""
        directory = self._root
        for part in _parts(path):
            node = directory.cached.get(part)
            if node is None:
                node = _Directory()
                self._change(_Entry(directory, part, node))
            if isinstance(node, SimContent):
                raise _refusal(errno.EEXIST, path)
            directory = node

    def rename(self, old: str, new: str) -> None:
        """Give a file another name; what had that name loses it."""
        content = self.file(old)
        if self.exists(new) and self.file(new) is content:
            return
        old_directory, old_name = self._parent(old)
        new_directory, new_name = self._parent(new)
        self._change(_Entry(old_directory, old_name, None), _Entry(new_directory, new_name, content))

    def unlink(self, path: str) -> None:
        """Take a file's name away."""
        self.file(path)
        directory, name = self._parent(path)
        self._change(_Entry(directory, name, None))

    def sync(self, path: str) -> None:
        """Make the names in a directory durable."""
        for change in self._due(path):
            change.make_durable()
            self._pending.remove(change)

    def sync_some(self, path: str, chance: random.Random) -> None:
        """The part of a directory sync that a crash inside it lets through."""
        self._survive(self._due(path), chance)

    def lose_unsynced(self, path: str) -> None:
        """What a failed directory sync does: its changes are never written, though lookups see them."""
        for change in self._due(path):
            self._pending.remove(change)

    def crash(self, keep: Keep, chance: random.Random) -> None:
        """Decide which unsynced names survive; cached and durable agree afterwards."""
        if keep == "all":
            for change in self._pending:
                change.make_durable()
        elif keep == "random":
            self._survive(list(self._pending), chance)
        self._pending.clear()
        for directory in self._directories():
            directory.cached = dict(sorted(directory.durable.items()))

    def files(self) -> list[SimContent]:
        """Every file that has a name, seen or durable, in an order that depends on nothing but the names."""
        found: dict[int, SimContent] = {}
        for directory in self._directories():
            for table in (directory.cached, directory.durable):
                for _, node in sorted(table.items()):
                    if isinstance(node, SimContent):
                        found[id(node)] = node
        return list(found.values())

    def _directories(self) -> Iterator[_Directory]:
        """Every directory that has a name, seen or durable, parents first."""
        waiting = [self._root]
        seen: set[int] = set()
        while waiting:
            directory = waiting.pop()
            if id(directory) in seen:
                continue
            seen.add(id(directory))
            for table in (directory.durable, directory.cached):
                waiting.extend(node for _, node in sorted(table.items()) if isinstance(node, _Directory))
            yield directory

    def _node(self, path: str) -> _Node:
        node: _Node = self._root
        for part in _parts(path):
            if isinstance(node, SimContent):
                raise _refusal(errno.ENOTDIR, path)
            if part not in node.cached:
                raise _refusal(errno.ENOENT, path)
            node = node.cached[part]
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._node(path)
        if isinstance(node, SimContent):
            raise _refusal(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory, name = posixpath.split(canonical(path))
        return self._directory(directory), name

    def _change(self, *entries: _Entry) -> None:
        for entry in entries:
            entry.apply(entry.directory.cached)
        self._pending.append(_Change(entries))

    def _due(self, path: str) -> list[_Change]:
        """Pending changes that a sync of this directory writes, in order: its own, and what they build on."""
        directory = self._directory(path)
        due: list[_Change] = []
        wanted: set[tuple[int, str]] = set()
        for change in reversed(self._pending):
            if change.touches(directory) or change.keys() & wanted:
                due.append(change)
                wanted |= change.keys()
        return due[::-1]

    def _survive(self, changes: list[_Change], chance: random.Random) -> None:
        """Make a seeded choice of changes durable, never one without an earlier change of the same name."""
        lost: set[tuple[int, str]] = set()
        for change in changes:
            if change.keys() & lost or chance.random() < 0.5:
                lost |= change.keys()
            else:
                change.make_durable()
                self._pending.remove(change)


def _parts(path: str) -> list[str]:
    return [part for part in canonical(path).split("/") if part]


def _refusal(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
