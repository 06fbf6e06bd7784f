"""Suite `fetch`: read from a node in another process over the network.

The figures count verified batches as a subscriber receives them, without making an object per record; that cost comes
on top when a program iterates over a batch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from time import perf_counter_ns, sleep
from typing import Final, cast

from seawall.api.received import Item, ReceivedBatch
from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, BenchContext, Measurement, Run, Subject
from seawall.bench.results import Better, Goal
from seawall.bench.subjects import bare
from seawall.bench.subjects.flood import TOPICS
from seawall.bench.subjects.publish_node import TOPIC, connected_log, running_node
from seawall.bench.subjects.second_process import child
from seawall.bench.suites.processes import loopback_bandwidth
from seawall.client.connection.targets import parse_target
from seawall.client.remote_log import RemoteLog
from seawall.errors import InvariantError
from seawall.limits import KIB, MIB
from seawall.wire.format.fields import JsonValue

#: Bytes in the topic, which is read repeatedly from the page cache. Every pass opens a subscription on a new
#: connection, which needs some megabytes to reach full speed.
STORED_SIZE: Final = 512 * MIB

_CALL_SIZE: Final = MIB

_TOP_PRIORITY: Final = 900
#: Records of one run at least, and the pause before each.
_LATENCIES_MIN: Final = 50
_BETWEEN_S: Final = 0.005

#: Reads a whole topic of the given record count; yields lists of items.
ReadTopic = Callable[[RemoteLog, int], Iterator[list[Item]]]


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    loopback = Baseline("loopback TCP", loopback_bandwidth)
    stored = f"{STORED_SIZE // MIB} MiB in the page cache"
    for name, read_topic, note in (
        ("by a subscriber's poll", polled, "prefetches the next response while verifying the current one"),
        ("pushed to a subscriber", pushed, "flow control by credit"),
    ):
        yield Measurement(
            f"1 KiB records {name}",
            "B/s",
            Better.HIGHER,
            reading(context.directory, read_topic, STORED_SIZE),
            baseline=loopback,
            goal=Goal.ratio_at_least(0.6),
            note=f"{stored}; verified batches; {note}",
        )

    yield Measurement(
        f"write to delivery of the highest priority beside a flood of {TOPICS} topics of the lowest, p50",
        "s",
        Better.LOWER,
        _delivering(context.directory, has_flood=True),
        baseline=Baseline("the same on an idle node", _delivering(context.directory, has_flood=False)),
        goal=Goal.ratio_at_most(3.0),
        note="the flood is written and read by another process, which has the lowest CPU priority",
    )

    yield Measurement(
        "the least that is needed for it: receive, sum",
        "B/s",
        Better.HIGHER,
        bare.fetching(context.directory, STORED_SIZE),
        baseline=loopback,
        note=f"a file of {stored}, without a protocol: the bound of both figures above",
    )


def reading(directory: Path, read_topic: ReadTopic, stored_size: int) -> Subject:
    """Bytes of record values per second while reading a topic repeatedly."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with connected_log(directory, durability="disk", cap_bytes=0) as log:
            count = _fill(log, stored_size)
            run = _runs(log, read_topic, count)
            # The first pass brings the topic into the page cache.
            run(0)
            yield run

    return opened


def polled(log: RemoteLog, _count: int) -> Iterator[list[Item]]:
    """Read a topic by `poll` until it returns nothing."""
    subscriber = log.subscriber(TOPIC)
    while items := subscriber.poll():
        yield items


def pushed(log: RemoteLog, count: int) -> Iterator[list[Item]]:
    """Read a topic by iterating over a subscriber until all records have arrived."""
    subscriber = log.subscriber(TOPIC)
    with closing(cast(Generator[Item], iter(subscriber))) as items:
        for item in items:
            yield [item]
            if subscriber.next_seq > count:
                return


def _delivering(directory: Path, *, has_flood: bool) -> Subject:
    """The median time from the publish of a record to its delivery to a subscriber, one record at a time."""

    @contextmanager
    def opened() -> Iterator[Run]:
        settings: dict[str, JsonValue] = {"durability": "disk", "priority": _TOP_PRIORITY, "cap_bytes": 0}
        with running_node(directory, **settings) as address, ExitStack() as stack:
            target = parse_target(f"seawall://{address}")
            log, reader = (stack.enter_context(RemoteLog(target)) for _ in range(2))
            counter = stack.enter_context(_flooded(address)) if has_flood else memoryview(bytearray(8)).cast("q")
            items = stack.enter_context(closing(cast(Generator[Item], iter(reader.subscriber(TOPIC)))))

            def run(seconds: float) -> float:
                spent: list[int] = []
                before = counter[0]
                deadline = perf_counter_ns() + int(seconds * NANOSECONDS_PER_SECOND)
                while len(spent) < _LATENCIES_MIN or perf_counter_ns() < deadline:
                    sleep(_BETWEEN_S)
                    began = perf_counter_ns()
                    log.publish(TOPIC, b"x")
                    while not _record_count(next(items)):
                        continue
                    spent.append(perf_counter_ns() - began)
                if has_flood and counter[0] == before:
                    raise InvariantError("INV-BENCH-OK", "nothing of the flood was delivered")
                return median(spent) / NANOSECONDS_PER_SECOND

            yield run

    return opened


@contextmanager
def _flooded(address: str) -> Iterator[memoryview]:
    """Flood a node meanwhile; yields the counter of its deliveries, once there are some."""
    descriptor = os.memfd_create("seawall-bench")
    try:
        os.ftruncate(descriptor, 8)
        counter = memoryview(mmap.mmap(descriptor, 8)).cast("q")
        with child("flood", address, str(descriptor), descriptors=(descriptor,)) as process:
            while not counter[0]:
                if process.poll() is not None:
                    raise InvariantError("INV-BENCH-OK", "the flood has ended")
                sleep(_BETWEEN_S)
            yield counter
    finally:
        os.close(descriptor)


def _fill(log: RemoteLog, size: int) -> int:
    """Publish `size` bytes of record values; return the number of records."""
    records = [os.urandom(KIB) for _ in range(_CALL_SIZE // KIB)]
    calls = max(1, size // _CALL_SIZE)
    with log.publisher(TOPIC) as publisher:
        for _ in range(calls):
            publisher.publish(records)
    return calls * len(records)


def _runs(log: RemoteLog, read_topic: ReadTopic, count: int) -> Run:
    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        read = 0
        while not read or perf_counter_ns() < deadline:
            found = sum(map(_record_count, chain.from_iterable(read_topic(log, count))))
            if found != count:
                raise InvariantError("INV-BENCH-OK", f"read {found} of {count} records")
            read += found
        return read * KIB * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run


def _record_count(item: Item) -> int:
    return len(item) if isinstance(item, ReceivedBatch) else 0
