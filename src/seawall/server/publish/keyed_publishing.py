"""Records that the peer of one connection publishes under idempotency keys: command 6B of version 2.

They are requests, with an id and no session, and publish as batches do: their records are checked whole before anything
happens, they need the right to write, and they have a window. Beyond it the connection is not read from until one of
them is answered. While writes are held for want of memory one of them waits here, at most `PRESSURE_PASS_S`, and the
next is not read; what was received is taken in the end.

What a key is kept as and for how long is the log's: the key's bytes go there as they came.

A connection has at most its window of batches under way here, and one request beyond its window of bytes.

A crash takes what was not answered: the peer asks again under the same key, and what was stored is told as a
repetition. This module must not know sockets, sessions, or how anything is ordered.
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

_SCAN_WORDS: Final = {
    SCAN_TRUNCATED: "a record does not end inside its block",
    SCAN_TYPE_REFUSED: "a record has a type that only servers write, or a null a value",
    SCAN_TOO_MANY: f"more than {limits.BATCH_RECORDS_MAX} records",
}


class KeyedPublishing:
    """The publishes with keys of one connection."""

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
        #: How many are under way, and their bytes.
        self._count = 0
        self._size = 0

    @property
    def has_space(self) -> bool:
        """Whether one more may be taken; if not, the connection goes on when one is answered."""
        if not self._count:
            return True
        is_within = self._count < self._window_batches and self._size < self._window_bytes
        return is_within and not self._ingest.is_held

    def prepare(self, request: PublishKeyed, request_id: int) -> Coroutine[None, None, None]:
        """What carries a request out; what is wrong with it is raised now. `begun` follows if it is carried out."""
        topic = self._commands.existing(request.topic_id)
        _check_records(request)
        return self._publish(topic, request, request_id)

    def begun(self, request: PublishKeyed) -> None:
        """A request is being carried out from now on."""
        self._count += 1
        self._size += _size_of(request)

    async def _publish(self, topic: TopicState, request: PublishKeyed, request_id: int) -> None:
        try:
            await self._ingest.until_released(limits.PRESSURE_PASS_S)
            told = await self._store(topic, request)
            self._connection.write(encode_control(told, request_id=request_id))
        finally:
            self._count -= 1
            self._size -= _size_of(request)

    async def _store(self, topic: TopicState, request: PublishKeyed) -> PublishedKeyed:
        block = EncodedBlock(memoryview(request.block), request.record_count)
        try:
            stored = await self._log.publish_keyed(topic, block, request.key)
        except DiskFullError as error:
            # As for batches: who publishes is told that there is no room now, not that the server is to be given up.
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
    """Refuse a block that is not exactly the records it says, or has some that no client may send."""
    block = np.frombuffer(request.block, np.uint8)
    count = scan_block(block, 0, block.size, RECORDS_VERSION_2, limits.BATCH_RECORDS_MAX, _NO_OFFSETS)
    if count != request.record_count:
        found = _SCAN_WORDS.get(count, f"{count} records where the request says {request.record_count}")
        raise malformed(f"PUBLISH_KEYED: {found}; nothing of it is stored")
