"""What all connections of a server share: the log, the ingest, who may come in, and what is offered.

This module must not know connections.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from seawall import limits
from seawall.engine.serving.served_log import ServedLog
from seawall.server.connection.access import Access
from seawall.server.lwp2.refusals import reason_of
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
    | Features.SUM_BEHIND
)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server treats its connections."""

    node_id: int = 0
    keepalive_ms: int = limits.KEEPALIVE_MS
    idle_ms: int = limits.IDLE_MS
    window_batches: int = limits.SESSION_WINDOW_BATCHES
    window_bytes: int = limits.SESSION_WINDOW_SIZE
    #: How long answers to a connection that ends may take.
    drain_s: float = limits.DRAIN_S


@dataclass(slots=True)
class ServerContext:
    """The shared parts of one server."""

    log: ServedLog
    ingest: Ingest
    commands: TopicCommands
    settings: ServerSettings = field(default_factory=ServerSettings)
    access: Access = field(default_factory=Access)
    #: The brokers of the node, as they are now.
    brokers: Callable[[], tuple[BrokerStatus, ...]] = tuple
    #: How often things happened in the node that its operator should know of, by cause.
    counts: Callable[[], dict[str, int]] = dict
    #: How busy the node is now; None if nobody knows.
    load: Callable[[], NodeLoad | None] = lambda: None
    transactions: TransactionCommands = field(init=False)
    sessions: SessionCommands = field(init=False)

    def __post_init__(self) -> None:
        self.transactions = TransactionCommands(self.log)
        self.sessions = SessionCommands(self.log)

    def status(self, reply: ClusterStatusReply) -> ClusterStatusReply:
        """The answer to GetClusterStatus with what version 2 reports of the node."""
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
