"""Answers keepalives of version 1 with the same frame, within a rate.

A published client answers every keepalive that it receives. So answering all of them would never end, and every
keepalive that the client sends by itself would start another such exchange. Each connection therefore has a token
bucket. When the bucket is empty, one answer waits for the next token, and further ones are dropped.

This module must not know anything else of the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from seawall import limits
from seawall.core.token_bucket import TokenBucket
from seawall.wire.lwp1.frames import encode_keepalive

_FRAME: Final = encode_keepalive()
_NS_PER_S: Final = 1_000_000_000


class KeepaliveAnswers:
    """The keepalive answers of one connection."""

    __slots__ = ("_bucket", "_delayed", "_loop", "_write")

    def __init__(self, loop: asyncio.AbstractEventLoop, write: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._write = write
        self._bucket = TokenBucket(limits.V1_KEEPALIVE_PER_SECOND, limits.V1_KEEPALIVE_BURST, self._now_ns())
        self._delayed: asyncio.TimerHandle | None = None

    def answer(self) -> None:
        """Answer one keepalive: now, later, or not at all."""
        if self._delayed is not None:
            return
        now_ns = self._now_ns()
        if self._bucket.take(1, now_ns):
            self._write(_FRAME)
        else:
            self._delayed = self._loop.call_later(self._bucket.wait_ns(1, now_ns) / _NS_PER_S, self._answer_delayed)

    def stop(self) -> None:
        """Drop the waiting answer: the connection is closed."""
        if self._delayed is not None:
            self._delayed.cancel()

    def _answer_delayed(self) -> None:
        self._delayed = None
        self.answer()

    def _now_ns(self) -> int:
        return int(self._loop.time() * _NS_PER_S)
