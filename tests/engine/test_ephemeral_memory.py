"""The memory bound that topics of class ephemeral share: they keep it, and none keeps another from publishing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.api.received import ReceivedBatch
from seawall.core.types import TopicId
from seawall.engine.api.open_log import open_log
from seawall.engine.store.ephemeral_memory import EphemeralMemory
from seawall.engine.store.settings import StoreSettings
from seawall.errors import FullError
from seawall.limits import KIB, MIB
from seawall.topics.config import Durability, TopicConfig
from seawall.topics.gaps import Gap
from seawall.wire.format.codes import GapReason

SETTINGS = StoreSettings(wal_file_size=4096 * KIB, ballast_size=4 * KIB, ephemeral_size=4 * MIB)
VALUE = bytes(32 * KIB)
EPHEMERAL = TopicConfig(durability=Durability.EPHEMERAL)


@pytest.mark.parametrize("brokers", [0, 1])
def test_uncapped_topics_share_the_memory_bound(tmp_path: Path, brokers: int) -> None:
    """INV-EPHEMERAL-BOUND."""
    with open_log(tmp_path / "data", SETTINGS, brokers=brokers) as log:
        names = [f"topic-{number}" for number in range(3)]
        for name in names:
            log.create_topic(name, durability="ephemeral")
        for _ in range(60):
            for name in names:
                log.publish(name, VALUE)
                held = sum(log.describe(each).byte_count for each in names)
                assert held <= SETTINGS.ephemeral_size + len(VALUE) + 5
        for name in names:
            gap, *batches = log.read(name)
            assert isinstance(gap, Gap)
            assert gap.reason is GapReason.CAP
            assert isinstance(batches[-1], ReceivedBatch)
            assert batches[-1].base_seq == 60


def test_one_topic_cannot_keep_another_from_publishing(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("large", durability="ephemeral")
        log.create_topic("small", durability="ephemeral")
        for _ in range(200):
            log.publish("large", VALUE)
        alone = log.describe("large").byte_count
        assert alone > SETTINGS.ephemeral_size * 3 // 4
        for _ in range(10):
            log.publish("small", VALUE)
        assert log.describe("small").record_count == 10
        log.publish("large", VALUE)
        assert log.describe("large").byte_count < alone


def test_a_rejecting_topic_names_the_bound(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("strict", durability="ephemeral", discard="reject")
        held = SETTINGS.ephemeral_size // (len(VALUE) + 5)
        for _ in range(held):
            log.publish("strict", VALUE)
        with pytest.raises(FullError, match=r"storage\.ephemeral_size"):
            log.publish("strict", VALUE)
        log.delete("strict", before_seq=held)
        log.publish("strict", VALUE)


@dataclass
class Held:
    """The part of a topic that the bound looks at."""

    topic_id: TopicId
    live_bytes: int = 0
    config: TopicConfig = EPHEMERAL


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3_000)), max_size=200))
def test_the_sum_stays_near_the_bound(appends: list[tuple[int, int]]) -> None:
    memory, size_max = EphemeralMemory(10_000), 10_000
    topics = [Held(TopicId(number)) for number in range(6)]
    for number, added in appends:
        topic = topics[number]
        allowed = memory.bytes_max(topic, added)
        assert allowed > 0
        # As an eviction does: remove the oldest until the new ones fit, or nothing is left.
        topic.live_bytes = max(0, min(topic.live_bytes, allowed - added)) + added
        held = sum(each.live_bytes for each in topics)
        assert held <= size_max * 3 // 2 + added
