"""Programs that exit with records in flight: `python exiting_programs.py <program> <location> <ending>`.

The location is the URL of a server, or a data directory.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from typing import Protocol

import seawall
from seawall.io.disk.disk_ring import DiskRing

#: More than one commit stores, and few enough to be quick.
CALLS = 2_000


class AnyPublisher(Protocol):
    """A publisher of any kind of log."""

    def publish(self, records: bytes) -> object: ...


def publish_all(publisher: AnyPublisher) -> None:
    for number in range(CALLS):
        publisher.publish(b"%06d" % number * 16)


def connected(location: str) -> None:
    publish_all(seawall.connect(location, timeout_s=20).publisher("events", linger_s=0.05))
    # The publisher is garbage by now, its records in flight are not.
    gc.collect()


def server_killed(location: str) -> None:
    log = seawall.connect(location)
    publisher = log.publisher("events", linger_s=60)
    publish_all(publisher)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    # The test kills the server, then closes our standard input.
    sys.stdin.readline()


def embedded(location: str) -> None:
    publish_all(seawall.open(location).publisher("events"))
    gc.collect()


def brokers(location: str) -> None:
    publish_all(seawall.open(location, brokers=2).publisher("events"))


def daemon(location: str) -> None:
    log = seawall.open(location)
    thread = threading.Thread(target=lambda: publish_all(log.publisher("events")), daemon=True)
    thread.start()
    thread.join()


def connected_loop(location: str) -> None:
    async def main() -> None:
        log = await seawall.connect_async(location).open()
        publish_all(await log.publisher("events", linger_s=60))

    asyncio.run(main())


def embedded_loop(location: str) -> None:
    async def main() -> None:
        log = await seawall.open_async(location).open()
        for number in range(CALLS):
            log.publish("events", b"%06d" % number * 16)

    # `asyncio.run` would let the loop run on for a while, and a disk that answers might store everything.
    DiskRing.reap = lambda *_, **__: []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


def closed(location: str) -> None:
    with seawall.open(location) as log, log.publisher("events") as publisher:
        publish_all(publisher)


PROGRAMS: dict[str, Callable[[str], None]] = {
    work.__name__: work
    for work in (connected, server_killed, embedded, brokers, daemon, connected_loop, embedded_loop, closed)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2])
    if sys.argv[3] == "exit":
        sys.exit(3)
    if sys.argv[3] == "exception":
        raise LookupError("the program exits by this")
