"""The part of an embedded log that is about sessions: which there are, and how one is ended by name."""

from __future__ import annotations

from threading import Lock
from weakref import WeakSet

from seawall.core.sessions import SessionInfo
from seawall.core.types import ClientId
from seawall.engine.api.log_transactions import EmbeddedTransactions
from seawall.engine.api.publisher import Publisher


class EmbeddedSessions(EmbeddedTransactions):
    """Sessions of an embedded log."""

    def __init__(self) -> None:
        super().__init__()
        #: Publishers with sessions, which are live while they are open; made and asked for by any thread.
        self._publishers: WeakSet[Publisher] = WeakSet()
        self._publishers_lock = Lock()

    def sessions(self) -> list[SessionInfo]:
        """The sessions of all publishers, by rising client id."""
        with self.looking() as store:
            return store.sessions.infos()

    def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client: a publisher that has it is fenced. Durable when this returns.

        What such a client sends again under an old number is refused; a new session of it is welcome.
        """
        with self.changing() as store:
            store.session_keeper.retire(ClientId(client_id))

    def _keep_live(self, publisher: Publisher) -> None:
        """The session of a publisher does not expire while it is open."""
        with self._publishers_lock:
            self._publishers.add(publisher)

    def _open_sessions(self) -> list[ClientId]:
        with self._publishers_lock:
            publishers = list(self._publishers)
        return [client_id for each in publishers if (client_id := each.client_id) is not None]
