"""The inputs of a store: the machine it runs on, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from seawall import limits
from seawall.config import Config
from seawall.io.interfaces import Clock, Files
from seawall.io.process.descriptors import descriptor_limit, segment_file_limit
from seawall.io.process.memory_use import MemoryUse
from seawall.storage.wal.lane_types import Observer


@dataclass(frozen=True, slots=True)
class Machine:
    """What a store needs from outside. All randomness and time comes from here."""

    files: Files
    clock: Clock
    random_bytes: Callable[[int], bytes]
    pid: int


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The settings of one store."""

    wal_file_size: int = limits.WAL_FILE_SIZE
    ceiling_step: int = limits.CEILING_STEP
    ballast_size: int = limits.BALLAST_SIZE
    #: A checkpoint is due after this many bytes of log.
    checkpoint_size: int = limits.CHECKPOINT_SIZE
    #: How long staged records are kept for their transaction.
    staging_ttl_ms: int = limits.STAGING_TTL_MS
    #: How long a session is kept after its last frame, and the most sessions that are kept.
    session_ttl_ms: int = limits.SESSION_TTL_MS
    sessions_max: int = limits.CLIENTS_MAX
    #: The most segment files that are open at the same time, over all topics.
    segment_files: int = limits.SEGMENT_FILES_OPEN_MIN
    #: The most bytes of records that topics of class ephemeral hold together.
    ephemeral_size: int = limits.EPHEMERAL_SIZE
    #: Called after every flush of the lane, successful or not.
    lane_observer: Observer | None = None

    @property
    def commit_size_max(self) -> int:
        """The most bytes that one commit may take in the log."""
        return min(limits.LANE_BUFFER_SIZE, self.wal_file_size) // 2

    @classmethod
    def of(cls, config: Config) -> Self:
        """The settings that a configuration defines."""
        storage = config.storage
        return cls(
            wal_file_size=storage.wal_file_size,
            ballast_size=storage.ballast_size,
            checkpoint_size=storage.checkpoint_size,
            staging_ttl_ms=storage.staging_ttl_ms,
            session_ttl_ms=storage.session_ttl_ms,
            sessions_max=storage.sessions_max,
            segment_files=segment_file_limit(descriptor_limit()),
            ephemeral_size=storage.ephemeral_size or _part_of_memory(config.server.memory_limit),
        )


def _part_of_memory(memory_limit: int) -> int:
    """The part of this process's memory that topics of class ephemeral may hold."""
    return MemoryUse(memory_limit).limit * limits.EPHEMERAL_PERCENT // 100
