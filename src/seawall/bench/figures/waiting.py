"""Publishers that wait for each record until it is durable, at several counts: the ordinary load of a server.

    connections   a thread for each, which runs one kernel (`kernels.network.waiting_publisher`): the server is measured
    versioned     the same in either version of the protocol, with some messages under way
    processes     a program each that calls `log.publish`
    threads       of one log, each of which calls `log.publish`
    tasks         of one loop, each of which awaits `log.publish`

The limit of all of them is a server of thirty lines that receives what all connections have sent, writes it by one
call, syncs once and answers everybody (`peers.group`), driven by the same kernel.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic_ns, perf_counter_ns, sleep
from typing import Final, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from seawall.bench.harness import NANOSECONDS_PER_SECOND, Baseline, Measurement, Run, Subject
from seawall.bench.results import Better, Goal
from seawall.bench.subjects.peers import GROUP_ANSWER, listening_peer, peer
from seawall.bench.subjects.publish_node import TOPIC, connected_log, node_process, running_node
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.client.connection.connection import Connection
from seawall.client.connection.targets import parse_target
from seawall.client.remote_log import RemoteLog
from seawall.core.types import ClientSeq, TopicId
from seawall.errors import InvariantError
from seawall.io.network.loops import loop_factory
from seawall.io.network.sockets import parse_address
from seawall.io.process.clocks import OsClock
from seawall.kernels.codec.frames import FRAME_ROW, STATE_SIZE, STATE_VERSION
from seawall.kernels.network import waiting_exchange as lone_exchange
from seawall.kernels.network.waiting_publisher import AHEAD_SIZE, publish_pipelined, publish_waiting
from seawall.limits import KIB, SESSION_WINDOW_BATCHES
from seawall.wire.format.codes import AS_TOPIC, VERSION_2, AckLevel, HelloFlags
from seawall.wire.format.fields import JsonValue
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp1.frames import encode_ingest
from seawall.wire.lwp2.session import Hello

#: How many wait at the same time.
COUNTS: Final = (1, 2, 8, 64)
#: Processes at the most: each is an interpreter.
PROCESSES_MAX: Final = 8
_TIMEOUT_MS: Final = 10_000
_CONNECT_SECONDS: Final = 10.0
#: Latencies that are kept of one connection and run.
_SAMPLES: Final = 1 << 16
_ANSWER_SIZE: Final = KIB
_ANSWERS_SIZE: Final = 256 * KIB

#: What is stored: each record durably, without a cap, at which every commit would evict something.
_STORED: Final[dict[str, JsonValue]] = {"durability": "fsync", "cap_bytes": 0}
#: A count of records in memory that two processes share.
_COUNTER: Final = np.dtype(np.int64)
_LOOK_SECONDS: Final = 0.01
#: For how long a server works at the least while its processor time is counted.
_COUNTED_SECONDS: Final = 0.5

Latencies: TypeAlias = npt.NDArray[np.int64]


class Waiting:
    """One connection, and what the kernel needs to publish over it."""

    def __init__(self, descriptor: int, session: tuple[int, int, int], topic_id: int, answer_size: int) -> None:
        """`session` is the client, its epoch and its next number."""
        block = encode_raw(os.urandom(KIB))
        client_id, epoch, next_seq = session
        self._frame = np.zeros(lone_exchange.BLOCK_AT + len(block), np.uint8)
        self._frame[lone_exchange.BLOCK_AT :] = np.frombuffer(block, np.uint8)
        self._arguments = np.zeros(lone_exchange.DESK_SIZE, np.int64)
        choices = AS_TOPIC | AckLevel.DURABLE << 8
        self._arguments[: lone_exchange.WALL_NS] = (
            *(descriptor, -1, _TIMEOUT_MS, client_id, epoch & 0xFFFF_FFFF, choices),
            *(len(block), 1, next_seq, topic_id),
        )
        self._answer = np.zeros(_ANSWER_SIZE, np.uint8)
        self._rows = np.zeros(2, FRAME_ROW)
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._state[STATE_VERSION] = VERSION_2
        self._waited = np.zeros(_SAMPLES, np.int64)
        self._answer_size = answer_size
        self._count = 0

    def run(self, until_ns: int) -> None:
        """Publish until a moment of the monotonic clock."""
        answers = (self._answer, self._rows, self._state)
        self._count = publish_waiting(self._frame, self._arguments, *answers, self._waited, until_ns, self._answer_size)

    @property
    def published(self) -> int:
        """How many the last run has published."""
        if self._count < 0:
            raise InvariantError("INV-BENCH-OK", "a publisher that waited got no ack")
        return self._count

    @property
    def latencies(self) -> Latencies:
        """How long those of the last run took, in ns."""
        return self._waited[: self.published]


class Ahead:
    """One connection of either version that keeps some messages of one record under way."""

    def __init__(self, connected: socket.socket | Connection, version: int, topic_id: int, ahead: int) -> None:
        record = encode_raw(os.urandom(KIB))
        self._arguments = np.zeros(lone_exchange.DESK_SIZE, np.int64)
        self._version, self._ahead = version, ahead
        if isinstance(connected, Connection):
            welcome = connected.welcome
            frame = bytes(lone_exchange.BLOCK_AT) + record
            session = (int(welcome.client_id), welcome.session_epoch & 0xFFFF_FFFF, AS_TOPIC | AckLevel.DURABLE << 8)
            descriptor, next_seq = connected.stream.fileno(), welcome.next_seq
        else:
            frame = encode_ingest(record, batch_id=1, topic_id=topic_id, timestamp_ns=0, record_count=1)
            session, descriptor, next_seq = (0, 0, 0), connected.fileno(), ClientSeq(1)
        self._arguments[: lone_exchange.WALL_NS] = (
            *(descriptor, -1, _TIMEOUT_MS, *session, len(record), 1, next_seq, topic_id),
        )
        self._frame = np.frombuffer(bytearray(frame), np.uint8)
        self._answers = np.zeros(_ANSWERS_SIZE, np.uint8)
        self._progress = np.zeros(AHEAD_SIZE, np.int64)
        self._count = 0

    def run(self, until_ns: int) -> None:
        """Publish until a moment of the monotonic clock."""
        arrays = (self._frame, self._arguments, self._answers, self._progress)
        self._count = publish_pipelined(*arrays, self._version, self._ahead, until_ns)

    @property
    def published(self) -> int:
        """How many the last run has published."""
        if self._count < 0:
            raise InvariantError("INV-BENCH-OK", "a publisher got an answer that is no ack, or none")
        return self._count


class Publisher(Protocol):
    """A connection that publishes until a moment, and counts."""

    def run(self, until_ns: int) -> None:
        """Publish until a moment of the monotonic clock."""
        ...

    @property
    def published(self) -> int:
        """How many the last run has published."""
        ...


P = TypeVar("P", bound=Publisher)

#: What is reported of a run, and of the seconds that it took.
Figure: TypeAlias = Callable[[list[Waiting], float], float]


def table(directory: Path) -> Iterator[Measurement]:
    """The figures of waiting publishers."""
    for count in COUNTS:
        name = f"{count} waiting" if count == 1 else f"{count} waiting at once"
        yield Measurement(
            f"{name}, 1 KiB, durable",
            "records/s",
            Better.HIGHER,
            connections(directory, count, _rate),
            baseline=Baseline("bare group commit", bare_group(directory, count, _rate)),
            goal=Goal.ratio_at_least(0.5),
            note="class fsync, ack 2; a connection each, without an interpreter",
        )
        yield Measurement(
            f"{name}, 1 KiB, durable, p50",
            "s",
            Better.LOWER,
            connections(directory, count, _median),
            baseline=Baseline("bare group commit", bare_group(directory, count, _median)),
            goal=Goal.ratio_at_most(2.0),
            note="the same",
        )
    for name, count, ahead, least in (
        ("version 1, 1 waiting", 1, 1, 0.7),
        ("version 1, 8 connections, 256 messages under way each", 8, 256, 0.5),
    ):
        yield Measurement(
            f"{name}, 1 KiB, durable",
            "records/s",
            Better.HIGHER,
            versioned(directory, 1, count, ahead),
            baseline=Baseline("version 2", versioned(directory, VERSION_2, count, ahead)),
            goal=Goal.ratio_at_least(least),
            note="class fsync; a message is one record; both versions without an interpreter",
        )
    for count in (COUNTS[0], COUNTS[-1]):
        yield Measurement(
            f"processor time of the server for a record, {count} waiting",
            "s",
            Better.LOWER,
            server_time(directory, count),
            note="class fsync, ack 2, 1 KiB; user and system, of all its threads",
        )
    for what, subject in (("processes", processes), ("threads of one log", threads), ("asyncio tasks", tasks)):
        for count in COUNTS:
            if what == "processes" and count > PROCESSES_MAX:
                continue
            yield Measurement(
                f"{count} waiting, as {what}",
                "records/s",
                Better.HIGHER,
                subject(directory, count),
                note="class fsync, ack 2, 1 KiB; the project's own client",
            )


def connections(directory: Path, count: int, figure: Figure) -> Subject:
    """Connections to a node, each with a session of its own."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with running_node(directory, **_STORED) as address, ExitStack() as stack:
            yield _together(_sessions(address, count, stack), figure)

    return opened


def versioned(directory: Path, version: int, count: int, ahead: int) -> Subject:
    """Connections to a node, each with some messages under way."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with running_node(directory, **_STORED) as address, ExitStack() as stack:
            topic_id = _topic_id(address)
            connected = [
                _session(address, stack) if version == VERSION_2 else _socket(address, stack) for _ in range(count)
            ]
            yield _together([Ahead(each, version, topic_id, ahead) for each in connected], _rate)

    return opened


def bare_group(directory: Path, count: int, figure: Figure) -> Subject:
    """Connections to a server that does nothing but receive, write, sync and answer."""

    @contextmanager
    def opened() -> Iterator[Run]:
        size = lone_exchange.BLOCK_AT + len(encode_raw(bytes(KIB)))
        with listening_peer("group", str(directory), str(size)) as address, ExitStack() as stack:
            sockets = [_socket(address, stack) for _ in range(count)]
            yield _together([Waiting(each.fileno(), (1, 1, 1), 1, len(GROUP_ANSWER)) for each in sockets], figure)

    return opened


def server_time(directory: Path, count: int) -> Subject:
    """Seconds of a processor that a node takes for one record of waiting publishers."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with node_process(directory, **_STORED) as (address, process_id), ExitStack() as stack:
            publish = _together(_sessions(address, count, stack), _total)

            def run(seconds: float) -> float:
                before = _processor_seconds(process_id)
                # The system counts in hundredths of a second.
                published = publish(max(seconds, _COUNTED_SECONDS))
                return (_processor_seconds(process_id) - before) / published

            yield run

    return opened


def _sessions(address: str, count: int, stack: ExitStack) -> list[Waiting]:
    """Connections to a node that wait, each with a session; closed with the stack."""
    topic_id = _topic_id(address)
    waiting = []
    for _ in range(count):
        connection = _session(address, stack)
        welcome = connection.welcome
        session = (welcome.client_id, welcome.session_epoch, welcome.next_seq)
        waiting.append(Waiting(connection.stream.fileno(), session, topic_id, 0))
    return waiting


def _topic_id(address: str) -> TopicId:
    with RemoteLog(parse_target(f"seawall://{address}")) as log:
        return log.describe(TOPIC).topic_id


def _session(address: str, stack: ExitStack) -> Connection:
    """A connection with a session; closed with the stack."""
    hello = Hello(flags=HelloFlags.OPEN, window_batches=SESSION_WINDOW_BATCHES)
    connection = Connection.open(address, hello, timeout_s=_CONNECT_SECONDS, clock=OsClock())
    stack.callback(connection.close)
    return connection


def _socket(address: str, stack: ExitStack) -> socket.socket:
    """A connection without a word; closed with the stack."""
    connected = socket.create_connection(parse_address(address), timeout=_CONNECT_SECONDS)
    stack.callback(connected.close)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _processor_seconds(process_id: int) -> float:
    """What a process has used so far, user and system."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _together(waiting: list[P], figure: Callable[[list[P], float], float]) -> Run:
    """All of them at the same time, a thread each, which holds no lock of the interpreter."""

    def run(seconds: float) -> float:
        until_ns = monotonic_ns() + int(seconds * NANOSECONDS_PER_SECOND)
        workers = [threading.Thread(target=each.run, args=(until_ns,)) for each in waiting]
        began = perf_counter_ns()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return figure(waiting, (perf_counter_ns() - began) / NANOSECONDS_PER_SECOND)

    return run


def _total(waiting: Sequence[Publisher], _seconds: float) -> float:
    return float(sum(each.published for each in waiting))


def _rate(waiting: Sequence[Publisher], seconds: float) -> float:
    return _total(waiting, seconds) / seconds


def _median(waiting: list[Waiting], _seconds: float) -> float:
    return float(np.median(np.concatenate([each.latencies for each in waiting]))) / NANOSECONDS_PER_SECOND


# --- the project's own client ------------------------------------------------------------------------------------


def processes(directory: Path, count: int) -> Subject:
    """Programs that call `log.publish`, an interpreter each."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with running_node(directory, **_STORED) as address, ExitStack() as stack:
            counters = [stack.enter_context(_publishing_process(address)) for _ in range(count)]
            while not all(counter[0] for counter in counters):
                sleep(_LOOK_SECONDS)

            def run(seconds: float) -> float:
                before, began = sum(counter[0] for counter in counters), perf_counter_ns()
                sleep(max(seconds, _LOOK_SECONDS))
                published = sum(counter[0] for counter in counters) - before
                return published * NANOSECONDS_PER_SECOND / (perf_counter_ns() - began)

            yield run

    return opened


@contextmanager
def _publishing_process(address: str) -> Iterator[memoryview]:
    """Such a program, and where it counts what it has published."""
    descriptor = os.memfd_create("seawall-bench")
    try:
        os.ftruncate(descriptor, _COUNTER.itemsize)
        counter = memoryview(mmap.mmap(descriptor, _COUNTER.itemsize)).cast("q")
        with peer("publish", address, TOPIC, str(descriptor), descriptors=(descriptor,)):
            yield counter
    finally:
        os.close(descriptor)


def threads(directory: Path, count: int) -> Subject:
    """Threads of one log that call `log.publish`."""

    @contextmanager
    def opened() -> Iterator[Run]:
        record = os.urandom(KIB)
        with connected_log(directory, **_STORED) as log, ThreadPoolExecutor(count) as workers:

            def publish(deadline: int) -> int:
                published = 0
                while not published or perf_counter_ns() < deadline:
                    log.publish(TOPIC, record)
                    published += 1
                return published

            def run(seconds: float) -> float:
                began = perf_counter_ns()
                deadline = began + int(seconds * NANOSECONDS_PER_SECOND)
                published = sum(workers.map(publish, [deadline] * count))
                return published * NANOSECONDS_PER_SECOND / (perf_counter_ns() - began)

            yield run

    return opened


def tasks(directory: Path, count: int) -> Subject:
    """Tasks of one loop that await `log.publish`."""

    @contextmanager
    def opened() -> Iterator[Run]:
        record = os.urandom(KIB)
        _, make_loop = loop_factory()
        with running_node(directory, **_STORED) as address, asyncio.Runner(loop_factory=make_loop) as runner:
            log = runner.run(AsyncRemoteLog(parse_target(f"seawall://{address}")).open())

            async def publish(deadline: int) -> int:
                published = 0
                while not published or perf_counter_ns() < deadline:
                    await log.publish(TOPIC, record)
                    published += 1
                return published

            async def publish_all(deadline: int) -> int:
                return sum(await asyncio.gather(*(publish(deadline) for _ in range(count))))

            def run(seconds: float) -> float:
                began = perf_counter_ns()
                published = runner.run(publish_all(began + int(seconds * NANOSECONDS_PER_SECOND)))
                return published * NANOSECONDS_PER_SECOND / (perf_counter_ns() - began)

            try:
                yield run
            finally:
                runner.run(log.close())

    return opened
