"""Every byte of every kind of file is damaged in turn: nothing wrong is ever returned, and the rest stays readable.

What a flipped bit may cost: a batch (and in the log what follows it in its epoch), never silently: a reader is told of
a gap. What may refuse to open: a log whose last file has lost its preface, since nobody knows which numbers it used.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from crash_history import read_all
from crash_sweep import PATH, encoded

from seawall.engine.opening import open_store
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.store import Store
from seawall.errors import CorruptionError
from seawall.limits import KIB, PAGE_SIZE
from seawall.storage.preface import DATA_START
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.wire.codes import GapReason

SETTINGS = StoreSettings(wal_file_size=128 * KIB, ceiling_step=16, ballast_size=4_096, checkpoint_size=1 << 62)
Contents = dict[str, dict[int, bytes]]
Image = dict[str, bytes]


def opened(disk: SimDisk) -> Store:
    return open_store(Machine(disk, SimClock(wall_ns=1), random.Random(1).randbytes, pid=1), PATH, SETTINGS)


def publish(store: Store, contents: Contents, name: str, *groups: list[bytes]) -> None:
    topic_id = store.catalog.named(name).topic_id
    for header, group in zip(store.append([encoded(topic_id, group) for group in groups]), groups, strict=True):
        contents.setdefault(name, {}).update(enumerate(group, header.base_seq))


def made() -> tuple[Image, Contents]:
    """A log that was closed in order: sealed segments, a snapshot, and a log that goes on behind it."""
    disk = SimDisk(seed=1)
    store = opened(disk)
    contents: Contents = {}
    for name in ("one", "two"):
        store.create_topic(name, TopicConfig(segment_max_records=4))
    for number in range(6):
        publish(store, contents, "one", [b"one-%d" % number, b"again-%d" % number])
        publish(store, contents, "two", [b"two-%d" % number])
    store.checkpoint()
    publish(store, contents, "one", [b"a"], [b"b", b"c"], [b"d"])
    publish(store, contents, "two", [b"e"], [b"large" * 14_000], [b"f"])
    publish(store, contents, "one", [b"g"])
    publish(store, contents, "one", [b"large" * 14_000])
    store.commit_cursor("reader", "one", store.catalog.named("one").head_seq)
    publish(store, contents, "two", [b"h"])
    store.close()
    return image_of(disk, PATH), contents


def image_of(disk: SimDisk, directory: str) -> Image:
    image: Image = {}
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        try:
            image |= image_of(disk, path)
        except NotADirectoryError:
            file = disk.open(path, read_only=True)
            image[path] = file.read(file.size(), 0)
            file.close()
    return image


def restored(image: Image) -> SimDisk:
    disk = SimDisk(seed=2)
    disk.make_directory(f"{PATH}/meta")
    for path, data in image.items():
        disk.make_directory(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.write([data], 0)
        file.sync()
        file.close()
    disk.crash(keep="all")
    return disk


IMAGE, CONTENTS = made()


def damaged(path: str, byte: int) -> SimDisk:
    data = bytearray(IMAGE[path])
    data[byte] ^= 1 << (byte % 8)
    return restored(IMAGE | {path: bytes(data)})


def lost_by(disk: SimDisk) -> set[tuple[str, int]]:
    """Open and read everything; what is returned is right, and what is not returned is in a gap. Then once more."""
    lost: set[tuple[str, int]] = set()
    for _ in range(2):
        store = opened(disk)
        for name, expected in CONTENTS.items():
            if name not in store.catalog.names():
                lost |= {(name, seq) for seq in expected}
                continue
            # Reading is checked for holes as it goes.
            records, gaps = read_all(store, name)
            assert records.items() <= expected.items()
            missing = expected.keys() - records.keys()
            assert all(any(gap.first_seq <= seq <= gap.last_seq for gap in gaps) for seq in missing)
            assert {gap.reason for gap in gaps} <= {GapReason.CORRUPTION, GapReason.CRASH}
            lost |= {(name, seq) for seq in missing}
            number = store.catalog.named(name).next_seq
            assert number > max(expected)
        store.close()
    return lost


def files_named(part: str) -> list[str]:
    return [path for path in IMAGE if part in path]


def interesting(data: bytes, end: int | None = None) -> Iterable[int]:
    """Every byte of preface and content; of the padding between and of long stretches of one byte only some."""
    end = len(data) if end is None else end
    yield from range(64)
    yield from range(64, DATA_START, 1_009)
    for byte in range(DATA_START, end):
        if byte % 997 == 0 or len({*data[max(0, byte - 60) : byte + 61]}) > 6:
            yield byte


def test_the_image_is_whole() -> None:
    assert not lost_by(restored(IMAGE))
    assert len(files_named(".sealed")) >= 3
    assert len(files_named(".meta")) == 1
    assert len(files_named("/wal/")) == 1


def test_a_damaged_sealed_segment_costs_at_most_one_batch() -> None:
    path = files_named(".sealed")[0]
    for byte in interesting(IMAGE[path]):
        disk = damaged(path, byte)
        lost = lost_by(disk)
        assert len(lost) <= 2
        assert byte >= DATA_START or not lost
        assert byte < DATA_START or lost
        # Evidence stays.
        assert image_of(disk, PATH)[path][byte] != IMAGE[path][byte]


def test_a_damaged_index_costs_nothing() -> None:
    path = files_named(".index")[0]
    for byte in interesting(IMAGE[path]):
        assert not lost_by(damaged(path, byte))


def test_a_damaged_snapshot_costs_nothing_while_the_log_is_there() -> None:
    path = files_named(".meta")[0]
    for byte in [*range(64), *range(64, DATA_START, 401), *range(DATA_START, len(IMAGE[path]), 31)]:
        assert not lost_by(damaged(path, byte))


def damaged_log_bytes(stride: int) -> list[int]:
    """Bytes of the log to damage: the preface, and every so many of the epochs up to behind their end."""
    data = IMAGE[files_named("/wal/")[0]]
    return [*range(0, 64, 5), *range(DATA_START, len(data.rstrip(b"\0")) + 64, stride)]


def test_damage_of_the_log_costs_at_most_an_epoch() -> None:
    path = files_named("/wal/")[0]
    refused = 0
    for byte in damaged_log_bytes(stride=29):
        disk = damaged(path, byte)
        try:
            lost = lost_by(disk)
        except CorruptionError:
            refused += 1
            assert byte < DATA_START
            continue
        assert len(lost) <= 4
        assert byte >= DATA_START or not lost
    assert 0 < refused <= PAGE_SIZE


def test_a_lost_create_hides_a_topic_and_gives_its_id_to_nobody() -> None:
    disk = SimDisk(seed=3)
    store = opened(disk)
    contents: Contents = {}
    store.create_topic("lost", TopicConfig(segment_max_records=2))
    at = store._wal.at
    for number in range(6):
        publish(store, contents, "lost", [b"old-%d" % number])
    store.close()
    path = "/data/wal/wal-00000000000000000000.wal"
    image = image_of(disk, PATH)
    broken = bytearray(image[path])
    broken[DATA_START + at - 100] ^= 1
    disk = restored(image | {path: bytes(broken)})
    store = opened(disk)
    assert store.catalog.names() == []
    store.create_topic("next", TopicConfig())
    publish(store, contents, "next", [b"new"])
    store.close()
    store = opened(disk)
    assert read_all(store, "next")[0] == {1: b"new"}
    assert disk.list("/data/topics/00000001")
    store.close()


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_missing_segment_is_told(name: str) -> None:
    topic = {"one": "00000001", "two": "00000002"}[name]
    path = files_named(f"/topics/{topic}/00000000000000000001-")[0]
    disk = restored({each: data for each, data in IMAGE.items() if each != path})
    lost = lost_by(disk)
    assert lost == {(name, seq) for seq in range(1, 5)}


def test_damage_is_paid_for_once() -> None:
    """The first opening accounts for it; the next one finds a clean end and gives the next number."""
    path = files_named("/wal/")[0]
    byte = len(IMAGE[path].rstrip(b"\0")) - 200
    disk = damaged(path, byte)
    store = opened(disk)
    next_seq = store.catalog.named("one").next_seq
    store.close()
    store = opened(disk)
    assert store.catalog.named("one").next_seq == next_seq
    store.close()
