"""Watches of a real server whose connections are cut, which restarts, or whose files are damaged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from real_server import RealServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.api.watch_items import TopicCaughtUp, WatchGap
from seawall.client.remote_log import RemoteLog
from seawall.errors import NotFoundError, RetryableError, WrongStateError
from seawall.limits import KIB
from seawall.wire.format.codes import GapReason

TOPICS = ("a", "audit.b", "audit.c")
COUNT = 300


@pytest.fixture(params=[1, 3], ids=["one loop", "three loops"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data", event_loops=request.param) as real:
        yield real


@pytest.fixture
def log(server: RealServer) -> Iterator[RemoteLog]:
    with seawall.connect(server.url, timeout_s=60) as connected:
        connected.create_topics(TOPICS)
        yield connected


class Publishing:
    """Publishes to all topics on a thread, and cuts all connections or restarts the server in between."""

    def __init__(self, server: RealServer, *, restarts: bool) -> None:
        self._server = server
        self._restarts = restarts
        self._thread = threading.Thread(target=self._publish)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _publish(self) -> None:
        with seawall.connect(self._server.url, timeout_s=60) as log:
            for number in range(COUNT):
                log.publish(TOPICS[number % len(TOPICS)], b"%d" % number)
                if number % 60 == 30:
                    if self._restarts:
                        self._server.stop()
                        self._server.start()
                    else:
                        self._server.cut_all()


def add(found: dict[str, list[int]], item: Any) -> None:
    if isinstance(item, ReceivedBatch):
        found.setdefault(item.topic, []).extend(int(record.value) for record in item)


EXPECTED = {topic: list(range(number, COUNT, len(TOPICS))) for number, topic in enumerate(TOPICS)}


@pytest.mark.parametrize("restarts", [False, True], ids=["cut", "restart"])
def test_a_watch_continues_after_a_lost_connection(server: RealServer, log: RemoteLog, restarts: bool) -> None:
    """INV-WATCH-ONCE."""
    watch = log.watch(["a", "audit.*"])
    found: dict[str, list[int]] = {}
    with Publishing(server, restarts=restarts):
        for item in watch:
            add(found, item)
            if sum(map(len, found.values())) == COUNT:
                break
    watch.close()
    assert found == EXPECTED


@pytest.mark.parametrize("restarts", [False, True], ids=["cut", "restart"])
def test_a_watch_on_an_event_loop_continues_too(server: RealServer, log: RemoteLog, restarts: bool) -> None:
    """INV-WATCH-ONCE."""

    async def work() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        async with seawall.connect_async(server.url, timeout_s=60) as on_loop:
            watch = on_loop.watch(["a", "audit.*"])
            await watch.poll(60)
            with Publishing(server, restarts=restarts):
                while sum(map(len, found.values())) < COUNT:
                    polling = asyncio.ensure_future(watch.poll(60))
                    # Now and then the caller gives up.
                    done, _ = await asyncio.wait([polling], timeout=0.001)
                    if not done:
                        polling.cancel()
                    with suppress(asyncio.CancelledError):
                        for item in await polling:
                            add(found, item)
            await watch.close()
        return found

    assert asyncio.run(work()) == EXPECTED


def test_damage_is_a_gap_of_its_topic_and_the_watch_goes_on(server: RealServer, log: RemoteLog, tmp_path: Path) -> None:
    for number in range(4):
        log.publish("audit.b", bytes([number]) * 300 * KIB)
    log.publish("a", b"sound")
    server.stop()
    (segment,) = (
        path
        for path in (tmp_path / "data").rglob("*")
        if path.is_file() and path.stat().st_size > 1_000 * KIB and b"\2" * 1000 in path.read_bytes()
    )
    data = bytearray(segment.read_bytes())
    data[data.index(b"\2" * 1000) + 500] ^= 1
    segment.write_bytes(data)
    server.start()
    watch = log.watch(["a", "audit.b"])
    items: list[Any] = []
    while TopicCaughtUp("audit.b", 5) not in items or TopicCaughtUp("a", 2) not in items:
        items += watch.poll(60)
    mine = [item for item in items if item.topic == "audit.b" and not isinstance(item, TopicCaughtUp)]
    assert [item.seqs if isinstance(item, ReceivedBatch) else item for item in mine] == [
        [1],
        [2],
        WatchGap(3, 3, GapReason.CORRUPTION, "audit.b"),
        [4],
    ]
    watch.close()


def test_a_watch_ends_with_the_error_of_the_server(server: RealServer, log: RemoteLog) -> None:
    with pytest.raises(NotFoundError):
        log.watch(["nowhere"])
    watch = log.watch(["a"])
    log.close()
    # It has a connection of its own, like a subscriber.
    assert watch.poll(60) == [TopicCaughtUp("a", 1)]
    with pytest.raises(WrongStateError):
        log.watch(["a"])
    watch.close()


def test_a_server_that_is_gone_for_too_long_is_an_error(server: RealServer, log: RemoteLog) -> None:
    with seawall.connect(server.url, timeout_s=0.5) as impatient:
        watch = impatient.watch(["a"])
        assert watch.poll(60)
        server.stop()
        with pytest.raises(RetryableError, match="no server"):
            watch.poll(60)
        server.start()
        log.publish("a", b"later")
        while not any(isinstance(item, ReceivedBatch) for item in watch.poll(60)):
            continue
        watch.close()
