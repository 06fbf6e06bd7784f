"""Rows of clients that no worker of a pod has in memory: what the store knows, and what it does not know yet.

A worker that has no room for a row gives it away; the store knows what is in it once it has followed everything that
was ordered before. Until then the row is kept here. The row of a session that was ordered to end is not given out: a
batch that comes behind that must not bring it back. A crash takes it along with the order it is about.
"""

from __future__ import annotations

from seawall.core.types import ClientId
from seawall.engine.store.sessions import Sessions
from seawall.limits import CLIENT_ROW_SIZE


class StoredClientRows:
    """Rows by their clients."""

    __slots__ = ("_away", "_sessions", "retired")

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        #: Rows that a worker had no room for and that the store may not know yet.
        self._away: dict[ClientId, bytes] = {}
        #: Clients whose sessions were ordered to end, until the store has done that: their rows are nobody's any more.
        self.retired: frozenset[ClientId] = frozenset()

    def load(self, client_id: ClientId) -> bytes | None:
        """The row of a client that no worker has. It stays: the worker may end before anybody else knows it."""
        if client_id in self.retired:
            return None
        row = self._away.get(client_id)
        if row is None and client_id in self._sessions.window:
            row = self._sessions.window.export_rows([client_id])
        return row

    def save(self, rows: bytes) -> None:
        """Keep rows until the store has followed what they know: from then on it has them itself."""
        for at in range(0, len(rows), CLIENT_ROW_SIZE):
            row = rows[at : at + CLIENT_ROW_SIZE]
            self._away[ClientId(int.from_bytes(row[:8], "little"))] = row

    def forget(self) -> None:
        """The store has followed everything."""
        self._away.clear()
