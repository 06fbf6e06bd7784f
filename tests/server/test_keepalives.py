"""Answers to keepalives of version 1: a burst, then a rate, one held at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from seawall.limits import V1_KEEPALIVE_BURST
from seawall.server.connection.keepalives import KeepaliveAnswers


class ScriptedLoop(asyncio.SelectorEventLoop):
    """A loop whose time a test sets; it does not run, so the test also makes the calls that are due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.due: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self.due.append((when, callback))
        return super().call_at(when, callback, *args, context=context)


def test_a_burst_is_answered_then_one_a_tenth_of_a_second() -> None:
    loop = ScriptedLoop()
    sent: list[bytes] = []
    answers = KeepaliveAnswers(loop, sent.append)
    for _ in range(V1_KEEPALIVE_BURST + 50):
        answers.answer()
    assert len(sent) == V1_KEEPALIVE_BURST
    # One waits for the next token, the others were dropped.
    [(when, answer_held)] = loop.due
    assert 0 < when - loop.now <= 0.101
    loop.now = when
    answer_held()
    assert len(sent) == V1_KEEPALIVE_BURST + 1
    answers.answer()
    assert len(loop.due) == 2
    answers.stop()
    loop.now += 100
    KeepaliveAnswers(loop, sent.append).stop()
    loop.close()


def test_the_answer_is_the_published_frame() -> None:
    loop = ScriptedLoop()
    sent: list[bytes] = []
    KeepaliveAnswers(loop, sent.append).answer()
    assert sent == [bytes.fromhex("4C414E4301200000061E9C53") + bytes(32)]
    loop.close()
