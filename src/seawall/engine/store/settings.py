"""What a store is made from: the machine it runs on, and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from seawall import limits
from seawall.config import Config
from seawall.io.interfaces import Clock, Files
from seawall.io.process.descriptors import descriptor_limit, segment_file_share
from seawall.io.process.memory_use import MemoryUse
from seawall.storage.wal.lane_types import Observer


@dataclass(frozen=True, slots=True)
class Machine:
    """What the store needs of the outside; everything random or timed comes through here."""

    files: Files
    clock: Clock
    random_bytes: Callable[[int], bytes]
    pid: int


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How one store is run."""

    wal_file_size: int = limits.WAL_FILE_SIZE
    ceiling_step: int = limits.CEILING_STEP
    ballast_size: int = limits.BALLAST_SIZE
    #: A checkpoint is due after this many bytes of log.
    checkpoint_size: int = limits.CHECKPOINT_SIZE
    #: How long what is staged waits for its transaction.
    staging_ttl_ms: int = limits.STAGING_TTL_MS
    #: How long a session is remembered after its last frame, and how many are at all.
    session_ttl_ms: int = limits.SESSION_TTL_MS
    sessions_max: int = limits.CLIENTS_MAX
    #: Files of segments that are open at the same time, over all topics.
    segment_files: int = limits.SEGMENT_FILES_OPEN_MIN
    #: Bytes of records that topics of class ephemeral hold together.
    ephemeral_size: int = limits.EPHEMERAL_SIZE
    #: Told of every flush of the lane, good or bad.
    lane_observer: Observer | None = None

    @property
    def commit_size_max(self) -> int:
        """Bytes that one commit may take in the log."""
        return min(limits.LANE_BUFFER_SIZE, self.wal_file_size) // 2

    @classmethod
    def of(cls, config: Config) -> Self:
        """As a configuration has it."""
        storage = config.storage
        return cls(
            wal_file_size=storage.wal_file_size,
            ballast_size=storage.ballast_size,
            checkpoint_size=storage.checkpoint_size,
            staging_ttl_ms=storage.staging_ttl_ms,
            session_ttl_ms=storage.session_ttl_ms,
            sessions_max=storage.sessions_max,
            segment_files=segment_file_share(descriptor_limit()),
            ephemeral_size=storage.ephemeral_size or _part_of_memory(config.server.memory_limit),
        )


def _part_of_memory(memory_limit: int) -> int:
    """The part of the memory of this process that topics of class ephemeral may hold."""
    return MemoryUse(memory_limit).limit * limits.EPHEMERAL_PERCENT // 100
