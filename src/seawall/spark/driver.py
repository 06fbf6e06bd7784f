"""What the driver asks the server: which topics there are, where they begin and end, and which seq a time means.

Connections are made when something is first asked: readers are copied to executors before that. Lost connections and a
server that starts again are the client's matter; who is away for longer than `timeout` is an error.

This module must not know Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from seawall.api.topic_config import Durability
from seawall.api.topic_info import TopicInfo
from seawall.client.read.reading import ReceivedRows, TopicReader
from seawall.client.remote_log import RemoteLog
from seawall.core.types import TopicId
from seawall.errors import ConfigError, DataLossError, NotFoundError
from seawall.spark.offsets import TopicOffset, TopicOffsets
from seawall.spark.option_values import EARLIEST_SEQ, LATEST_SEQ, Offsets, Place, Times
from seawall.spark.options import ReadOptions
from seawall.spark.planning import SeqRange
from seawall.spark.reading import target_of
from seawall.wire.format.codes import ReadBy

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Driver:
    """The questions of one query."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._log: RemoteLog | None = None

    @property
    def log(self) -> RemoteLog:
        """The server, connected."""
        if self._log is None:
            self._log = RemoteLog(target_of(self._options.server))
        return self._log

    def close(self) -> None:
        """End all connections; closing twice is fine."""
        log, self._log = self._log, None
        if log is not None:
            log.close()

    # --- topics ----------------------------------------------------------------------------------------------------

    def topics(self) -> dict[str, TopicInfo]:
        """The topics that the query reads and that are there, as they are now."""
        subscription = self._options.subscription
        if subscription.pattern is None:
            return self._described(subscription.names)
        fits = re.compile(subscription.pattern).fullmatch
        return self._described(name for name in self.log.topics() if fits(name))

    def existing_topics(self) -> dict[str, TopicInfo]:
        """The same, if all that were named are there."""
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
                found[name] = self.log.describe(name)
            except NotFoundError:
                # One that was deleted since it was listed, or never was: who asked decides what that means.
                continue
        return found

    # --- places ----------------------------------------------------------------------------------------------------

    def start_offsets(self, topics: dict[str, TopicInfo]) -> TopicOffsets:
        """Where a new query begins."""
        return {name: self._start(topic) for name, topic in topics.items()}

    def end_offsets(self, topics: dict[str, TopicInfo]) -> TopicOffsets:
        """Where a batch query ends."""
        return {name: self._end(topic) for name, topic in topics.items()}

    def _start(self, topic: TopicInfo) -> TopicOffset:
        place = self._options.start
        if isinstance(place, Offsets):
            return TopicOffset(self._explicit(topic, place, "startingOffsets"), topic.topic_epoch)
        moment_ms = _of_topic(place, topic, "startingOffsetsByTimestamp")
        seq = self._seq_at(topic, moment_ms)
        if seq >= topic.next_seq and not self._options.is_late_start_latest:
            raise ConfigError(
                f"topic {topic.name!r} has no record that is as young as {_EPOCH + timedelta(milliseconds=moment_ms)}: "
                "name an earlier time, or startingOffsetsByTimestampStrategy=latest to begin at its end"
            )
        return TopicOffset(seq, topic.topic_epoch)

    def _end(self, topic: TopicInfo) -> TopicOffset:
        place = self._options.end
        if isinstance(place, Offsets):
            return TopicOffset(self._explicit(topic, place, "endingOffsets"), topic.topic_epoch)
        seq = self._seq_at(topic, _of_topic(place, topic, "endingOffsetsByTimestamp"))
        return TopicOffset(min(seq, topic.next_seq), topic.topic_epoch)

    def _explicit(self, topic: TopicInfo, place: Offsets, option: str) -> int:
        seq = _of_topic(place, topic, option)
        if seq == EARLIEST_SEQ:
            return topic.floor
        if seq == LATEST_SEQ:
            return topic.next_seq
        said = place.epochs.get(topic.name, topic.topic_epoch)
        if said != topic.topic_epoch:
            raise DataLossError(
                f"{option}: seq {seq} is of topic {topic.name!r} in its life {said}, and this is life "
                f"{topic.topic_epoch}: it was deleted and made again; give seqs of this one, or earliest"
            )
        if seq > topic.next_seq and self._options.fail_on_data_loss:
            raise DataLossError(
                f"{option}: topic {topic.name!r} ends at seq {topic.next_seq}, before seq {seq}: give a lower one, or "
                "failOnDataLoss=false to take its end"
            )
        return min(seq, topic.next_seq)

    def seq_at_us(self, topic: TopicInfo, moment_us: int) -> int:
        """Seq of the first record that is not older than a time in microseconds, which seqs of others lie around."""
        if moment_us <= 0:
            return 1
        return self.log.seq_at(topic.name, _EPOCH + timedelta(microseconds=moment_us))

    def first_live(self, wanted: SeqRange) -> int:
        """The first seq of a range that has a record, its end if none has: what lies before is deleted or lost."""
        reader = TopicReader(wanted.topic, TopicId(wanted.topic_id), ReadBy.SEQ, wanted.first, until=wanted.end)
        while reader.next_seq < wanted.end and not reader.is_at_end:
            found = reader.take_rows(self.log.ask(reader.fetch(max_bytes=1, max_records=1)))
            if isinstance(found, ReceivedRows) and len(found.rows):
                return max(wanted.first, int(found.rows[0]["base_seq"]))
        return min(reader.next_seq, wanted.end)

    def _seq_at(self, topic: TopicInfo, moment_ms: int) -> int:
        return max(topic.floor, self.seq_at_us(topic, moment_ms * 1_000))


def range_of(topic: TopicInfo, first: int, end: int) -> SeqRange:
    """Seqs of a topic, as tasks get them."""
    size = topic.byte_count / topic.record_count if topic.record_count else 0.0
    is_crash_loss = topic.config.durability is not Durability.FSYNC
    return SeqRange(topic.name, topic.topic_id, first, max(first, end), size, is_crash_loss)


def _of_topic(place: Place, topic: TopicInfo, option: str) -> int:
    """What a place says of one topic."""
    by_topic = place.moments_ms if isinstance(place, Times) else place.seqs
    if isinstance(by_topic, int):
        return by_topic
    if topic.name not in by_topic:
        raise ConfigError(f"{option} says nothing of topic {topic.name!r}: name every topic that the pattern fits")
    return by_topic[topic.name]
