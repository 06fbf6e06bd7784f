"""How a streaming query is read: where it begins, how much a micro-batch takes, and which tasks that is.

Spark keeps the offsets (`offsets.py`) and asks; this answers from what the server says at that moment and keeps
nothing but the target of `Trigger.AvailableNow` and the time of the last batch, which may both be lost. So a query goes
on where its checkpoint says, however it ended. `commit` comes late or never, and nothing depends on it.

INV-STREAM-REPLAY: a micro-batch that is repeated has the same records, as long as the topics still have them. Its tasks
follow from its two offsets and the topics as they are.
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
from seawall.spark.planning import SeqRange, admit, rows_within, split
from seawall.spark.source import read_partition

if TYPE_CHECKING:
    import pyarrow as pa

_NS_PER_MS = 1_000_000


class SeawallStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the topics of a streaming query, batch after batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._driver = Driver(options)
        #: Where the topics ended when a query that ends by itself began; None for one that goes on.
        self._target: TopicOffsets | None = None
        self._last_batch_ns: int | None = None

    # --- where it is -----------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        """Where a new query begins."""
        return offset_of(self._driver.start_offsets(self._driver.existing_topics()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options bound. Spark knows one kind at a time: the others are kept to by `latestOffset`."""
        admission = self._options.admission
        if admission.max_rows is not None:
            return ReadMaxRows(admission.max_rows)
        if admission.max_bytes is not None:
            return ReadMaxBytes(admission.max_bytes)
        return ReadAllAvailable() if admission.min_rows is None else ReadMinRows(admission.min_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """End where the topics end now."""
        self._target = _ends(self._driver.topics())

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Where the next batch ends; `start` if there is none yet."""
        before = offsets_of(start)
        topics = self._driver.topics()
        self._require(before, topics)
        begins = {name: self._begin(before.get(name), topic) for name, topic in topics.items()}
        ranges = [range_of(topic, begins[name].seq, self._end_of(topic)) for name, topic in topics.items()]
        taken = self._admitted({each.topic: each for each in ranges if len(each)}, limit)
        if not taken:
            return start
        self._last_batch_ns = OsClock().monotonic_ns()
        ends = {name: TopicOffset(begins[name].seq + count, begins[name].epoch) for name, count in taken.items()}
        return offset_of(before | ends)

    def reportLatestOffset(self) -> Offset:
        """Where the topics end: what is between that and the end of a batch is lag."""
        return offset_of(_ends(self._driver.topics()))

    # --- tasks -----------------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        before, after = offsets_of(start), offsets_of(end)
        changed = {name: place for name, place in after.items() if before.get(name) != place}
        topics = self._driver.topics() if changed else {}
        ranges = [found for name, place in changed.items() if (found := self._range(before, name, place, topics))]
        return [InputPartition(part) for part in split(ranges, self._options.splitting)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return read_partition(partition, self._options)

    def stop(self) -> None:
        """The query has ended."""
        self._driver.close()

    # --- inside ----------------------------------------------------------------------------------------------------

    def _begin(self, before: TopicOffset | None, topic: TopicInfo) -> TopicOffset:
        """Where the next batch begins in a topic (INV-STREAM-LIFE)."""
        fresh = TopicOffset(topic.floor, topic.topic_epoch)
        if before is None:
            # One that the pattern did not fit before: it is read from its beginning.
            return fresh
        if before.epoch != topic.topic_epoch:
            self._lose(
                f"topic {topic.name!r} was deleted and made again: the query is at seq {before.seq} of its life "
                f"{before.epoch}, and this is life {topic.topic_epoch}. With failOnDataLoss=false, or a new "
                "checkpointLocation, the new one is read from its beginning"
            )
            return fresh
        if before.seq > topic.next_seq:
            self._lose(
                f"topic {topic.name!r} ends at seq {topic.next_seq}, and the query has read up to {before.seq}: the "
                "server has lost its end, or is another one. With failOnDataLoss=false the query goes on at its end"
            )
            return TopicOffset(topic.next_seq, topic.topic_epoch)
        return before

    def _require(self, before: TopicOffsets, topics: dict[str, TopicInfo]) -> None:
        for name in sorted(set(before) - set(topics)):
            self._lose(
                f"topic {name!r} is not there any more, and the query has read it up to seq {before[name].seq}. With "
                "failOnDataLoss=false the query goes on without it"
            )

    def _lose(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLossError(text)

    def _end_of(self, topic: TopicInfo) -> int:
        """Where a topic ends for this query."""
        if self._target is None:
            return topic.next_seq
        target = self._target.get(topic.name)
        # What came into being since then is for the next run.
        return target.seq if target is not None and target.epoch == topic.topic_epoch else 0

    def _admitted(self, ranges: dict[str, SeqRange], limit: ReadLimit) -> dict[str, int]:
        """How many seqs of what waits in each topic the next batch takes; none if it has to wait for more."""
        admission = self._options.admission
        waiting = {name: len(each) for name, each in ranges.items()}
        if not waiting or isinstance(limit, ReadAllAvailable):
            return waiting
        total = sum(waiting.values())
        min_rows = limit.min_rows if isinstance(limit, ReadMinRows) else admission.min_rows
        if min_rows is not None and total < min_rows and self._target is None and not self._is_due():
            return {}
        bounds = [total]
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else admission.max_rows
        if max_rows is not None:
            bounds.append(max_rows)
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else admission.max_bytes
        if max_bytes is not None:
            sizes = {name: each.record_size for name, each in ranges.items()}
            bounds.append(rows_within(waiting, sizes, max_bytes))
        if min(bounds) >= total:
            return waiting
        # A crash may cost a million numbers, which no batch is spent on: they come with the records behind them.
        empty = {name: self._driver.first_live(each) - each.first for name, each in ranges.items()}
        shares = admit({name: count - empty[name] for name, count in waiting.items()}, min(bounds))
        return {name: empty[name] + share for name, share in shares.items() if empty[name] + share}

    def _is_due(self) -> bool:
        """Whether a batch comes even though it is small: nobody knows of the last one, or it was long ago."""
        if self._last_batch_ns is None:
            return True
        waited_ns = OsClock().monotonic_ns() - self._last_batch_ns
        return waited_ns >= self._options.admission.max_delay_ms * _NS_PER_MS

    def _range(
        self, before: TopicOffsets, name: str, end: TopicOffset, topics: dict[str, TopicInfo]
    ) -> SeqRange | None:
        """What a batch takes of a topic; None if it is of a life that is over, and that does not matter."""
        topic = topics.get(name)
        if topic is None or topic.topic_epoch != end.epoch:
            self._lose(
                f"topic {name!r} was deleted, with records up to seq {end.seq - 1} that the query has planned to read. "
                "With failOnDataLoss=false the query goes on without them"
            )
            return None
        start = before.get(name)
        first = topic.floor if start is None or start.epoch != end.epoch else start.seq
        return range_of(topic, first, end.seq)


def _ends(topics: dict[str, TopicInfo]) -> TopicOffsets:
    return {name: TopicOffset(topic.next_seq, topic.topic_epoch) for name, topic in topics.items()}
