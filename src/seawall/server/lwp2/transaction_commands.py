"""Transaction commands: 66, 67, 69 and 6A of version 2.

Records are staged as batches of a hidden topic, whose id 66 returns; no list shows it and no peer can read it. A commit
is one change of the store, which waits for earlier changes and is answered once durable. A commit repeated under the
same key gets the same answer.

Refusals raise an error of the tree in `errors.py`. This module must not know connections.
"""

from __future__ import annotations

from seawall.engine.serving.served_log import ServedLog
from seawall.server.lwp2.topic_commands import topic_reply
from seawall.wire.lwp1.replies import TopicReply
from seawall.wire.lwp2.topics import RecordsDeleted
from seawall.wire.lwp2.transactions import (
    StagingFind,
    TransactionAbort,
    TransactionCommit,
    TransactionRequest,
    TransactionState,
    TransactionStatus,
)


class TransactionCommands:
    """The transaction commands of a log."""

    def __init__(self, log: ServedLog) -> None:
        self._log = log

    async def execute(self, request: TransactionRequest) -> TopicReply | TransactionStatus | RecordsDeleted:
        """Execute one command and return its reply."""
        match request:
            case StagingFind():
                return topic_reply(await self._log.staging(own_partition=request.own_partition))
            case TransactionCommit():
                wanted = request.wanted
                key = (wanted.owner, wanted.epoch)
                committed = await self._log.commit_staged(*key, wanted.parts, offsets=wanted.offsets, acks=wanted.acks)
                return TransactionStatus(wanted.owner, committed)
            case TransactionAbort():
                return RecordsDeleted(await self._log.abort_staged(request.ranges))
            case TransactionState():
                return TransactionStatus(request.owner, await self._log.transaction_state(request.owner))
