"""One small batch that needs nothing but numbers: it leaves what a commit of several steps leaves, and fails so."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seawall.engine import short_way
from seawall.engine.commit_queue import CommitQueue
from seawall.engine.embedded import EmbeddedLog
from seawall.engine.local_orderer import LocalOrderer
from seawall.engine.open_log import open_log
from seawall.engine.records import ReceivedBatch
from seawall.engine.settings import StoreSettings
from seawall.errors import FatalError, InvariantError, SyncError
from seawall.io.files import OsFile
from seawall.io.interfaces import ReadableBuffer
from seawall.kernels import lone_batch
from seawall.storage.epoch_write import EpochWrite
from seawall.topics.catalog import TopicCatalog

SMALL = StoreSettings(wal_file_size=1 << 20, checkpoint_size=1 << 62)


def _fail(*_given: Any) -> int:
    raise OSError(errno.EIO, "Input/output error")


def _fail_sync(file: OsFile) -> int:
    raise file._failed(OSError(errno.EIO, "Input/output error"))


def values(log: EmbeddedLog, topic: str = "events") -> list[bytes]:
    batches = [item for item in log.follow(topic) if isinstance(item, ReceivedBatch)]
    return [record.value for batch in batches for record in batch]


def logged(path: Path) -> list[bytes]:
    """The batches of the log, without what differs from run to run: time, and checksums over it."""
    found = []
    for file in sorted((path / "wal").glob("*.wal")):
        data = bytearray(file.read_bytes())
        at = data.find(b"LANC\x02\x04\x00\x00")
        while at >= 0:
            size = 44 + int.from_bytes(data[at + 32 : at + 36], "little")
            data[at + 8 : at + 12], data[at + 20 : at + 28] = bytes(4), bytes(8)
            found.append(bytes(data[at : at + size]))
            at = data.find(b"LANC\x02\x04\x00\x00", at + size)
    return found


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_both_ways_leave_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str) -> None:
    calls: list[str] = []
    real = LocalOrderer.commit_lone

    def counted(*given: Any) -> Any:
        found = real(*given)
        if found is not None:
            calls.append("committed")
        return found

    monkeypatch.setattr(LocalOrderer, "commit_lone", counted)
    short = publish_all(tmp_path / "short", durability)
    assert len(calls) > 250
    calls.clear()
    monkeypatch.setattr(CommitQueue, "_commit_lone", lambda *_: False)
    assert publish_all(tmp_path / "long", durability) == short
    assert not calls


def publish_all(path: Path, durability: str) -> tuple[list[tuple[int, ...]], list[bytes], list[bytes]]:
    """Numbers, records and log of the same appends."""
    with open_log(path, SMALL) as log:
        log.create_topic("events", durability=durability, segment_max_records=50)
        told = [log.publish("events", b"%d" % number * (number * 7 % 400)) for number in range(300)]
        told.append(log.publish("events", [b"x", b"y"]))
        stored = values(log)
    with open_log(path, SMALL) as log:
        assert values(log) == stored
    return [(each.first_seq, each.position, each.record_count) for each in told], stored, logged(path)


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    log = open_log(tmp_path / "data", SMALL)
    log.create_topic("events")
    log.publish("events", b"first, which makes room")
    return log


def test_a_failed_write_is_the_end(log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "write_durably", lambda file, *_: _fail_sync(file))
        with pytest.raises(SyncError, match="sync failed"):
            log.publish("events", b"never")
    # INV-SYNC-FATAL, and INV-STORE-FAILED.
    with pytest.raises(FatalError, match="an earlier change failed"):
        log.publish("events", b"after")
    assert values(log) == [b"first, which makes room"]
    log.close()
    with open_log(tmp_path / "data", SMALL) as again:
        assert values(again) == [b"first, which makes room"]
        again.publish("events", b"goes on")
        assert values(again)[-1] == b"goes on"


def test_a_failed_write_that_was_not_to_be_durable_is_the_end_too(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("loose", durability="disk")
    log.publish("loose", b"makes room")
    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "write", _fail)
        with pytest.raises(FatalError, match="stop, start again and recover"):
            log.publish("loose", b"never")
    with pytest.raises(FatalError, match="an earlier change failed"):
        log.publish("loose", b"after")


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_write_that_was_cut_short_is_made_good(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    log.create_topic("cut", durability=durability)
    log.publish("cut", b"makes room")

    name = "write_durably" if durability == "fsync" else "write"
    real = getattr(OsFile, name)

    def cut(file: OsFile, buffers: Sequence[ReadableBuffer], at: int) -> int:
        data = b"".join(buffers)
        return int(real(file, [data[: (len(data) + 1) // 2]], at))

    with monkeypatch.context() as patch:
        patch.setattr(OsFile, name, cut)
        log.publish("cut", b"written by hand")
    log.publish("cut", b"behind it")
    log.close()
    with open_log(tmp_path / "data", SMALL) as again:
        assert values(again, "cut") == [b"makes room", b"written by hand", b"behind it"]


def test_what_the_frontier_refuses_is_no_write(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_way.kernels, "stage_lone_batch", lambda *_: lone_batch.STAGE_REFUSED)
    with pytest.raises(InvariantError, match="was refused"):
        log.publish("events", b"x")


def test_readers_go_on_while_it_is_written(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks meanwhile lets take effect what is stored, and sees nothing of what is not."""
    real = EpochWrite.carry_out
    seen: list[list[bytes]] = []

    def read() -> None:
        seen.append(values(log))

    def write_slowly(epoch: EpochWrite, *, durable: bool) -> None:
        reader = threading.Thread(target=read)
        reader.start()
        reader.join()
        real(epoch, durable=durable)

    log.publish("events", b"second")
    log.publish("events", b"third")
    with monkeypatch.context() as patch:
        patch.setattr(EpochWrite, "carry_out", write_slowly)
        log.publish("events", b"fourth")
    assert seen == [[b"first, which makes room", b"second", b"third"]]
    assert values(log) == [*seen[0], b"fourth"]
    log.close()


def test_a_reader_that_is_absorbing_keeps_its_rows(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that has its room begins to write while a reader lets the batches before it take effect."""
    real_write, real_apply = EpochWrite.carry_out, TopicCatalog.apply_run
    absorbing, written = threading.Event(), threading.Event()

    def apply_run(self: TopicCatalog, rows: Any) -> Any:
        absorbing.set()
        assert written.wait(30)
        return real_apply(self, rows)

    reader = threading.Thread(target=log.describe, args=("events",))

    def write(epoch: EpochWrite, *, durable: bool) -> None:
        reader.start()
        assert absorbing.wait(30)
        real_write(epoch, durable=durable)
        written.set()

    for number in range(3):
        log.publish("events", b"%d" % number)
    with monkeypatch.context() as patch:
        patch.setattr(TopicCatalog, "apply_run", apply_run)
        patch.setattr(EpochWrite, "carry_out", write)
        log.publish("events", b"meanwhile")
        reader.join()
    assert log.describe("events").next_seq == 6
    assert values(log)[1:] == [b"0", b"1", b"2", b"meanwhile"]
    log.close()


def test_more_than_there_are_rows_for(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2_500):
        log.publish("events", b"%d" % number)
    assert log.describe("events").next_seq == 2_502
    assert values(log)[1:] == [b"%d" % number for number in range(2_500)]
    log.close()
