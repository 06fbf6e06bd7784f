"""A sender whose callers publish and wait, with a fast path for one small batch on an idle connection.

    sender.publish(topic, topic_id, blocks)     stored when this returns

A small batch goes through `WaitingExchange`, which bypasses the queue of `outgoing`. It still gets its number there, so
that it is sent again if the exchange ends without an ack. Larger calls, and calls while another thread uses the sender,
take the path of any publisher.

The thread in an exchange is the leader of the sender.
"""

from __future__ import annotations

from typing import Final

from seawall.client.publish.delivery import Delivery
from seawall.client.publish.sender import POLL_NS, Sender
from seawall.client.publish.waiting_exchange import BLOCK_SIZE_MAX, WaitingExchange
from seawall.core.types import TopicId
from seawall.wire.format.arrow import EncodedBlock

_POLL_MS: Final = POLL_NS // 1_000_000


class WaitingSender(Sender):
    """A sender whose callers wait for what they publish. Threads may share it (`sender_pool`)."""

    #: The exchange over the only connection, once it was needed.
    _exchange: WaitingExchange | None = None

    @property
    def is_free(self) -> bool:
        """True if no other thread sends or waits here, and the sender has not failed."""
        return not self._has_leader and self.failure is None

    def publish(self, topic: str, topic_id: TopicId, blocks: list[EncodedBlock]) -> Delivery:
        """Publish records and wait until they are decided."""
        delivery = None
        # A cheap check without the lock: with another leader there is no exchange.
        if not self._has_leader and len(blocks) == 1 and len(blocks[0].block) <= BLOCK_SIZE_MAX:
            delivery = self._exchange_one(topic, topic_id, blocks[0])
        return (delivery or self.offer(topic, topic_id, blocks)).result()

    def _exchange_one(self, topic: str, topic_id: TopicId, block: EncodedBlock) -> Delivery | None:
        """Send one batch and wait for its ack in one kernel call; None if other batches are in flight."""
        outgoing, clock, lock = self._outgoing, self._clock, self._lock
        lock.acquire()
        try:
            exchange, connections = self._exchange, self._connections
            if exchange is None or exchange.connection not in connections or not exchange.connection.is_idle:
                exchange = self._new_exchange()
            if exchange is None or self._has_leader or self._is_closed:
                return None
            batch = outgoing.start_exchange(topic, topic_id, block, clock.monotonic_ns())
            if batch is None:
                return None
            batch.connection = exchange.connection
            with self._fail_guard:
                self._has_leader = True
                lock.release()
                try:
                    stored = exchange.execute(
                        block.block, block.record_count, batch.client_seq, topic_id, clock.wall_ns()
                    )
                finally:
                    lock.acquire()
                    if self._waiters or self._is_closed:
                        self._stop_leading()
                    self._has_leader = False
                if stored is None:
                    self._settle(exchange)
                else:
                    base_seq, position, timestamp_ns, *window = stored
                    now_ns = clock.monotonic_ns()
                    exchange.connection.record_exchange(now_ns)
                    outgoing.finish_exchange(batch, base_seq, position, timestamp_ns, now_ns)
                    outgoing.allow(*window)
                    self._attempts.answered()
                    self._acks.stored()
        finally:
            lock.release()
        return Delivery(self, (batch,), 0, block.record_count)

    def _new_exchange(self) -> WaitingExchange | None:
        """An exchange over the only connection; None if it is not idle, or there are more."""
        self._exchange = None
        if len(self._connections) == self._wanted == 1 and self._connections[0].is_idle:
            session = self._outgoing.exchange_session
            self._exchange = WaitingExchange(self._connections[0], self._waker, _POLL_MS, session)
        return self._exchange

    def _settle(self, exchange: WaitingExchange) -> None:
        """Return to the ordinary path after an exchange without an ack."""
        try:
            exchange.settle()
        except ConnectionError as error:
            self._drop(exchange.connection, error)
        self._receive()
