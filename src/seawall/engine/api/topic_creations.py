"""Topics that several threads create at the same time share their commits.

Whoever creates topics puts them down and takes a turn to change the store. Who has a turn creates everything that was
put down until then, with one durable write for each group; the others find theirs created when their turn comes.

A creation has its topic or its error when `execute` returns, and is carried out once. This module must not know how a
topic is created.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Self

from seawall.core.checks import check
from seawall.engine.store.store import Store
from seawall.errors import ConfigError, SeawallError
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.format.fields import JsonObject


@dataclass(slots=True, eq=False)
class Creation:
    """A topic that somebody wants, and what became of it."""

    name: str
    config: TopicConfig
    outcome: TopicState | SeawallError | None = None

    @classmethod
    def of(cls, name: str, settings: JsonObject) -> Self:
        """A topic with settings; bad ones are its outcome."""
        try:
            return cls(name, TopicConfig.from_json(settings))
        except ConfigError as error:
            return cls(name, TopicConfig(), error)

    @property
    def result(self) -> TopicState | SeawallError:
        """What became of it, once it is decided."""
        check(self.outcome is not None, "INV-DELIVERY-ONCE", self.name)
        assert self.outcome is not None, "checked"
        return self.outcome


class TopicCreations:
    """The creations of one log that are not decided."""

    def __init__(self, changing: Callable[[], AbstractContextManager[Store]]) -> None:
        self._changing = changing
        self._lock = threading.Lock()
        self._waiting: deque[Creation] = deque()

    def execute(self, creations: Iterable[Creation]) -> None:
        """Have topics created; each has its outcome then. What is wrong with all of them is raised."""
        wanted = [each for each in creations if each.outcome is None]
        with self._lock:
            self._waiting.extend(wanted)
        try:
            while any(each.outcome is None for each in wanted):
                with self._changing() as store:
                    self._create_some(store)
        except BaseException:
            # Nobody waits for them any more.
            with self._lock:
                for each in wanted:
                    with suppress(ValueError):
                        self._waiting.remove(each)
            raise

    def _create_some(self, store: Store) -> None:
        """Create as many as one commit holds, whoever wants them."""
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(store.creates_max, len(self._waiting)))]
        if not group:
            return
        try:
            outcomes = store.create_topics([(each.name, each.config) for each in group])
        except SeawallError as error:
            for each in group:
                each.outcome = error
            return
        for each, outcome in zip(group, outcomes, strict=True):
            each.outcome = outcome
