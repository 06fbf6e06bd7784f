"""The settings of kernels, disk, storage, shared memory and benchmarks, each declared and explained once.

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
    """The backend that executes disk operations."""

    AUTO = "auto"
    RESIDENT = "resident"
    URING = "uring"


class Toggle(StrEnum):
    """On, off, or whichever is faster on the machine."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class KernelsConfig(Section):
    """Compiled kernels."""

    cache_dir: str = field(
        default="",
        metadata=about(
            path_text(may_be_empty=True),
            "directory of the kernel cache; if empty, the first writable one of the default locations",
        ),
    )


@dataclass(frozen=True, slots=True)
class DiskConfig(Section):
    """Disk I/O."""

    backend: DiskBackend = field(
        default=DiskBackend.AUTO,
        metadata=about(
            choice(DiskBackend),
            "what executes disk operations: threads of compiled code (resident), io_uring (uring), the faster (auto)",
        ),
    )
    ring_entries: int = field(
        default=limits.DISK_RING_ENTRIES,
        metadata=about(integer(2, 4096, power_of_two=True), "maximum number of disk operations in flight"),
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
            "bytes of log after which a checkpoint flushes its batches to segments; bounds the time of a recovery; "
            "large batches fill a quarter of it before their segments are sealed",
        ),
    )
    ballast_size: int = field(
        default=limits.BALLAST_SIZE,
        metadata=about(integer(0, 1 << 40), "bytes of disk space kept in reserve, so that deletes work on a full disk"),
    )
    staging_ttl_ms: int = field(
        default=limits.STAGING_TTL_MS,
        metadata=about(
            integer(1_000, 1 << 40),
            "milliseconds after which records that were staged for a transaction and not committed are deleted",
        ),
    )
    session_ttl_ms: int = field(
        default=limits.SESSION_TTL_MS,
        metadata=about(
            integer(1_000, 1 << 40),
            "milliseconds after its last frame at which the session of a publisher expires; batches that such a "
            "publisher sends again are refused, not stored twice",
        ),
    )
    sessions_max: int = field(
        default=limits.CLIENTS_MAX,
        metadata=about(
            integer(1, limits.CLIENTS_MAX),
            "maximum number of sessions; opening one more retires the longest idle ones, but never one with a "
            "connection or with a batch in flight",
        ),
    )
    ephemeral_size: int = field(
        default=0,
        metadata=about(
            size_or_zero(limits.EPHEMERAL_SIZE_MIN, limits.TIB),
            "bytes of records that all ephemeral topics together hold in memory, whatever their caps are; 0 means a "
            "quarter of the memory limit",
        ),
    )
    group: str = field(
        default="",
        metadata=about(
            group_text(),
            "user group that may read the files of the data directory (0640, 0750); if empty, only their owner may",
        ),
    )


@dataclass(frozen=True, slots=True)
class FabricConfig(Section):
    """Shared memory of a pod; `docs/fabric.md` describes its layout."""

    directory: str = field(
        default="",
        metadata=about(
            path_text(may_be_empty=True), "directory of its file; if empty, /dev/shm or else the data directory"
        ),
    )
    brokers: int = field(
        default=1,
        metadata=about(
            integer(1, limits.FABRIC_BROKERS_MAX),
            "number of brokers in the output of `seawall fabric layout`; a log allocates what it needs",
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
        metadata=about(
            size(*limits.FABRIC_CHECKPOINT_RANGE),
            "bytes of both checkpoints together, 64 for each client and topic in each",
        ),
    )
    blog_size: int = field(
        default=limits.FABRIC_BLOG_SIZE,
        metadata=about(size(*limits.FABRIC_BLOG_RANGE), "bytes of undecided batches of one broker"),
    )


@dataclass(frozen=True, slots=True)
class TopologyConfig(Section):
    """Processors and memory nodes."""

    pin: bool = field(default=False, metadata=about(switch(), "pin each role to processors of its own"))


@dataclass(frozen=True, slots=True)
class BenchConfig(Section):
    """Benchmarks."""

    directory: str = field(default=".", metadata=about(path_text(), "directory in which the disk is measured"))
    seconds: float = field(default=2.0, metadata=about(duration(0.01, 3600), "seconds spent on each figure"))
    rounds: int = field(
        default=5, metadata=about(integer(5, 1000), "rounds that alternate between a figure and its baseline")
    )
