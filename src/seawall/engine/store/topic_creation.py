"""Plans the creation of topics: a create control for each, and the ceiling for its first seqs.

This module must not know how controls become durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from seawall import limits
from seawall.core.types import Seq
from seawall.errors import CallerError, RetryableError, SeawallError
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import Ceiling
from seawall.storage.control.documents import TopicCreate
from seawall.topics.catalog import TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState

#: Name and configuration of each topic to create.
WantedTopics: TypeAlias = Sequence[tuple[str, TopicConfig]]


def creates_max(commit_size_max: int) -> int:
    """The most topics that one commit of this size may create."""
    return max(1, min(limits.TOPICS_CREATED_AT_ONCE, commit_size_max // limits.TOPIC_CREATE_SIZE_MAX))


def plan_creations(
    catalog: TopicCatalog, wanted: WantedTopics, created_ms: int, ceiling_step: int, *, is_reserved: bool
) -> tuple[list[SimpleControl], dict[int, SeawallError]]:
    """The controls that create topics, and the errors of those that cannot be created, by index."""
    planned: dict[str, TopicCreate] = {}
    refused: dict[int, SeawallError] = {}
    for number, (name, config) in enumerate(wanted):
        try:
            planned[name] = catalog.create(name, config, created_ms, is_reserved=is_reserved, planned=planned)
        except (CallerError, RetryableError) as error:
            refused[number] = error
    controls: list[SimpleControl] = []
    for created in planned.values():
        controls += (created, Ceiling(created.topic_id, Seq(1 + ceiling_step), Seq(1)))
    return controls, refused


def single_topic(outcomes: Sequence[TopicState | SeawallError]) -> TopicState:
    """The one topic that was created; raises its error if it was not."""
    (created,) = outcomes
    if isinstance(created, SeawallError):
        raise created
    return created
