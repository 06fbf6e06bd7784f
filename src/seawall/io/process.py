"""This process: its number, and bytes nobody can guess."""

from __future__ import annotations

import os
import weakref

__all__ = ["on_fork", "process_id", "random_bytes"]


def on_fork(owner: object, method: str) -> None:
    """Have a method of an object called in every child that this process forks, for as long as the object lives."""
    reference = weakref.ref(owner)

    def forked() -> None:
        alive = reference()
        if alive is not None:
            getattr(alive, method)()

    os.register_at_fork(after_in_child=forked)


def process_id() -> int:
    """The number of this process; another one in a forked child."""
    return os.getpid()


def random_bytes(count: int) -> bytes:
    """So many bytes from the operating system's generator."""
    return os.urandom(count)
