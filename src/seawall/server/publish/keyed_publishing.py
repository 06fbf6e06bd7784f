"""Publishes under idempotency keys for one connection: command 6B of version 2.

These are requests with an id and without a session. Like batches, they are validated completely before anything
happens, need the right to write, and have a window. Beyond the window the server stops reading from the connection
until one of them is answered. While memory pressure holds writes, a request waits here, at most `PRESSURE_HOLD_S`, and
the next one is not read.

The log decides how a key is stored and for how long; it gets the bytes of the key unchanged.

A connection has at most its window of batches in flight here, and one request beyond its window of bytes.

A crash loses what was not answered: the peer repeats the request under the same key, and gets a stored one reported as
a duplicate. This module must not know sockets, sessions, or how anything is ordered.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.types import Position, Seq
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import DiskFullError, FullError
from seawall.kernels.codec.blocks import RECORDS_VERSION_2, SCAN_TOO_MANY, SCAN_TRUNCATED, SCAN_TYPE_REFUSED, scan_block
from seawall.server.connection.connection import Connection
from seawall.server.lwp2.topic_commands import TopicCommands
from seawall.server.publish.ingest import Ingest
from seawall.topics.state import TopicState
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import POSITION_UNKNOWN, AckStatus
from seawall.wire.format.fields import malformed
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.keyed import PublishedKeyed, PublishKeyed

_NO_OFFSETS: Final = np.zeros(0, np.int64)

_SCAN_ERRORS: Final = {
    SCAN_TRUNCATED: "a record does not end inside its block",
    SCAN_TYPE_REFUSED: "a record has a type that only servers write, or is null and has a value",
    SCAN_TOO_MANY: f"more than {limits.BATCH_RECORDS_MAX} records",
}


class KeyedPublishing:
    """The publishes under keys of one connection."""

    def __init__(
        self,
        log: ServedLog,
        commands: TopicCommands,
        ingest: Ingest,
        connection: Connection,
        *,
        window_batches: int,
        window_bytes: int,
    ) -> None:
        self._log = log
        self._commands = commands
        self._ingest = ingest
        self._connection = connection
        self._window_batches = window_batches
        self._window_bytes = window_bytes
        #: Requests in flight, and their bytes.
        self._count = 0
        self._size = 0

    @property
    def has_space(self) -> bool:
        """True if one more request may be accepted; if not, the connection resumes when one is answered."""
        if not self._count:
            return True
        is_within = self._count < self._window_batches and self._size < self._window_bytes
        return is_within and not self._ingest.is_held

    def prepare(self, request: PublishKeyed, request_id: int) -> Coroutine[None, None, None]:
        """The coroutine that executes a request; raises if the request is invalid. Call `begun` once it has started."""
        topic = self._commands.existing(request.topic_id)
        _check_records(request)
        return self._publish(topic, request, request_id)

    def begun(self, request: PublishKeyed) -> None:
        """Count a request that has started."""
        self._count += 1
        self._size += _size_of(request)

    async def _publish(self, topic: TopicState, request: PublishKeyed, request_id: int) -> None:
        try:
            await self._ingest.until_released(limits.PRESSURE_HOLD_S)
            reply = await self._store(topic, request)
            self._connection.write(encode_control(reply, request_id=request_id))
        finally:
            self._count -= 1
            self._size -= _size_of(request)

    async def _store(self, topic: TopicState, request: PublishKeyed) -> PublishedKeyed:
        block = EncodedBlock(memoryview(request.block), request.record_count)
        try:
            stored = await self._log.publish_keyed(topic, block, request.key)
        except DiskFullError as error:
            # As for batches: tell the publisher to retry, not that the server has failed.
            raise FullError("the disk of the server is full: nothing was stored") from error
        return PublishedKeyed(
            stored.base_seq,
            Seq(stored.base_seq + stored.record_count - 1),
            stored.position or Position(POSITION_UNKNOWN),
            stored.timestamp_ns,
            stored.status is AckStatus.DUPLICATE,
        )


def _size_of(request: PublishKeyed) -> int:
    return len(request.key) + len(request.block)


def _check_records(request: PublishKeyed) -> None:
    """Raise if a block does not hold exactly the records that it announces, or some that no client may send."""
    block = np.frombuffer(request.block, np.uint8)
    count = scan_block(block, 0, block.size, RECORDS_VERSION_2, limits.BATCH_RECORDS_MAX, _NO_OFFSETS)
    if count != request.record_count:
        found = _SCAN_ERRORS.get(count, f"{count} records where the request says {request.record_count}")
        raise malformed(f"PUBLISH_KEYED: {found}; nothing of it is stored")
