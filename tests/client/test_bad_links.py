"""Readers over a link that cuts every connection after some bytes: they request less, and still read everything."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Self

import pytest
from real_server import RealServer

import seawall
from seawall.api.received import Item, ReceivedBatch
from seawall.client.read.response_size import ResponseSize
from seawall.limits import FETCH_SIZE_MAX, KIB, MIB, RESPONSE_SIZE_MIN

#: Bytes that a connection delivers before it is cut, and the records: one response would be larger than that.
LIFE = 300 * KIB
VALUES = [bytes([number]) * 64 * KIB for number in range(32)]


class BadLink:
    """Forwards everything, and cuts each connection after `life` bytes of answers."""

    def __init__(self, port: int, life: int) -> None:
        self._target = port
        self._life = life
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.url = f"seawall://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cuts = 0

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._sockets]:
            _close(each)
        for thread in list(self._threads):
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for source, target, life in ((client, server, None), (server, client, self._life)):
                    self._threads.append(threading.Thread(target=self._forward, args=(source, target, life)))
                    self._threads[-1].start()

    def _forward(self, source: socket.socket, target: socket.socket, life: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(16 * KIB):
                target.sendall(data if life is None else data[:life])
                if life is not None:
                    life -= len(data)
                    if life <= 0:
                        self.cuts += 1
                        break
        _close(source)
        _close(target)


def _close(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server whose topic holds all values, each in its own batch."""
    with RealServer(tmp_path_factory.mktemp("server") / "data") as running:
        with seawall.connect(running.url) as log:
            log.create_topic("events")
            for value in VALUES:
                log.publish("events", value)
        yield running


@pytest.fixture
def link(server: RealServer) -> Iterator[BadLink]:
    with BadLink(server.port, LIFE) as bad:
        yield bad


def values(items: list[Item]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def follow(url: str) -> list[bytes]:
    found: list[bytes] = []
    with seawall.connect(url) as log:
        for item in log.subscriber("events"):
            found += values([item])
            if len(found) == len(VALUES):
                break
    return found


def poll(url: str) -> list[bytes]:
    with seawall.connect(url) as log:
        return values(list(log.follow("events")))


def read(url: str) -> list[bytes]:
    with seawall.connect(url) as log:
        return values(log.read("events"))


def table(url: str) -> list[bytes]:
    with seawall.connect(url) as log:
        found: list[bytes] = log.read_arrow("events").column("value").to_pylist()
        return found


def positions(url: str) -> list[bytes]:
    found: list[bytes] = []
    with seawall.connect(url) as log:
        subscriber = log.position_subscriber()
        while items := subscriber.poll():
            found += [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]
    return found


@pytest.mark.parametrize("reading", [follow, poll, read, table, positions])
def test_readers_get_every_record(link: BadLink, reading: Callable[[str], list[bytes]]) -> None:
    assert reading(link.url) == VALUES
    assert link.cuts


@pytest.mark.usefixtures("each_event_loop")
def test_readers_on_an_event_loop_get_every_record(link: BadLink) -> None:
    async def work() -> None:
        async with seawall.connect_async(link.url) as log:
            found: list[bytes] = []
            async for item in log.subscriber("events"):
                found += values([item])
                if len(found) == len(VALUES):
                    break
            assert found == VALUES
        async with seawall.connect_async(link.url) as log:
            assert values(await log.read("events")) == VALUES

    asyncio.run(work())
    assert link.cuts


def test_the_requested_size_shrinks_and_grows() -> None:
    size = ResponseSize()
    assert size.at_most(1 << 40) == FETCH_SIZE_MAX
    # Two responses lost with one connection count once, and a small one does not count.
    size.lost(FETCH_SIZE_MAX)
    size.lost(FETCH_SIZE_MAX)
    size.lost(1)
    assert size.at_most(1 << 40) == FETCH_SIZE_MAX // 2
    for _ in range(40):
        size.lost(size.at_most(1 << 40))
    assert size.at_most(1 << 40) == RESPONSE_SIZE_MIN
    for _ in range(8):
        size.arrived(1)
    assert size.at_most(1 << 40) == RESPONSE_SIZE_MIN
    for _ in range(8):
        size.arrived(RESPONSE_SIZE_MIN)
    assert size.at_most(1 << 40) == 2 * RESPONSE_SIZE_MIN
    for _ in range(8 * 40):
        size.arrived(FETCH_SIZE_MAX)
    assert size.at_most(MIB) == MIB
    assert size.at_most(1 << 40) == FETCH_SIZE_MAX
