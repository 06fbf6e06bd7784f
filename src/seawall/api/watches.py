"""Watches: one reader of many topics, for threads and for asyncio, whatever the log.

    watch = log.watch(["orders", "audit.*"])
    for item in watch: ...                     # batches, gaps and reports of every topic that matches, for ever
    for item in watch.poll(timeout_s=5): ...   # or what is there now
    store(watch.cursor)                        # every topic's position, after the items handed out so far
    watch.close()                              # or use it in a `with` block
    log.watch([…], cursor=…)                   # continues there

A watch receives steps from a *source*, which knows where the log is: `engine/api/watch_sources.py` reads a log in this
process, `client/read/watch_source.py` a server. This module must not know either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeGuard, TypeVar

from seawall.api.losses import data_loss, survives_crashes
from seawall.api.received import ReceivedBatch
from seawall.api.received_record import ReceivedRecord
from seawall.api.topic_info import TopicInfo
from seawall.api.watch_cursor import WatchCursor, encode_cursor, parse_cursor
from seawall.api.watch_items import Consistency, Step, WatchBegun, WatchGap, WatchItem, WatchProgress
from seawall.core.types import Position, Seq, TopicId
from seawall.core.watches import ANY_EPOCH, TopicPatterns, WatchPosition, WatchSpec
from seawall.errors import InvalidInputError, WrongStateError
from seawall.wire.format.codes import GapReason

#: Where a watch starts: every topic at its beginning or at its end, or some topics at a seq and the others at their
#: beginning.
WatchStart: TypeAlias = "str | Mapping[str, int]"

_EVICTED: Final = (GapReason.CAP, GapReason.TTL)
_REMEDY: Final = "fail_on_loss=False reads on after them"


#: The watch of one kind of log.
AnyWatch = TypeVar("AnyWatch")


def spec_of(topics: Sequence[str], start: WatchStart, cursor: str | None, consistency: Consistency) -> WatchSpec:
    """Check the arguments of `watch`; returns what the watch starts with."""
    patterns = TopicPatterns.parse(topics)
    if consistency not in ("eventual", "strong"):
        raise InvalidInputError(f"consistency {consistency!r}: give eventual or strong")
    positions: dict[str, WatchPosition] = {}
    if isinstance(start, Mapping):
        for name, seq in start.items():
            if not patterns.matches(name) or seq < 1:
                raise InvalidInputError(f"start of {name!r} at seq {seq}: watch that topic, and give a seq from 1 on")
            positions[name] = WatchPosition(ANY_EPOCH, Seq(seq), Position(0))
    elif start not in ("earliest", "latest"):
        raise InvalidInputError(f"start {start!r}: give earliest, latest, or a mapping of topics to seqs")
    later_from = TopicId(0)
    if cursor is not None:
        stored = parse_cursor(cursor)
        positions.update(stored.positions)
        later_from = stored.later_from
    return WatchSpec(patterns, start == "latest", positions, later_from, consistency == "strong")


class WatchSource(Protocol):
    """Where a watch receives its steps. The first ones are the topics that join, then a `WatchBegun`."""

    def receive(self, progress: WatchProgress, timeout_s: float | None) -> list[Step]:
        """The next steps; waits up to `timeout_s` until they include an item, None without limit.

        `progress` is after all earlier steps.
        """
        ...

    def close(self) -> None:
        """Receive no more. Idempotent."""
        ...


class AsyncWatchSource(Protocol):
    """Like `WatchSource`, on an event loop. A cancelled `receive` loses no step."""

    async def receive(self, progress: WatchProgress, timeout_s: float | None) -> list[Step]:
        """The next steps; waits up to `timeout_s` until they include an item, None without limit.

        `progress` is after all earlier steps.
        """
        ...

    async def close(self) -> None:
        """Receive no more. Idempotent."""
        ...


class _Received:
    """Steps that are received and not handed out yet, and how far a watch is: the same for threads and for asyncio."""

    def __init__(self, spec: WatchSpec) -> None:
        self.progress: Final = WatchProgress(spec)
        self.is_closed = False
        self._steps: deque[Step] = deque()

    @property
    def cursor(self) -> str:
        """Every topic's position as a text."""
        progress = self.progress
        if not progress.later_from:
            raise WrongStateError("this watch has not read anything yet: its cursor is known after the first poll")
        return encode_cursor(WatchCursor(progress.positions, progress.later_from))

    @property
    def first(self) -> Step | None:
        """The next step; None if everything received was handed out."""
        return self._steps[0] if self._steps else None

    def require_open(self) -> None:
        """Raise if the watch is closed."""
        if self.is_closed:
            raise WrongStateError("this watch is closed")

    def add(self, steps: Sequence[Step]) -> None:
        """Add received steps."""
        self._steps.extend(steps)

    def begin(self) -> None:
        """Move past the topics that join at first."""
        while self._steps:
            step = self._steps.popleft()
            self.progress.take(step)
            if isinstance(step, WatchBegun):
                return

    def take_first(self) -> WatchItem | None:
        """Hand out the next step; None if it is no item."""
        return self.progress.take(self._steps.popleft())

    def items(self) -> Iterator[WatchItem]:
        """Hand out all items."""
        while self._steps:
            item = self.take_first()
            if item is not None:
                yield item

    def records(self) -> Iterator[tuple[str, ReceivedRecord]]:
        """Hand out the records of the next step, each with its topic, and then the step."""
        step = self._steps[0]
        if isinstance(step, ReceivedBatch):
            # Those before were handed out by an iteration that has ended within the batch.
            first = self.progress.positions[step.topic].next_seq
            for record in step.records():
                if record.seq >= first:
                    self.progress.move(step.topic, Seq(record.seq + 1))
                    yield step.topic, record
        self.take_first()


class Watch:
    """Reads all topics of a watch, each in order, and keeps their positions. Created by `watch` of a log.

    Read with `poll`, or iterate to follow the topics forever. Use it from one thread at a time.
    """

    def __init__(self, source: WatchSource, spec: WatchSpec, describe: Callable[[str], TopicInfo]) -> None:
        self._source = source
        self._describe = describe
        self._received = _Received(spec)
        # Where the topics start is known from here on.
        self._received.add(source.receive(self._received.progress, 0.0))
        self._received.begin()

    @property
    def cursor(self) -> str:
        """The position of every topic as a text: a watch with this cursor continues after the items handed out."""
        return self._received.cursor

    @property
    def topics(self) -> list[str]:
        """The names of the topics that belong to the watch, sorted."""
        return sorted(self._received.progress.positions)

    def poll(self, timeout_s: float = 0.0, *, limit: int | None = None) -> list[WatchItem]:
        """Returns the items that have arrived, at most `limit`; waits up to `timeout_s` for the first."""
        items = list(islice(self._received.items(), limit))
        if not items:
            self._receive(timeout_s)
            items = list(islice(self._received.items(), limit))
        return items

    def __iter__(self) -> Iterator[WatchItem]:
        """Iterate over all items from here on, forever: at the end of the topics it waits for more."""
        while True:
            yield from self._received.items()
            self._receive(None)

    def records(self, *, fail_on_loss: bool = True) -> Iterator[tuple[str, ReceivedRecord]]:
        """Iterate over the records one by one, forever, each with the name of its topic.

        The cursor is after the current record. Lost records raise `DataLossError`, or are passed over if `fail_on_loss`
        is false.
        """
        while True:
            while (step := self._received.first) is not None:
                if fail_on_loss and _may_be_loss(step) and not _is_reserved(step, self._describe(step.topic)):
                    raise data_loss(step.topic, step, _REMEDY)
                yield from self._received.records()
            self._receive(None)

    def close(self) -> None:
        """End the watch, and its connection. Idempotent."""
        self._received.is_closed = True
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _receive(self, timeout_s: float | None) -> None:
        self._received.require_open()
        self._received.add(self._source.receive(self._received.progress, timeout_s))


class AsyncWatch:
    """Like `Watch`, for one task. The first read resolves where the topics start."""

    def __init__(
        self, source: AsyncWatchSource, spec: WatchSpec, describe: Callable[[str], Awaitable[TopicInfo]]
    ) -> None:
        self._source = source
        self._describe = describe
        self._received = _Received(spec)

    @property
    def cursor(self) -> str:
        """The position of every topic as a text: a watch with this cursor continues after the items handed out.

        Known after the first read.
        """
        return self._received.cursor

    @property
    def topics(self) -> list[str]:
        """The names of the topics that belong to the watch, sorted; known after the first read."""
        return sorted(self._received.progress.positions)

    async def poll(self, timeout_s: float = 0.0, *, limit: int | None = None) -> list[WatchItem]:
        """Returns the items that have arrived, at most `limit`; waits up to `timeout_s` for the first."""
        items = list(islice(self._received.items(), limit))
        if not items:
            await self._receive(timeout_s)
            items = list(islice(self._received.items(), limit))
        return items

    async def __aiter__(self) -> AsyncIterator[WatchItem]:
        """Iterate over all items from here on, forever: at the end of the topics it waits for more."""
        while True:
            for item in self._received.items():
                yield item
            await self._receive(None)

    async def records(self, *, fail_on_loss: bool = True) -> AsyncIterator[tuple[str, ReceivedRecord]]:
        """Iterate over the records one by one, forever, each with the name of its topic.

        The cursor is after the current record. Lost records raise `DataLossError`, or are passed over if `fail_on_loss`
        is false.
        """
        while True:
            while (step := self._received.first) is not None:
                if fail_on_loss and _may_be_loss(step) and not _is_reserved(step, await self._describe(step.topic)):
                    raise data_loss(step.topic, step, _REMEDY)
                for topic_and_record in self._received.records():
                    yield topic_and_record
            await self._receive(None)

    async def close(self) -> None:
        """End the watch, and its connection. Idempotent."""
        self._received.is_closed = True
        await self._source.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _receive(self, timeout_s: float | None) -> None:
        self._received.require_open()
        self._received.add(await self._source.receive(self._received.progress, timeout_s))


class WatchingLog(ABC, Generic[AnyWatch]):
    """The part of a log that watches topics, for threads and for asyncio."""

    def watch(
        self,
        topics: Sequence[str],
        start: WatchStart = "earliest",
        *,
        cursor: str | None = None,
        consistency: Consistency = "eventual",
    ) -> AnyWatch:
        """Watch topics by their names and prefixes (`audit.*`): one reader of all of them, each in order.

        `start` is "earliest", "latest", or a mapping of topics to seqs; others start at their beginning. So do topics
        that appear later and match. A `cursor` of an earlier watch takes precedence: the watch continues there.
        With consistency "strong" records are delivered once they are synced to disk, whatever the class of their topic.
        With asyncio the first read resolves where the topics start.
        """
        return self._open_watch(spec_of(topics, start, cursor, consistency))

    @abstractmethod
    def _open_watch(self, spec: WatchSpec) -> AnyWatch: ...


def _may_be_loss(step: Step) -> TypeGuard[WatchGap]:
    """True if a step is a gap that reports lost records, or seqs that were only reserved.

    What was evicted from the beginning of a topic is no loss: the reader did not ask for it. Nor is a new life.
    """
    if not isinstance(step, WatchGap) or step.reason is GapReason.RECREATED:
        return False
    return step.first_seq > 1 or step.reason not in _EVICTED


def _is_reserved(gap: WatchGap, info: TopicInfo) -> bool:
    """True if the seqs of a gap were only reserved: every acknowledged record of the topic survives a crash."""
    return gap.reason is GapReason.CRASH and survives_crashes(info.config.durability)
