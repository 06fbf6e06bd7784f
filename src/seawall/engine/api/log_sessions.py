"""The session methods of an embedded log: list the sessions of publishers, and end one by its client id."""

from __future__ import annotations

from threading import Lock
from weakref import WeakSet

from seawall.core.sessions import SessionInfo
from seawall.core.types import ClientId
from seawall.engine.api.log_transactions import EmbeddedTransactions
from seawall.engine.api.publisher import Publisher


class EmbeddedSessions(EmbeddedTransactions):
    """The session methods of an embedded log."""

    def __init__(self) -> None:
        super().__init__()
        #: Publishers with a session, which does not expire while the publisher is open. Any thread may use the set.
        self._publishers: WeakSet[Publisher] = WeakSet()
        self._publishers_lock = Lock()

    def sessions(self) -> list[SessionInfo]:
        """List the sessions of all publishers, by ascending client id."""
        with self.inspecting() as store:
            return store.sessions.infos()

    def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client, and fence the publisher that uses it. Durable when this returns.

        Batches that the client repeats under old numbers are refused. The client may open a new session.
        """
        with self.changing() as store:
            store.session_keeper.retire(ClientId(client_id))

    def _keep_live(self, publisher: Publisher) -> None:
        """Keep the session of a publisher from expiring while the publisher is open."""
        with self._publishers_lock:
            self._publishers.add(publisher)

    def _open_sessions(self) -> list[ClientId]:
        with self._publishers_lock:
            publishers = list(self._publishers)
        return [client_id for each in publishers if (client_id := each.client_id) is not None]
