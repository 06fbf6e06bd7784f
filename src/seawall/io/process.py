"""This process: its number, and bytes nobody can guess."""

from __future__ import annotations

import os
import weakref
from typing import Protocol

__all__ = ["Disowned", "disown_on_fork", "process_id", "random_bytes"]


class Disowned(Protocol):
    """What a forked child must not use."""

    def disown(self) -> None:
        """This is a child: whatever it holds belongs to the parent."""
        ...


_held: weakref.WeakSet[Disowned] = weakref.WeakSet()


def disown_on_fork(held: Disowned) -> None:
    """Have `disown` called in every child that this process forks, for as long as the object lives."""
    _held.add(held)


def _disown_all() -> None:
    for held in list(_held):
        held.disown()


os.register_at_fork(after_in_child=_disown_all)


def process_id() -> int:
    """The number of this process; another one in a forked child."""
    return os.getpid()


def random_bytes(count: int) -> bytes:
    """So many bytes from the operating system's generator."""
    return os.urandom(count)
