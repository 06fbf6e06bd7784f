"""A flood: many topics of the lowest priority, which are written and read as fast as a client can (role `flood`)."""

from __future__ import annotations

import asyncio
import mmap
from typing import Final

from seawall.api.received import ReceivedBatch
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.client.connection.targets import parse_target
from seawall.io.network.loops import loop_factory

TOPICS: Final = 64
_PRIORITY: Final = -500
_VALUES: Final = [b"x" * 100] * 10


def flood_topics(address: str, descriptor: int) -> None:
    """Flood a node until the process ends; counts deliveries in shared memory."""
    counter = memoryview(mmap.mmap(descriptor, 8)).cast("q")
    _, make_loop = loop_factory()
    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(_flood(address, counter))


async def _flood(address: str, counter: memoryview) -> None:
    target = parse_target(f"seawall://{address}")
    async with AsyncRemoteLog(target) as writing, AsyncRemoteLog(target) as reading, asyncio.TaskGroup() as tasks:
        for number in range(TOPICS):
            name = f"flood-{number}"
            await writing.create_topic(name, durability="disk", priority=_PRIORITY)
            tasks.create_task(_read(reading, name, counter))
            tasks.create_task(_write(writing, name))


async def _write(log: AsyncRemoteLog, topic: str) -> None:
    while True:
        await log.publish(topic, _VALUES)


async def _read(log: AsyncRemoteLog, topic: str, counter: memoryview) -> None:
    async for item in log.subscriber(topic, start="latest"):
        counter[0] += isinstance(item, ReceivedBatch)
