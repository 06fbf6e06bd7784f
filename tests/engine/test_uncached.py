"""Large batches bypass the page cache once much of a topic is unread; other writes stay cached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.transactions import StagedPart
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit import appends, reservations
from seawall.engine.commit.appends import SegmentWrite
from seawall.engine.read.read_results import ReceivedBatch
from seawall.io.disk.disk_ring import DiskRing, HasDescriptor
from seawall.io.disk.files import OsFile
from seawall.io.disk.memory_files import MemoryFiles
from seawall.io.interfaces import ReadableBuffer
from seawall.limits import KIB, MIB, PAGE_SIZE
from seawall.storage.shared_file import SharedFile

LARGE = 300 * KIB


@pytest.fixture
def uncached(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all writes that bypass the page cache, by file or by disk ring."""
    sizes: list[int] = []
    write, ring_write = OsFile.write_uncached, DiskRing.write

    def write_uncached(self: OsFile, buffers: Sequence[ReadableBuffer], at: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return write(self, buffers, at)

    def write_by_ring(
        self: DiskRing, file: HasDescriptor, buffers: Sequence[ReadableBuffer], at: int, **how: Any
    ) -> None:
        if how.get("uncached"):
            sizes.append(sum(map(len, buffers)))
        ring_write(self, file, buffers, at, **how)

    monkeypatch.setattr(OsFile, "write_uncached", write_uncached)
    monkeypatch.setattr(DiskRing, "write", write_by_ring)
    return sizes


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many unread bytes stay in the page cache."""
    monkeypatch.setattr(reservations, "_UNREAD_CACHED_SIZE", MIB)
    return MIB


@pytest.fixture(params=[0, 1], ids=["alone", "one broker"])
def log(tmp_path: Path, kept: int, request: pytest.FixtureRequest) -> Iterator[EmbeddedLog]:
    assert kept
    with open_log(tmp_path / "data", brokers=request.param) as log:
        log.create_topic("a", segment_max_bytes=2 * MIB)
        yield log


def values(log: EmbeddedLog, topic: str) -> list[bytes]:
    return [bytes(record.value) for item in log.follow(topic) if isinstance(item, ReceivedBatch) for record in item]


def fill(log: EmbeddedLog, size: int) -> None:
    for _ in range(size // LARGE):
        log.publish("a", bytes(LARGE))


def test_unread_appends_bypass_the_page_cache(log: EmbeddedLog, uncached: list[int], kept: int) -> None:
    fill(log, kept)
    assert not uncached
    log.publish("a", bytes(LARGE))
    assert len(uncached) == 1
    fill(log, 3 * MIB)  # over the ends of segments
    log.publish("a", [bytes(MIB)] * 5)
    assert sum(uncached) > 8 * MIB


def test_a_current_reader_keeps_appends_cached(log: EmbeddedLog, uncached: list[int], kept: int) -> None:
    read = 0
    for _ in range(3 * kept // LARGE):
        log.publish("a", bytes(LARGE))
        read += len(log.read("a", read + 1))
    assert not uncached
    fill(log, kept)
    assert not uncached
    fill(log, kept)
    assert uncached


def test_reading_old_records_does_not_keep_appends_cached(log: EmbeddedLog, uncached: list[int], kept: int) -> None:
    fill(log, 3 * kept)
    count = len(uncached)
    assert log.read("a", 1, limit=1)
    log.publish("a", bytes(LARGE))
    assert len(uncached) == count + 1


def test_small_batches_stay_cached(log: EmbeddedLog, uncached: list[int]) -> None:
    for number in range(20):
        log.publish("a", b"%d" % number)
    log.checkpoint()
    assert not uncached


def test_small_transactions_stay_cached(log: EmbeddedLog, uncached: list[int], kept: int) -> None:
    for _ in range(3):
        with log.transaction() as transaction:
            for _ in range(kept // 2 // LARGE):
                transaction.publish("a", bytes(LARGE))
        log.read("a", log.describe("a").next_seq - 1)
    assert not uncached


def test_a_large_transaction_bypasses_the_page_cache(log: EmbeddedLog, uncached: list[int], kept: int) -> None:
    fill(log, 2 * kept)
    sizes = [LARGE, LARGE + 1, MIB, 7, 2 * MIB + PAGE_SIZE // 2, LARGE - 96]
    records = [bytes([number]) * size for number, size in enumerate(sizes)]
    with log.stage() as stager:
        for record in records:
            stager.publish(record)
        staged = stager.ranges()
    uncached.clear()
    log.commit_staged("job", 1, [StagedPart("a", each) for each in staged])
    assert sum(uncached) > sum(sizes) - len(sizes) * 3 * PAGE_SIZE
    assert values(log, "a")[-len(records) :] == records
    assert not log.verify().findings


def test_small_batches_of_a_transaction_stay_cached(log: EmbeddedLog, uncached: list[int]) -> None:
    with log.transaction() as transaction:
        for number in range(20):
            transaction.publish("a", b"%d" % number)
    assert not uncached
    assert values(log, "a") == [b"%d" % number for number in range(20)]


def test_an_event_loop_bypasses_the_page_cache(tmp_path: Path, uncached: list[int], kept: int) -> None:
    async def run() -> list[bytes]:
        async with AsyncLog(tmp_path / "data") as log:
            await log.create_topic("a")
            await log.publish("a", bytes([9]) * (kept // 2))
            assert not uncached
            await asyncio.gather(*(log.publish("a", bytes([number]) * MIB) for number in range(8)))
            before = len(uncached)
            items = await log.read("a", max_bytes=16 * MIB)
            await log.publish("a", bytes(LARGE))
            assert before
            assert len(uncached) == before
            return sorted(bytes(record.value) for item in items if isinstance(item, ReceivedBatch) for record in item)

    assert asyncio.run(run()) == [*(bytes([number]) * MIB for number in range(8)), bytes([9]) * (kept // 2)]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 100))
def test_pieces_cover_a_segment_write(sizes: list[int], at: int) -> None:
    buffers = [bytes([number]) * size for number, size in enumerate(sizes)]
    write = SegmentWrite(SharedFile(MemoryFiles().open("f", create=True)), at, sum(sizes), [*buffers], is_uncached=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appends, "_PIECE_SIZE", 16)
        pieces = write.pieces()
        write.execute()
    assert all(sum(map(len, piece)) <= 16 for _, piece in pieces)
    assert [start for start, _ in pieces] == [
        at + sum(sum(map(len, piece)) for _, piece in pieces[:number]) for number in range(len(pieces))
    ]
    assert b"".join(part for _, piece in pieces for part in piece) == b"".join(buffers)
    assert write.file.read(1_000, at) == b"".join(buffers)
