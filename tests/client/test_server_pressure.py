"""Clients of a server that is short of memory: they wait, and nothing fails."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import FakeMemory, RealServer

import seawall
from seawall.api.received import ReceivedBatch


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


@pytest.fixture(params=[1, 3], ids=["one loop", "three loops"])
def server(request: pytest.FixtureRequest, tmp_path: Path, memory: FakeMemory) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data", memory=memory, event_loops=request.param) as real:
        yield real


def wait_for_count(server: RealServer, cause: str) -> None:
    """Wait until the server has counted this at least once."""
    while not server.counts.get(cause):
        time.sleep(0.01)


def test_a_publisher_waits_while_others_read(server: RealServer, memory: FakeMemory) -> None:
    with seawall.connect(server.url) as log, seawall.connect(server.url) as other:
        log.create_topic("events")
        log.publish("events", b"before")
        memory.percent = 97
        wait_for_count(server, "memory_holds")
        publisher = log.publisher("events")
        deliveries = [publisher.publish(b"%d" % number) for number in range(300)]
        while not server.counts.get("publishers_told"):
            with pytest.raises(TimeoutError):
                publisher.flush(0.05)
        assert not any(delivery.done for delivery in deliveries)
        items = other.read("events")
        assert [record.value for item in items if isinstance(item, ReceivedBatch) for record in item] == [b"before"]
        memory.percent = 10
        assert [delivery.result().seqs.start for delivery in deliveries] == list(range(2, 302))


@pytest.mark.usefixtures("each_event_loop")
def test_a_publisher_on_an_event_loop_waits(server: RealServer, memory: FakeMemory) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            await log.create_topic("events")
            memory.percent = 97
            await asyncio.to_thread(wait_for_count, server, "memory_holds")
            publisher = await log.publisher("events")
            deliveries = [publisher.publish(b"%d" % number) for number in range(300)]
            await asyncio.to_thread(wait_for_count, server, "publishers_told")
            assert not any(delivery.done for delivery in deliveries)
            memory.percent = 10
            results = await asyncio.gather(*deliveries)
            assert [result.seqs.start for result in results] == list(range(1, 301))
            await publisher.close()

    asyncio.run(work())
