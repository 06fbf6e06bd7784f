"""Effective priorities: what is set, how recently a topic was used, and what counts as a use."""

from __future__ import annotations

from pathlib import Path

import pytest

import seawall
from seawall.topics.config import TopicConfig
from seawall.topics.priorities import NEVER_NS, effective_priority

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("idle_s", "priority"), [(-5, 500), (0, 500), (30, 250), (60, 125), (299, 0), (300, 0), (10**9, 0)]
)
def test_recent_use(idle_s: int, priority: int) -> None:
    assert effective_priority(TopicConfig(), idle_s * SECOND) == priority
    assert effective_priority(TopicConfig(priority=-7), idle_s * SECOND) == -7
    assert effective_priority(TopicConfig(auto_priority=False), idle_s * SECOND) == 0


def test_a_topic_that_was_never_used() -> None:
    assert effective_priority(TopicConfig(), 0 - NEVER_NS) == 0


def test_reads_and_descriptions_are_uses_and_lists_and_publishes_are_none(tmp_path: Path) -> None:
    with seawall.open(tmp_path) as log:
        assert log.create_topic("a").effective_priority == 0
        log.create_topic("b", priority=800)
        log.publish("a", b"x")
        assert log.topics() == ["a", "b"]
        with log.inspecting() as store:
            assert store.catalog.named("a").priority_at(store.parts.machine.clock.monotonic_ns()) == 0
        assert 0 < log.describe("a").effective_priority <= 500
        assert log.describe("b").effective_priority == 800
        assert log.configure_topic("b", priority=None, auto_priority=False).effective_priority == 0
    with seawall.open(tmp_path) as log:
        assert log.read("a")
        assert 0 < log.configure_topic("a", ttl_ms=0).effective_priority <= 500
