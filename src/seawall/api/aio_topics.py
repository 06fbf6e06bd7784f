"""Create many topics concurrently from an event loop, for every kind of log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from seawall.api.topic_info import TopicInfo
from seawall.core.identifiers import check_names
from seawall.errors import SeawallError


async def create_each(
    create: Callable[[str], Awaitable[TopicInfo]], names: Sequence[str], *, at_once: int
) -> list[TopicInfo | SeawallError]:
    """Create a topic for each name, at most `at_once` concurrently.

    Returns, for each name, the topic or the error that prevented its creation.
    """
    check_names(names)
    slots = asyncio.Semaphore(at_once)

    async def create_one(name: str) -> TopicInfo | SeawallError:
        async with slots:
            try:
                return await create(name)
            except SeawallError as error:
                return error

    return await asyncio.gather(*(create_one(name) for name in names))
