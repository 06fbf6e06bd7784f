"""Records that a client publishes under an idempotency key: what is asked, and what comes of it. No I/O.

    asking     around one question and its answer; a server that does not know keys is not asked
    deciding   around all of them: they are repeated while connections are lost, which is what the key is for

The key's bytes travel as they are: what becomes of them, and for how long it is remembered, is the server's.

INV-KEYED-HONEST: a keyed publish that was sent and never answered has an unknown outcome; it is not reported as failed.
Publishing it again under its key finds out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seawall.api.publishable import more_than_one_batch
from seawall.client.publish.delivery import Delivery, keyed_delivery
from seawall.core.types import TopicId
from seawall.errors import OutcomeUnknownError, RetryableError, UnsupportedError
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.codes import Features
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.keyed import PublishKeyed, key_bytes, parse_published_keyed
from seawall.wire.lwp2.session import Welcome


class KeyedRecords:
    """The records of one call, and whether they may be stored although nobody was told so."""

    def __init__(self, topic: str, blocks: list[EncodedBlock], key: str | bytes) -> None:
        """`LimitError` if they are more than one batch, which is what one key is stored as, or the key is too long."""
        if len(blocks) > 1:
            raise more_than_one_batch(sum(block.record_count for block in blocks))
        self._topic = topic
        self._block = blocks[0]
        self._key = key_bytes(key)
        self._may_be_stored = False

    def request(self, topic_id: TopicId) -> PublishKeyed:
        """What a server is asked."""
        return PublishKeyed(topic_id, self._block.record_count, self._key, self._block.block)

    @contextmanager
    def asking(self, welcome: Welcome) -> Iterator[None]:
        """Ask the server of one connection, which has said this first."""
        if not welcome.features & Features.IDEMPOTENCY_KEYS:
            raise UnsupportedError(
                "an idempotency key: this server is older than they are over the network; open the data directory "
                "where it lies, or use a publisher with a client_id"
            )
        try:
            yield
        except (ConnectionError, TimeoutError):
            self._may_be_stored = True
            raise

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Ask until there is an answer; who gives up says what that means (INV-KEYED-HONEST)."""
        try:
            yield
        except RetryableError as error:
            if not self._may_be_stored:
                raise
            raise OutcomeUnknownError(
                f"records for {self._topic!r} may be stored or not ({error}): publish them again under the same key"
            ) from error

    def delivery(self, topic_id: TopicId, reply: Frame) -> Delivery:
        """The delivery that the reply decided."""
        return keyed_delivery(self._topic, topic_id, self._block.record_count, parse_published_keyed(reply.payload))
