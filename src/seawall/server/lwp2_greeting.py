"""The session of a publisher that HELLO asks for: opened, resumed, joined, or refused.

What is opened is durable before WELCOME says so. A crash takes nothing else. This module must not know connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.engine.served_log import ServedLog
from seawall.io.process import random_bytes
from seawall.wire.codes import HelloFlags, SessionStatus
from seawall.wire.lwp2_session import Hello

#: What has become of it, whose it is, its epoch, and the number of the next batch.
Opened: TypeAlias = tuple[SessionStatus, ClientId, SessionEpoch, ClientSeq]

_SESSION: Final = HelloFlags.OPEN | HelloFlags.JOIN


async def session_of(log: ServedLog, hello: Hello, is_over: Callable[[], bool]) -> Opened:
    """What becomes of the session that HELLO asks for; none is opened if the connection `is_over` by then."""
    client_id = hello.client_id
    if not hello.flags & _SESSION:
        return SessionStatus.NONE, client_id, SessionEpoch(0), ClientSeq(0)
    if not client_id:
        # One that nobody else has: 63 random bits, never 0.
        client_id = ClientId(int.from_bytes(random_bytes(8), "little") >> 1 | 1)
    known = await log.session_of(client_id)
    if known is None and hello.flags & HelloFlags.JOIN:
        return SessionStatus.REFUSED_SUPERSEDED, client_id, SessionEpoch(0), ClientSeq(0)
    if known is not None:
        current = (client_id, known.session_epoch, known.next_expected)
        if hello.session_epoch < known.session_epoch and (hello.session_epoch or hello.flags & HelloFlags.JOIN):
            return SessionStatus.REFUSED_SUPERSEDED, *current
        if hello.flags & HelloFlags.JOIN:
            is_current = hello.session_epoch == known.session_epoch
            return SessionStatus.JOINED if is_current else SessionStatus.REFUSED_SUPERSEDED, *current
        if hello.start_seq > known.next_expected and not hello.flags & HelloFlags.ABANDON:
            return SessionStatus.REFUSED_GAP, *current
    # A peer that lost patience may be gone, and have opened its session on another connection: this one must not
    # fence it. Its end stands right behind its HELLO then, and is heard in the next turn of the loop.
    await asyncio.sleep(0)
    if is_over():
        return SessionStatus.NONE, client_id, SessionEpoch(0), ClientSeq(0)
    abandons = known is not None and bool(hello.flags & HelloFlags.ABANDON)
    epoch, next_seq = await log.open_session(client_id, hello.start_seq, gap_ms=hello.gap_timeout_ms, abandons=abandons)
    return SessionStatus.NEW if known is None else SessionStatus.RESUMED, client_id, epoch, next_seq
