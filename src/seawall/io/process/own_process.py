"""This process: its id, random bytes, and protection of its objects in forked children."""

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
    "inherited_error",
    "process_id",
    "random_bytes",
    "release_inherited",
    "worker_name",
    "yield_gil",
]


class Disowned(Protocol):
    """An object that a forked child must not use."""

    def disown(self) -> None:
        """Called in a forked child: everything that this object holds belongs to the parent."""
        ...


_held: weakref.WeakSet[Disowned] = weakref.WeakSet()


def disown_on_fork(held: Disowned) -> None:
    """Call `disown` of this object in every forked child, for as long as the object lives."""
    _held.add(held)


def _disown_all() -> None:
    for held in list(_held):
        held.disown()


os.register_at_fork(after_in_child=_disown_all)


def yield_gil() -> None:
    """Release the GIL to a waiting thread now, instead of at the end of the interpreter's switch interval."""
    time.sleep(0)


def inherited_error(what: str) -> WrongStateError:
    """The error to raise when a forked child uses an object of its parent."""
    return WrongStateError(
        f"this {what} was opened by the parent of this forked process, which still uses it: open another one here"
    )


class OwnProcess:
    """Makes an object refuse calls in a forked child. One for each such object."""

    __slots__ = ("__weakref__", "_is_inherited", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_inherited = False
        disown_on_fork(self)

    @property
    def is_inherited(self) -> bool:
        """True if this process is a forked child of the one that created the object."""
        return self._is_inherited

    def disown(self) -> None:
        """Called in a forked child."""
        self._is_inherited = True

    def check(self) -> None:
        """Raise `WrongStateError` in a forked child."""
        if self._is_inherited:
            raise inherited_error(self._what)


def release_inherited(descriptor: int) -> None:
    """Close a forked child's copy of a connection whose descriptor another object still refers to.

    The descriptor number stays in use, for the null device: when that object closes it, it closes nothing else, and
    the selector that parent and child share keeps watching the parent's connection.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, descriptor, inheritable=False)
    os.close(null)


def process_id() -> int:
    """The id of this process; a forked child has another one."""
    return os.getpid()


def worker_name() -> str:
    """A new name for a worker of queues: host, process, and some random digits."""
    return f"{os.uname().nodename[:64]}-{os.getpid()}-{os.urandom(4).hex()}"


def random_bytes(count: int) -> bytes:
    """`count` bytes from the random generator of the operating system."""
    return os.urandom(count)
