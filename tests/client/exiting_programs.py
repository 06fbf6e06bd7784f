"""Programs that end with records under way: `python exiting_programs.py <program> <place> <ending>`.

The place is the URL of a server, or a data directory.
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

#: More than one turn of anything stores, and less than takes long.
CALLS = 2_000


class AnyPublisher(Protocol):
    """A publisher of any log."""

    def publish(self, records: bytes) -> object: ...


def publish_all(publisher: AnyPublisher) -> None:
    for number in range(CALLS):
        publisher.publish(b"%06d" % number * 16)


def connected(place: str) -> None:
    publish_all(seawall.connect(place, timeout_s=20).publisher("events", linger_s=0.05))
    # The publisher is garbage by now, what it has under way is not.
    gc.collect()


def gone(place: str) -> None:
    log = seawall.connect(place)
    publisher = log.publisher("events", linger_s=60)
    publish_all(publisher)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    # The test ends the server, and says so.
    sys.stdin.readline()


def embedded(place: str) -> None:
    publish_all(seawall.open(place).publisher("events"))
    gc.collect()


def brokers(place: str) -> None:
    publish_all(seawall.open(place, brokers=2).publisher("events"))


def daemon(place: str) -> None:
    log = seawall.open(place)
    thread = threading.Thread(target=lambda: publish_all(log.publisher("events")), daemon=True)
    thread.start()
    thread.join()


def connected_loop(place: str) -> None:
    async def main() -> None:
        log = await seawall.connect_async(place).open()
        publish_all(await log.publisher("events", linger_s=60))

    asyncio.run(main())


def embedded_loop(place: str) -> None:
    async def main() -> None:
        log = await seawall.open_async(place).open()
        for number in range(CALLS):
            log.publish("events", b"%06d" % number * 16)

    # No `asyncio.run`, which lets the loop go on for a while, and a disk that never answers: else all may be stored.
    DiskRing.reap = lambda *_, **__: []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.close()


def closed(place: str) -> None:
    with seawall.open(place) as log, log.publisher("events") as publisher:
        publish_all(publisher)


PROGRAMS: dict[str, Callable[[str], None]] = {
    work.__name__: work for work in (connected, gone, embedded, brokers, daemon, connected_loop, embedded_loop, closed)
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](sys.argv[2])
    if sys.argv[3] == "exit":
        sys.exit(3)
    if sys.argv[3] == "exception":
        raise LookupError("the program ends by this")
