"""This process: its number, its threads, bytes nobody can guess, and what becomes of its objects in a forked child."""

from __future__ import annotations

import os
import time
import weakref
from typing import Protocol

from seawall.errors import WrongStateError

__all__ = [
    "Disowned",
    "OwnProcess",
    "disown_on_fork",
    "let_others_run",
    "not_inherited",
    "process_id",
    "random_bytes",
    "release_inherited",
]


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


def not_inherited(what: str) -> WrongStateError:
    """Why something that existed before a fork refuses in the child."""
    return WrongStateError(
        f"this {what} was opened by the process that forked this one, which goes on using it: open another one here"
    )


class OwnProcess:
    """Refuses in a forked child, for an object that has nothing else to do there. One for each such object."""

    __slots__ = ("__weakref__", "_is_inherited", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_inherited = False
        disown_on_fork(self)

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that made the object."""
        return self._is_inherited

    def disown(self) -> None:
        """This is a forked child."""
        self._is_inherited = True

    def check(self) -> None:
        """Raise `WrongStateError` in a forked child."""
        if self._is_inherited:
            raise not_inherited(self._what)


def release_inherited(descriptor: int) -> None:
    """Let go of a forked child's share of a connection that somebody else's object still names by its descriptor.

    The number stays taken, by the null device: when that object closes it, nothing else is closed in its place, and the
    selector that parent and child share keeps watching the parent's connection.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def process_id() -> int:
    """The number of this process; another one in a forked child."""
    return os.getpid()


def random_bytes(count: int) -> bytes:
    """So many bytes from the operating system's generator."""
    return os.urandom(count)
