"""The sessions of a log that a server stands in front of: opened, asked for, ended, on its event loop.

    open_session, session_of, epoch_behind    for who says HELLO
    list_sessions, end_session                for who looks after them
    session_begun, on_session                 what loops have to know of each other: who is fenced
    expire_sessions_if_due                    now and then

A crash takes what was not durable. This module must not know connections, sockets or frames.
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
from seawall.engine.ordering.orderer import Opened, WantedSession
from seawall.engine.ordering.pod_answers import KnownOutcome, remembered
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import SeawallError
from seawall.sequencer.client_window import ClientState

R = TypeVar("R")


class ServedSessions(AsyncLog):
    """The part of a served log that is about sessions."""

    _store: Store
    _loop: asyncio.AbstractEventLoop
    #: The log as each loop has it, the one that commits first: none leaves before that one is closed.
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
        #: Called on the loop when the older sessions of a client have ended.
        self.on_session: Callable[[ClientId, SessionEpoch], None] = _nothing
        #: Who has a connection on this loop.
        self.connected_clients: Callable[[], Iterable[ClientId]] = tuple
        #: Clients of this loop whose sessions are being opened: nobody has them yet.
        self._opening: list[ClientId] = []
        self._expiry: asyncio.Task[None] | None = None

    @abstractmethod
    async def ask(self, question: Callable[[Store], R]) -> R:
        """Put a short question to the store while nothing changes."""

    @abstractmethod
    async def change(self, make: Callable[[Store], R]) -> R:
        """Change the store, when everything that was handed in before is committed."""

    async def open_session(self, wanted: WantedSession) -> Opened:
        """Open a session of a publisher, which ends those before it; durable when this returns."""
        client_id = wanted.client_id
        self._opening.append(client_id)
        try:
            return await self.change(lambda store: store.session_keeper.open(wanted))
        finally:
            # In the next turn: the connection that asked for it has it by then.
            self._loop.call_soon(self._opening.remove, client_id)

    async def session_of(self, client_id: ClientId) -> ClientState | None:
        """What is known of a publisher; None if nothing is."""

        def look(store: Store) -> ClientState | None:
            window = store.sessions.window
            return window.state(client_id) if client_id in window else None

        return await self.ask(look)

    async def epoch_behind(self, client_id: ClientId, session_epoch: SessionEpoch) -> SessionEpoch | None:
        """The next epoch of a client that is not known, if it names one that a retired session may have had."""

        def look(store: Store) -> SessionEpoch | None:
            sessions = store.sessions
            return SessionEpoch(sessions.epoch_floor + 1) if sessions.was_retired(client_id, session_epoch) else None

        return await self.ask(look)

    def remembered(
        self, client_id: ClientId, session_epoch: int, client_seq: ClientSeq, block_crc: int
    ) -> KnownOutcome:
        """What the store knows of a batch that came again, where the order does not know it any more."""
        with self._opened().queue.state:
            return remembered(self._store.sessions, client_id, session_epoch, client_seq, block_crc, 0)

    # --- who looks after them ------------------------------------------------------------------------------------

    async def list_sessions(self, after: int, count: int) -> list[SessionInfo]:
        """Sessions of clients above an id, by rising id, so many at most."""
        return await self.ask(lambda store: store.sessions.infos(after, count))

    async def end_session(self, client_id: ClientId) -> SessionInfo:
        """End and forget a session, and fence the connections that have it; what it was. Durable when this returns."""

        def end(store: Store) -> tuple[list[SessionInfo], SessionEpoch]:
            return store.sessions.infos(client_id - 1, 1), store.session_keeper.retire(client_id)

        (session,), epoch = await self.change(end)
        self.on_session(client_id, epoch)
        self.session_begun(client_id, epoch)
        return session

    async def retire_session(self, client_id: int) -> None:
        """End and forget the session of a client: whoever has it is fenced. Durable when this returns."""
        await self.end_session(ClientId(client_id))

    def session_begun(self, client_id: ClientId, session_epoch: SessionEpoch) -> None:
        """A connection of this loop may publish for a session: older ones of its client must not, wherever they are."""
        for door in self.loop_views:
            if door is not self:
                door._loop.call_soon_threadsafe(door.on_session, client_id, session_epoch)

    def _all_connected(self) -> list[ClientId]:
        return [client_id for door in self.loop_views for client_id in (*door.connected_clients(), *door._opening)]

    # --- time ----------------------------------------------------------------------------------------------------

    def expire_sessions_if_due(self) -> None:
        """Have expired sessions retired beside everything else, if it is time to look for some."""
        if self._store.session_keeper.is_look_due and (self._expiry is None or self._expiry.done()):
            self._expiry = self._loop.create_task(self._expire())

    async def end_expiry(self) -> None:
        """Wait until nothing of that is under way any more."""
        if self._expiry is not None:
            await self._expiry

    async def _expire(self) -> None:
        # What goes wrong with it is found by whoever changes something next; on a full disk nobody has to expire.
        with suppress(SeawallError, OSError):
            while await self.change(lambda store: store.session_keeper.expire()):
                continue


def _nothing(*_: object) -> None:
    """Nobody has connections yet."""
