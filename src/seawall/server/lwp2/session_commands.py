"""Publisher sessions: decides on the session that a HELLO requests, and lists and retires sessions.

An unknown client that names an epoch which a retired session may have had is refused: its unacknowledged batches may be
stored, and the server cannot tell any more. A client that names no epoch is new, and is accepted.

This module must not know frames, or how a session is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.ordering.orderer import SessionSpec
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import ReadOnlyError
from seawall.io.process.own_process import random_bytes
from seawall.wire.format.codes import HelloFlags, SessionStatus
from seawall.wire.lwp2.session import Hello
from seawall.wire.lwp2.sessions import SessionList, SessionRequest, SessionRetire, SessionsReply

_SESSION: Final = HelloFlags.OPEN | HelloFlags.JOIN


class Granted(NamedTuple):
    """The answer to the session request of a HELLO."""

    status: SessionStatus
    client_id: ClientId
    session_epoch: SessionEpoch = SessionEpoch(0)
    next_seq: ClientSeq = ClientSeq(0)


class SessionCommands:
    """The session commands of a log."""

    def __init__(self, log: ServedLog) -> None:
        self._log = log

    async def greet(self, hello: Hello, is_gone: Callable[[], bool]) -> Granted:
        """Open, join or refuse the session that HELLO requests; `is_gone` returns True if the peer has disconnected."""
        client_id = hello.client_id
        if not hello.flags & _SESSION:
            return Granted(SessionStatus.NONE, client_id)
        if self._log.failure is not None:
            raise ReadOnlyError("no session can publish") from self._log.failure
        is_drawn = not client_id
        if is_drawn:
            # A new client id: 63 random bits, never 0.
            client_id = ClientId(int.from_bytes(random_bytes(8), "little") >> 1 | 1)
        known = await self._log.session_of(client_id)
        if known is None and (epoch := await self._log.epoch_behind(client_id, hello.session_epoch)) is not None:
            # A next seq of 0 says that the client is unknown.
            return Granted(SessionStatus.REFUSED_SUPERSEDED, client_id, epoch)
        if known is None and hello.flags & HelloFlags.JOIN:
            return Granted(SessionStatus.REFUSED_SUPERSEDED, client_id)
        if known is not None:
            current = (client_id, known.session_epoch, known.next_expected)
            if hello.session_epoch < known.session_epoch and (hello.session_epoch or hello.flags & HelloFlags.JOIN):
                return Granted(SessionStatus.REFUSED_SUPERSEDED, *current)
            if hello.flags & HelloFlags.JOIN:
                is_current = hello.session_epoch == known.session_epoch
                return Granted(SessionStatus.JOINED if is_current else SessionStatus.REFUSED_SUPERSEDED, *current)
            if hello.start_seq > known.next_expected and not hello.flags & HelloFlags.ABANDON:
                return Granted(SessionStatus.REFUSED_GAP, *current)
        # An impatient peer may have disconnected and opened its session on another connection: this one must not fence
        # it. Its EOF directly follows its HELLO then, and the next loop iteration reports it.
        await asyncio.sleep(0)
        if is_gone():
            return Granted(SessionStatus.NONE, client_id)
        abandons = known is not None and bool(hello.flags & HelloFlags.ABANDON)
        gap_ns = hello.gap_timeout_ms * 1_000_000
        opened = await self._log.open_session(SessionSpec(client_id, hello.start_seq, is_drawn, gap_ns, abandons))
        return Granted(SessionStatus.NEW if known is None else SessionStatus.RESUMED, client_id, *opened)

    async def execute(self, request: SessionRequest) -> SessionsReply:
        """Execute one command and return its reply."""
        match request:
            case SessionList():
                count = min(request.count, limits.SESSIONS_LISTED_MAX)
                return SessionsReply(tuple(await self._log.list_sessions(request.after, count)))
            case SessionRetire():
                return SessionsReply((await self._log.end_session(request.client_id),))
