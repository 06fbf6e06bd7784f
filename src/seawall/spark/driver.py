"""The driver's queries to the server: the topics, their bounds, and the seq for a time.

It connects at the first query, because Spark pickles readers before that. The client handles lost connections and
server restarts; a server that is unreachable for longer than `timeout` is an error.

This module must not know Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from seawall.api.losses import survives_crashes
from seawall.api.topic_info import TopicInfo
from seawall.client.read.reading import ReceivedRows, TopicReader
from seawall.client.remote_log import RemoteLog
from seawall.core.types import TopicId
from seawall.errors import ConfigError, DataLossError, NotFoundError
from seawall.spark.offsets import TopicOffset, TopicOffsets
from seawall.spark.option_values import EARLIEST_SEQ, LATEST_SEQ, Offsets, OffsetSpec, Times
from seawall.spark.options import ReadOptions
from seawall.spark.planning import SeqRange
from seawall.spark.reading import target_of
from seawall.wire.format.codes import ReadBy

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Driver:
    """The server queries of one Spark query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._log: RemoteLog | None = None

    def connect(self) -> RemoteLog:
        """The log; connects on the first call."""
        if self._log is None:
            self._log = RemoteLog(target_of(self._options.server))
        return self._log

    def close(self) -> None:
        """Close all connections; idempotent."""
        log, self._log = self._log, None
        if log is not None:
            log.close()

    # --- topics ----------------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """The current state of those topics of the query that exist."""
        subscription = self._options.subscription
        if subscription.pattern is None:
            return self._described(subscription.names)
        matches = re.compile(subscription.pattern).fullmatch
        return self._described(name for name in self.connect().topics() if matches(name))

    def existing_topics(self) -> dict[str, TopicInfo]:
        """Like `topics`, but raises `NotFoundError` if a topic that was named does not exist."""
        found = self.topics()
        absent = sorted(set(self._options.subscription.names) - set(found))
        if absent:
            raise NotFoundError(
                f"there is no topic {', '.join(absent)} on {self._options.server.url}: create it, or correct subscribe"
            )
        return found

    def _described(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        found: dict[str, TopicInfo] = {}
        for name in names:
            try:
                found[name] = self.connect().describe(name)
            except NotFoundError:
                # It was deleted since it was listed, or never existed: the caller decides what that means.
                continue
        return found

    # --- offsets ---------------------------------------------------------------------------------------------------

    def start_offsets(self, topics: dict[str, TopicInfo]) -> TopicOffsets:
        """Where a new query starts."""
        return {name: self._start(topic) for name, topic in topics.items()}

    def end_offsets(self, topics: dict[str, TopicInfo]) -> TopicOffsets:
        """Where a batch query ends."""
        return {name: self._end(topic) for name, topic in topics.items()}

    def _start(self, topic: TopicInfo) -> TopicOffset:
        spec = self._options.start
        if isinstance(spec, Offsets):
            return TopicOffset(self._explicit(topic, spec, "startingOffsets"), topic.topic_epoch)
        moment_ms = _of_topic(spec, topic, "startingOffsetsByTimestamp")
        seq = self._seq_at(topic, moment_ms)
        if seq >= topic.next_seq and not self._options.is_late_start_latest:
            raise ConfigError(
                f"topic {topic.name!r} has no record since {_EPOCH + timedelta(milliseconds=moment_ms)}: give an "
                "earlier time, or startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        return TopicOffset(seq, topic.topic_epoch)

    def _end(self, topic: TopicInfo) -> TopicOffset:
        spec = self._options.end
        if isinstance(spec, Offsets):
            return TopicOffset(self._explicit(topic, spec, "endingOffsets"), topic.topic_epoch)
        seq = self._seq_at(topic, _of_topic(spec, topic, "endingOffsetsByTimestamp"))
        return TopicOffset(min(seq, topic.next_seq), topic.topic_epoch)

    def _explicit(self, topic: TopicInfo, spec: Offsets, option: str) -> int:
        seq = _of_topic(spec, topic, option)
        if seq == EARLIEST_SEQ:
            return topic.floor
        if seq == LATEST_SEQ:
            return topic.next_seq
        epoch = spec.epochs.get(topic.name, topic.topic_epoch)
        if epoch != topic.topic_epoch:
            raise DataLossError(
                f"{option}: seq {seq} of topic {topic.name!r} is of epoch {epoch}, but the topic has epoch "
                f"{topic.topic_epoch}: it was deleted and created again; give seqs of the new topic, or earliest"
            )
        if seq > topic.next_seq and self._options.fail_on_data_loss:
            raise DataLossError(
                f"{option}: topic {topic.name!r} ends at seq {topic.next_seq}, before seq {seq}: give a lower one, or "
                "failOnDataLoss=false to take its end"
            )
        return min(seq, topic.next_seq)

    def seq_at_us(self, topic: TopicInfo, moment_us: int) -> int:
        """The seq of the first record at or after a time in microseconds since the Unix epoch."""
        if moment_us <= 0:
            return 1
        return self.connect().seq_at(topic.name, _EPOCH + timedelta(microseconds=moment_us))

    def first_live(self, wanted: SeqRange) -> int:
        """The first seq of a range that has a record, or its end: all seqs before it are deleted or lost."""
        reader = TopicReader(wanted.topic, TopicId(wanted.topic_id), ReadBy.SEQ, wanted.first, until=wanted.end)
        while reader.next_seq < wanted.end and not reader.is_at_end:
            found = reader.take_rows(self.connect().ask(reader.fetch(max_bytes=1, max_records=1)))
            if isinstance(found, ReceivedRows) and len(found.rows):
                return max(wanted.first, int(found.rows[0]["base_seq"]))
        return min(reader.next_seq, wanted.end)

    def _seq_at(self, topic: TopicInfo, moment_ms: int) -> int:
        return max(topic.floor, self.seq_at_us(topic, moment_ms * 1_000))


def range_of(topic: TopicInfo, first: int, end: int) -> SeqRange:
    """A range of seqs of a topic, with what tasks need to know about the topic."""
    size = topic.byte_count / topic.record_count if topic.record_count else 0.0
    is_crash_loss = not survives_crashes(topic.config.durability)
    return SeqRange(topic.name, topic.topic_id, first, max(first, end), size, is_crash_loss)


def _of_topic(spec: OffsetSpec, topic: TopicInfo, option: str) -> int:
    """The number for one topic."""
    by_topic = spec.moments_ms if isinstance(spec, Times) else spec.seqs
    if isinstance(by_topic, int):
        return by_topic
    if topic.name not in by_topic:
        raise ConfigError(f"{option} has no entry for topic {topic.name!r}: name every topic that the pattern matches")
    return by_topic[topic.name]
