"""The publisher sessions of a served log: open, query, end and expire them, on an event loop of the server.

    open_session, session_of, epoch_behind    for a client that sends HELLO
    list_sessions, end_session                for operators
    fence_older_sessions, on_session                 between loops: fence older sessions of a client
    expire_sessions_if_due                    called periodically

A crash loses only what was not durable. This module must not know connections, sockets or frames.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from seawall.config import Config
from seawall.core.sessions import SessionInfo
from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.ordering.orderer import Opened, SessionSpec
from seawall.engine.ordering.pod_answers import KnownOutcome, remembered
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import SeawallError
from seawall.sequencer.client_window import ClientState

R = TypeVar("R")


class ServedSessions(AsyncLog):
    """The session methods of a served log."""

    _store: Store
    _loop: asyncio.AbstractEventLoop
    #: The log on each event loop, the committing one first. No view is removed before that one is closed.
    loop_views: Sequence[ServedSessions]

    def __init__(
        self,
        path: str | Path,
        settings: StoreSettings | None = None,
        config: Config | None = None,
        *,
        brokers: int = 0,
        networks: int = 0,
    ) -> None:
        super().__init__(path, settings, config, brokers=brokers, networks=networks)
        #: Called on this loop with a client and an epoch: sessions of the client with an older epoch have ended.
        self.on_session: Callable[[ClientId, SessionEpoch], None] = _nothing
        #: Returns the clients that have a connection on this loop.
        self.connected_clients: Callable[[], Iterable[ClientId]] = tuple
        #: Clients whose sessions are being opened on this loop; no connection has them yet.
        self._opening: list[ClientId] = []
        self._expiry: asyncio.Task[None] | None = None

    @abstractmethod
    async def ask(self, question: Callable[[Store], R]) -> R:
        """Run a short read-only query on the store, under its lock."""

    @abstractmethod
    async def change(self, make: Callable[[Store], R]) -> R:
        """Change the store, after everything queued before is committed."""

    async def open_session(self, wanted: SessionSpec) -> Opened:
        """Open a session of a publisher, which ends its older sessions. Durable when this returns."""
        client_id = wanted.client_id
        self._opening.append(client_id)
        try:
            return await self.change(lambda store: store.session_keeper.open(wanted))
        finally:
            # In the next iteration of the loop: by then the connection that requested the session has it.
            self._loop.call_soon(self._opening.remove, client_id)

    async def session_of(self, client_id: ClientId) -> ClientState | None:
        """Returns the state of a publisher; None if it is unknown."""

        def query(store: Store) -> ClientState | None:
            window = store.sessions.window
            return window.state(client_id) if client_id in window else None

        return await self.ask(query)

    async def epoch_behind(self, client_id: ClientId, session_epoch: SessionEpoch) -> SessionEpoch | None:
        """Returns the next epoch of an unknown client, if a retired session may have had the epoch it names."""

        def query(store: Store) -> SessionEpoch | None:
            sessions = store.sessions
            return SessionEpoch(sessions.epoch_floor + 1) if sessions.was_retired(client_id, session_epoch) else None

        return await self.ask(query)

    def remembered(
        self, client_id: ClientId, session_epoch: int, client_seq: ClientSeq, block_crc: int
    ) -> KnownOutcome:
        """Returns what the store remembers of a repeated batch that the sequencer no longer knows."""
        with self._opened().commits.state:
            return remembered(self._store.sessions, client_id, session_epoch, client_seq, block_crc, 0)

    # --- for operators -------------------------------------------------------------------------------------------

    async def list_sessions(self, after: int, count: int) -> list[SessionInfo]:
        """List at most `count` sessions of clients with ids above `after`, by ascending id."""
        return await self.ask(lambda store: store.sessions.infos(after, count))

    async def end_session(self, client_id: ClientId) -> SessionInfo:
        """End and forget a session and fence its connections; returns its last state. Durable when this returns."""

        def end(store: Store) -> tuple[list[SessionInfo], SessionEpoch]:
            return store.sessions.infos(client_id - 1, 1), store.session_keeper.retire(client_id)

        (session,), epoch = await self.change(end)
        self.on_session(client_id, epoch)
        self.fence_older_sessions(client_id, epoch)
        return session

    async def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client, and fence its connections. Durable when this returns."""
        await self.end_session(ClientId(client_id))

    def fence_older_sessions(self, client_id: ClientId, session_epoch: SessionEpoch) -> None:
        """Fence older sessions of a client on all other loops, since a connection of this loop has a newer one."""
        for view in self.loop_views:
            if view is not self:
                view._loop.call_soon_threadsafe(view.on_session, client_id, session_epoch)

    def _all_connected(self) -> list[ClientId]:
        return [client_id for view in self.loop_views for client_id in (*view.connected_clients(), *view._opening)]

    # --- expiry --------------------------------------------------------------------------------------------------

    def expire_sessions_if_due(self) -> None:
        """Start a task that retires expired sessions, if a check is due."""
        if self._store.session_keeper.is_expiry_due and (self._expiry is None or self._expiry.done()):
            self._expiry = self._loop.create_task(self._expire())

    async def end_expiry(self) -> None:
        """Wait for a running expiry task."""
        if self._expiry is not None:
            await self._expiry

    async def _expire(self) -> None:
        # The next change reports the same error to its caller; on a full disk expiry can wait.
        with suppress(SeawallError, OSError):
            while await self.change(lambda store: store.session_keeper.expire()):
                continue


def _nothing(*_: object) -> None:
    """The default callback: no server is attached yet."""
