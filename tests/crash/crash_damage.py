"""A small directory after an orderly close, and the cost of a flipped bit in any of its files.

`cost_of(path, byte)` flips one bit of that byte on a copy of the disk, verifies the directory, opens the log twice and
reads everything. Returned records must equal the written ones, missing ones must be in a gap, the damaged file must
stay unchanged, and deleted records must not reappear.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from crash_history import read_values
from crash_world import PATH, WatchedDisk, encoded

from seawall.engine.api.verify import verify_directory
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.errors import CorruptionError
from seawall.limits import KIB
from seawall.storage.preface import DATA_START, PREFACE_SIZE
from seawall.storage.read_only import open_for_reading
from seawall.storage.wal.epochs import EPOCH_MAGIC
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.wire.format.codes import GapReason

SETTINGS = StoreSettings(wal_file_size=128 * KIB, ceiling_step=16, ballast_size=4_096, checkpoint_size=1 << 62)
#: Of the zeros after a preface, an open is tried on one in this many; verification on all.
_OPENED_PADDING = 16

Contents = dict[str, dict[int, bytes]]


def opened(disk: SimDisk) -> Store:
    return open_store(Machine(disk, SimClock(wall_ns=1), random.Random(1).randbytes, pid=1), PATH, SETTINGS)


def publish(store: Store, contents: Contents, name: str, *groups: list[bytes]) -> None:
    topic_id = store.catalog.named(name).topic_id
    for header, group in zip(store.append([encoded(topic_id, group) for group in groups]), groups, strict=True):
        contents.setdefault(name, {}).update(enumerate(group, header.base_seq))


@dataclass(frozen=True)
class Original:
    """The directory before any damage."""

    disk: WatchedDisk
    contents: Contents

    def files(self, part: str) -> list[str]:
        """The files whose path contains a word."""
        return [path for path in files_of(self.disk, PATH) if part in path]

    def data(self, path: str) -> bytes:
        return self.disk.durable_bytes(path)


@lru_cache(maxsize=1)
def original() -> Original:
    """A log after an orderly close: sealed segments, deletes, a snapshot, and WAL after it."""
    disk = WatchedDisk(1, unit_size=512)
    store = opened(disk)
    contents: Contents = {}
    for name in ("one", "two", "thin"):
        store.create_topic(name, TopicConfig(segment_max_records=4))
    for number in range(6):
        publish(store, contents, "one", [b"one-%d" % number, b"again-%d" % number])
        publish(store, contents, "two", [b"two-%d" % number])
        publish(store, contents, "thin", [b"thin-%d" % number])
    store.delete_records("thin", before_seq=3)
    del contents["thin"][1], contents["thin"][2]
    store.maintenance.checkpoint()
    publish(store, contents, "one", [b"a"], [b"b", b"c"], [b"d"])
    publish(store, contents, "two", [b"e"], [b"large" * 14_000], [b"f"])
    publish(store, contents, "one", [b"g"])
    publish(store, contents, "one", [b"large" * 14_000])
    store.commit_cursor("reader", "one", store.catalog.named("one").head_seq)
    publish(store, contents, "two", [b"h"])
    store.close()
    disk.crash(keep="none")
    return Original(disk, contents)


def files_of(disk: SimDisk, directory: str) -> list[str]:
    found: list[str] = []
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        try:
            found += files_of(disk, path)
        except NotADirectoryError:
            found.append(path)
    return found


def damaged(path: str, byte: int) -> WatchedDisk:
    disk = original().disk.photo()
    disk.flip_bit(path, byte, byte % 8)
    return disk


@dataclass
class Cost:
    """The cost of a damage."""

    is_found: bool = False
    is_refused: bool = False
    lost: set[tuple[str, int]] = field(default_factory=set)


def cost_of(path: str, byte: int) -> Cost:
    """Flip a bit, verify, open, read, and do that again."""
    disk = damaged(path, byte)
    before = disk.durable_bytes(path)[byte]
    cost = Cost()
    try:
        looked_at = open_for_reading(disk, PATH)
        try:
            cost.is_found = not verify_directory(disk, looked_at).is_sound
        finally:
            looked_at.close()
        # One check covers all zeros after a preface, which are most of the bytes: a few opens are enough.
        is_padding = PREFACE_SIZE <= byte < DATA_START
        cost.lost = lost_by(disk, times=byte % _OPENED_PADDING == 0 if is_padding else 2)
    except CorruptionError:
        cost.is_found = cost.is_refused = True
    if not path.endswith(".index"):
        # Evidence stays; an index, which follows from its segment, may be made again.
        # Recovery clears the bytes after the end of the log.
        is_kept = disk.durable_bytes(path)[byte] == before
        assert is_kept or ("/wal/" in path and byte >= DATA_START), (path, byte)
    return cost


def lost_by(disk: SimDisk, times: int = 2) -> set[tuple[str, int]]:
    """Open and read everything, twice; returned records are correct, and missing ones are in a gap."""
    lost: set[tuple[str, int]] = set()
    contents = original().contents
    for _ in range(times):
        store = opened(disk)
        for name, expected in contents.items():
            if name not in store.catalog.names():
                lost |= {(name, seq) for seq in expected}
                continue
            records, gaps = read_values(store, name)
            assert records.items() <= expected.items()
            missing = expected.keys() - records.keys()
            assert all(any(gap.first_seq <= seq <= gap.last_seq for gap in gaps) for seq in missing)
            assert {gap.reason for gap in gaps} <= {GapReason.CORRUPTION, GapReason.CRASH}
            lost |= {(name, seq) for seq in missing}
            number = store.catalog.named(name).next_seq
            assert number > max(expected)
        store.close()
    return lost


# --- the allowed cost for each kind of file ---------------------------------------------------------------------------


def check_sealed(path: str, byte: int) -> None:
    cost = cost_of(path, byte)
    assert cost.is_found, byte
    assert bool(cost.lost) == (byte >= DATA_START), byte
    assert len(cost.lost) <= 2, byte


def check_index(path: str, byte: int) -> None:
    """Also a snapshot: the WAL still has its content."""
    cost = cost_of(path, byte)
    assert cost.is_found, byte
    assert not cost.lost, byte


def check_log(path: str, byte: int) -> None:
    """At most an epoch; a file without its preface is refused, because the numbers it used are unknown."""
    cost = cost_of(path, byte)
    assert byte >= mark_at(path) or cost.is_found, byte
    assert byte < DATA_START or not cost.is_refused, byte
    assert byte >= DATA_START or not cost.lost, byte
    assert len(cost.lost) <= 4, byte


def mark_at(path: str) -> int:
    """The start of the clean-shutdown marker; from there on the file has no records."""
    return original().data(path).rindex(EPOCH_MAGIC)


CHECKS = {".sealed": check_sealed, ".index": check_index, ".meta": check_index, "/wal/": check_log}


def every_byte(kind: str, *, zeros: int = 1, content: int = 1) -> Iterator[tuple[str, int]]:
    """Bytes of the first file of a kind: its preface, the zeros after it, and its content.

    A sample has one in `zeros` of the zeros and one in `content` of the content.
    """
    path = original().files(kind)[0]
    data = original().data(path)
    end = len(data.rstrip(b"\0")) + 64 if kind == "/wal/" else len(data)
    for byte in (*range(0, 64, content), *range(64, DATA_START, zeros), *range(DATA_START, end, content)):
        yield path, byte
