"""This process: its number, its threads that wait for the interpreter, and bytes nobody can guess."""

from __future__ import annotations

import os
import time
import weakref
from typing import Protocol

__all__ = ["Disowned", "disown_on_fork", "let_others_run", "process_id", "random_bytes"]


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


def let_others_run() -> None:
    """Let another thread have the interpreter, if one waits for it: sooner than the interpreter would by itself."""
    time.sleep(0)


def process_id() -> int:
    """The number of this process; another one in a forked child."""
    return os.getpid()


def random_bytes(count: int) -> bytes:
    """So many bytes from the operating system's generator."""
    return os.urandom(count)
