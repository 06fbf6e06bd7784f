"""Adoption of staged segments: when they become segments of topics, when batches are copied, and crashes between."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from seawall import limits
from seawall.config import Config, FabricConfig
from seawall.core.transactions import PARTITION_SEQS, StagedRange, partition_name
from seawall.core.types import Position, Seq
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.verify import verify_directory
from seawall.engine.api.view import open_view
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store import store
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.transactions import adoption, staging
from seawall.errors import DiskFullError, InvalidInputError, NotFoundError
from seawall.io.disk.files import OsFiles
from seawall.limits import KIB
from seawall.storage.read_only import open_for_reading

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
TINY = Config(fabric=FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=512 * KIB))

#: A direct batch: it is written straight to its segment.
LARGE = 70_000


@pytest.fixture(autouse=True)
def adopt_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "SIZE_MIN", 0)


@pytest.fixture(params=[0, 1], ids=["alone", "one broker"])
def brokers(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


def opened(path: Path, brokers: int = 0) -> EmbeddedLog:
    return open_log(path / "data", SMALL, config=TINY, brokers=brokers)


@pytest.fixture
def log(tmp_path: Path, brokers: int) -> Iterator[EmbeddedLog]:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        log.create_topic("b", durability="disk")
        yield log


def record(number: int) -> bytes:
    return number.to_bytes(2, "big") * (LARGE // 2)


def put(log: EmbeddedLog, *numbers: int, own_partition: bool = True) -> list[StagedRange]:
    with log.stage(own_partition=own_partition) as stager:
        for number in numbers:
            # One by one: a commit writes all its batches into one segment.
            stager.publish(record(number)).ranges()
        return stager.ranges()


def stored(log: EmbeddedLog, topic: str) -> list[bytes]:
    return [bytes(each.value) for item in log.follow(topic) if isinstance(item, ReceivedBatch) for each in item]


def commit(log: EmbeddedLog, epoch: int, **ranges: list[StagedRange]) -> None:
    log.commit_staged("job", epoch, [(topic, each) for topic, found in ranges.items() for each in found])


def numbers(log: EmbeddedLog, topic: str) -> list[int]:
    found = [bytes(each.value) for item in log.follow(topic) if isinstance(item, ReceivedBatch) for each in item]
    assert all(value == record(int.from_bytes(value[:2], "big")) for value in found)
    return [int.from_bytes(value[:2], "big") for value in found]


def segments(path: Path, topic_id: int) -> dict[int, str]:
    """The files of a topic's segments: inode and name."""
    directory = path / "data" / "topics" / f"{topic_id:08x}"
    return {each.stat().st_ino: each.name for each in directory.iterdir() if each.suffix in (".active", ".sealed")}


def partition_topic(log: EmbeddedLog, partition: int) -> int:
    with log.inspecting() as store:
        topic = store.catalog.reserved(partition_name(partition))
    assert topic is not None
    return topic.topic_id


@pytest.fixture
def adopted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """First seqs of the segments that were adopted."""
    seqs: list[int] = []
    real = adoption.adopt_file

    def adopt_file(*arguments: Any) -> object:
        seqs.append(arguments[1])
        return real(*arguments)

    monkeypatch.setattr(adoption, "adopt_file", adopt_file)
    return seqs


# --- adopted --------------------------------------------------------------------------------------------------------


def test_own_partitions_are_adopted_without_copying(log: EmbeddedLog, tmp_path: Path, brokers: int) -> None:
    log.publish("a", record(1))
    first, second = put(log, 2, 3), put(log, 4, 5, 6)
    assert [each.first_seq // PARTITION_SEQS for each in first + second] == [1, 2]
    files = {*segments(tmp_path, partition_topic(log, 1)), *segments(tmp_path, partition_topic(log, 2))}
    commit(log, 1, a=second + first)
    assert files <= {*segments(tmp_path, 1)}, "the same files, with other names"
    with log.inspecting() as store:
        assert [(topic.live_records, topic.live_bytes) for topic in store.catalog if topic.name != "a"] == [(0, 0)] * 3
    assert numbers(log, "a") == [1, 4, 5, 6, 2, 3]
    log.publish("a", record(7))
    assert numbers(log, "a") == [1, 4, 5, 6, 2, 3, 7]
    assert log.verify().findings == ()
    log.close()
    with opened(tmp_path, brokers) as again:
        assert numbers(again, "a") == [1, 4, 5, 6, 2, 3, 7]
        commit(again, 2, a=put(again, 8), b=put(again, 9))
        assert (numbers(again, "a")[-1], numbers(again, "b")) == (8, [9])
        assert again.verify().findings == ()
        assert not list((tmp_path / "data").rglob("*.adopting*"))


def test_the_first_segment_of_a_topic_may_be_adopted(log: EmbeddedLog, tmp_path: Path, adopted: list[int]) -> None:
    commit(log, 1, a=put(log, 1), b=put(log, 2, 3))
    commit(log, 2, a=put(log, 4))
    assert adopted == [1, 1, 2]
    log.close()
    with opened(tmp_path) as again:
        assert (numbers(again, "a"), numbers(again, "b")) == ([1, 4], [2, 3])


def test_adoption_holds_the_flush_lock(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-ADOPTED-OR-BACK."""
    real = adoption.adopt_file
    held: list[bool] = []
    with log.inspecting() as store:
        flush_lock = store.checkpoint_schedule.flush_lock

    def adopt_file(*arguments: Any) -> object:
        with ThreadPoolExecutor(1) as other_thread:
            held.append(not other_thread.submit(flush_lock.acquire, blocking=False).result())
        return real(*arguments)

    monkeypatch.setattr(adoption, "adopt_file", adopt_file)
    commit(log, 1, a=put(log, 1))
    assert held == [True]


def test_a_staging_partition_is_reused(
    log: EmbeddedLog, tmp_path: Path, adopted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STAGING_PARTITIONS", 1)
    earlier, later = put(log, 1), put(log, 2)
    with log.stage(own_partition=True) as stager:
        stager.publish(record(9))
        assert stager.abort() == 1
    log.checkpoint()
    commit(log, 1, a=later)
    commit(log, 2, a=earlier)
    for epoch in range(3, 12):
        commit(log, epoch, a=put(log, epoch))
    assert len(adopted) == 11
    assert numbers(log, "a") == [2, 1, *range(3, 12)]
    log.checkpoint()
    partition = partition_topic(log, 1)
    assert len(os.listdir(tmp_path / "data" / "topics" / f"{partition:08x}")) <= 2, "nothing of them is left"
    log.close()
    with opened(tmp_path) as again:
        assert numbers(again, "a") == [2, 1, *range(3, 12)]
        assert again.verify().findings == ()


def test_a_long_attempt_fills_several_segments(
    log: EmbeddedLog, tmp_path: Path, adopted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "SEGMENT_SIZE", 2 * LARGE)
    commit(log, 1, a=put(log, *range(7)))
    assert adopted == [1, 3, 5, 7]
    assert numbers(log, "a") == [*range(7)]
    with log.inspecting() as store:
        assert positions(store) == [[7]], "a position is read as a whole, even from several segments"
    log.close()
    with opened(tmp_path) as again:
        assert numbers(again, "a") == [*range(7)]


def positions(store: Store) -> list[list[int]]:
    """How many records each read of positions brings, and of how many positions."""
    found: list[list[int]] = []
    position = Position(0)
    while True:
        plan = store.queries.plan_positions(position, size_max=1)
        counts: dict[int, int] = {}
        for batch in plan.stored():
            counts[batch.position] = counts.get(batch.position, 0) + batch.record_count
        if counts:
            found.append(list(counts.values()))
        if plan.is_last:
            return found
        position = plan.end_position


def test_adoption_keeps_the_cap_of_a_topic(log: EmbeddedLog, adopted: list[int]) -> None:
    log.create_topic("few", cap_records=4)
    log.publish("few", [record(1), record(2), record(3)])
    commit(log, 1, few=put(log, 4, 5, 6))
    assert adopted == [4]
    assert numbers(log, "few") == [3, 4, 5, 6]


def test_a_view_reads_adopted_segments(tmp_path: Path, adopted: list[int]) -> None:
    with opened(tmp_path) as log:
        log.create_topic("a")
        log.publish("a", record(1))
        commit(log, 1, a=put(log, 2))
        with open_view(tmp_path / "data") as view:
            read = [item for item in view.read("a", 1) if isinstance(item, ReceivedBatch)]
            found = [bytes(each.value)[:2] for item in read for each in item]
    assert adopted == [2]
    assert found == [b"\0\1", b"\0\2"]


# --- copied instead -------------------------------------------------------------------------------------------------


def test_batches_in_a_shared_segment_are_copied(log: EmbeddedLog, adopted: list[int]) -> None:
    with log.stage(own_partition=True) as stager:
        first, second = stager.publish(record(1)).ranges(), stager.publish(record(2)).ranges()
    commit(log, 1, a=second, b=first)
    assert (numbers(log, "a"), numbers(log, "b")) == ([2], [1])
    assert not adopted


def test_unflushed_batches_are_copied(log: EmbeddedLog, adopted: list[int]) -> None:
    with log.stage(own_partition=True) as stager:
        stager.publish([b"\0\1", b"\0\2"])
        ranges = stager.ranges()
    commit(log, 1, a=ranges)
    assert not adopted
    assert log.read_arrow("a").column("value").to_pylist() == [b"\0\1", b"\0\2"]


def test_small_segments_are_copied(log: EmbeddedLog, adopted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adoption, "SIZE_MIN", 2 * LARGE)
    commit(log, 1, a=put(log, 1) + put(log, 2, 3))
    assert not adopted
    commit(log, 2, b=put(log, 4) + put(log, 5, 6, 7))
    assert adopted == [1, 2], "the average size counts"
    assert (numbers(log, "a"), numbers(log, "b")) == ([1, 2, 3], [4, 5, 6, 7])


def test_one_topic_is_either_adopted_or_copied(log: EmbeddedLog, adopted: list[int]) -> None:
    """One part shares its segment: all parts of that topic are copied in order; another topic's are adopted."""
    put(log, 9, own_partition=False)
    commit(log, 1, a=put(log, 1) + put(log, 2, own_partition=False) + put(log, 3), b=put(log, 4))
    assert (numbers(log, "a"), numbers(log, "b")) == ([1, 2, 3], [4])
    assert len(adopted) == 1


# --- refused --------------------------------------------------------------------------------------------------------


def test_a_damaged_header_refuses_the_transaction(log: EmbeddedLog, tmp_path: Path) -> None:
    staged = put(log, 1, 2)
    (path,) = (tmp_path / "data" / "topics" / f"{partition_topic(log, 1):08x}").glob("*.active")
    with path.open("r+b") as file:
        file.seek(limits.PAGE_SIZE + 70)
        file.write(b"!")
    with pytest.raises(NotFoundError, match="damaged; stage the records again"):
        commit(log, 1, a=staged)
    commit(log, 1, a=put(log, 3), b=put(log, 4))
    assert (numbers(log, "a"), numbers(log, "b")) == ([3], [4])


def test_a_full_disk_refuses_the_transaction_and_changes_nothing(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, others = put(log, 1), put(log, 2)
    second = f"{partition_topic(log, 2):08x}"

    def full(self: OsFiles, path: str, **how: bool) -> object:
        if how.get("exclusive") and second in path:
            raise OSError(28, "no space", path)
        return real(self, path, **how)

    real: Callable[..., object] = OsFiles.open
    with monkeypatch.context() as patched:
        patched.setattr(OsFiles, "open", full)
        with pytest.raises(DiskFullError):
            commit(log, 1, a=staged + others)
    put(log, 3)
    commit(log, 1, a=staged + others)
    assert numbers(log, "a") == [1, 2]
    assert log.verify().findings == ()


def test_ranges_of_staging_partitions_are_validated(log: EmbeddedLog) -> None:
    (staged,) = put(log, 1, 2)
    for bad, error in (
        (StagedRange(staged.first_seq, staged.first_seq + PARTITION_SEQS), InvalidInputError),
        (StagedRange(staged.first_seq + PARTITION_SEQS, staged.last_seq + PARTITION_SEQS), NotFoundError),
        (StagedRange(1, 2), NotFoundError),
    ):
        with pytest.raises(error):
            commit(log, 1, a=[bad])
    assert log.abort_staged([staged]) == 2
    assert log.abort_staged([staged]) == 0
    with pytest.raises(NotFoundError):
        commit(log, 1, a=[staged])


def crash_after_stamping(path: Path) -> list[StagedRange]:
    """Kill a process after it has moved and stamped a staged file and before it logs that; returns what it staged."""
    pid = os.fork()
    if not pid:
        with opened(path) as log, pytest.MonkeyPatch.context() as patch:
            log.create_topic("a")
            log.publish("a", record(1))
            (staged,) = put(log, 2, 3)
            (path / "staged").write_text(f"{staged.first_seq} {staged.last_seq}")
            patch.setattr(adoption.Adoption, "rolls", lambda _: os._exit(7))
            commit(log, 1, a=[staged])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    first, last = map(int, (path / "staged").read_text().split())
    return [StagedRange(Seq(first), Seq(last))]


def notes(path: Path) -> list[Path]:
    return list((path / "data").rglob("*.adopting*"))


def test_a_crash_before_the_log_entry_undoes_the_adoption(tmp_path: Path) -> None:
    """INV-ADOPTED-OR-BACK, on a real disk."""
    staged = crash_after_stamping(tmp_path)
    (note,) = notes(tmp_path)
    foreign = note.with_name("foreign.adopting")
    foreign.write_text("not one of ours")
    with opened(tmp_path) as log:
        assert numbers(log, "a") == [1]
        assert notes(tmp_path) == [foreign], "other files are left alone"
        foreign.unlink()
        commit(log, 1, a=staged)
        assert numbers(log, "a") == [1, 2, 3]
        assert log.verify().findings == ()


@pytest.mark.parametrize("damage", ["flipped", "removed", "emptied", "halved"])
def test_a_lost_adoption_note_loses_the_staged_records_only(tmp_path: Path, damage: str) -> None:
    staged = crash_after_stamping(tmp_path)
    (note,) = notes(tmp_path)
    data = bytearray(note.read_bytes())
    data[limits.PAGE_SIZE + 40] ^= 1
    if damage == "removed":
        note.unlink()
    else:
        note.write_bytes(data[: {"flipped": len(data), "emptied": 0, "halved": len(data) // 2}[damage]])
    files = OsFiles()
    with open_for_reading(files, str(tmp_path / "data")) as directory:
        findings = verify_directory(files, directory).findings
    assert any(each.first_seq is not None and each.first_seq <= staged[0].first_seq for each in findings)
    with opened(tmp_path) as log:
        assert not notes(tmp_path)
        assert numbers(log, "a") == [1]
        with pytest.raises(NotFoundError, match="stage the records again"):
            commit(log, 1, a=staged)
        commit(log, 1, a=put(log, 4))
        assert numbers(log, "a") == [1, 4]


def test_records_after_several_adopted_segments_survive_a_kill(tmp_path: Path, brokers: int) -> None:
    """The log records every roll to a new segment, also those before the first segment of the topic."""
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        commit(log, 1, a=[each for number in range(3) for each in put(log, number)])
        assert len([*(tmp_path / "data" / "topics").rglob("*.active")]) > 2
        for number in range(3, 6):
            log.publish("a", record(number)[:100])
        expected = stored(log, "a")
        assert len(expected) == 6
        shutil.copytree(tmp_path / "data", tmp_path / "killed" / "data")
    with opened(tmp_path / "killed", brokers) as log:
        assert stored(log, "a") == expected
        log.checkpoint()
        assert stored(log, "a") == expected
        assert log.verify().findings == ()
