"""Staged segments that become segments of a topic, instead of being copied there.

What a transaction gives a topic is adopted if all of it lies in segments of staged batches that hold nothing else, at
their places, and of some size: who stages much does it apart, so it mostly is so. Then the files are moved and get
other headers (`storage.segments.adoption`), and no block is read or written. Everything else is copied
(`transaction_copying`).

    find        what can be adopted, segment by segment
    prepare     the topics that it was staged in begin other segments, where it is written on; may find the disk full
    fill        headers are read, and what is not durable yet is made so; readers are not kept from reading
    execute   files are moved and stamped; from here on only a failing disk keeps the transaction out
    settle      the log tells of it

Nobody fills, seals or removes a segment while it is adopted: whoever commits has `upkeep.placing`, as everybody has it
who changes more than appends do.

This module must not know how a transaction is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.types import Seq, TimestampNs
from seawall.engine.store.topic_log import TopicLog
from seawall.engine.transactions.staging import StagedBatches
from seawall.errors import CorruptionError, NotFoundError
from seawall.kernels.runtime.memory import Bytes
from seawall.storage.control.codec import SegmentRoll
from seawall.storage.segments.adoption import adopt_file, settle
from seawall.storage.segments.batch_index import BatchIndex, Entries
from seawall.storage.segments.names import index_name
from seawall.storage.segments.segment import SealedSegment, SegmentWriter
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchSource, parse_batch_header

_HEADER: Final = limits.BATCH_HEADER_SIZE

#: So many bytes staged segments must have, on average, to be adopted: a topic is not to consist of crumbs.
SIZE_MIN: Final = 8 * limits.MIB


@dataclass(slots=True, eq=False)
class Adopted:
    """A staged segment, which batches of the transaction it holds, and the headers that they had."""

    topic: TopicState
    log: TopicLog
    segment: SealedSegment | SegmentWriter
    numbers: range
    headers: list[bytes] = field(default_factory=list)


def find(
    topic: TopicState,
    batches: StagedBatches,
    parts: Sequence[int],
    log_of: Callable[[TopicState], TopicLog],
) -> list[Adopted]:
    """What a topic gets of some parts of a transaction, if all of it can be adopted; nothing if it is to be copied."""
    writing = log_of(topic).writing
    if writing is not None and not len(writing.segment.index):
        # It has the name that the first one would get.
        return []
    found: list[Adopted] = []
    for part in parts:
        staged, start = batches.staged[part], batches.numbers[part].start
        log = log_of(staged.topic)
        segments = _segments_of(log, *staged.range)
        if not segments:
            return []
        for segment in segments:
            count = len(segment.index)
            found.append(Adopted(staged.topic, log, segment, range(start, start + count)))
            start += count
    size = sum(segment.index.end for segment in (each.segment for each in found))
    return found if size >= len(found) * SIZE_MIN else []


def _segments_of(log: TopicLog, first_seq: Seq, last_seq: Seq) -> list[SealedSegment | SegmentWriter]:
    """The segments that hold all batches of a range at their places, and nothing else; none if there are no such."""
    sealed = [each for each in log.sealed if first_seq <= each.name.last_seq and each.name.first_seq <= last_seq]
    filling = [each for each in log.filling if len(each.segment.index) and first_seq <= each.segment.index.last_seq]
    inside = list(takewhile(lambda each: each.segment.index.first_seq <= last_seq, filling))
    found: list[SealedSegment | SegmentWriter] = [*sealed, *(each.segment for each in inside)]
    indexes = [each.index for each in found]
    if not found or any(len(each.waiting) for each in inside) or not all(map(len, indexes)):
        return []
    is_all = (indexes[0].first_seq, indexes[-1].last_seq) == (first_seq, last_seq)
    return found if is_all and sum(index.record_count for index in indexes) == last_seq - first_seq + 1 else []


class Adoption:
    """Everything that one transaction adopts."""

    def __init__(self, log_of: Callable[[TopicState], TopicLog]) -> None:
        self._log_of = log_of
        #: Topics of staged batches that have begun another segment, and the first seq of the one before.
        self._begun: list[tuple[TopicState, Seq]] = []
        self._adopted: list[tuple[TopicLog, Seq]] = []
        #: Indexes that stood beside staged segments.
        self._needless: list[tuple[TopicLog, str]] = []

    def prepare(self, adopted: Sequence[Adopted], now_ns: TimestampNs) -> None:
        """Have nothing written on any more that is adopted; `take_back` undoes it."""
        for each in adopted:
            if each.log.filling and each.log.filling[-1].segment is each.segment:
                assert isinstance(each.segment, SegmentWriter), "it is filling"
                each.log.begin(each.topic.next_seq, now_ns)
                self._begun.append((each.topic, each.segment.first_seq))

    def take_back(self) -> None:
        """Nothing is adopted after all."""
        while self._begun:
            self._log_of(self._begun.pop()[0]).take_back()

    def execute(
        self, topic: TopicState, adopted: Sequence[Adopted], headers: Bytes, entries: Entries, now_ns: TimestampNs
    ) -> None:
        """Make segments of a topic out of staged ones; `headers` and `entries` are those of all batches, as they are to
        be."""
        log = self._log_of(topic)
        for each in adopted:
            index = BatchIndex(entries[each.numbers.start : each.numbers.stop])
            stamped = [headers[number * _HEADER : (number + 1) * _HEADER].data for number in each.numbers]
            file = each.segment.shared.file
            segment = adopt_file(log.home, index.first_seq, now_ns, file, index, (each.headers, stamped))
            each.log.release(each.segment)
            if isinstance(each.segment, SealedSegment):
                self._needless.append((each.log, index_name(each.segment.name.first_seq)))
            self._adopted.append((log, index.first_seq))
            log.adopt(segment)

    def rolls(self) -> Iterator[SegmentRoll]:
        """What the log has to tell of segments that were begun, where each topic has one before it."""
        for topic, before in self._begun:
            filling = self._log_of(topic).filling
            yield SegmentRoll(topic.topic_id, filling[-1].segment.first_seq, before)
        for log, first_seq in self._adopted:
            older = [each.segment.first_seq for each in log.filling if each.segment.first_seq < first_seq]
            if older:
                yield SegmentRoll(log.home.topic_id, first_seq, older[-1])

    def settle(self) -> None:
        """The log tells of everything; what a crash leaves of this the next opening removes."""
        for log, first_seq in self._adopted:
            settle(log.home, first_seq)
        for log, name in self._needless:
            if log.home.files.exists(log.home.path(name)):
                log.home.files.unlink(log.home.path(name))


def fill(adopted: Adopted, batches: StagedBatches, headers: Bytes) -> None:
    """Read the headers of batches that are adopted, into those of all, and make their blocks durable."""
    file = adopted.segment.shared.file
    expected = batches.entries[adopted.numbers.start : adopted.numbers.stop]
    for number, at, base_seq in zip(
        adopted.numbers, expected["at"].tolist(), expected["base_seq"].tolist(), strict=True
    ):
        header = file.read(_HEADER, at)
        try:
            parsed = parse_batch_header(header, source=BatchSource.STORED)
        except CorruptionError:
            parsed = None
        if parsed is None or (parsed.topic_id, parsed.base_seq) != (adopted.topic.topic_id, base_seq):
            raise NotFoundError(f"staged batches from seq {base_seq} on are damaged; stage the records again")
        headers[number * _HEADER : (number + 1) * _HEADER] = np.frombuffer(header, np.uint8)
        adopted.headers.append(header)
    if isinstance(adopted.segment, SegmentWriter):
        adopted.segment.sync()
