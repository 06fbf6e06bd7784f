"""A node: one process with a log, its listeners and all connections, from start to drain.

    start    open the log, offer both protocol versions on a port, tell where
    drain    take no connections, say GOODBYE, answer what is under way, sync, close in order; or, at a deadline, cut
             off who is left and leave no mark of an orderly end, so that the next start looks at everything

INV-NODE-DRAINED: a drain that ends in time has answered everything it took, and left nothing to repair.
INV-NODE-CUT-OFF: one that does not says so, and the next opening recovers the directory.

A crash leaves what was acked in the log; the next start recovers it. This module must not know signals, nor what frames
mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import Final

from seawall import limits
from seawall.config import Config, PastEnd
from seawall.engine.served_log import ServedLog
from seawall.engine.settings import StoreSettings
from seawall.errors import InvalidInputError
from seawall.io.memory_use import MemoryUse
from seawall.io.sockets import format_address
from seawall.server.access import Access
from seawall.server.context import ServerContext, ServerSettings
from seawall.server.ingest import Ingest
from seawall.server.listener import Listener, MakeSession
from seawall.server.lwp1_session import Lwp1Service
from seawall.server.lwp2_session import Lwp2Session
from seawall.server.pressure import Levels, Memory, Pressure
from seawall.server.session import ConnectionLimits
from seawall.server.topic_commands import TopicCommands
from seawall.wire.codes import VERSION_1, VERSION_2

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
    past_end: PastEnd = PastEnd.ERROR
    server: ServerSettings = field(default_factory=ServerSettings)
    bounds: ConnectionLimits = field(default_factory=ConnectionLimits)
    #: How connections are encrypted; None if they are not.
    tls: SSLContext | None = None


def _say_nothing(_text: str) -> None:
    """Nobody wants to know."""


class Node:
    """A running node. Made by `start_node`."""

    def __init__(
        self, log: ServedLog, context: ServerContext, listener: Listener, addresses: list[str], pressure: Pressure
    ) -> None:
        self.log = log
        #: Where it listens: all of it, and the first.
        self.addresses = addresses
        self.address = addresses[0]
        self.pressure = pressure
        self._context = context
        self._listener = listener
        #: Set when the log cannot be written any more: whoever runs the node ends it.
        self.unanswered = 0
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        log.on_failed = self._fail

    @property
    def connection_count(self) -> int:
        """Connections that are there."""
        return len(self._listener.connections)

    @property
    def counts(self) -> dict[str, int]:
        """How often connections were refused or ended, by cause, and what memory that was short has led to."""
        return dict(self._listener.counts + self.pressure.counts)

    async def drain(self, timeout_s: float) -> bool:
        """End in order; whether everything was answered and closed in time (INV-NODE-CUT-OFF)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        self._listener.stop()
        self.pressure.stop()
        for connection in list(self._listener.connections):
            connection.drain(int(timeout_s * 1000))
        while self._listener.connections and loop.time() < deadline:
            await asyncio.sleep(_LOOK_S)
        is_drained = not self._listener.connections
        if not is_drained:
            self.log.abandon()
        #: What nobody was told about, for whoever says so.
        self.unanswered = self._context.ingest.undecided
        for connection in list(self._listener.connections):
            connection.abort()
        closing = asyncio.ensure_future(self.log.close())
        await asyncio.wait((closing,), timeout=max(deadline - loop.time(), limits.CUT_OFF_S))
        if not closing.done():
            return False
        closing.result()
        return is_drained

    def _fail(self, error: BaseException) -> None:
        """Nothing can be written any more: who publishes is told, and so is whoever runs the node."""
        self._context.ingest.fail(error)
        if not self.failure.done():
            self.failure.set_result(error)


async def start_node(
    data: str | Path,
    settings: NodeSettings | None = None,
    *,
    config: Config | None = None,
    store: StoreSettings | None = None,
    access: Access | None = None,
    memory: Memory | None = None,
    tell: Callable[[str], None] = _say_nothing,
) -> Node:
    """Open a data directory, made if it is not there, and serve it; `tell` is told in words what people should know."""
    own, allowed = settings or NodeSettings(), access or Access()
    log = ServedLog(data, store, config)
    await log.open()
    try:
        memory = memory or _memory_of(config or Config())
        commands = TopicCommands(log)
        ingest = Ingest(log, asyncio.get_running_loop())
        context = ServerContext(log, ingest, commands, own.server, allowed)
        versions: dict[int, MakeSession] = {
            VERSION_1: Lwp1Service(log, ingest, commands, access=allowed, past_end=own.past_end),
            VERSION_2: partial(Lwp2Session, context),
        }
        listener = Listener(versions, bounds=own.bounds, connections_max=own.connections_max)
        pressure = Pressure(ingest, memory, log.relieve, tell)
        try:
            bound = [await listener.listen(*address, own.tls) for address in ((own.host, own.port), *own.also)]
        except BaseException:
            listener.stop()
            raise
        pressure.start()
        return Node(log, context, listener, [format_address(host, port) for host, port in bound], pressure)
    except BaseException:
        await log.close()
        raise


def _memory_of(config: Config) -> MemoryUse:
    """The memory of this process, whose limit must leave room for more than the process itself."""
    memory = MemoryUse(config.server.memory_limit)
    taken = memory.taken()
    if config.server.memory_limit and Levels(memory.limit).observe(taken):
        raise InvalidInputError(
            f"server.memory_limit is {memory.limit // limits.MIB} MiB, and a server that does nothing takes "
            f"{taken // limits.MIB}: give it at least {2 * taken // limits.MIB}"
        )
    return memory
