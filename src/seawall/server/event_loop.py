"""One event loop of a node, with the connections that were assigned to it and all that they share.

The first event loop is that of the log, which commits for all. Each further one runs on a thread of its own
(`start_event_loop`) with a ring of its own. Receiving, checking, looking up and sending run in parallel wherever they
do not need the interpreter, which is most of the work with large batches.

    port ─▶ round-robin ─▶ event loop 0   loop of the log    ring 0 ┐
                           event loop 1   thread             ring 1 ├▶ one order, one log
                           event loop 2   thread             ring 2 ┘

Only its own loop touches the state of an event loop; other threads call it by `submit`.

A crash ends all of them. This module must not know frames.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from ssl import SSLContext
from typing import Final, TypeVar

from seawall import limits
from seawall.config import PastEnd
from seawall.engine.serving.loop_view import LoopView
from seawall.engine.serving.served_log import ServedLog
from seawall.io.network.loops import loop_factory
from seawall.server.connection.access import Access
from seawall.server.connection.budget import PeerMemory
from seawall.server.connection.context import ServerContext, ServerSettings
from seawall.server.connection.listener import Listener, MakeSession
from seawall.server.connection.session import ConnectionLimits
from seawall.server.lwp1.session import Lwp1Service
from seawall.server.lwp2.session import Lwp2Session
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.server.pressure import Memory, Pressure
from seawall.server.publish.ingest import Ingest
from seawall.server.publish.publish_thread import PublishThread
from seawall.wire.format.codes import VERSION_1, VERSION_2
from seawall.wire.lwp1.node_load import NodeLoad
from seawall.wire.lwp1.replies import BrokerStatus

R = TypeVar("R")

#: How often a drain checks for open connections.
_POLL_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where a node listens, and the limits for its peers."""

    host: str = "127.0.0.1"
    port: int = limits.LWP_PORT
    #: Further addresses to listen on.
    also: tuple[tuple[str, int], ...] = ()
    connections_max: int = limits.CONNECTIONS_MAX
    past_end: PastEnd = PastEnd.CATCHING_UP
    server: ServerSettings = field(default_factory=ServerSettings)
    bounds: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: Number of event loops.
    event_loops: int = 1
    #: Bytes for all peers, 0 for a part of the memory limit; and for each connection.
    peer_memory: int = 0
    connection_memory: int = limits.CONNECTION_MEMORY_SIZE
    #: TLS settings; None for plain connections.
    tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class NodeShared:
    """What all event loops of a node share."""

    settings: NodeSettings
    access: Access
    memory: Memory
    #: The memory budget for peers.
    peers: PeerMemory
    #: Reports a message to the operator.
    report: Callable[[str], None]
    #: Returns the status of each event loop.
    statuses: Callable[[], tuple[BrokerStatus, ...]]
    #: Returns the counters of all event loops, by cause.
    counts: Callable[[], dict[str, int]]
    load: Callable[[], NodeLoad]
    #: Receives, commits and answers small batches; None where the system does not support it.
    publish_thread: PublishThread | None

    def count(self) -> int:
        """The number of connections of all event loops."""
        return sum(status.connections for status in self.statuses())


class EventLoop:
    """The connections of one loop. Create it on that loop."""

    def __init__(self, log: ServedLog, number: int, shared: NodeShared) -> None:
        own, access = shared.settings, shared.access
        self.loop = asyncio.get_running_loop()
        self.thread: threading.Thread | None = None
        self.delivery = log.delivery
        commands = TopicCommands(log)
        self.ingest = Ingest(log, self.loop, number, shared.publish_thread)
        self._context = ServerContext(
            log, self.ingest, commands, own.server, access, shared.statuses, shared.counts, shared.load
        )
        versions: dict[int, MakeSession] = {
            VERSION_1: Lwp1Service(log, self.ingest, commands, access=access, past_end=own.past_end),
            VERSION_2: partial(Lwp2Session, self._context),
        }
        self.listener = Listener(
            versions,
            bounds=own.bounds,
            connections_max=own.connections_max,
            count_all=shared.count,
            memory=shared.peers,
            needs_token=not access.is_open,
            publish_thread=shared.publish_thread,
        )
        # All event loops share the memory: the first one releases and reports it, each holds its own connections.
        release_memory, report = (_nothing, _nothing) if number else (log.release_memory, shared.report)
        self.pressure = Pressure(self.ingest, shared.memory, release_memory, report)
        #: Batches without an answer when the loop was drained.
        self.unanswered = 0

    def submit(self, work: Coroutine[None, None, R]) -> Awaitable[R]:
        """Run a coroutine on this loop; the result can be awaited on any loop."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def drain(self, timeout_s: float) -> bool:
        """Answer and close all connections; False if the timeout has aborted some."""
        deadline = self.loop.time() + timeout_s
        self.listener.stop()
        self.pressure.stop()
        connections = self.listener.connections
        for connection in list(connections):
            connection.drain(int(timeout_s * 1000))
        while connections and self.loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
        is_drained = not connections
        self.unanswered = self.ingest.undecided
        for connection in list(connections):
            connection.abort()
        await self._context.queues.settle()
        return is_drained


async def start_event_loop(log: ServedLog, number: int, shared: NodeShared) -> EventLoop:
    """Start an event loop on a thread of its own."""
    _, make_loop = loop_factory()
    loop = make_loop()
    thread = threading.Thread(target=_run, args=(loop,), name=f"seawall-loop-{number}", daemon=True)
    thread.start()

    async def create() -> EventLoop:
        return EventLoop(LoopView(log, number), number, shared)

    try:
        event_loop = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(create(), loop))
    except BaseException:
        loop.call_soon_threadsafe(loop.stop)
        raise
    event_loop.thread = thread
    return event_loop


async def stop_event_loop(event_loop: EventLoop) -> None:
    """Stop an event loop and its thread; its log has to be closed."""
    event_loop.loop.call_soon_threadsafe(event_loop.loop.stop)
    if event_loop.thread is not None:
        await asyncio.to_thread(event_loop.thread.join)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _nothing(*_: object) -> None:
    """Do nothing: the first event loop does it."""
