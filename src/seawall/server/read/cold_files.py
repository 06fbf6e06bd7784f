"""Stretches of files that are not in memory are brought there before they are sent.

They go from the file to the socket by a call of the event loop, which would wait for the disk, and everybody with it.
So a thread reads them first, one whose disk operations wait for those of all others; the loop finds them in memory
then. Most of the time they are there already, which a look tells.

A file stays pinned until the thread has read it, whatever becomes of the reader.

This module must not know what is in the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from seawall.engine.serving.served_log import ServedLog
from seawall.io.disk.page_cache import bring_near, is_near

#: A descriptor, where, and how many bytes.
Stretch: TypeAlias = tuple[int, int, int]


async def warm_up(log: ServedLog, stretches: Sequence[Stretch], release: Callable[[], None]) -> None:
    """Have stretches in memory; where nobody waits for that any more, `release` is called when it is done."""
    cold = [stretch for stretch in stretches if not is_near(*stretch)]
    if not cold:
        return

    def read() -> None:
        for stretch in cold:
            bring_near(*stretch)

    reading = asyncio.ensure_future(log.run_read(read))
    try:
        await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.add_done_callback(lambda _: release())
        raise
