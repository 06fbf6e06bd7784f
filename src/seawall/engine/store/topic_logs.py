"""The logs of all topics of a store, each recovered when it is first needed.

A data directory may have a hundred thousand topics, most of which are never used between two starts. So opening it
touches none of their directories and keeps in memory what the snapshot and the log know of their segments. The
directory of a topic is recovered (`recover_topic`) when the topic is first read or written, when it has unflushed
batches, or when its segments may be dropped. Until then its files stay as the last process left them. Recovery can run
at any time: every step reaches the same state however often it is interrupted and repeated.

A checkpoint records the segments of every topic, recovered or not, and keeps every part of the log that an unrecovered
topic needs.

One owner at a time. This module must not know how a batch becomes durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from seawall.core.types import Seq, TopicId
from seawall.engine.read.planning import Locate
from seawall.engine.store.replay import ReplayedSegment, segment_entries, still_needed
from seawall.engine.store.topic_log import ActiveSegment, TopicLog, topic_home
from seawall.engine.store.unflushed import UnflushedBatches
from seawall.io.disk.files import parent_directory
from seawall.io.disk.memory_files import BufferPool, MemoryFiles
from seawall.io.interfaces import Files
from seawall.storage.directory import DataDirectory
from seawall.storage.open_files import OpenFiles
from seawall.storage.segments.batch_index import Entries
from seawall.storage.segments.recovery import recover_topic
from seawall.topics.config import Durability
from seawall.topics.state import TopicState

#: Topics with unflushed batches that one call recovers: a few milliseconds of work.
_RECOVERED_AT_ONCE: Final = 16

ReplayedSegments = dict[Seq, ReplayedSegment]


class TopicLogs:
    """The logs of one store, by topic."""

    def __init__(
        self,
        files: Files,
        directory: DataDirectory,
        open_files: OpenFiles,
        locate: Locate,
        topics: Mapping[TopicId, TopicState],
        segments: dict[TopicId, ReplayedSegments],
    ) -> None:
        """`topics` are the topics that may have files; `segments` is what snapshot and log know of their segments."""
        self._files = files
        self._directory = directory
        self._locate = locate
        self._logs: dict[TopicId, TopicLog] = {}
        #: The topics that are not recovered yet, each with its segments.
        self._unrecovered = {topic_id: (topic, segments.get(topic_id, {})) for topic_id, topic in topics.items()}
        #: Those of them that have unflushed batches.
        self._unflushed = {
            topic_id: None for topic_id, (_, known) in self._unrecovered.items() if _has_unflushed(known)
        }
        self.open_files = open_files
        #: True once the names of the topic directories that existed at the opening are durable.
        self._are_names_durable = False
        #: Buffers that topics of class ephemeral share.
        self.buffer_pool = BufferPool()
        #: Called with each recovered topic.
        self.on_recovered: Callable[[TopicState], None] = _ignore

    def __contains__(self, topic_id: TopicId) -> bool:
        """True if a topic has a log, recovered or not."""
        return topic_id in self._logs or topic_id in self._unrecovered

    def __getitem__(self, topic_id: TopicId) -> TopicLog:
        """The log of a topic that has one."""
        log = self.get(topic_id)
        if log is None:
            raise KeyError(topic_id)
        return log

    def __iter__(self) -> Iterator[TopicLog]:
        """The recovered logs."""
        return iter(self._logs.values())

    def get(self, topic_id: TopicId) -> TopicLog | None:
        """The log of a topic, recovered first if needed; None if it has none."""
        log = self._logs.get(topic_id)
        return self._recover(topic_id) if log is None and topic_id in self._unrecovered else log

    def of(self, topic: TopicState) -> TopicLog:
        """The log of a topic; creates it if there is none."""
        log = self.get(topic.topic_id)
        if log is None:
            is_kept = topic.config.durability is not Durability.EPHEMERAL
            files = self._files if is_kept else MemoryFiles(self.buffer_pool)
            home = topic_home(files, self._directory, topic.topic_id, self.open_files if is_kept else None)
            log = self._logs[topic.topic_id] = TopicLog(home, self._locate, [], [], is_kept=is_kept)
        return log

    def is_unrecovered(self, topic_id: TopicId) -> bool:
        """True if a topic is not recovered yet."""
        return topic_id in self._unrecovered

    def recover_unflushed(self) -> bool:
        """Recover some topics that have unflushed batches; false if none are left."""
        for topic_id in list(islice(self._unflushed, _RECOVERED_AT_ONCE)):
            self._recover(topic_id)
        return bool(self._unflushed)

    def unsealed_entries(self) -> Iterator[tuple[TopicId, Seq, Entries]]:
        """Every unsealed segment that outlives the process: topic, first seq, index entries."""
        for log in self._logs.values():
            yield from log.unsealed_entries()
        for topic_id, (_, known) in self._unrecovered.items():
            yield from ((topic_id, first_seq, entries) for first_seq, entries in segment_entries(known))

    def forget(self, topic_id: TopicId) -> None:
        """Close the files of a deleted topic and forget it."""
        self._unrecovered.pop(topic_id, None)
        self._unflushed.pop(topic_id, None)
        log = self._logs.pop(topic_id, None)
        if log is not None:
            log.close()

    def close(self) -> None:
        """Close all files, without a sync."""
        for log in self._logs.values():
            log.close()

    def _recover(self, topic_id: TopicId) -> TopicLog:
        """Recover the segments of a topic; the next flush copies its unflushed batches."""
        topic, known = self._unrecovered[topic_id]
        home = topic_home(self._files, self._directory, topic_id, self.open_files)
        if self._files.exists(home.directory):
            # A killed process may have created the directory, or sealed a segment, without making the name durable.
            # Nothing else would do it: the directory exists, and recovery finds the segment under its new name.
            if not self._are_names_durable:
                self._files.sync_directory(parent_directory(home.directory))
                self._are_names_durable = True
            self._files.sync_directory(home.directory)
        segments = still_needed(topic, known)
        unflushed = {first_seq for first_seq, segment in segments.items() if len(segment.unflushed)}
        recovery = recover_topic(home, dict(segment_entries(segments)), unflushed=unflushed)
        unsealed = []
        for segment in (*recovery.pending, *([recovery.active] if recovery.active else [])):
            expected = segments.get(segment.first_seq)
            batches = UnflushedBatches() if expected is None else expected.unflushed.copy()
            unsealed.append(ActiveSegment(segment, batches))
        log = self._logs[topic_id] = TopicLog(home, self._locate, list(recovery.sealed), unsealed)
        del self._unrecovered[topic_id]
        self._unflushed.pop(topic_id, None)
        self.on_recovered(topic)
        return log


def _has_unflushed(known: ReplayedSegments) -> bool:
    return any(len(segment.unflushed) for segment in known.values())


def _ignore(_topic: TopicState) -> None:
    """The default callback."""
