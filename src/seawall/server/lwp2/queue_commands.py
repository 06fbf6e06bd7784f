"""Queue commands of a log, except for claims: 92 to 9B of version 2. `queue_requests` answers them to a connection.

The queues of the log decide everything: which jobs are leased to whom, and the bounds of counts and times.

Refusals raise an error of the tree in `errors.py`. A crash loses nothing that was answered, except for leases of queues
that do not store them. This module must not know connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import numpy as np

from seawall import limits
from seawall.api.publishable import Message
from seawall.api.queues.jobs import JobKeys
from seawall.api.received_record import ReceivedRecord, parsed_records
from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import DiskFullError, FullError, SeawallError
from seawall.kernels.codec.blocks import RECORDS_VERSION_2, scan_block
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.server.publish.ingest import Ingest
from seawall.topics.state import TopicState
from seawall.wire.format.fields import Buffer, malformed, read_text
from seawall.wire.jobs.options import job_options
from seawall.wire.lwp2.jobs import (
    JobAck,
    JobExtend,
    JobNack,
    JobOutcomeReply,
    JobPeek,
    JobPushed,
    JobPushUnique,
    Jobs,
    QueueCountsReply,
    QueueCountsRequest,
    QueuePurge,
    QueueRedrive,
)
from seawall.wire.lwp2.topics import RecordsDeleted

#: The commands that are executed here.
QueueRequest: TypeAlias = (
    JobAck | JobNack | JobExtend | JobPeek | QueueCountsRequest | QueuePurge | QueueRedrive | JobPushUnique
)
QueueAnswer: TypeAlias = Jobs | JobOutcomeReply | QueueCountsReply | RecordsDeleted | JobPushed

_NO_OFFSETS: Final = np.zeros(0, np.int64)


class QueueCommands:
    """The queue commands of a log."""

    def __init__(self, log: ServedLog, topics: TopicCommands, ingest: Ingest) -> None:
        self._log = log
        self._topics = topics
        self._ingest = ingest
        #: Releases in progress.
        self._releases: set[asyncio.Task[None]] = set()

    def topic(self, topic_id: TopicId) -> TopicState:
        """The topic with an id; raises if it does not exist."""
        return self._topics.existing(topic_id)

    async def execute(self, request: QueueRequest) -> QueueAnswer:
        """Execute one command and return its reply."""
        name, queues = self.topic(request.topic_id).name, self._log.queues
        match request:
            case JobAck():
                return JobOutcomeReply(await queues.ack(name, request.node, _keys_of(request)))
            case JobNack():
                return JobOutcomeReply(await queues.nack(name, request.node, _keys_of(request), request.delay_ms))
            case JobExtend():
                return JobOutcomeReply(await queues.extend(name, request.node, _keys_of(request), request.lease_ms))
            case JobPeek():
                return Jobs(await queues.peek(name, request.count))
            case QueueCountsRequest():
                return QueueCountsReply(await queues.counts(name))
            case QueuePurge():
                return RecordsDeleted(await queues.purge(name))
            case QueueRedrive():
                return RecordsDeleted(await queues.redrive(name, request.count))
            case JobPushUnique():
                return await self._push_unique(name, request)

    async def _push_unique(self, name: str, request: JobPushUnique) -> JobPushed:
        record = _job_of(request.block)
        key = job_options(record.headers).unique
        if key is None:
            raise malformed("JOB_PUSH_UNIQUE: the record has no valid unique key among its headers")
        await self._ingest.until_released(limits.PRESSURE_HOLD_S)
        try:
            pushed = await self._log.queues.push_unique(name, _message_of(record), key)
        except DiskFullError as error:
            # As for batches: tell the producer to retry, not that the server has failed.
            raise FullError("the disk of the server is full: nothing was stored") from error
        return JobPushed(Seq(pushed.seq), pushed.is_new)

    # --- leases of lost connections ----------------------------------------------------------------------------------

    def release(self, leases: Mapping[TopicId, JobKeys]) -> None:
        """Return jobs at once: the connection that their leases are bound to has ended."""
        if leases:
            task = asyncio.get_running_loop().create_task(self._release(leases))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, leases: Mapping[TopicId, JobKeys]) -> None:
        for topic_id, (seqs, lease_ids) in leases.items():
            # Leases that cannot be released end by themselves; those of a deleted topic have ended.
            with suppress(SeawallError, OSError):
                name = self.topic(topic_id).name
                for first in range(0, len(seqs), limits.JOBS_MAX):
                    part = slice(first, first + limits.JOBS_MAX)
                    await self._log.queues.release(name, JobKeys(seqs[part], lease_ids[part]))

    async def settle(self) -> None:
        """Wait for the releases in progress: the log closes after that."""
        while self._releases:
            await asyncio.wait(self._releases)


def _keys_of(request: JobAck | JobNack | JobExtend) -> JobKeys:
    return JobKeys(request.seqs, request.lease_ids)


def _job_of(block: Buffer) -> ReceivedRecord:
    """The only record of a block; raises if the block holds anything else, or a record that no client may send."""
    count = scan_block(np.frombuffer(block, np.uint8), 0, len(block), RECORDS_VERSION_2, 1, _NO_OFFSETS)
    if count != 1:
        raise malformed("JOB_PUSH_UNIQUE: the block is not exactly one record that a client may send")
    (record,) = parsed_records(memoryview(block), 1, TimestampNs(0))
    return record


def _message_of(record: ReceivedRecord) -> Message:
    """The record as the log publishes it."""
    what = "JOB_PUSH_UNIQUE"
    tag, node = (None if each is None else read_text(each, what) for each in (record.tag, record.node))
    headers = [(read_text(name, what), value) for name, value in record.headers]
    return Message(record.value, record.key, headers, record.client_timestamp_ns, tag, node, record.meta)
