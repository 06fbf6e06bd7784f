"""The session of who publishes a little and waits for it: one exchange, where nothing else is under way.

    sender.publish(topic, topic_id, blocks)     stored when this returns

What is small goes by `WaitingExchange`, past the queue of what is under way; it has its number there all the same, so
that it is sent again if anything else came of it than its ack. The rest, and everything that meets others, goes as the
records of any publisher do.

Whoever is in an exchange leads.
"""

from __future__ import annotations

from typing import Final

from seawall.client.publish.delivery import Delivery
from seawall.client.publish.sender import LOOK_NS, Sender
from seawall.client.publish.waiting_exchange import BLOCK_SIZE_MAX, WaitingExchange
from seawall.core.types import TopicId
from seawall.wire.format.arrow import EncodedBlock

_LOOK_MS: Final = LOOK_NS // 1_000_000


class WaitingSender(Sender):
    """A sender whose callers wait for what they publish. Threads may share it (`sender_pool`)."""

    #: Over the one connection that is wanted, once it was needed.
    _exchange: WaitingExchange | None = None

    @property
    def is_free(self) -> bool:
        """Whether no other thread sends or waits here, and it has not failed."""
        return not self._leads and self.failure is None

    def publish(self, topic: str, topic_id: TopicId, blocks: list[EncodedBlock]) -> Delivery:
        """Publish records and wait until they are decided."""
        delivery = None
        # Whoever meets another thread need not look closer.
        if not self._leads and len(blocks) == 1 and len(blocks[0].block) <= BLOCK_SIZE_MAX:
            delivery = self._exchange_one(topic, topic_id, blocks[0])
        return (delivery or self.offer(topic, topic_id, blocks)).result()

    def _exchange_one(self, topic: str, topic_id: TopicId, block: EncodedBlock) -> Delivery | None:
        """Send one batch and wait for its ack in one call, where nothing else is under way; None if something is."""
        outgoing, clock, lock = self._outgoing, self._clock, self._lock
        lock.acquire()
        try:
            exchange, connections = self._exchange, self._connections
            if exchange is None or exchange.connection not in connections or not exchange.connection.is_idle:
                exchange = self._new_exchange()
            if exchange is None or self._leads or self._is_closed:
                return None
            batch = outgoing.begin_one(topic, topic_id, block, clock.monotonic_ns())
            if batch is None:
                return None
            batch.connection = exchange.connection
            with self._guard:
                self._leads = True
                lock.release()
                try:
                    stored = exchange.execute(
                        block.block, block.record_count, batch.client_seq, topic_id, clock.wall_ns()
                    )
                finally:
                    lock.acquire()
                    if self._waiters or self._is_closed:
                        self._stop_leading()
                    self._leads = False
                if stored is None:
                    self._settle(exchange)
                else:
                    base_seq, position, timestamp_ns, *window = stored
                    now_ns = clock.monotonic_ns()
                    exchange.connection.record_exchange(now_ns)
                    outgoing.end_one(batch, base_seq, position, timestamp_ns, now_ns)
                    outgoing.allow(*window)
                    self._has_heard()
                    self._verdicts.stored()
        finally:
            lock.release()
        return Delivery(self, (batch,), 0, block.record_count)

    def _new_exchange(self) -> WaitingExchange | None:
        """One over the one connection that is wanted; None if there is none that is at rest."""
        self._exchange = None
        if len(self._connections) == self._wanted == 1 and self._connections[0].is_idle:
            session = self._outgoing.waiting_session
            self._exchange = WaitingExchange(self._connections[0], self._waker, _LOOK_MS, session)
        return self._exchange

    def _settle(self, exchange: WaitingExchange) -> None:
        """Go on the usual way where an exchange has brought no ack."""
        try:
            exchange.settle()
        except ConnectionError as error:
            self._drop(exchange.connection, error)
        self._listen()
