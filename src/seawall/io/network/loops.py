"""Event loops: the fastest there is on this machine.

uvloop where it is installed (the extra `server`), asyncio's own elsewhere. What runs on a loop must not care which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

__all__ = ["loop_factory"]


def loop_factory() -> tuple[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The name of the loop that is used here, and what makes one."""
    if find_spec("uvloop") is None:
        return "asyncio", asyncio.new_event_loop
    make: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return "uvloop", make
