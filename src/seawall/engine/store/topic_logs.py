"""The logs of all topics of a store, each put in order when it is first needed.

A directory may have a hundred thousand topics, most of which nobody asks for between two starts. So opening it touches
none of them: what snapshot and log say of their segments is kept in memory, and the directory of a topic is looked at
when the topic is first read or written (`recover_topic`), when batches of it wait in the log for their places, or when
segments of it may be dropped. Until then its files stay as the last end left them, which recovery can put in order at
any time: each of its steps comes to the same state however often it is cut off and begins again.

A checkpoint states the segments of every topic, recovered or not, and drops no part of the log that a topic needs which
is not recovered.

One owner at a time. This module must not know what makes a batch durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from seawall.core.types import Seq, TopicId
from seawall.engine.maintenance.retention import still_needed
from seawall.engine.read.planning import Locate
from seawall.engine.store.replay import ReplayedSegment, segment_entries
from seawall.engine.store.topic_log import ActiveSegment, TopicLog, topic_home
from seawall.engine.store.unflushed import Waiting
from seawall.io.disk.files import parent_directory
from seawall.io.disk.memory_files import BufferPool, MemoryFiles
from seawall.io.interfaces import Files
from seawall.storage.directory import DataDirectory
from seawall.storage.open_files import OpenFiles
from seawall.storage.segments.batch_index import Entries
from seawall.storage.segments.recovery import recover_topic
from seawall.topics.config import Durability
from seawall.topics.state import TopicState

#: Topics that one call recovers because batches of them wait in the log: some milliseconds.
_RECOVERED_AT_ONCE: Final = 16

Replayed = dict[Seq, ReplayedSegment]


class TopicLogs:
    """The logs of one store, by topic."""

    def __init__(
        self,
        files: Files,
        directory: DataDirectory,
        open_files: OpenFiles,
        locate: Locate,
        topics: Mapping[TopicId, TopicState],
        segments: dict[TopicId, Replayed],
    ) -> None:
        """`topics` are those that have files and may be on disk, `segments` what is known of theirs."""
        self._files = files
        self._directory = directory
        self._locate = locate
        self._logs: dict[TopicId, TopicLog] = {}
        #: Topics that are not recovered yet, and their segments.
        self._pending = {topic_id: (topic, segments.get(topic_id, {})) for topic_id, topic in topics.items()}
        #: Those of them that have batches which wait in the log.
        self._waiting = {topic_id: None for topic_id, (_, known) in self._pending.items() if _waits(known)}
        self.open_files = open_files
        #: Whether the directories of topics that were there at the opening have durable names.
        self._are_names_durable = False
        #: What topics of class ephemeral share.
        self.pooled_memory = BufferPool()
        #: Told of each topic that was recovered.
        self.on_recovered: Callable[[TopicState], None] = _nothing

    def __contains__(self, topic_id: TopicId) -> bool:
        """Whether a topic has a log, recovered or not."""
        return topic_id in self._logs or topic_id in self._pending

    def __getitem__(self, topic_id: TopicId) -> TopicLog:
        """The log of a topic that has one."""
        log = self.get(topic_id)
        if log is None:
            raise KeyError(topic_id)
        return log

    def __iter__(self) -> Iterator[TopicLog]:
        """Those that are recovered."""
        return iter(self._logs.values())

    def get(self, topic_id: TopicId) -> TopicLog | None:
        """The log of a topic, if it has one; recovered if it was not."""
        log = self._logs.get(topic_id)
        return self._recover(topic_id) if log is None and topic_id in self._pending else log

    def of(self, topic: TopicState) -> TopicLog:
        """The log of a topic, which is made if there is none yet."""
        log = self.get(topic.topic_id)
        if log is None:
            is_kept = topic.config.durability is not Durability.EPHEMERAL
            files = self._files if is_kept else MemoryFiles(self.pooled_memory)
            home = topic_home(files, self._directory, topic.topic_id, self.open_files if is_kept else None)
            log = self._logs[topic.topic_id] = TopicLog(home, self._locate, [], [], is_kept=is_kept)
        return log

    def is_pending(self, topic_id: TopicId) -> bool:
        """Whether a topic is not recovered yet."""
        return topic_id in self._pending

    def recover_waiting(self) -> bool:
        """Recover some topics of which batches wait in the log; false if there are none any more."""
        for topic_id in list(islice(self._waiting, _RECOVERED_AT_ONCE)):
            self._recover(topic_id)
        return bool(self._waiting)

    def unsealed(self) -> Iterator[tuple[TopicId, Seq, Entries]]:
        """Every segment that is not sealed and outlives the process: topic, first seq, index."""
        for log in self._logs.values():
            yield from log.unsealed()
        for topic_id, (_, known) in self._pending.items():
            yield from ((topic_id, first_seq, entries) for first_seq, entries in segment_entries(known))

    def forget(self, topic_id: TopicId) -> None:
        """A topic is deleted: give its files back."""
        self._pending.pop(topic_id, None)
        self._waiting.pop(topic_id, None)
        log = self._logs.pop(topic_id, None)
        if log is not None:
            log.close()

    def close(self) -> None:
        """Give all files back; syncs nothing."""
        for log in self._logs.values():
            log.close()

    def _recover(self, topic_id: TopicId) -> TopicLog:
        """Put the segments of a topic in order; batches that only the log has will be copied by the next checkpoint."""
        topic, known = self._pending[topic_id]
        home = topic_home(self._files, self._directory, topic_id, self.open_files)
        if self._files.exists(home.directory):
            # A killed process may have made the directory, or sealed a segment, whose name is not durable: nobody makes
            # it again, or would look for the old one.
            if not self._are_names_durable:
                self._files.sync_directory(parent_directory(home.directory))
                self._are_names_durable = True
            self._files.sync_directory(home.directory)
        segments = still_needed(topic, known)
        unfilled = {first_seq for first_seq, segment in segments.items() if len(segment.waiting)}
        recovery = recover_topic(home, dict(segment_entries(segments)), unfilled=unfilled)
        filling = []
        for segment in (*recovery.pending, *([recovery.active] if recovery.active else [])):
            expected = segments.get(segment.first_seq)
            filling.append(ActiveSegment(segment, Waiting() if expected is None else expected.waiting.copy()))
        log = self._logs[topic_id] = TopicLog(home, self._locate, list(recovery.sealed), filling)
        del self._pending[topic_id]
        self._waiting.pop(topic_id, None)
        self.on_recovered(topic)
        return log


def _waits(known: Replayed) -> bool:
    return any(len(segment.waiting) for segment in known.values())


def _nothing(_topic: TopicState) -> None:
    """Nobody wants to know."""
