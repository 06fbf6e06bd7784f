"""The layout of the fabric: computes the offset of each region from a few sizes.

    at                  bytes               region              the writer
    0x0000              128                 control             commit frontier
    0x0080              256                 header              creator of the fabric
    0x0180              32 × 64             broker_tails        broker i its own
    0x0980              16 × 64             replica_vector      replica r its own
    0x0d80              640                 (zero)
    0x1000              32 × 128            completion_vector   commit frontier
    0x2000              goi_entries × 64    goi                 sequencer workers, disjoint ranges
    …                   brokers × pbr_entries × 64    pbr       broker i its own ring
    …                   checkpoint_size     checkpoint          commit frontier
    …                   brokers × pbr_entries × 64    results   commit frontier
    …                   goi_entries × 32    side                commit frontier
    …                   brokers × blog_size blogs               broker i its own ring

`records` has the formats of the entries. Entry counts are powers of two: a slot is the absolute index modulo the count.

INV-FABRIC-ONE-WRITER: no cache line of a fabric has two writers. Entries of different writers are multiples of a line,
and so are regions.

From `goi` on, every region begins where the previous one ends, on a page, and the last one ends the file: the sizes
alone determine all offsets.

This module does not import numpy, so showing a layout is cheap. It must not know files or mappings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from seawall import limits
from seawall.config import FabricConfig
from seawall.errors import InvalidInputError
from seawall.limits import FABRIC_BROKERS_MAX, FABRIC_REPLICAS_MAX, GIB, MIB, PAGE_SIZE

CONTROL_SIZE = 128
HEADER_SIZE = 256
TAIL_SIZE = 64
REPLICA_SIZE = 64
COMPLETION_SIZE = 128
GOI_ENTRY_SIZE = 64
PBR_ENTRY_SIZE = 64
RESULT_SIZE = 64
SIDE_ENTRY_SIZE = 32
CHECKPOINT_SLOTS = 2
CHECKPOINT_ROW_SIZE = limits.CLIENT_ROW_SIZE

CONTROL_AT = 0x0000
HEADER_AT = 0x0080
TAILS_AT = 0x0180
REPLICAS_AT = 0x0980
COMPLETIONS_AT = 0x1000
GOI_AT = 0x2000

assert HEADER_AT == CONTROL_AT + CONTROL_SIZE
assert TAILS_AT == HEADER_AT + HEADER_SIZE
assert REPLICAS_AT == TAILS_AT + FABRIC_BROKERS_MAX * TAIL_SIZE
assert COMPLETIONS_AT >= REPLICAS_AT + FABRIC_REPLICAS_MAX * REPLICA_SIZE
assert GOI_AT == COMPLETIONS_AT + FABRIC_BROKERS_MAX * COMPLETION_SIZE


@dataclass(frozen=True, slots=True)
class FabricSizes:
    """The sizes that determine the layout: fabrics with the same sizes have the same offsets."""

    brokers: int
    goi_entries: int
    pbr_entries: int
    checkpoint_size: int
    blog_size: int

    def __post_init__(self) -> None:
        _require("brokers", self.brokers, 1, FABRIC_BROKERS_MAX)
        for name, (low, high) in (("goi_entries", limits.FABRIC_GOI_RANGE), ("pbr_entries", limits.FABRIC_PBR_RANGE)):
            count: int = getattr(self, name)
            _require(name, count, low, high)
            if count & (count - 1):
                raise InvalidInputError(f"fabric.{name} is {count}: it must be a power of two")
        _require("checkpoint_size", self.checkpoint_size, *limits.FABRIC_CHECKPOINT_RANGE)
        _require("blog_size", self.blog_size, *limits.FABRIC_BLOG_RANGE)
        if self.checkpoint_size % (CHECKPOINT_SLOTS * PAGE_SIZE) or self.blog_size % PAGE_SIZE:
            raise InvalidInputError(
                f"fabric.checkpoint_size is {self.checkpoint_size} and fabric.blog_size {self.blog_size}: "
                f"they must be multiples of {CHECKPOINT_SLOTS * PAGE_SIZE} and {PAGE_SIZE}"
            )

    @classmethod
    def of(cls, config: FabricConfig) -> FabricSizes:
        """The configured sizes, bytes rounded up to whole pages."""
        return cls(
            brokers=config.brokers,
            goi_entries=config.goi_entries,
            pbr_entries=config.pbr_entries,
            checkpoint_size=_rounded_up(config.checkpoint_size, CHECKPOINT_SLOTS * PAGE_SIZE),
            blog_size=_rounded_up(config.blog_size, PAGE_SIZE),
        )

    def differences(self, other: FabricSizes) -> list[str]:
        """The settings in which another fabric differs, as `name own (other)`."""
        return [
            f"{field.name} {getattr(self, field.name)} ({getattr(other, field.name)})"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]


@dataclass(frozen=True, slots=True)
class Region:
    """One range of the fabric: `count` entries of `entry_size` bytes from byte `at` on."""

    name: str
    at: int
    count: int
    entry_size: int
    writer: str
    #: The settings that determine its size.
    settings: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The size of the region in bytes."""
        return self.count * self.entry_size

    @property
    def end(self) -> int:
        """The offset of the first byte after the region."""
        return self.at + self.size


@dataclass(frozen=True, slots=True)
class FabricLayout:
    """The layout of a fabric. Create it with `of`."""

    sizes: FabricSizes
    control: Region
    header: Region
    broker_tails: Region
    replica_vector: Region
    completion_vector: Region
    goi: Region
    pbr: Region
    checkpoint: Region
    results: Region
    side: Region
    blogs: Region

    @classmethod
    def of(cls, sizes: FabricSizes) -> FabricLayout:
        """The layout of a fabric of these sizes."""
        slots = sizes.brokers * sizes.pbr_entries
        ring = ("brokers", "pbr_entries")
        goi = Region("goi", GOI_AT, sizes.goi_entries, GOI_ENTRY_SIZE, "sequencer", ("goi_entries",))
        pbr = Region("pbr", goi.end, slots, PBR_ENTRY_SIZE, "broker", ring)
        half = sizes.checkpoint_size // CHECKPOINT_SLOTS
        checkpoint = Region("checkpoint", pbr.end, CHECKPOINT_SLOTS, half, "frontier", ("checkpoint_size",))
        results = Region("results", checkpoint.end, slots, RESULT_SIZE, "frontier", ring)
        side = Region("side", results.end, sizes.goi_entries, SIDE_ENTRY_SIZE, "frontier", ("goi_entries",))
        return cls(
            sizes,
            control=Region("control", CONTROL_AT, 1, CONTROL_SIZE, "frontier"),
            header=Region("header", HEADER_AT, 1, HEADER_SIZE, "creator"),
            broker_tails=Region("broker_tails", TAILS_AT, FABRIC_BROKERS_MAX, TAIL_SIZE, "broker"),
            replica_vector=Region("replica_vector", REPLICAS_AT, FABRIC_REPLICAS_MAX, REPLICA_SIZE, "replica"),
            completion_vector=Region(
                "completion_vector", COMPLETIONS_AT, FABRIC_BROKERS_MAX, COMPLETION_SIZE, "frontier"
            ),
            goi=goi,
            pbr=pbr,
            checkpoint=checkpoint,
            results=results,
            side=side,
            blogs=Region("blogs", side.end, sizes.brokers, sizes.blog_size, "broker", ("brokers", "blog_size")),
        )

    @property
    def size(self) -> int:
        """The size of the fabric in bytes."""
        return self.blogs.end

    @property
    def checkpoint_rows_max(self) -> int:
        """The maximal number of client and topic rows in one checkpoint."""
        return self.checkpoint.entry_size // CHECKPOINT_ROW_SIZE - 1

    def regions(self) -> Iterator[Region]:
        """All regions, by rising offset."""
        for field in fields(self)[1:]:
            region: Region = getattr(self, field.name)
            yield region

    def largest(self) -> Region:
        """The largest region: the first one to reduce if memory is short."""
        return max(self.regions(), key=lambda region: region.size)


def full_size(module_size: int = 512 * GIB) -> FabricSizes:
    """The sizes of a fabric that fills a memory module: 32 brokers, with all the remaining memory for BLogs."""
    smallest = FabricSizes(
        brokers=FABRIC_BROKERS_MAX,
        goi_entries=limits.FABRIC_GOI_RANGE[1],
        pbr_entries=limits.FABRIC_PBR_RANGE[1],
        checkpoint_size=16 * MIB,
        blog_size=limits.FABRIC_BLOG_RANGE[0],
    )
    left = (module_size - FabricLayout.of(smallest).blogs.at) // FABRIC_BROKERS_MAX
    return FabricSizes(
        brokers=smallest.brokers,
        goi_entries=smallest.goi_entries,
        pbr_entries=smallest.pbr_entries,
        checkpoint_size=smallest.checkpoint_size,
        blog_size=left // PAGE_SIZE * PAGE_SIZE,
    )


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _require(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidInputError(f"fabric.{name} is {value}: it must be from {low} to {high}")
