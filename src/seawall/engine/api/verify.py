"""Verify a whole data directory: `storage/verify.py` checks the bytes, this module tells it what to expect.

The snapshot and the write-ahead log together define which batches must be where and which records are live. Replay
reconstructs that and changes no file. So verification works the same for a directory that no process has open
(`seawall verify`) and for one that its owner verifies (`EmbeddedLog.verify`). The caller must make sure that nothing
changes the directory during the verification.
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
    """Create a verification; it yields its findings as it runs."""
    return Verification(files, directory, lambda snapshot: known_topics(files, directory, snapshot))


def verify_directory(files: Files, directory: DataDirectory) -> VerifyReport:
    """Verify a directory; returns all damage and the totals of what was read."""
    running = verification(files, directory)
    return VerifyReport(tuple(running.run()), running.totals)


def known_topics(files: Files, directory: DataDirectory, snapshot: Snapshot | None) -> Mapping[TopicId, KnownTopic]:
    """Returns what snapshot and log expect of every topic."""
    replayed = replay(files, directory, snapshot)
    return {
        topic.topic_id: KnownTopic(
            {
                first_seq: ExpectedBatches(segment.index.entries, frozenset(segment.unflushed.entries.tolist()))
                for first_seq, segment in still_needed(topic, replayed.segments.get(topic.topic_id, {})).items()
            },
            # Ephemeral records were only in the memory of their process: no file holds them, and none are missing.
            ()
            if topic.config.durability is Durability.EPHEMERAL
            else tuple(topic.live_runs(topic.floor, topic.head_seq)),
        )
        for topic in replayed.catalog
    }
