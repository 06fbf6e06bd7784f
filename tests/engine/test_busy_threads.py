"""A commit finishes even while all executor threads of its loop wait for it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.settings import StoreSettings
from seawall.limits import KIB

#: A checkpoint is due after nearly every commit.
SMALL = StoreSettings(wal_file_size=64 * KIB, checkpoint_size=16 * KIB, ballast_size=4 * KIB)


@pytest.mark.usefixtures("each_event_loop")
def test_a_commit_finishes_while_all_executor_threads_wait_for_it(tmp_path):
    async def work():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with ServedLog(tmp_path / "data", SMALL) as log:
            log.on_acks = lambda: None
            await log.create_topic("events")
            for number in range(20):
                delivery = log.publish("events", b"x" * 12_000)
                await asyncio.sleep(0)
                changing = log.commit("owner", "events", 1 + number % 2)
                await asyncio.wait_for(asyncio.gather(changing, _decided(delivery)), 20)
            assert (await log.describe("events")).record_count == 20
            assert await log.committed("owner", "events") == 2

    asyncio.run(work())


async def _decided(delivery):
    await delivery
