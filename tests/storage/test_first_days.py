"""Fields that the first logs did not write are read as unknown, not as damage."""

from __future__ import annotations

from seawall.core.types import TopicEpoch, TopicId
from seawall.storage.control.documents import TopicCreate


def test_a_topic_without_creation_time_is_read() -> None:
    created = TopicCreate(TopicId(3), "events", TopicEpoch(1), {}, 1_700_000_000_000)
    assert TopicCreate.from_document(created.document()) == created
    before = {key: value for key, value in created.document().items() if key != "created_ms"}
    assert TopicCreate.from_document(before) == TopicCreate(TopicId(3), "events", TopicEpoch(1), {}, 0)
