"""Publishing under an idempotency key: the request, its retries, and the resulting delivery. No I/O.

    asking     wraps one request and its response; refuses servers that do not support keys
    deciding   wraps all attempts: the request is repeated after lost connections, which the key makes safe

The client sends the bytes of the key unchanged. The server decides how to store it, and for how long.

INV-KEYED-HONEST: a keyed publish that was sent and never answered has an unknown outcome; it is not reported as failed.
Publishing again under the same key finds out the outcome.
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
    """The records of one call under a key, and whether an unanswered attempt may have stored them."""

    def __init__(self, topic: str, blocks: list[EncodedBlock], key: str | bytes) -> None:
        """Raise `LimitError` if the records need more than one batch, or if the key is too long."""
        if len(blocks) > 1:
            raise more_than_one_batch(sum(block.record_count for block in blocks))
        self._topic = topic
        self._block = blocks[0]
        self._key = key_bytes(key)
        self._may_be_stored = False

    def request(self, topic_id: TopicId) -> PublishKeyed:
        """The request to publish the records."""
        return PublishKeyed(topic_id, self._block.record_count, self._key, self._block.block)

    @contextmanager
    def asking(self, welcome: Welcome) -> Iterator[None]:
        """Wrap one attempt on a connection with this WELCOME."""
        if not welcome.features & Features.IDEMPOTENCY_KEYS:
            raise UnsupportedError(
                "this server is too old for idempotency keys over the network: open the data directory on its own "
                "machine, or use a publisher with a client_id"
            )
        try:
            yield
        except (ConnectionError, TimeoutError):
            self._may_be_stored = True
            raise

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Wrap all attempts; the final error tells whether the records may be stored (INV-KEYED-HONEST)."""
        try:
            yield
        except RetryableError as error:
            if not self._may_be_stored:
                raise
            raise OutcomeUnknownError(
                f"records for {self._topic!r} may be stored or not ({error}): publish them again under the same key"
            ) from error

    def delivery(self, topic_id: TopicId, reply: Frame) -> Delivery:
        """The delivery for the server's reply."""
        return keyed_delivery(self._topic, topic_id, self._block.record_count, parse_published_keyed(reply.payload))
