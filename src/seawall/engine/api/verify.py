"""Judging a whole data directory: `storage/verify.py` reads the bytes, and here is what they mean.

Which batches must lie where, and which records are live, is what snapshot and log say together; replay knows, and
changes no file. So verification is the same for a directory that nobody has open (`seawall verify`) and for one whose
owner asks (`EmbeddedLog.verify`). Whoever calls sees to it that nobody changes the directory meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from seawall.core.types import TopicId
from seawall.engine.store.replay import replay, still_needed
from seawall.io.interfaces import Files
from seawall.storage.directory import DataDirectory
from seawall.storage.findings import VerifyReport
from seawall.storage.snapshots import Snapshot
from seawall.storage.verify import ExpectedBatches, KnownTopic, Verification
from seawall.topics.config import Durability

__all__ = ["known_topics", "verification", "verify_directory"]


def verification(files: Files, directory: DataDirectory) -> Verification:
    """A verification that is about to begin; its findings come as it runs."""
    return Verification(files, directory, lambda snapshot: known_topics(files, directory, snapshot))


def verify_directory(files: Files, directory: DataDirectory) -> VerifyReport:
    """Everything that is damaged in a directory, and what was read."""
    running = verification(files, directory)
    return VerifyReport(tuple(running.run()), running.totals)


def known_topics(files: Files, directory: DataDirectory, snapshot: Snapshot | None) -> Mapping[TopicId, KnownTopic]:
    """What snapshot and log say of every topic."""
    replayed = replay(files, directory, snapshot)
    return {
        topic.topic_id: KnownTopic(
            {
                first_seq: ExpectedBatches(segment.index.entries, frozenset(segment.waiting.entries.tolist()))
                for first_seq, segment in still_needed(topic, replayed.segments.get(topic.topic_id, {})).items()
            },
            # What was only ever in memory is in no file, and missed by nobody: it went with the process that had it.
            ()
            if topic.config.durability is Durability.EPHEMERAL
            else tuple(topic.live_runs(topic.floor, topic.head_seq)),
        )
        for topic in replayed.catalog
    }
