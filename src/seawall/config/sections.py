"""The settings of machine code, disk, files, shared memory and measurements, each declared and explained once.

This module must not know where values come from.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from seawall import limits
from seawall.config.rules import (
    Section,
    about,
    choice,
    duration,
    group_text,
    integer,
    path_text,
    size,
    size_or_zero,
    switch,
)


class DiskBackend(StrEnum):
    """Who carries out disk operations."""

    AUTO = "auto"
    RESIDENT = "resident"
    URING = "uring"


class Toggle(StrEnum):
    """On, off, or whatever the machine does best."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class KernelsConfig(Section):
    """Machine code."""

    cache_dir: str = field(
        default="",
        metadata=about(
            path_text(may_be_empty=True),
            "folder that keeps compiled kernels; if empty, the first writable one of the usual places",
        ),
    )


@dataclass(frozen=True, slots=True)
class DiskConfig(Section):
    """How bytes reach the disk."""

    backend: DiskBackend = field(
        default=DiskBackend.AUTO,
        metadata=about(
            choice(DiskBackend),
            "who carries out disk operations: threads of compiled code (resident), io_uring (uring), the better (auto)",
        ),
    )
    ring_entries: int = field(
        default=limits.DISK_RING_ENTRIES,
        metadata=about(integer(2, 4096, power_of_two=True), "disk operations in flight at most"),
    )
    direct_sync: Toggle = field(
        default=Toggle.AUTO,
        metadata=about(choice(Toggle), "write and sync in one call (RWF_DSYNC) instead of a write and an fdatasync"),
    )


@dataclass(frozen=True, slots=True)
class StorageConfig(Section):
    """Files of a data directory."""

    wal_file_size: int = field(
        default=limits.WAL_FILE_SIZE,
        metadata=about(
            integer(limits.WAL_FILE_SIZE_MIN, limits.WAL_FILE_SIZE_MAX), "bytes of one file of the write-ahead log"
        ),
    )
    checkpoint_size: int = field(
        default=limits.CHECKPOINT_SIZE,
        metadata=about(
            integer(limits.WAL_FILE_SIZE_MIN, 1 << 40),
            "bytes of log after which its batches are in their places, whatever comes; bounds how long recovery takes; "
            "large batches fill a quarter of it before their segments are sealed",
        ),
    )
    ballast_size: int = field(
        default=limits.BALLAST_SIZE,
        metadata=about(integer(0, 1 << 40), "bytes kept in reserve, so that deletes work on a full disk"),
    )
    staging_ttl_ms: int = field(
        default=limits.STAGING_TTL_MS,
        metadata=about(
            integer(1_000, 1 << 40),
            "milliseconds after which records that were staged for a transaction and not committed go",
        ),
    )
    session_ttl_ms: int = field(
        default=limits.SESSION_TTL_MS,
        metadata=about(
            integer(1_000, 1 << 40),
            "milliseconds after its last frame at which the session of a publisher is forgotten; what such a publisher "
            "sends again is refused, not stored twice",
        ),
    )
    sessions_max: int = field(
        default=limits.CLIENTS_MAX,
        metadata=about(
            integer(1, limits.CLIENTS_MAX),
            "sessions that are remembered at most; where another one opens the longest idle ones are forgotten, never "
            "one with a connection or with a batch under way",
        ),
    )
    ephemeral_size: int = field(
        default=0,
        metadata=about(
            size_or_zero(limits.EPHEMERAL_SIZE_MIN, limits.TIB),
            "bytes of records that topics of class ephemeral hold in memory together, whatever their caps say; 0 is a "
            "quarter of the memory limit",
        ),
    )
    group: str = field(
        default="",
        metadata=about(
            group_text(),
            "group of users that may read the files of the data directory (0640, 0750); if empty, only their owner may",
        ),
    )


@dataclass(frozen=True, slots=True)
class FabricConfig(Section):
    """Shared memory of a pod; its parts and their order are in `docs/fabric.md`."""

    directory: str = field(
        default="",
        metadata=about(path_text(may_be_empty=True), "folder of its file; if empty /dev/shm, else the data directory"),
    )
    brokers: int = field(
        default=1,
        metadata=about(
            integer(1, limits.FABRIC_BROKERS_MAX),
            "brokers that `seawall fabric layout` makes room for; a log makes as much as it needs",
        ),
    )
    goi_entries: int = field(
        default=limits.FABRIC_GOI_ENTRIES,
        metadata=about(
            integer(*limits.FABRIC_GOI_RANGE, power_of_two=True), "batches in the global order index, 96 bytes each"
        ),
    )
    pbr_entries: int = field(
        default=limits.FABRIC_PBR_ENTRIES,
        metadata=about(
            integer(*limits.FABRIC_PBR_RANGE, power_of_two=True), "undecided batches of one broker, 128 bytes each"
        ),
    )
    checkpoint_size: int = field(
        default=limits.FABRIC_CHECKPOINT_SIZE,
        metadata=about(size(*limits.FABRIC_CHECKPOINT_RANGE), "both checkpoints, 64 bytes a client and a topic each"),
    )
    blog_size: int = field(
        default=limits.FABRIC_BLOG_SIZE,
        metadata=about(size(*limits.FABRIC_BLOG_RANGE), "bytes of undecided batches of one broker"),
    )


@dataclass(frozen=True, slots=True)
class TopologyConfig(Section):
    """Processors and memory nodes."""

    pin: bool = field(default=False, metadata=about(switch(), "tie each role to processors of its own"))


@dataclass(frozen=True, slots=True)
class BenchConfig(Section):
    """Measurements."""

    directory: str = field(default=".", metadata=about(path_text(), "folder in which the disk is measured"))
    seconds: float = field(default=2.0, metadata=about(duration(0.01, 3600), "time spent on each figure, in seconds"))
    rounds: int = field(
        default=5, metadata=about(integer(5, 1000), "rounds in which a figure and its baseline take turns")
    )
