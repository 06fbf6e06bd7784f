"""A node: one process with a log, its listeners and all connections, from start to drain.

    start    opens the log, serves both protocol versions on its ports, and returns the addresses
    drain    stops accepting, sends GOODBYE, answers the requests in flight, syncs and closes in order; after the
             timeout it aborts the remaining connections and leaves no clean-shutdown marker, so the next start recovers

INV-NODE-DRAINED: a server that shuts down in order has answered everything it accepted; after any other end the next
start recovers the directory.

After a failed write or sync the node refuses every change with the reason, and continues to serve readers and
subscribers until it is stopped. That stop leaves no clean-shutdown marker.

A crash leaves everything acknowledged in the log; the next start recovers it. This module must not know signals, nor
what frames mean.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from seawall import limits
from seawall.config import Config
from seawall.engine.serving.served_log import ServedLog
from seawall.engine.store.settings import StoreSettings
from seawall.errors import InvalidInputError
from seawall.io.network.sockets import format_address
from seawall.io.process.descriptors import DescriptorBudget, raise_descriptor_limit
from seawall.io.process.memory_use import MemoryUse
from seawall.server.connection.access import Access
from seawall.server.connection.budget import PeerMemory
from seawall.server.connection.slow_callbacks import SlowFigures
from seawall.server.event_loop import EventLoop, NodeSettings, NodeShared, start_event_loop, stop_event_loop
from seawall.server.pressure import Levels, Memory
from seawall.server.publish.publish_thread import PublishThread
from seawall.server.read.unfit_ranges import UNFIT
from seawall.wire.lwp1.node_load import NodeLoad
from seawall.wire.lwp1.replies import BrokerStatus

__all__ = ["Node", "NodeSettings", "start_node"]


def _ignore(_text: str) -> None:
    """Ignore a message."""


class Node:
    """A running node. `start_node` creates it."""

    def __init__(
        self,
        log: ServedLog,
        event_loops: Sequence[EventLoop],
        addresses: list[str],
        publish_thread: PublishThread | None,
    ) -> None:
        self.log = log
        self._publish_thread = publish_thread
        #: All addresses that it listens on, and the first of them.
        self.addresses = addresses
        self.address = addresses[0]
        #: The event loops; the first one is that of the log.
        self.event_loops = event_loops
        #: Batches without an answer when the node was drained.
        self.unanswered = 0
        #: Resolves with the first write or sync error: the node is then read-only until it is restarted.
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        log.on_failed = self._fail

    @property
    def connection_count(self) -> int:
        """The number of open connections."""
        return sum(len(event_loop.listener.connections) for event_loop in self.event_loops)

    @property
    def counts(self) -> dict[str, int]:
        """Refused and closed connections by cause, and actions taken under memory pressure."""
        return _counts(self.event_loops)

    async def drain(self, timeout_s: float) -> bool:
        """Shut down in order; True if everything was answered and closed in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        # The first loop has the ports: a stopped loop gets no more connections.
        self.event_loops[0].listener.stop()
        is_drained = all(
            await asyncio.gather(*(event_loop.submit(event_loop.drain(timeout_s)) for event_loop in self.event_loops))
        )
        if not is_drained:
            self.log.abandon()
        self.unanswered = sum(event_loop.unanswered for event_loop in self.event_loops)
        await _stop_publish_thread(self._publish_thread)
        closing = asyncio.ensure_future(self.log.close())
        await asyncio.wait((closing,), timeout=max(deadline - loop.time(), limits.CUT_OFF_S))
        if not closing.done():
            return False
        closing.result()
        await _stop_others(self.event_loops)
        return is_drained

    def _fail(self, error: BaseException) -> None:
        """Report a write error to all publishers and to the owner of the node; readers continue."""
        for event_loop in self.event_loops:
            event_loop.loop.call_soon_threadsafe(event_loop.ingest.fail, error)
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
    warn: Callable[[str], None] = _ignore,
) -> Node:
    """Open a data directory, or create it, and serve it. `warn` receives messages for the operator."""
    own = _within_descriptors(settings or NodeSettings(), warn)
    log = ServedLog(data, store, config, loops=own.event_loops)
    await log.open()
    event_loops: list[EventLoop] = []
    publish_thread = PublishThread(log) if PublishThread.is_supported() else None
    try:
        memory = memory or _memory_of(config or Config())
        addresses: list[str] = []
        peers = _peer_memory(own, memory)
        queries = (
            lambda: _statuses(event_loops, addresses),
            lambda: _counts(event_loops),
            lambda: _load(event_loops, peers),
        )
        shared = NodeShared(own, access or Access(), memory, peers, warn, *queries, publish_thread)
        event_loops.append(EventLoop(log, 0, shared))
        for number in range(1, own.event_loops):
            event_loops += [await start_event_loop(log, number, shared)]
        listener = event_loops[0].listener
        listener.distribute_to([event_loop.listener for event_loop in event_loops])
        try:
            for address in ((own.host, own.port), *own.also):
                addresses += [format_address(*await listener.listen(*address, own.tls))]
        except BaseException:
            listener.stop()
            raise
        event_loops[0].pressure.start()
        for event_loop in event_loops[1:]:
            event_loop.loop.call_soon_threadsafe(event_loop.pressure.start)
        return Node(log, event_loops, addresses, publish_thread)
    except BaseException:
        await _stop_publish_thread(publish_thread)
        await log.close()
        await _stop_others(event_loops)
        raise


def _statuses(event_loops: Sequence[EventLoop], addresses: Sequence[str]) -> tuple[BrokerStatus, ...]:
    counts = [len(event_loop.listener.connections) for event_loop in event_loops]
    return tuple(BrokerStatus(number, tuple(addresses), count) for number, count in enumerate(counts))


def _counts(event_loops: Sequence[EventLoop]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for event_loop in event_loops:
        # Copy the counters first: the other loops keep counting.
        counted += Counter(dict(event_loop.listener.counts)) + Counter(dict(event_loop.pressure.counts))
    # Connections closed by a failed file, of all servers of this process.
    counted += Counter(files_failed=UNFIT.failures)
    return dict(counted)


def _load(event_loops: Sequence[EventLoop], peers: PeerMemory) -> NodeLoad:
    slow = SlowFigures.of(event_loop.listener.probe for event_loop in event_loops)
    deliveries = [event_loop.delivery for event_loop in event_loops]
    return NodeLoad(
        *(peers.used, peers.limit, slow.count, slow.longest_us, slow.longest),
        pressure_percent=round(100 * max(each.governor.pressure for each in deliveries)),
        deliveries=sum(each.served_count for each in deliveries),
        deliveries_late=sum(each.late_count for each in deliveries),
    )


async def _stop_publish_thread(publish_thread: PublishThread | None) -> None:
    """Stop the publish thread; waits for the commit in flight."""
    if publish_thread is not None:
        await asyncio.to_thread(publish_thread.close)


async def _stop_others(event_loops: Sequence[EventLoop]) -> None:
    """Stop all event loops but that of the log."""
    for event_loop in event_loops[1:]:
        await stop_event_loop(event_loop)


def _peer_memory(settings: NodeSettings, memory: Memory) -> PeerMemory:
    """The memory budget for peers: as configured, else a part of the memory limit."""
    part = max(limits.PEER_MEMORY_SIZE_MIN, memory.limit * limits.PEER_MEMORY_PERCENT // 100)
    return PeerMemory(settings.peer_memory or part, settings.connection_memory)


def _within_descriptors(settings: NodeSettings, warn: Callable[[str], None]) -> NodeSettings:
    """Settings with as many connections as there are descriptors, after raising the limit of this process."""
    budget = DescriptorBudget.of(raise_descriptor_limit(), settings.connections_max)
    if budget.connections == settings.connections_max:
        return settings
    if settings.connections_max != limits.CONNECTIONS_MAX:
        # Warn only about a configured number; `seawall doctor` shows what is left of the default.
        warn(
            f"Seawall takes {budget.connections} connections at most, not {settings.connections_max}: this process may "
            f"have {budget.limit} file descriptors ({budget}). Raise the hard limit for more (ulimit -Hn; a service: "
            "LimitNOFILE)."
        )
    return replace(settings, connections_max=budget.connections)


def _memory_of(config: Config) -> MemoryUse:
    """The memory of this process; its limit must leave space for more than an idle server."""
    memory = MemoryUse(config.server.memory_limit)
    taken = memory.used()
    if config.server.memory_limit and Levels(memory.limit).observe(taken):
        raise InvalidInputError(
            f"server.memory_limit is {memory.limit // limits.MIB} MiB, and an idle server uses "
            f"{taken // limits.MIB}: give it at least {2 * taken // limits.MIB}"
        )
    return memory
