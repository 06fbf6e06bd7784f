"""Suite `fetch`: reading from a node over the network, in this process from a node in another.

Batches are counted as a reader gets them, verified, and no object is made of a record: `for record in batch` is what a
program adds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from time import perf_counter_ns
from typing import Final, cast

from seawall.api.received import Item, ReceivedBatch
from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, BenchContext, Measurement, Run, Subject
from seawall.bench.results import Better, Goal
from seawall.bench.subjects import bare
from seawall.bench.subjects.publish_node import TOPIC, connected_log
from seawall.bench.suites.processes import loopback_bandwidth
from seawall.client.remote_log import RemoteLog
from seawall.errors import InvariantError
from seawall.limits import KIB, MIB

#: What a topic holds: it is read over and over, out of the memory of the node's system. For each time a subscription is
#: begun, on a connection of its own, which takes some megabytes to come up to speed.
STORED_SIZE: Final = 512 * MIB

_CALL_SIZE: Final = MIB

#: Items of a topic in pieces, from its beginning to its end.
Pieces = Callable[[RemoteLog, int], Iterator[list[Item]]]


def suite(context: BenchContext) -> Iterator[Measurement]:
    """The figures of this suite."""
    loopback = Baseline("loopback TCP", loopback_bandwidth)
    stored = f"{STORED_SIZE // MIB} MiB in the memory of the system"
    for name, pieces, note in (
        ("by a subscriber's poll", polled, "the next answer is on its way while one is verified"),
        ("pushed to a subscriber", pushed, "within credit"),
    ):
        yield Measurement(
            f"1 KiB records {name}",
            "B/s",
            Better.HIGHER,
            reading(context.directory, pieces, STORED_SIZE),
            baseline=loopback,
            goal=Goal.ratio_at_least(0.6),
            note=f"{stored}; batches, verified; {note}",
        )

    yield Measurement(
        "the least that is needed for it: receive, sum",
        "B/s",
        Better.HIGHER,
        bare.fetching(context.directory, STORED_SIZE),
        baseline=loopback,
        note=f"a file of {stored}, without a protocol: a bound for both figures",
    )


def reading(directory: Path, pieces: Pieces, stored_size: int) -> Subject:
    """Bytes of values in a second that a reader gets who reads a topic over and over."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with connected_log(directory, durability="disk", cap_bytes=0) as log:
            count = _fill(log, stored_size)
            run = _runs(log, pieces, count)
            # What was written need not be in memory: whoever reads it first brings it there.
            run(0)
            yield run

    return opened


def polled(log: RemoteLog, _count: int) -> Iterator[list[Item]]:
    """By asking for more until there is none."""
    subscriber = log.subscriber(TOPIC)
    while items := subscriber.poll():
        yield items


def pushed(log: RemoteLog, count: int) -> Iterator[list[Item]]:
    """By following the topic until all are there."""
    subscriber = log.subscriber(TOPIC)
    with closing(cast(Generator[Item], iter(subscriber))) as following:
        for item in following:
            yield [item]
            if subscriber.next_seq > count:
                return


def _fill(log: RemoteLog, size: int) -> int:
    """Publish so many bytes of values; how many records they are."""
    records = [os.urandom(KIB) for _ in range(_CALL_SIZE // KIB)]
    calls = max(1, size // _CALL_SIZE)
    with log.publisher(TOPIC) as publisher:
        for _ in range(calls):
            publisher.publish(records)
    return calls * len(records)


def _runs(log: RemoteLog, pieces: Pieces, count: int) -> Run:
    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        read = 0
        while not read or perf_counter_ns() < deadline:
            found = sum(map(_record_count, chain.from_iterable(pieces(log, count))))
            if found != count:
                raise InvariantError("INV-BENCH-OK", f"{found} records were read of {count}")
            read += found
        return read * KIB * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run


def _record_count(item: Item) -> int:
    return len(item) if isinstance(item, ReceivedBatch) else 0
