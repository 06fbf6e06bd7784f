"""The log of a task queue: what tasks need of it, and how it is opened from a URL or a path.

This module must not know how a log works; `seawall` opens it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import seawall
from seawall.api.queues.queue import Queue
from seawall.api.received import Item
from seawall.api.topic_config import TopicType
from seawall.api.topic_info import TopicInfo
from seawall.api.transactions import Transaction
from seawall.core.transactions import CommittedTransaction
from seawall.errors import ConflictError, InvalidInputError, NotFoundError
from seawall.wire.format.fields import JsonValue

if TYPE_CHECKING:
    from seawall.io.network.tls import Tls

_SCHEMES: Final = ("seawall://", "seawalls://")


class TopicReader(Protocol):
    """A subscriber of the results."""

    def poll(self, timeout_s: float = 0.0) -> Sequence[Item]:
        """The next items; waits for them if there are none."""
        ...


class TaskLog(Protocol):
    """A log with queues and transactions: embedded or connected."""

    def queue(self, topic: str, /, *, node: str | None = None) -> Queue:
        """The job queue of a topic."""
        ...

    def transaction(self, owner: str | None = None, epoch: int | None = None) -> Transaction:
        """Begin a transaction."""
        ...

    def transaction_state(self, owner: str) -> CommittedTransaction | None:
        """The last transaction of an owner."""
        ...

    def describe(self, name: str) -> TopicInfo:
        """A topic as it is now."""
        ...

    def create_topic(self, name: str, /, **settings: JsonValue) -> TopicInfo:
        """Create a topic."""
        ...

    def subscriber(self, topic: str, start: int) -> TopicReader:
        """A reader of a topic from a seq on."""
        ...

    def close(self) -> None:
        """Close the log."""
        ...


@dataclass(frozen=True, slots=True)
class Location:
    """Where a log is: the URL of a server, or a data directory."""

    text: str
    token: str = ""
    tls: Tls | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if "://" in self.text and not self.is_remote:
            raise InvalidInputError(f"{self.text!r}: give seawall://host:port, seawalls://host:port or a directory")

    @property
    def is_remote(self) -> bool:
        """True for a server, which many processes can use at once."""
        return self.text.startswith(_SCHEMES)

    def open(self, name: str) -> TaskLog:
        """Open the log; `name` is the client name that a server shows."""
        if not self.is_remote:
            return seawall.open(Path(self.text))
        return seawall.connect(
            self.text, token=self.token, name=name, tls=self.tls, tls_cert=self.tls_cert, tls_key=self.tls_key
        )


def ensure_topic(log: TaskLog, name: str, **settings: JsonValue) -> TopicInfo:
    """Describe a topic; create it with these settings if it does not exist."""
    with suppress(NotFoundError):
        return log.describe(name)
    # Another process may create it at the same time.
    with suppress(ConflictError):
        return log.create_topic(name, **settings)
    return log.describe(name)


def ensure_queue(log: TaskLog, name: str, dead_letter: str) -> TopicInfo:
    """Describe a queue; create it, with its dead-letter topic as a setting, if it does not exist."""
    info = ensure_topic(log, name, type=TopicType.QUEUE.value, dead_letter=dead_letter)
    if info.config.kind is not TopicType.QUEUE:
        raise InvalidInputError(f"topic {name!r} is a {info.config.kind.value}, not a queue: give tasks another topic")
    return info
