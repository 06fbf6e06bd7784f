"""Many topics: creations share commits, opening lists no topic directory, and descriptors are bounded."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from seawall.core.types import Seq
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import Append
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import ConfigError, ConflictError, InvalidInputError, SeawallError
from seawall.io.disk.files import OsFile, OsFiles
from seawall.limits import KIB
from seawall.testing import SimClock, SimDisk
from seawall.topics.config import TopicConfig
from seawall.wire.format.records import encode_raw

SETTINGS = StoreSettings(ballast_size=4 * KIB, segment_files=4)


class Counted:
    """Counts the syncs of files and the listings of directories in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = self.lists = 0
        sync, durably, listing = OsFile.sync, OsFile.write_durably, OsFiles.list

        def count_sync(file: OsFile) -> None:
            self.syncs += 1
            sync(file)

        def count_durably(file: OsFile, buffers: list[bytes], at: int) -> int:
            self.syncs += 1
            return durably(file, buffers, at)

        def count_list(files: OsFiles, directory: str) -> list[str]:
            self.lists += 1
            return listing(files, directory)

        monkeypatch.setattr(OsFile, "sync", count_sync)
        monkeypatch.setattr(OsFile, "write_durably", count_durably)
        monkeypatch.setattr(OsFiles, "list", count_list)


def test_many_creations_share_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("first")
        counted = Counted(monkeypatch)
        outcomes = log.create_topics([f"t{number}" for number in range(1_000)])
        assert not any(isinstance(each, SeawallError) for each in outcomes)
        assert counted.syncs <= 12
    with open_log(tmp_path / "data", SETTINGS) as log:
        assert len(log.topics()) == 1_001


def test_each_creation_has_its_own_outcome(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("there")
        wanted = [("a", {}), ("there", {}), ("a", {}), ("b", {"no_setting": 1}), ("", {}), ("c", {"ttl_ms": 5})]
        outcomes = log.create_each(wanted)
        kinds = [type(each) if isinstance(each, SeawallError) else each.name for each in outcomes]
        assert kinds == ["a", ConflictError, ConflictError, ConfigError, InvalidInputError, "c"]
        assert log.topics() == ["a", "c", "there"]
        assert log.describe("c").config.ttl_ms == 5


def test_names_are_a_list_of_strings(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        for names in ("events", [("events", {})]):
            with pytest.raises(InvalidInputError, match="list of strings"):
                log.create_topics(names)
        assert log.topics() == []
        (created,) = log.create_topics(["events"], order=5)
        assert not isinstance(created, SeawallError)
        assert created.config.order == 5


def test_concurrent_creations_all_succeed(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        created: list[str] = []

        def create(worker: int) -> None:
            created.extend(log.create_topic(f"t{worker}-{number}").name for number in range(20))

        threads = [threading.Thread(target=create, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(created) == log.topics()
        assert len(created) == 160


def test_opening_lists_no_topic_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number:03}" for number in range(100)]
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topics(names)
        for name in names:
            log.publish(name, [name])
        log.checkpoint()
    counted = Counted(monkeypatch)
    with open_log(tmp_path / "data", SETTINGS) as log:
        assert counted.lists < 20
        with log.inspecting() as store:
            open_files = store.parts.logs.open_files
        assert len(open_files) == 0
        for name in names:
            assert [record.value for item in log.read(name) for record in item] == [name.encode()]
            log.publish(name, ["more"])
        assert len(open_files) <= 4
        log.checkpoint()
        log.delete_topic(names[0])
        assert log.verify().is_sound
    with open_log(tmp_path / "data", SETTINGS) as log:
        assert [log.describe(name).record_count for name in names[1:]] == [2] * 99


def test_opening_ten_thousand_topics_opens_none_of_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number:05}" for number in range(10_000)]
    written = names[::100]
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topics(names)
        for name in written:
            log.publish(name, [name])
    opened: list[str] = []
    open_file = OsFiles.open

    def note_open(files: OsFiles, path: str, **options: bool) -> OsFile:
        opened.append(path)
        return open_file(files, path, **options)

    monkeypatch.setattr(OsFiles, "open", note_open)
    with open_log(tmp_path / "data", SETTINGS) as log:
        assert opened
        assert not [path for path in opened if "/topics/" in path]
        assert sorted(log.topics()) == names
        assert [record.value for item in log.read(written[-1]) for record in item] == [written[-1].encode()]
        assert log.describe(names[1]).record_count == 0


def test_a_first_record_in_each_topic_makes_no_checkpoint_due(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        names = [f"t{number}" for number in range(200)]
        log.create_topics(names)
        for name in names:
            log.publish(name, [b"x"])
        with log.inspecting() as store:
            assert store.checkpoint_schedule.next_check_at > 0
        assert not list((tmp_path / "data" / "meta").iterdir())


def test_a_directory_left_by_a_killed_process_becomes_durable() -> None:
    """It is not created again, so opening must sync its name: a power loss must not take its content."""
    disk = SimDisk(seed=1)

    def opened() -> Store:
        machine = Machine(disk, SimClock(wall_ns=10**18), random.Random(1).randbytes, pid=1)
        return open_store(machine, "/data", StoreSettings(ballast_size=4 * KIB, wal_file_size=128 * KIB))

    topic_id = opened().create_topic("events", TopicConfig()).topic_id
    # The process was killed before it synced the name.
    disk.make_directory(f"/data/topics/{topic_id:08}")
    disk.kill()
    store = opened()
    store.append([Append(topic_id, encode_raw(b"kept"), 1)])
    store.maintenance.checkpoint()
    disk.crash(keep="none")
    items = opened().queries.read("events", Seq(1), size_max=KIB)
    assert [bytes(item.block) for item in items if isinstance(item, StoredBatch)] == [encode_raw(b"kept")]
