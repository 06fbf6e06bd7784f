"""Adoption: makes staged segments segments of a topic, instead of copying their batches.

A transaction adopts what it writes to a topic if all of it is in staged segments that hold nothing else, are fully
flushed and large enough. That is the usual case for large transactions, which stage in a partition of their own. Then
the files are moved and get new headers (`storage.segments.adoption`), and no block is read or written. Everything else
is copied (`copying`).

    find          what can be adopted, segment by segment
    prepare       staging topics roll, if an adopted segment is active; may find the disk full
    read_headers  reads headers and makes the blocks durable; readers of the store continue
    execute       moves and stamps the files; from here on only a failing disk prevents the transaction
    settle        after the log records the adoption

No other code may flush, seal or delete a segment while it is adopted: the committing thread holds
`checkpoint_schedule.flush_lock`, as every change other than an append does.

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
from seawall.storage.shared_file import SharedFile
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchSource, parse_batch_header

_HEADER: Final = limits.BATCH_HEADER_SIZE

#: The least average size of staged segments to adopt: a topic should not consist of tiny segments.
SIZE_MIN: Final = 8 * limits.MIB


@dataclass(slots=True, eq=False)
class Adopted:
    """A staged segment, the batches of the transaction that it holds, and their old headers."""

    topic: TopicState
    log: TopicLog
    segment: SealedSegment | SegmentWriter
    index: BatchIndex
    file: SharedFile
    numbers: range
    headers: list[bytes] = field(default_factory=list)


def find(
    topic: TopicState,
    batches: StagedBatches,
    parts: Sequence[int],
    log_of: Callable[[TopicState], TopicLog],
) -> list[Adopted]:
    """The staged segments that a topic can adopt for some parts of a transaction; empty if they must be copied."""
    writing = log_of(topic).active
    if writing is not None and not len(writing.segment.index):
        # The empty active segment has the file name that the first adopted one would get.
        return []
    found: list[Adopted] = []
    for part in parts:
        staged, start = batches.staged[part], batches.numbers[part].start
        log = log_of(staged.topic)
        segments = _segments_of(log, *staged.range)
        if not segments:
            return []
        for segment in segments:
            index, file = _index_of(segment), _file_of(segment)
            found.append(Adopted(staged.topic, log, segment, index, file, range(start, start + len(index))))
            start += len(index)
    size = sum(each.index.end for each in found)
    return found if size >= len(found) * SIZE_MIN else []


def _segments_of(log: TopicLog, first_seq: Seq, last_seq: Seq) -> list[SealedSegment | SegmentWriter]:
    """The segments that hold exactly the batches of a range, all flushed; empty if there are no such segments."""
    sealed = [each for each in log.sealed if first_seq <= each.name.last_seq and each.name.first_seq <= last_seq]
    unsealed = [each for each in log.unsealed if len(each.segment.index) and first_seq <= each.segment.index.last_seq]
    inside = list(takewhile(lambda each: each.segment.index.first_seq <= last_seq, unsealed))
    found: list[SealedSegment | SegmentWriter] = [*sealed, *(each.segment for each in inside)]
    indexes = [_index_of(each) for each in found]
    if not found or any(len(each.unflushed) for each in inside) or not all(map(len, indexes)):
        return []
    is_all = (indexes[0].first_seq, indexes[-1].last_seq) == (first_seq, last_seq)
    return found if is_all and sum(index.record_count for index in indexes) == last_seq - first_seq + 1 else []


def _index_of(segment: SealedSegment | SegmentWriter) -> BatchIndex:
    return segment.load_index() if isinstance(segment, SealedSegment) else segment.index


def _file_of(segment: SealedSegment | SegmentWriter) -> SharedFile:
    return segment.open_file() if isinstance(segment, SealedSegment) else segment.shared


class Adoption:
    """All adoptions of one transaction."""

    def __init__(self, log_of: Callable[[TopicState], TopicLog]) -> None:
        self._log_of = log_of
        #: Staging topics that rolled to another segment, and the first seq of the segment before it.
        self._rolled: list[tuple[TopicState, Seq]] = []
        self._adopted_segments: list[tuple[TopicLog, Seq]] = []
        #: Index files of adopted segments, to be removed.
        self._old_indexes: list[tuple[TopicLog, str]] = []

    def prepare(self, adopted: Sequence[Adopted], now_ns: TimestampNs) -> None:
        """Roll staging topics so that no adopted segment is active; `roll_back` undoes it."""
        for each in adopted:
            if each.log.unsealed and each.log.unsealed[-1].segment is each.segment:
                assert isinstance(each.segment, SegmentWriter), "it is active"
                each.log.begin(each.topic.next_seq, now_ns)
                self._rolled.append((each.topic, each.segment.first_seq))

    def roll_back(self) -> None:
        """Undo `prepare`: the transaction is not committed."""
        while self._rolled:
            self._log_of(self._rolled.pop()[0]).undo_begin()

    def execute(
        self, topic: TopicState, adopted: Sequence[Adopted], headers: Bytes, entries: Entries, now_ns: TimestampNs
    ) -> None:
        """Make staged segments segments of a topic; `headers` and `entries` are the new ones of all batches."""
        log = self._log_of(topic)
        for each in adopted:
            index = BatchIndex(entries[each.numbers.start : each.numbers.stop])
            stamped = [headers[number * _HEADER : (number + 1) * _HEADER].data for number in each.numbers]
            file = each.file.file
            segment = adopt_file(log.directory, index.first_seq, now_ns, file, index, (each.headers, stamped))
            each.log.release(each.segment)
            if isinstance(each.segment, SealedSegment):
                self._old_indexes.append((each.log, index_name(each.segment.name.first_seq)))
            self._adopted_segments.append((log, index.first_seq))
            log.adopt(segment)

    def rolls(self) -> Iterator[SegmentRoll]:
        """The roll controls to log, for every new segment that follows another one in its topic."""
        for topic, before in self._rolled:
            unsealed = self._log_of(topic).unsealed
            yield SegmentRoll(topic.topic_id, unsealed[-1].segment.first_seq, before)
        for log, first_seq in self._adopted_segments:
            older = [each.segment.first_seq for each in log.unsealed if each.segment.first_seq < first_seq]
            if older:
                yield SegmentRoll(log.directory.topic_id, first_seq, older[-1])

    def settle(self) -> None:
        """Clean up after the log records the adoption; after a crash the next opening does it."""
        for log, first_seq in self._adopted_segments:
            settle(log.directory, first_seq)
        for log, name in self._old_indexes:
            if log.directory.files.exists(log.directory.path(name)):
                log.directory.files.unlink(log.directory.path(name))


def read_headers(adopted: Adopted, batches: StagedBatches, headers: Bytes) -> None:
    """Read the headers of adopted batches into `headers`, at their numbers, and make the blocks durable."""
    file = adopted.file.file
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
