"""The pool of sessions behind `RemoteLog.publish`: one, and more if several threads publish concurrently.

    pool.publish(topic, topic_id, blocks)     stored when this returns

A thread takes an idle session, so that threads do not wait for each other's acks; each session has its own connection.
If calls find all sessions busy often enough, the pool opens another one, up to a limit. A thread that finds no idle
session shares the first one, where the records of waiting threads share batches. The pool replaces failed sessions.

Threads may share it. The only order between threads is that of their calls: a publish that has returned was stored
before one that starts later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from seawall.client.publish.delivery import Delivery
from seawall.client.publish.waiting_sender import WaitingSender
from seawall.core.types import TopicId
from seawall.errors import WrongStateError
from seawall.wire.format.arrow import EncodedBlock

#: The most sessions, and so connections and threads that wait for an ack without the GIL.
_SENDERS_MAX: Final = 8
#: Calls that must find all sessions busy before another one is opened: occasional contention does not cost a session.
_BUSY_CALLS: Final = 64


class SenderPool:
    """A pool that opens senders on demand."""

    def __init__(self, make: Callable[[], WaitingSender]) -> None:
        """`make` creates a sender; the pool opens it."""
        self._make = make
        self._lock = threading.Lock()
        #: Immutable and replaced as a whole, so that it can be read without the lock.
        self._senders: tuple[WaitingSender, ...] = ()
        self._busy_calls = 0
        self._is_closed = False

    def publish(self, topic: str, topic_id: TopicId, blocks: list[EncodedBlock]) -> Delivery:
        """Publish records and wait until they are decided."""
        return self._pick().publish(topic, topic_id, blocks)

    def close(self) -> None:
        """Close all sessions; undecided records fail."""
        with self._lock:
            self._is_closed = True
            senders, self._senders = self._senders, ()
        for sender in senders:
            sender.close()

    def _pick(self) -> WaitingSender:
        senders = self._senders
        for sender in senders:
            if sender.is_free:
                return sender
        self._busy_calls += 1
        has_failed = any(sender.failure is not None for sender in senders)
        if has_failed or not senders or (self._busy_calls >= _BUSY_CALLS and len(senders) < _SENDERS_MAX):
            return self._open_one()
        return senders[0]

    def _open_one(self) -> WaitingSender:
        """Drop failed senders and open a new one, or return one that another thread has just opened."""
        with self._lock:
            if self._is_closed:
                raise WrongStateError("this log is closed")
            for sender in self._senders:
                if sender.failure is not None:
                    sender.close()
            self._senders = tuple(sender for sender in self._senders if sender.failure is None)
            for sender in self._senders:
                if sender.is_free or len(self._senders) == _SENDERS_MAX:
                    # Another thread opened it meanwhile.
                    return sender
            self._busy_calls = 0
            made = self._make()
            made.open()
            self._senders = (*self._senders, made)
            return made
