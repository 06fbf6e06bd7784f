"""A broker: one event loop of a node, with the connections that were dealt to it and all that they share.

The first is on the loop of the log, which commits for all. Others are on threads of their own (`start_beside`), each
with a ring: what they receive, check, look up and send is done beside the others wherever that does not need the
interpreter, which is most of it where batches are large.

    the port ─▶ in turn ─▶ broker 0   loop of the log    ring 0 ┐
                          broker 1   thread             ring 1 ├▶ one order, one log
                          broker 2   thread             ring 2 ┘

What belongs to a broker is touched by its own loop; others call it by `on_loop`.

A crash takes all of them. This module must not know frames.
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

#: How often a drain looks whether everybody has gone.
_LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where a node listens, and how it treats who comes."""

    host: str = "127.0.0.1"
    port: int = limits.LWP_PORT
    #: Further addresses.
    also: tuple[tuple[str, int], ...] = ()
    connections_max: int = limits.CONNECTIONS_MAX
    past_end: PastEnd = PastEnd.CATCHING_UP
    server: ServerSettings = field(default_factory=ServerSettings)
    bounds: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: Event loops that connections are dealt to.
    brokers: int = 1
    #: Bytes that are held for all peers, 0 for a part of the memory limit; and for each connection.
    peer_memory: int = 0
    connection_memory: int = limits.CONNECTION_MEMORY_SIZE
    #: How connections are encrypted; None if they are not.
    tls: SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """What all brokers of a node have in common."""

    settings: NodeSettings
    access: Access
    memory: Memory
    #: What is held for peers.
    peers: PeerMemory
    tell: Callable[[str], None]
    #: The brokers there are, as they are now.
    look: Callable[[], tuple[BrokerStatus, ...]]
    #: What all brokers have counted, by cause.
    counts: Callable[[], dict[str, int]]
    load: Callable[[], NodeLoad]
    #: Receives, commits and answers small batches; None where the system has not what it needs.
    publish_thread: PublishThread | None

    def count(self) -> int:
        """Connections of all brokers."""
        return sum(broker.connections for broker in self.look())


class Broker:
    """The connections of one loop. Made on it."""

    def __init__(self, log: ServedLog, number: int, shared: Shared) -> None:
        own, access = shared.settings, shared.access
        self.loop = asyncio.get_running_loop()
        self.thread: threading.Thread | None = None
        commands = TopicCommands(log)
        self.ingest = Ingest(log, self.loop, number, shared.publish_thread)
        context = ServerContext(log, self.ingest, commands, own.server, access, shared.look, shared.counts, shared.load)
        versions: dict[int, MakeSession] = {
            VERSION_1: Lwp1Service(log, self.ingest, commands, access=access, past_end=own.past_end),
            VERSION_2: partial(Lwp2Session, context),
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
        # Memory is that of all: one broker returns it and tells of it, each holds its own connections.
        give_back, tell = (_nothing, _nothing) if number else (log.relieve, shared.tell)
        self.pressure = Pressure(self.ingest, shared.memory, give_back, tell)
        #: Batches that nobody was told about when it was drained.
        self.unanswered = 0

    def on_loop(self, work: Coroutine[None, None, R]) -> Awaitable[R]:
        """Carry something out on the loop of this broker; to be awaited on any."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def drain(self, timeout_s: float) -> bool:
        """Have everybody answered and let go; whether that was done in time. Who is left is cut off."""
        deadline = self.loop.time() + timeout_s
        self.listener.stop()
        self.pressure.stop()
        connections = self.listener.connections
        for connection in list(connections):
            connection.drain(int(timeout_s * 1000))
        while connections and self.loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)
        is_drained = not connections
        self.unanswered = self.ingest.undecided
        for connection in list(connections):
            connection.abort()
        return is_drained


async def start_beside(log: ServedLog, number: int, shared: Shared) -> Broker:
    """Start a broker on a loop and a thread of its own."""
    _, make_loop = loop_factory()
    loop = make_loop()
    thread = threading.Thread(target=_run, args=(loop,), name=f"seawall-broker-{number}", daemon=True)
    thread.start()

    async def make() -> Broker:
        return Broker(LoopView(log, number), number, shared)

    try:
        broker = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), loop))
    except BaseException:
        loop.call_soon_threadsafe(loop.stop)
        raise
    broker.thread = thread
    return broker


async def end_beside(broker: Broker) -> None:
    """End the loop and the thread of a broker, whose log is closed."""
    broker.loop.call_soon_threadsafe(broker.loop.stop)
    if broker.thread is not None:
        await asyncio.to_thread(broker.thread.join)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def _nothing(*_: object) -> None:
    """The first broker does it."""
