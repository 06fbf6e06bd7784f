"""The sessions of `publish` of one log: one, and more where several threads publish at once.

    pool.publish(topic, topic_id, blocks)     stored when this returns

A thread takes a session that nobody uses, so that threads do not wait for each other's answers; each has a connection
of its own. When all of them are in use often enough another one is opened, up to a bound. Threads that find none free
share the first, where the records of those that wait share batches. A session that has failed is replaced.

Threads may share it. Between threads no order is promised but that of their calls: what has returned was stored before.
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

#: Sessions at the most: as many connections, and threads that wait for an answer each without the interpreter.
_SENDERS_MAX: Final = 8
#: Calls that have to find all sessions in use before another one is opened: threads that meet once do not cost one.
_MEETINGS: Final = 64


class SenderPool:
    """Opens senders as they are needed."""

    def __init__(self, make: Callable[[], WaitingSender]) -> None:
        """`make` makes a sender; it is opened here."""
        self._make = make
        self._lock = threading.Lock()
        #: Replaced as a whole, so that it can be read without the lock.
        self._senders: tuple[WaitingSender, ...] = ()
        self._meetings = 0
        self._is_closed = False

    def publish(self, topic: str, topic_id: TopicId, blocks: list[EncodedBlock]) -> Delivery:
        """Publish records and wait until they are decided."""
        return self._pick().publish(topic, topic_id, blocks)

    def close(self) -> None:
        """End all sessions; what is not decided fails."""
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
        self._meetings += 1
        has_failed = any(sender.failure is not None for sender in senders)
        if has_failed or not senders or (self._meetings >= _MEETINGS and len(senders) < _SENDERS_MAX):
            return self._open_one()
        return senders[0]

    def _open_one(self) -> WaitingSender:
        """A new sender, in the place of one that has failed if there is one."""
        with self._lock:
            if self._is_closed:
                raise WrongStateError("this log is closed")
            for sender in self._senders:
                if sender.failure is not None:
                    sender.close()
            self._senders = tuple(sender for sender in self._senders if sender.failure is None)
            for sender in self._senders:
                if sender.is_free or len(self._senders) == _SENDERS_MAX:
                    # Another thread has opened it.
                    return sender
            self._meetings = 0
            made = self._make()
            made.open()
            self._senders = (*self._senders, made)
            return made
