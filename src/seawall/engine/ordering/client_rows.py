"""Window rows of clients that no worker of a pod has in memory, loaded from the store or kept until it has them.

A worker that runs out of rows evicts one. The store has the same row once it has applied everything that was ordered
before; until then the row is kept here. The row of a session whose retirement is ordered is not loaded any more: a
later batch must not revive the session. A crash loses these rows together with the order that they belong to.
"""

from __future__ import annotations

from seawall.core.types import ClientId
from seawall.engine.store.sessions import Sessions
from seawall.limits import CLIENT_ROW_SIZE


class StoredClientRows:
    """Evicted rows, by client."""

    __slots__ = ("_evicted", "_sessions", "retired")

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        #: Evicted rows that the store may not have yet.
        self._evicted: dict[ClientId, bytes] = {}
        #: Clients whose retirement is ordered and not yet applied by the store: their rows are not loaded any more.
        self.retired: frozenset[ClientId] = frozenset()

    def load(self, client_id: ClientId) -> bytes | None:
        """The row of a client that no worker has. It is kept here too: the worker may end before the store has it."""
        if client_id in self.retired:
            return None
        row = self._evicted.get(client_id)
        if row is None and client_id in self._sessions.window:
            row = self._sessions.window.export_rows([client_id])
        return row

    def save(self, rows: bytes) -> None:
        """Keep rows until the store has applied everything that they contain."""
        for at in range(0, len(rows), CLIENT_ROW_SIZE):
            row = rows[at : at + CLIENT_ROW_SIZE]
            self._evicted[ClientId(int.from_bytes(row[:8], "little"))] = row

    def forget(self) -> None:
        """Drop all rows: the store has applied everything that is ordered."""
        self._evicted.clear()
