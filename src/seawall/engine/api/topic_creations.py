"""Group commit for topic creations: threads that create topics at the same time share durable writes.

Each thread queues its creations and waits for the exclusive lock of the store. The thread that gets the lock creates
everything queued so far, with one durable write per group. The other threads find their topics created when they get
the lock.

Each creation is executed once and has its topic or its error when `execute` returns. This module must not know how a
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
    """A topic to create, and the outcome."""

    name: str
    config: TopicConfig
    outcome: TopicState | SeawallError | None = None

    @classmethod
    def of(cls, name: str, settings: JsonObject) -> Self:
        """A creation with settings; invalid settings become its outcome."""
        try:
            return cls(name, TopicConfig.from_json(settings))
        except ConfigError as error:
            return cls(name, TopicConfig(), error)

    @property
    def result(self) -> TopicState | SeawallError:
        """The topic or the error; valid after `execute`."""
        check(self.outcome is not None, "INV-DELIVERY-ONCE", self.name)
        assert self.outcome is not None, "checked"
        return self.outcome


class TopicCreations:
    """The queue of pending topic creations of one log."""

    def __init__(self, changing: Callable[[], AbstractContextManager[Store]]) -> None:
        self._changing = changing
        self._lock = threading.Lock()
        self._queued: deque[Creation] = deque()

    def execute(self, creations: Iterable[Creation]) -> None:
        """Create topics; each creation has its outcome when this returns. Raises errors that affect all of them."""
        wanted = [each for each in creations if each.outcome is None]
        with self._lock:
            self._queued.extend(wanted)
        try:
            while any(each.outcome is None for each in wanted):
                with self._changing() as store:
                    self._create_some(store)
        except BaseException:
            # The caller gives up: no other thread should create them.
            with self._lock:
                for each in wanted:
                    with suppress(ValueError):
                        self._queued.remove(each)
            raise

    def _create_some(self, store: Store) -> None:
        """Create as many queued topics as one commit holds, of any thread."""
        with self._lock:
            group = [self._queued.popleft() for _ in range(min(store.creates_max, len(self._queued)))]
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
