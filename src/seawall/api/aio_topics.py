"""Creating many topics from an event loop, the same way for every kind of log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from seawall.api.topic_info import TopicInfo
from seawall.core.identifiers import check_names
from seawall.errors import SeawallError


async def create_each(
    create: Callable[[str], Awaitable[TopicInfo]], names: Sequence[str], *, at_once: int
) -> list[TopicInfo | SeawallError]:
    """Create a topic for each name, at most `at_once` of them at a time: each topic, or the error that prevented it."""
    check_names(names)
    turns = asyncio.Semaphore(at_once)

    async def one(name: str) -> TopicInfo | SeawallError:
        async with turns:
            try:
                return await create(name)
            except SeawallError as error:
                return error

    return await asyncio.gather(*(one(name) for name in names))
