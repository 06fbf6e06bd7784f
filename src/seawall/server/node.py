"""A node: one process with a log, its listeners and all connections, from start to drain.

    start    open the log, offer both protocol versions on a port, tell where
    drain    take no connections, say GOODBYE, answer what is under way, sync, close in order; or, at a deadline, cut
             off who is left and leave no mark of an orderly end, so that the next start looks at everything

INV-NODE-DRAINED: a server that ends in order has answered everything it took; after any other end the next opening
recovers the directory.

After a failed write or sync the node refuses every change with the reason, and serves readers and followers what is
stored, until it is ended; the end leaves no mark of an orderly one.

A crash leaves what was acked in the log; the next start recovers it. This module must not know signals, nor what frames
mean.
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
from seawall.server.broker import Broker, NodeSettings, Shared, end_beside, start_beside
from seawall.server.connection.access import Access
from seawall.server.connection.budget import PeerMemory
from seawall.server.connection.slow_callbacks import SlowFigures
from seawall.server.pressure import Levels, Memory
from seawall.server.publish.publish_thread import PublishThread
from seawall.server.read.unfit_ranges import UNFIT
from seawall.wire.lwp1.node_load import NodeLoad
from seawall.wire.lwp1.replies import BrokerStatus

__all__ = ["Node", "NodeSettings", "start_node"]


def _say_nothing(_text: str) -> None:
    """Nobody wants to know."""


class Node:
    """A running node. Made by `start_node`."""

    def __init__(
        self, log: ServedLog, brokers: Sequence[Broker], addresses: list[str], publish_thread: PublishThread | None
    ) -> None:
        self.log = log
        self._publish_thread = publish_thread
        #: Where it listens: all of it, and the first.
        self.addresses = addresses
        self.address = addresses[0]
        #: Its loops, the one of the log first.
        self.brokers = brokers
        #: Batches that nobody was told about when it ended.
        self.unanswered = 0
        #: Set when a write or a sync failed: from then on the node is read-only, until it is started again.
        self.failure: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        log.on_failed = self._fail

    @property
    def connection_count(self) -> int:
        """Connections that are there."""
        return sum(len(broker.listener.connections) for broker in self.brokers)

    @property
    def counts(self) -> dict[str, int]:
        """How often connections were refused or ended, by cause, and what memory that was short has led to."""
        return _counts(self.brokers)

    async def drain(self, timeout_s: float) -> bool:
        """End in order; whether everything was answered and closed in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        # The first has the ports: a loop that has stopped is dealt no connection any more.
        self.brokers[0].listener.stop()
        is_drained = all(await asyncio.gather(*(broker.on_loop(broker.drain(timeout_s)) for broker in self.brokers)))
        if not is_drained:
            self.log.abandon()
        self.unanswered = sum(broker.unanswered for broker in self.brokers)
        await _close(self._publish_thread)
        closing = asyncio.ensure_future(self.log.close())
        await asyncio.wait((closing,), timeout=max(deadline - loop.time(), limits.CUT_OFF_S))
        if not closing.done():
            return False
        closing.result()
        await _end(self.brokers)
        return is_drained

    def _fail(self, error: BaseException) -> None:
        """Nothing can be written any more: notify publishers and whoever runs the node; readers go on."""
        for broker in self.brokers:
            broker.loop.call_soon_threadsafe(broker.ingest.fail, error)
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
    own = _within_descriptors(settings or NodeSettings(), tell)
    log = ServedLog(data, store, config, loops=own.brokers)
    await log.open()
    brokers: list[Broker] = []
    publish_thread = PublishThread(log) if PublishThread.is_supported() else None
    try:
        memory = memory or _memory_of(config or Config())
        addresses: list[str] = []
        peers = _peer_memory(own, memory)
        looks = (
            lambda: _statuses(brokers, addresses),
            lambda: _counts(brokers),
            lambda: _load(brokers, peers),
        )
        shared = Shared(own, access or Access(), memory, peers, tell, *looks, publish_thread)
        brokers.append(Broker(log, 0, shared))
        for number in range(1, own.brokers):
            brokers += [await start_beside(log, number, shared)]
        listener = brokers[0].listener
        listener.deal_to([broker.listener for broker in brokers])
        try:
            for address in ((own.host, own.port), *own.also):
                addresses += [format_address(*await listener.listen(*address, own.tls))]
        except BaseException:
            listener.stop()
            raise
        brokers[0].pressure.start()
        for broker in brokers[1:]:
            broker.loop.call_soon_threadsafe(broker.pressure.start)
        return Node(log, brokers, addresses, publish_thread)
    except BaseException:
        await _close(publish_thread)
        await log.close()
        await _end(brokers)
        raise


def _statuses(brokers: Sequence[Broker], addresses: Sequence[str]) -> tuple[BrokerStatus, ...]:
    counts = [len(broker.listener.connections) for broker in brokers]
    return tuple(BrokerStatus(number, tuple(addresses), count) for number, count in enumerate(counts))


def _counts(brokers: Sequence[Broker]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for broker in brokers:
        # Copied at once: other loops go on counting meanwhile.
        counted += Counter(dict(broker.listener.counts)) + Counter(dict(broker.pressure.counts))
    # Connections that ended because a file failed, of all servers of this process.
    counted += Counter(files_failed=UNFIT.failures)
    return dict(counted)


def _load(brokers: Sequence[Broker], peers: PeerMemory) -> NodeLoad:
    slow = SlowFigures.of(broker.listener.probe for broker in brokers)
    return NodeLoad(peers.used, peers.limit, slow.count, slow.longest_us, slow.longest)


async def _close(publish_thread: PublishThread | None) -> None:
    """End the publish thread, which may be in the middle of a commit."""
    if publish_thread is not None:
        await asyncio.to_thread(publish_thread.close)


async def _end(brokers: Sequence[Broker]) -> None:
    """End the loops that are not the log's own: nobody has anything for them any more."""
    for broker in brokers[1:]:
        await end_beside(broker)


def _peer_memory(settings: NodeSettings, memory: Memory) -> PeerMemory:
    """What may be held for peers: as much as is set, else a part of the memory limit."""
    part = max(limits.PEER_MEMORY_SIZE_MIN, memory.limit * limits.PEER_MEMORY_PERCENT // 100)
    return PeerMemory(settings.peer_memory or part, settings.connection_memory)


def _within_descriptors(settings: NodeSettings, tell: Callable[[str], None]) -> NodeSettings:
    """Settings with as many connections as there are descriptors for; the limit of this process is raised first."""
    budget = DescriptorBudget.of(raise_descriptor_limit(), settings.connections_max)
    if budget.connections == settings.connections_max:
        return settings
    if settings.connections_max != limits.CONNECTIONS_MAX:
        # Somebody asked for as many; of the default, `seawall doctor` shows what is left.
        tell(
            f"Seawall takes {budget.connections} connections at most, not {settings.connections_max}: this process may "
            f"have {budget.limit} file descriptors ({budget}). Raise the hard limit for more (ulimit -Hn; a service: "
            "LimitNOFILE)."
        )
    return replace(settings, connections_max=budget.connections)


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
