"""Figures of clients that wait until each record is durable, at several client counts: the typical load of a server.

    connections   one connection and thread per client, which runs a kernel (`kernels.network.waiting_publisher`), so
                  that the figure measures the server and not the client
    versioned     the same in either version of the protocol, with a window of messages in flight
    followed      the part of its rate that either server keeps while another process follows what is published
    processes     one process per client, which calls `log.publish`
    threads       one thread per client; all threads call `log.publish` on one log
    tasks         one asyncio task per client; all tasks await `log.publish` on one log

The baseline is a minimal group-commit server (`second_process.group`), driven by the same kernel: it receives from all
connections, writes everything by one call, syncs once and answers all clients.
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
from seawall.bench.subjects.publish_node import TOPIC, connected_log, node_process, running_node
from seawall.bench.subjects.second_process import GROUP_ANSWER, child, listening_child
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
from seawall.kernels.network import waiting_exchange
from seawall.kernels.network.waiting_publisher import PIPELINE_SIZE, publish_pipelined, publish_waiting
from seawall.limits import KIB, SESSION_WINDOW_BATCHES
from seawall.wire.format.codes import AS_TOPIC, VERSION_2, AckLevel, HelloFlags
from seawall.wire.format.fields import JsonValue
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp1.frames import encode_ingest
from seawall.wire.lwp2.session import Hello

#: Numbers of concurrent clients.
COUNTS: Final = (1, 2, 8, 64)
#: Numbers of publishers beside a follower.
FOLLOWED_COUNTS: Final = (1, 64)
#: Maximum number of client processes: each is an interpreter.
PROCESSES_MAX: Final = 8
_TIMEOUT_MS: Final = 10_000
_CONNECT_SECONDS: Final = 10.0
#: Latencies kept per connection and run.
_SAMPLES: Final = 1 << 16
_ANSWER_SIZE: Final = KIB
_ANSWERS_SIZE: Final = 256 * KIB

#: Settings of the topic. No cap: at its cap a topic would evict something in every commit.
_TOPIC_SETTINGS: Final[dict[str, JsonValue]] = {"durability": "fsync", "cap_bytes": 0}
#: Type of the record counter that two processes share.
_COUNTER: Final = np.dtype(np.int64)
_POLL_SECONDS: Final = 0.01
#: Records of each process before the measurement.
_WARM_UP_RECORDS: Final = 100
#: Minimum duration of a run that counts CPU time.
_CPU_TIME_SECONDS: Final = 0.5

Latencies: TypeAlias = npt.NDArray[np.int64]


class WaitingClient:
    """One connection on which a kernel publishes single records and waits for each ack."""

    def __init__(self, descriptor: int, session: tuple[int, int, int], topic_id: int, response_size: int) -> None:
        """`session` is the client id, the session epoch and the next client seq."""
        block = encode_raw(os.urandom(KIB))
        client_id, epoch, next_seq = session
        self._frame = np.zeros(waiting_exchange.BLOCK_AT + len(block), np.uint8)
        self._frame[waiting_exchange.BLOCK_AT :] = np.frombuffer(block, np.uint8)
        self._arguments = np.zeros(waiting_exchange.ARGUMENTS_SIZE, np.int64)
        choices = AS_TOPIC | AckLevel.DURABLE << 8
        self._arguments[: waiting_exchange.WALL_NS] = (
            *(descriptor, -1, _TIMEOUT_MS, client_id, epoch & 0xFFFF_FFFF, choices),
            *(len(block), 1, next_seq, topic_id),
        )
        self._answer = np.zeros(_ANSWER_SIZE, np.uint8)
        self._rows = np.zeros(2, FRAME_ROW)
        self._state = np.zeros(STATE_SIZE, np.int64)
        self._state[STATE_VERSION] = VERSION_2
        self._waited = np.zeros(_SAMPLES, np.int64)
        self._answer_size = response_size
        self._count = 0

    def run(self, until_ns: int) -> None:
        """Publish until this time of the monotonic clock."""
        answers = (self._answer, self._rows, self._state)
        self._count = publish_waiting(self._frame, self._arguments, *answers, self._waited, until_ns, self._answer_size)

    @property
    def published(self) -> int:
        """Records published by the last run."""
        if self._count < 0:
            raise InvariantError("INV-BENCH-OK", "a waiting client received no ack")
        return self._count

    @property
    def latencies(self) -> Latencies:
        """Latencies of the last run in ns."""
        return self._waited[: self.published]


class PipelinedClient:
    """One connection, of either protocol version, on which a kernel keeps single-record messages in flight."""

    def __init__(self, connected: socket.socket | Connection, version: int, topic_id: int, window: int) -> None:
        record = encode_raw(os.urandom(KIB))
        self._arguments = np.zeros(waiting_exchange.ARGUMENTS_SIZE, np.int64)
        self._version, self._window = version, window
        if isinstance(connected, Connection):
            welcome = connected.welcome
            frame = bytes(waiting_exchange.BLOCK_AT) + record
            session = (int(welcome.client_id), welcome.session_epoch & 0xFFFF_FFFF, AS_TOPIC | AckLevel.DURABLE << 8)
            descriptor, next_seq = connected.stream.fileno(), welcome.next_seq
        else:
            frame = encode_ingest(record, batch_id=1, topic_id=topic_id, timestamp_ns=0, record_count=1)
            session, descriptor, next_seq = (0, 0, 0), connected.fileno(), ClientSeq(1)
        self._arguments[: waiting_exchange.WALL_NS] = (
            *(descriptor, -1, _TIMEOUT_MS, *session, len(record), 1, next_seq, topic_id),
        )
        self._frame = np.frombuffer(bytearray(frame), np.uint8)
        self._answers = np.zeros(_ANSWERS_SIZE, np.uint8)
        self._progress = np.zeros(PIPELINE_SIZE, np.int64)
        self._count = 0

    def run(self, until_ns: int) -> None:
        """Publish until this time of the monotonic clock."""
        arrays = (self._frame, self._arguments, self._answers, self._progress)
        self._count = publish_pipelined(*arrays, self._version, self._window, until_ns)

    @property
    def published(self) -> int:
        """Records published by the last run."""
        if self._count < 0:
            raise InvariantError("INV-BENCH-OK", "a pipelined client received no ack")
        return self._count


class Client(Protocol):
    """A client that publishes until a given time and counts its records."""

    def run(self, until_ns: int) -> None:
        """Publish until this time of the monotonic clock."""
        ...

    @property
    def published(self) -> int:
        """Records published by the last run."""
        ...


ClientType = TypeVar("ClientType", bound=Client)

#: Computes a figure from the clients of a run and its duration in seconds.
Figure: TypeAlias = Callable[[list[WaitingClient], float], float]


def table(directory: Path) -> Iterator[Measurement]:
    """List the figures of waiting clients."""
    for count in COUNTS:
        name = f"{count} waiting" if count == 1 else f"{count} waiting at once"
        yield Measurement(
            f"{name}, 1 KiB, durable",
            "records/s",
            Better.HIGHER,
            connections(directory, count, _rate),
            baseline=Baseline("bare group commit", bare_group(directory, count, _rate)),
            goal=Goal.ratio_at_least(0.5),
            note="class fsync, ack 2; one connection per client; clients are kernels",
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
    for name, count, window, goal in (
        ("version 1, 1 waiting", 1, 1, 0.7),
        ("version 1, 8 connections, 256 messages under way each", 8, 256, 0.5),
    ):
        yield Measurement(
            f"{name}, 1 KiB, durable",
            "records/s",
            Better.HIGHER,
            versioned(directory, 1, count, window),
            baseline=Baseline("version 2", versioned(directory, VERSION_2, count, window)),
            goal=Goal.ratio_at_least(goal),
            note="class fsync; one record per message; clients are kernels in both versions",
        )
    for count in FOLLOWED_COUNTS:
        yield Measurement(
            f"{count} waiting, 1 KiB, durable: part of the rate that is kept beside a follower",
            "x",
            Better.HIGHER,
            kept(connections(directory, count, _rate), connections(directory, count, _rate, is_followed=True)),
            baseline=Baseline(
                "bare group commit with a follower",
                kept(bare_group(directory, count, _rate), bare_group(directory, count, _rate, is_followed=True)),
            ),
            goal=Goal.ratio_at_least(0.8),
            note="class fsync, ack 2; the follower is a process that counts the records",
        )
    for count in (COUNTS[0], COUNTS[-1]):
        yield Measurement(
            f"processor time of the server for a record, {count} waiting",
            "s",
            Better.LOWER,
            server_time(directory, count),
            note="class fsync, ack 2, 1 KiB; user and system time of all server threads",
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
                note="class fsync, ack 2, 1 KiB; Seawall's Python client",
            )


def connections(directory: Path, count: int, figure: Figure, *, is_followed: bool = False) -> Subject:
    """Waiting clients of a node, each with a connection and a session; a process follows the topic if asked to."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with running_node(directory, **_TOPIC_SETTINGS) as address, ExitStack() as stack:
            publish = _concurrently(_waiting_clients(address, count, stack), figure)
            yield _beside_reader(publish, stack, "follow", address, TOPIC) if is_followed else publish

    return opened


def versioned(directory: Path, version: int, count: int, window: int) -> Subject:
    """Clients of a node in one protocol version, each with a window of messages in flight."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with running_node(directory, **_TOPIC_SETTINGS) as address, ExitStack() as stack:
            topic_id = _topic_id(address)
            connected = [
                _session(address, stack) if version == VERSION_2 else _socket(address, stack) for _ in range(count)
            ]
            yield _concurrently([PipelinedClient(each, version, topic_id, window) for each in connected], _rate)

    return opened


def bare_group(directory: Path, count: int, figure: Figure, *, is_followed: bool = False) -> Subject:
    """Waiting clients of the minimal group-commit server; a process receives all records if asked to."""

    @contextmanager
    def opened() -> Iterator[Run]:
        size = waiting_exchange.BLOCK_AT + len(encode_raw(bytes(KIB)))
        with listening_child("group", str(directory), str(size)) as address, ExitStack() as stack:
            sockets = [_socket(address, stack) for _ in range(count)]
            clients = [WaitingClient(each.fileno(), (1, 1, 1), 1, len(GROUP_ANSWER)) for each in sockets]
            publish = _concurrently(clients, figure)
            yield _beside_reader(publish, stack, "drain", address, str(size)) if is_followed else publish

    return opened


def kept(alone: Subject, followed: Subject) -> Subject:
    """The part of its rate alone that a server keeps beside a follower: both in turns, half of the time each."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with followed() as run_followed:
            # Until the follower runs. An idle connection would get a ping meanwhile.
            run_followed(0.0)
            with alone() as run_alone:
                yield lambda seconds: run_followed(seconds / 2) / run_alone(seconds / 2)

    return opened


def _beside_reader(publish: Run, stack: ExitStack, role: str, *arguments: str) -> Run:
    """Start a process that reads what is published, until the stack closes; every run must reach it."""
    counter = stack.enter_context(_counting_process(role, *arguments))

    def run(seconds: float) -> float:
        before = counter[0]
        found = publish(seconds)
        until_ns = monotonic_ns() + int(_CONNECT_SECONDS * NANOSECONDS_PER_SECOND)
        while counter[0] == before:
            if monotonic_ns() > until_ns:
                raise InvariantError("INV-BENCH-OK", f"the process {role} received no record")
            # In the first run the process is still starting, and may have missed all records.
            sleep(_POLL_SECONDS)
            publish(0.0)
        return found

    return run


def server_time(directory: Path, count: int) -> Subject:
    """CPU seconds of a node per record of waiting clients."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with node_process(directory, **_TOPIC_SETTINGS) as (address, process_id), ExitStack() as stack:
            publish = _concurrently(_waiting_clients(address, count, stack), _total)

            def run(seconds: float) -> float:
                before = _cpu_seconds(process_id)
                # The kernel counts CPU time in hundredths of a second, so short runs would be too coarse.
                published = publish(max(seconds, _CPU_TIME_SECONDS))
                return (_cpu_seconds(process_id) - before) / published

            yield run

    return opened


def _waiting_clients(address: str, count: int, stack: ExitStack) -> list[WaitingClient]:
    """Clients of a node, each with a session; closed with the stack."""
    topic_id = _topic_id(address)
    clients = []
    for _ in range(count):
        connection = _session(address, stack)
        welcome = connection.welcome
        session = (welcome.client_id, welcome.session_epoch, welcome.next_seq)
        clients.append(WaitingClient(connection.stream.fileno(), session, topic_id, 0))
    return clients


def _topic_id(address: str) -> TopicId:
    with RemoteLog(parse_target(f"seawall://{address}")) as log:
        return log.describe(TOPIC).topic_id


def _session(address: str, stack: ExitStack) -> Connection:
    """Connect and open a session; closed with the stack."""
    hello = Hello(flags=HelloFlags.OPEN, window_batches=SESSION_WINDOW_BATCHES)
    connection = Connection.open(address, hello, timeout_s=_CONNECT_SECONDS, clock=OsClock())
    stack.callback(connection.close)
    return connection


def _socket(address: str, stack: ExitStack) -> socket.socket:
    """Connect without a handshake; closed with the stack."""
    connected = socket.create_connection(parse_address(address), timeout=_CONNECT_SECONDS)
    stack.callback(connected.close)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def _cpu_seconds(process_id: int) -> float:
    """User and system CPU time that a process has used so far."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _concurrently(clients: list[ClientType], figure: Callable[[list[ClientType], float], float]) -> Run:
    """Run all clients concurrently, each in a thread; their kernels do not hold the GIL."""

    def run(seconds: float) -> float:
        until_ns = monotonic_ns() + int(seconds * NANOSECONDS_PER_SECOND)
        workers = [threading.Thread(target=each.run, args=(until_ns,)) for each in clients]
        started = perf_counter_ns()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return figure(clients, (perf_counter_ns() - started) / NANOSECONDS_PER_SECOND)

    return run


def _total(clients: Sequence[Client], _seconds: float) -> float:
    return float(sum(each.published for each in clients))


def _rate(clients: Sequence[Client], seconds: float) -> float:
    return _total(clients, seconds) / seconds


def _median(clients: list[WaitingClient], _seconds: float) -> float:
    return float(np.median(np.concatenate([each.latencies for each in clients]))) / NANOSECONDS_PER_SECOND


# --- Seawall's Python client -------------------------------------------------------------------------------------


def processes(directory: Path, count: int) -> Subject:
    """Client processes that call `log.publish`."""

    @contextmanager
    def opened() -> Iterator[Run]:
        with running_node(directory, **_TOPIC_SETTINGS) as address, ExitStack() as stack:
            counters = [stack.enter_context(_counting_process("publish", address, TOPIC)) for _ in range(count)]
            # The first records load the kernels, here and in the server.
            while not all(counter[0] > _WARM_UP_RECORDS for counter in counters):
                sleep(_POLL_SECONDS)

            def run(seconds: float) -> float:
                before, started = sum(counter[0] for counter in counters), perf_counter_ns()
                sleep(max(seconds, _POLL_SECONDS))
                published = sum(counter[0] for counter in counters) - before
                return published * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

            yield run

    return opened


@contextmanager
def _counting_process(role: str, *arguments: str) -> Iterator[memoryview]:
    """Start a process that publishes or reads; yields the shared counter of its records."""
    descriptor = os.memfd_create("seawall-bench")
    try:
        os.ftruncate(descriptor, _COUNTER.itemsize)
        counter = memoryview(mmap.mmap(descriptor, _COUNTER.itemsize)).cast("q")
        with child(role, *arguments, str(descriptor), descriptors=(descriptor,)):
            yield counter
    finally:
        os.close(descriptor)


def threads(directory: Path, count: int) -> Subject:
    """Threads that call `log.publish` on one log."""

    @contextmanager
    def opened() -> Iterator[Run]:
        record = os.urandom(KIB)
        with connected_log(directory, **_TOPIC_SETTINGS) as log, ThreadPoolExecutor(count) as workers:

            def publish(deadline: int) -> int:
                published = 0
                while not published or perf_counter_ns() < deadline:
                    log.publish(TOPIC, record)
                    published += 1
                return published

            def run(seconds: float) -> float:
                started = perf_counter_ns()
                deadline = started + int(seconds * NANOSECONDS_PER_SECOND)
                published = sum(workers.map(publish, [deadline] * count))
                return published * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

            yield run

    return opened


def tasks(directory: Path, count: int) -> Subject:
    """Asyncio tasks that await `log.publish` on one log."""

    @contextmanager
    def opened() -> Iterator[Run]:
        record = os.urandom(KIB)
        _, make_loop = loop_factory()
        with running_node(directory, **_TOPIC_SETTINGS) as address, asyncio.Runner(loop_factory=make_loop) as runner:
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
                started = perf_counter_ns()
                published = runner.run(publish_all(started + int(seconds * NANOSECONDS_PER_SECOND)))
                return published * NANOSECONDS_PER_SECOND / (perf_counter_ns() - started)

            try:
                yield run
            finally:
                runner.run(log.close())

    return opened
