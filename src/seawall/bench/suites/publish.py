"""Suite `publish`: publishing to a node over the network, with the publisher in this process and the node in another.

    bulk        lists of records through a publisher with many batches in flight
    one by one  `publish(record)` for each record; the publisher joins them to batches
    single      one record at a time, waiting until it is durable
    waiting     the same from several clients at once (`figures/waiting.py`)

Figures limited by the network count ordered records (ack 1): class disk writes records before it acks them, class
ephemeral writes none. Figures limited by the disk count durable records (ack 2, class fsync).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import numpy as np

from seawall.bench.figures import waiting
from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, BenchContext, Measurement, Run, Subject
from seawall.bench.results import Better, Goal
from seawall.bench.subjects import bare
from seawall.bench.subjects.publish_node import KEPT_SIZE, SEGMENT_RECORDS, TOPIC, connected_log, running_node
from seawall.bench.subjects.second_process import STORED, listening_child
from seawall.bench.suites import disk
from seawall.bench.suites.processes import loopback_bandwidth
from seawall.client.connection.connection import Connection
from seawall.client.connection.targets import parse_target
from seawall.client.publish.publisher import RemotePublisher
from seawall.client.remote_log import RemoteLog
from seawall.errors import InvariantError
from seawall.io.network.sockets import parse_address
from seawall.io.process.clocks import OsClock
from seawall.limits import KIB, MIB
from seawall.wire.lwp2.session import Hello

SMALL: Final = 100
IDLE_CONNECTIONS: Final = 1_000
#: Bytes of records in one call of the bulk figures.
CALL_SIZE: Final = 2 * MIB
#: Bytes published before the clock starts: then the topic is at its cap, and new records reuse memory of dropped ones.
WARM_SIZE: Final = KEPT_SIZE + 64 * MIB
#: Numbers of publishers of the bulk figures, in one process.
PUBLISHERS: Final = {1: "one publisher", 4: "four publishers"}
#: Single-record calls between two readings of the clock.
RECORDS_AT_ONCE: Final = 256

_CONNECT_SECONDS: Final = 10.0


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    directory = context.directory
    yield from _ordered(directory)
    for count, who in PUBLISHERS.items():
        yield Measurement(
            f"1 KiB records in bulk, {who}, durable",
            "B/s",
            Better.HIGHER,
            # No cap, which is the default: at its cap a topic deletes as much as it writes.
            _publishing(directory, _in_bulk(KIB, KIB), durability="fsync", ack=2, cap_bytes=0, publishers=count),
            baseline=Baseline("write + sync 1 MiB", disk.append_bandwidth(directory, MIB)),
            goal=Goal.ratio_at_least(0.7),
            note="class fsync, ack 2, no cap",
        )
    for percent in (50, 99):
        yield Measurement(
            f"one 1 KiB record at a time, durable, p{percent}",
            "s",
            Better.LOWER,
            single_records(directory, percent),
            baseline=Baseline("receive, write, sync, send", bare_store(directory, percent)),
            goal=Goal.ratio_at_most(1.5),
            note="class fsync, ack 2; the baseline is a minimal blocking server",
        )
    yield from waiting.table(directory)


def _ordered(directory: Path) -> Iterator[Measurement]:
    bulk = _publishing(directory, _in_bulk(KIB, KIB))
    for count, who in PUBLISHERS.items():
        yield Measurement(
            f"1 KiB records in bulk, {who}, class disk",
            "B/s",
            Better.HIGHER,
            _publishing(directory, _in_bulk(KIB, KIB), durability="disk", cap_bytes=0, publishers=count),
            baseline=Baseline("loopback TCP", loopback_bandwidth),
            goal=Goal.ratio_at_least(0.35),
            note=f"order 2, ack 1, no cap; lists of {CALL_SIZE // MIB} MiB of records; a connection for each publisher",
        )
    yield Measurement(
        "1 KiB records in bulk, class ephemeral",
        "B/s",
        Better.HIGHER,
        bulk,
        baseline=Baseline("loopback TCP", loopback_bandwidth),
        note=f"the same with a cap of {KEPT_SIZE // MIB} MiB in memory; segments of {SEGMENT_RECORDS:,} records",
    )
    yield Measurement(
        "the least that is needed for it: join, sum, send; receive, sum, keep",
        "B/s",
        Better.HIGHER,
        bare.publishing,
        baseline=Baseline("loopback TCP", loopback_bandwidth),
        note="two processes without a protocol: the bound of the figure above",
    )
    yield Measurement(
        f"{SMALL} B records in bulk, class ephemeral",
        "records/s",
        Better.HIGHER,
        _publishing(directory, _in_bulk(SMALL, 1)),
        goal=Goal.value_at_least(3e6),
        note="the same",
    )
    yield Measurement(
        f"{SMALL} B records one by one, class ephemeral",
        "records/s",
        Better.HIGHER,
        _publishing(directory, _one_by_one),
        goal=Goal.value_at_least(400_000),
        note="one publish() call per record; ack 1",
    )
    yield Measurement(
        f"1 KiB records in bulk, class ephemeral, beside {IDLE_CONNECTIONS:,} idle connections",
        "B/s",
        Better.HIGHER,
        _publishing(directory, _in_bulk(KIB, KIB), idle=IDLE_CONNECTIONS),
        baseline=Baseline("without them", bulk),
        goal=Goal.ratio_at_least(0.9),
        note="ack 1",
    )


def _publishing(
    directory: Path,
    work: Callable[[Sequence[RemotePublisher]], Run],
    *,
    durability: str = "ephemeral",
    ack: int = 1,
    idle: int = 0,
    cap_bytes: int = KEPT_SIZE,
    publishers: int = 1,
) -> Subject:
    """A subject with publishers to its own node, and with `idle` idle connections beside them."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with (
            running_node(directory, durability=durability, cap_bytes=cap_bytes) as address,
            ExitStack() as stack,
        ):
            for _ in range(idle):
                connection = Connection.open(address, Hello(), timeout_s=_CONNECT_SECONDS, clock=OsClock())
                stack.callback(connection.close)
            log = stack.enter_context(RemoteLog(parse_target(f"seawall://{address}")))
            opened_publishers = [stack.enter_context(log.publisher(TOPIC, ack=ack)) for _ in range(publishers)]
            _warm_up(opened_publishers[0], WARM_SIZE)
            yield work(opened_publishers)

    return opened


def _warm_up(publisher: RemotePublisher, size: int) -> None:
    records = [bytes(KIB)] * (CALL_SIZE // KIB)
    for _ in range(size // CALL_SIZE):
        publisher.publish(records)
    publisher.flush()


def _in_bulk(size: int, amount: int) -> Callable[[Sequence[RemotePublisher]], Run]:
    """Publish lists of records of one size with each publisher; each record counts as `amount`."""
    records = [os.urandom(size) for _ in range(CALL_SIZE // size)]

    def work(publishers: Sequence[RemotePublisher]) -> Run:
        def step() -> None:
            for publisher in publishers:
                publisher.publish(records)

        return _flushed(publishers, step, len(publishers) * len(records) * amount)

    return work


def _one_by_one(publishers: Sequence[RemotePublisher]) -> Run:
    records = [os.urandom(SMALL) for _ in range(RECORDS_AT_ONCE)]
    publish = publishers[0].publish

    def step() -> None:
        for record in records:
            publish(record)

    return _flushed(publishers, step, len(records))


def _flushed(publishers: Sequence[RemotePublisher], step: Callable[[], object], amount: int) -> Run:
    """A run that repeats a step and flushes; reports the acknowledged amount per second."""

    def run(seconds: float) -> float:
        started = perf_counter_ns()
        deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
        steps = 0
        while not steps or perf_counter_ns() < deadline:
            step()
            steps += 1
        for publisher in publishers:
            publisher.flush()
        return steps * amount * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

    return run


def single_records(directory: Path, percent: int) -> Subject:
    """A percentile of the seconds that `log.publish` takes until one record is durable."""

    @contextmanager
    def opened() -> Iterator[Run]:
        record = os.urandom(KIB)
        # No cap, which is the default: at its cap a topic evicts something in every commit.
        with connected_log(directory, durability="fsync", cap_bytes=0) as log:
            yield _percentile(lambda: log.publish(TOPIC, record), percent)

    return opened


def bare_store(directory: Path, percent: int) -> Subject:
    """The same for a minimal server process that receives, writes, syncs and answers."""

    @contextmanager
    def opened() -> Iterator[Run]:
        record = os.urandom(KIB)
        answer = bytearray(len(STORED))
        with (
            listening_child("store", str(directory), str(KIB)) as address,
            socket.create_connection(parse_address(address), timeout=_CONNECT_SECONDS) as connection,
        ):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def step() -> None:
                connection.sendall(record)
                if connection.recv_into(answer, len(answer), socket.MSG_WAITALL) != len(answer):
                    raise InvariantError("INV-BENCH-OK", "the store process closed the connection")

            yield _percentile(step, percent)

    return opened


def _percentile(step: Callable[[], object], percent: int) -> Run:
    """A run that reports a percentile of the seconds per step."""

    def run(seconds: float) -> float:
        samples: list[int] = []
        deadline = perf_counter_ns() + int(seconds * NANOSECONDS_PER_SECOND)
        while not samples or perf_counter_ns() < deadline:
            before = perf_counter_ns()
            step()
            samples.append(perf_counter_ns() - before)
        return float(np.percentile(samples, percent)) / NANOSECONDS_PER_SECOND

    return run
