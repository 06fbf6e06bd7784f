"""The newest changes of topics: which have changed since a mark, checked against a plain list."""

from __future__ import annotations

import random

import numpy as np
import pytest

from seawall.core.types import TopicId
from seawall.topics.changes import TopicChanges


@pytest.mark.parametrize("seed", range(20))
def test_the_changes_since_any_mark_are_those_of_a_list(seed: int) -> None:
    chance = random.Random(seed)
    kept = chance.choice([1, 7, 64])
    changes, expected = TopicChanges(kept), list[int]()
    for _ in range(60):
        topic_ids = [chance.randrange(1, 100) for _ in range(chance.choice([1, 2, 5, 80]))]
        if len(topic_ids) == 1:
            changes.note(TopicId(topic_ids[0]))
        else:
            changes.note_rows(np.array(topic_ids, np.uint32))
        expected += topic_ids
        assert changes.mark == len(expected)
        for mark in {len(expected), *chance.choices(range(len(expected) + 1), k=4)}:
            found = changes.since(mark)
            if len(expected) - mark > kept:
                assert found is None
            else:
                assert found is not None
                assert found.tolist() == expected[mark:]
