"""The reader of streaming queries: where a query starts, how much a micro-batch takes, and its tasks.

Spark keeps the offsets (`offsets.py`) in its checkpoint. The reader answers from the current state of the server, and
keeps only the target of `Trigger.AvailableNow` and the time of the last batch, which may both be lost. So a query
resumes from its checkpoint, no matter how it ended. Spark calls `commit` late or never, and nothing depends on it.

INV-STREAM-REPLAY: a micro-batch that is repeated has the same records, as long as the topics still have them. Its tasks
follow from its two offsets and the current state of the topics.
INV-STREAM-LIFE: seqs of a deleted topic are never taken for those of a new topic with the same name.

This module must not know how records are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from seawall.api.topic_info import TopicInfo
from seawall.errors import DataLossError
from seawall.io.process.clocks import OsClock
from seawall.spark.driver import Driver, range_of
from seawall.spark.offsets import Offset, TopicOffset, TopicOffsets, offset_of, offsets_of
from seawall.spark.options import ReadOptions
from seawall.spark.partitions import read_partition
from seawall.spark.planning import SeqRange, admit, rows_within, split

if TYPE_CHECKING:
    import pyarrow as pa

_NS_PER_MS = 1_000_000


class SeawallStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics of a streaming query in micro-batches."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._driver = Driver(options)
        #: With `Trigger.AvailableNow`, where the topics ended when the query started; otherwise None.
        self._target: TopicOffsets | None = None
        self._last_batch_ns: int | None = None

    # --- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """The offset at which a new query starts."""
        return offset_of(self._driver.start_offsets(self._driver.existing_topics()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit in the options. Spark supports one kind at a time; `latestOffset` applies the others."""
        admission = self._options.admission
        if admission.max_rows is not None:
            return ReadMaxRows(admission.max_rows)
        if admission.max_bytes is not None:
            return ReadMaxBytes(admission.max_bytes)
        return ReadAllAvailable() if admission.min_rows is None else ReadMinRows(admission.min_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the current ends of the topics as the target of the query."""
        self._target = _ends(self._driver.topics())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """The end of the next micro-batch; `start` if there is none yet."""
        before = offsets_of(start)
        topics = self._driver.topics()
        self._require(before, topics)
        starts = {name: self._start_of(before.get(name), topic) for name, topic in topics.items()}
        ranges = [range_of(topic, starts[name].seq, self._end_of(topic)) for name, topic in topics.items()]
        admitted = self._admitted({each.topic: each for each in ranges if len(each)}, limit)
        if not admitted:
            return start
        self._last_batch_ns = OsClock().monotonic_ns()
        ends = {name: TopicOffset(starts[name].seq + count, starts[name].epoch) for name, count in admitted.items()}
        return offset_of(before | ends)

    def reportLatestOffset(self) -> Offset:
        """The current ends of the topics; Spark derives the lag from them."""
        return offset_of(_ends(self._driver.topics()))

    # --- tasks -----------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a micro-batch."""
        before, after = offsets_of(start), offsets_of(end)
        changed = {name: offset for name, offset in after.items() if before.get(name) != offset}
        topics = self._driver.topics() if changed else {}
        ranges = [found for name, offset in changed.items() if (found := self._range(before, name, offset, topics))]
        return [InputPartition(part) for part in split(ranges, self._options.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_partition(partition, self._options)

    def stop(self) -> None:
        """The query has ended."""
        self._driver.close()

    # --- internal --------------------------------------------------------------------------------------------------

    def _start_of(self, before: TopicOffset | None, topic: TopicInfo) -> TopicOffset:
        """Where the next micro-batch starts in a topic (INV-STREAM-LIFE)."""
        beginning = TopicOffset(topic.floor, topic.topic_epoch)
        if before is None:
            # A topic that is new for the pattern is read from its beginning.
            return beginning
        if before.epoch != topic.topic_epoch:
            self._lose(
                f"topic {topic.name!r} was deleted and created again: the query is at seq {before.seq} of epoch "
                f"{before.epoch}, and the topic has epoch {topic.topic_epoch} now. With failOnDataLoss=false, or a new "
                "checkpointLocation, the new topic is read from its beginning"
            )
            return beginning
        if before.seq > topic.next_seq:
            self._lose(
                f"topic {topic.name!r} ends at seq {topic.next_seq}, but the query has read up to {before.seq}: the "
                "server has lost records, or is another one. With failOnDataLoss=false the query continues at the end"
            )
            return TopicOffset(topic.next_seq, topic.topic_epoch)
        return before

    def _require(self, before: TopicOffsets, topics: dict[str, TopicInfo]) -> None:
        for name in sorted(set(before) - set(topics)):
            self._lose(
                f"topic {name!r} does not exist any more, and the query has read it up to seq {before[name].seq}. With "
                "failOnDataLoss=false the query continues without it"
            )

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(text)

    def _end_of(self, topic: TopicInfo) -> int:
        """Where a topic ends for this query."""
        if self._target is None:
            return topic.next_seq
        target = self._target.get(topic.name)
        # A topic created since then is for the next run.
        return target.seq if target is not None and target.epoch == topic.topic_epoch else 0

    def _admitted(self, ranges: dict[str, SeqRange], limit: ReadLimit) -> dict[str, int]:
        """How many pending seqs of each topic the next micro-batch takes; empty if it must wait for more."""
        admission = self._options.admission
        pending = {name: len(each) for name, each in ranges.items()}
        if not pending or isinstance(limit, ReadAllAvailable):
            return pending
        total = sum(pending.values())
        min_rows = limit.min_rows if isinstance(limit, ReadMinRows) else admission.min_rows
        if min_rows is not None and total < min_rows and self._target is None and not self._is_due():
            return {}
        limits = [total]
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else admission.max_rows
        if max_rows is not None:
            limits.append(max_rows)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else admission.max_bytes
        if max_bytes is not None:
            sizes = {name: each.record_size for name, each in ranges.items()}
            limits.append(rows_within(pending, sizes, max_bytes))
        if min(limits) >= total:
            return pending
        # A crash may skip a million seqs. They do not count against the limit: they go with the records after them.
        skipped = {name: self._driver.first_live(each) - each.first for name, each in ranges.items()}
        admitted = admit({name: count - skipped[name] for name, count in pending.items()}, min(limits))
        return {name: skipped[name] + count for name, count in admitted.items() if skipped[name] + count}

    def _is_due(self) -> bool:
        """True if a micro-batch below `min_rows` is due: it is the first one, or the last one was long ago."""
        if self._last_batch_ns is None:
            return True
        waited_ns = OsClock().monotonic_ns() - self._last_batch_ns
        return waited_ns >= self._options.admission.max_delay_ms * _NS_PER_MS

    def _range(
        self, before: TopicOffsets, name: str, end: TopicOffset, topics: dict[str, TopicInfo]
    ) -> SeqRange | None:
        """The range of a topic in a micro-batch; None if the topic was deleted and the query tolerates that."""
        topic = topics.get(name)
        if topic is None or topic.topic_epoch != end.epoch:
            self._lose(
                f"topic {name!r} was deleted, with records up to seq {end.seq - 1} that the query has planned to read. "
                "With failOnDataLoss=false the query continues without them"
            )
            return None
        start = before.get(name)
        first = topic.floor if start is None or start.epoch != end.epoch else start.seq
        return range_of(topic, first, end.seq)


def _ends(topics: dict[str, TopicInfo]) -> TopicOffsets:
    return {name: TopicOffset(topic.next_seq, topic.topic_epoch) for name, topic in topics.items()}
