"""What the first logs do not say yet is taken as unknown, not as damage."""

from __future__ import annotations

from seawall.core.types import TopicEpoch, TopicId
from seawall.storage.control.documents import TopicCreate


def test_a_topic_without_the_time_of_its_creation() -> None:
    created = TopicCreate(TopicId(3), "events", TopicEpoch(1), {}, 1_700_000_000_000)
    assert TopicCreate.from_document(created.document()) == created
    before = {key: value for key, value in created.document().items() if key != "created_ms"}
    assert TopicCreate.from_document(before) == TopicCreate(TopicId(3), "events", TopicEpoch(1), {}, 0)
