"""The objects that all version 2 sessions of an event loop share: the log, the ingest, access, settings, and commands.

This module must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from seawall import limits
from seawall.engine.serving.served_log import ServedLog
from seawall.server.connection.access import Access
from seawall.server.lwp2.queue_commands import QueueCommands
from seawall.server.lwp2.refusals import reason_of
from seawall.server.lwp2.router_commands import RouterCommands
from seawall.server.lwp2.session_commands import SessionCommands
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.server.lwp2.transaction_commands import TransactionCommands
from seawall.server.publish.ingest import Ingest
from seawall.wire.format.codes import Features
from seawall.wire.lwp1.node_load import NodeLoad
from seawall.wire.lwp1.replies import BrokerStatus, ClusterStatusReply

FEATURES: Final = int(
    Features.LZ4
    | Features.ZSTD
    | Features.ACK_RUNS
    | Features.PUSH
    | Features.READ_BY_POSITION
    | Features.LONG_POLL
    | Features.STORED_BLOCKS
    | Features.IDEMPOTENCY_KEYS
    | Features.TRAILING_CHECKSUM
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server treats its connections."""

    node_id: int = 0
    keepalive_ms: int = limits.KEEPALIVE_MS
    idle_ms: int = limits.IDLE_MS
    window_batches: int = limits.SESSION_WINDOW_BATCHES
    window_bytes: int = limits.SESSION_WINDOW_SIZE
    #: How long a closing connection waits for its answers.
    drain_s: float = limits.DRAIN_S


@dataclass(slots=True)
class ServerContext:
    """The shared parts of one server."""

    log: ServedLog
    ingest: Ingest
    commands: TopicCommands
    settings: ServerSettings = field(default_factory=ServerSettings)
    access: Access = field(default_factory=Access)
    #: The status of each event loop of the node.
    brokers: Callable[[], tuple[BrokerStatus, ...]] = tuple
    #: Events that the operator should know of, counted by cause.
    counts: Callable[[], dict[str, int]] = dict
    #: The current load of the node; None if unknown.
    load: Callable[[], NodeLoad | None] = lambda: None
    transactions: TransactionCommands = field(init=False)
    sessions: SessionCommands = field(init=False)
    queues: QueueCommands = field(init=False)
    routers: RouterCommands = field(init=False)

    def __post_init__(self) -> None:
        self.transactions = TransactionCommands(self.log)
        self.sessions = SessionCommands(self.log)
        self.queues = QueueCommands(self.log, self.commands, self.ingest)
        self.routers = RouterCommands(self.log)

    def status(self, reply: ClusterStatusReply) -> ClusterStatusReply:
        """The answer to GetClusterStatus, with the fields of version 2."""
        failure = self.log.failure
        return replace(
            reply,
            node_id=self.settings.node_id,
            leader_id=self.settings.node_id,
            current_term=self.log.term,
            brokers=self.brokers(),
            load=self.load(),
            details={
                "state": "ok" if failure is None else "read-only",
                "reason": "" if failure is None else reason_of(failure),
                "counts": dict(self.counts()),
            },
        )
