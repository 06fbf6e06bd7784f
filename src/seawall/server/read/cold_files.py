"""Reads file ranges into the page cache before they are sent.

The event loop sends them from the file to the socket by one call, which would block the loop on the disk. So a thread
with idle I/O priority reads them first, and the loop finds them in memory. Usually they are there already, which a
quick check shows.

A file stays pinned until the thread has read it, even if the reader disconnects.

This module must not know what is in the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from seawall.engine.serving.served_log import ServedLog
from seawall.io.disk.page_cache import is_cached, load_into_cache

#: File descriptor, offset, and size.
FileSpan: TypeAlias = tuple[int, int, int]


async def warm_up(log: ServedLog, ranges: Sequence[FileSpan], release: Callable[[], None]) -> None:
    """Bring ranges into the page cache. If the caller is cancelled, `release` is called when that is done."""
    cold = [each for each in ranges if not is_cached(*each)]
    if not cold:
        return

    def read() -> None:
        for each in cold:
            load_into_cache(*each)

    reading = asyncio.ensure_future(log.run_read(read))
    try:
        await asyncio.shield(reading)
    except asyncio.CancelledError:
        reading.add_done_callback(lambda _: release())
        raise
