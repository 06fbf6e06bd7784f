"""This process: its number, and bytes nobody can guess."""

from __future__ import annotations

import os

__all__ = ["process_id", "random_bytes"]


def process_id() -> int:
    """The number of this process; another one in a forked child."""
    return os.getpid()


def random_bytes(count: int) -> bytes:
    """So many bytes from the operating system's generator."""
    return os.urandom(count)
