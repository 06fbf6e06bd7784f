"""Picks the fastest event loop that is installed.

That is uvloop if it is installed (the extra `server`), else asyncio's own. Code on a loop must not depend on which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

__all__ = ["loop_factory"]


def loop_factory() -> tuple[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The name of the event loop to use, and a function that creates one."""
    if find_spec("uvloop") is None:
        return "asyncio", asyncio.new_event_loop
    make: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return "uvloop", make
