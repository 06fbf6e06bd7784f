"""A view changes nothing, needs no lock, and sees whole commits while a writer writes, moves and drops files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from seawall import limits
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.view import ReadOnlyLog, open_view
from seawall.engine.read.read_results import Item, ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.errors import CorruptionError, InvalidInputError, LockedError, NotFoundError, UnsupportedError
from seawall.io.disk.files import OsFiles
from seawall.io.interfaces import File
from seawall.topics.gaps import Gap

SETTINGS = StoreSettings(
    wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64, checkpoint_size=1 << 40
)
LARGE = b"x" * (limits.LARGE_BATCH_SIZE + 1)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events", segment_max_records=4)
        yield log


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def values(items: list[Item]) -> list[bytes]:
    assert all(isinstance(item, ReceivedBatch) for item in items), items
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def everything(view: ReadOnlyLog, from_seq: int = 1) -> list[bytes]:
    return values(list(view.follow("events", from_seq)))


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in path.rglob("*") if each.is_file()}


# --- reading -------------------------------------------------------------------------------------------------------


def test_a_view_sees_what_a_running_writer_published(writer: EmbeddedLog, data: Path) -> None:
    writer.publish("events", [b"1", b"2", b"3", b"4"])
    writer.publish("events", LARGE)
    writer.checkpoint()
    writer.publish("events", [b"6"])
    writer.commit("reader", "events", 3)
    before = tree(data)
    with open_view(data) as view:
        assert view.topics() == ["events"]
        assert everything(view) == [b"1", b"2", b"3", b"4", LARGE, b"6"]
        assert values(view.read("events", 2, max_bytes=1)) == [b"2", b"3", b"4"]
        assert view.describe("events") == writer.describe("events")
        assert view.committed("reader", "events") == 3
        assert view.committed("nobody", "events") is None
    assert tree(data) == before


def test_a_view_skips_deleted_records(writer: EmbeddedLog, data: Path) -> None:
    for number in range(12):
        writer.publish("events", [b"%d" % number] * 2)
    writer.delete("events", before_seq=14)
    with open_view(data) as view:
        assert everything(view) == [b"6"] + [b"%d" % number for number in range(7, 12) for _ in range(2)]
    writer.checkpoint()
    writer.delete("events", before_seq=21)
    writer.publish("events", [b"last"])
    with open_view(data) as view:
        assert everything(view) == [b"10", b"10", b"11", b"11", b"last"]
        assert view.read("events")[0].first_seq == 21


def test_ephemeral_topics_are_not_readable(writer: EmbeddedLog, data: Path) -> None:
    writer.create_topic("ram", durability="ephemeral")
    writer.publish("ram", b"x")
    writer.sync()
    with open_view(data) as view:
        assert view.describe("ram").next_seq == 2
        with pytest.raises(UnsupportedError, match="is ephemeral"):
            view.read("ram")


def test_a_view_changes_only_on_refresh(writer: EmbeddedLog, data: Path) -> None:
    writer.publish("events", [b"1"])
    with open_view(data) as view:
        assert view.refresh() is False
        writer.publish("events", [b"2"])
        assert everything(view) == [b"1"]
        assert view.refresh() is True
        assert view.refresh() is False
        assert everything(view, 2) == [b"2"]


def test_a_view_follows_wal_files_and_restarts(data: Path) -> None:
    written = []
    with open_log(data, SETTINGS) as log:
        log.create_topic("events")
        view = open_view(data)
        for number in range(12):
            written.append(b"%d" % number * 20_000)
            log.publish("events", written[-1])
            assert view.refresh() is True
            assert everything(view) == written
        assert len(list((data / "wal").iterdir())) > 3
    assert view.refresh() is True  # the clean-shutdown marker
    assert view.refresh() is False
    with open_log(data, SETTINGS) as log:
        log.publish("events", b"more")
    assert view.refresh() is True
    assert everything(view) == [*written, b"more"]
    view.close()
    view.close()


def test_a_directory_without_a_log_is_empty(data: Path) -> None:
    with open_log(data, SETTINGS) as log:
        for path in (data / "wal").iterdir():
            path.unlink()
        with open_view(data) as view:
            assert (view.topics(), view.refresh()) == ([], False)
        del log


def test_a_torn_last_write_is_not_seen(writer: EmbeddedLog, data: Path, tmp_path: Path) -> None:
    writer.publish("events", [b"1"])
    writer.publish("events", [b"2"])
    copy = shutil.copytree(data, tmp_path / "copy")
    [last] = (copy / "wal").glob("*.wal")
    content = last.read_bytes()
    end = len(content.rstrip(b"\0"))
    last.write_bytes(content[: end - 1] + b"!" + content[end:])
    with open_view(copy) as view:
        assert everything(view) == [b"1"]
        # Its header is whole, so the write may still be in flight.
        assert view.refresh() is True
        assert everything(view) == [b"1"]


def test_damage_is_reported_as_a_gap(data: Path) -> None:
    with open_log(data, SETTINGS) as log:
        log.create_topic("events", segment_max_records=1)
        for value in (b"1", b"2", b"3"):
            log.publish("events", value)
        log.checkpoint()
    path = sorted(data.rglob("*.sealed"))[1]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with open_view(data) as view:
        one, gap, three = view.follow("events")
        assert isinstance(gap, Gap)
        assert (gap.first_seq, gap.last_seq, gap.reason.name) == (2, 2, "CORRUPTION")
        assert values([one, three]) == [b"1", b"3"]
        assert len(view.read("events", limit=1)) == 1


def test_wal_damage_seen_twice_is_reported(writer: EmbeddedLog, data: Path, tmp_path: Path) -> None:
    for value in (b"1", b"damaged", b"3"):
        writer.publish("events", value)
    copy = shutil.copytree(data, tmp_path / "copy")
    [last] = (copy / "wal").glob("*.wal")
    last.write_bytes(last.read_bytes().replace(b"damaged", b"DAMAGED"))
    with open_view(copy) as view:
        items = list(view.follow("events"))
    assert [item.reason.name for item in items if isinstance(item, Gap)] == ["CORRUPTION"]
    assert values([item for item in items if isinstance(item, ReceivedBatch)]) == [b"1", b"3"]


# --- starts and refusals -------------------------------------------------------------------------------------------


def test_start_seq_resolves_every_kind_of_start(writer: EmbeddedLog, data: Path) -> None:
    writer.publish("events", [b"1", b"2"])
    writer.commit("reader", "events", 2)
    now = datetime.now(UTC)
    with open_view(data) as view:
        assert view.start_seq("events", "earliest") == 1
        assert view.start_seq("events", "latest") == 3
        assert view.start_seq("events", 7) == 7
        assert view.start_seq("events", "committed", "reader") == 2
        assert view.start_seq("events", "committed", "another") == 1
        assert view.start_seq("events", now - timedelta(hours=1)) == 1
        assert view.start_seq("events", now + timedelta(hours=1)) == 3
        for wrong in (0, "yesterday"):
            with pytest.raises(InvalidInputError):
                view.start_seq("events", wrong)
        with pytest.raises(InvalidInputError, match="name the owner"):
            view.start_seq("events", "committed")
        with pytest.raises(InvalidInputError, match="begin at 1"):
            view.read("events", 0)
        with pytest.raises(NotFoundError):
            view.read("nothing")


def test_another_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no data directory"):
        open_view(tmp_path)


def test_a_damaged_format_is_refused(data: Path) -> None:
    open_log(data, SETTINGS).close()
    (data / "FORMAT").write_bytes(b"nothing")
    with pytest.raises(CorruptionError, match="restore the file"):
        open_view(data)


# --- while a writer moves files ------------------------------------------------------------------------------------


class InterruptedFiles(OsFiles):
    """Files that run an action of a writer before the call with a given number."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.left = at
        self._act = act

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            self._act()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        self._count()
        return super().open(path, create=create, exclusive=exclusive, read_only=read_only)

    def list(self, directory: str) -> list[str]:
        self._count()
        return super().list(directory)

    def exists(self, path: str) -> bool:
        self._count()
        return super().exists(path)


def checkpointed(log: EmbeddedLog) -> None:
    """Flush everything, seal what can be sealed, and trim the old log."""
    for _ in range(2):
        log.publish("events", [b"later"] * 4)
        log.checkpoint()


def overrun(log: EmbeddedLog) -> None:
    """Write more than one WAL file holds."""
    for _ in range(3):
        log.publish("events", [b"later" * 6_000])


def trimmed(log: EmbeddedLog) -> None:
    """Trim all WAL files that were there."""
    for _ in range(2):
        overrun(log)
        log.checkpoint()


def deleted(log: EmbeddedLog) -> None:
    log.delete_topic("other")
    log.checkpoint()


@pytest.mark.parametrize("act", [checkpointed, overrun, trimmed, deleted])
def test_a_view_misses_nothing_while_a_writer_moves_files(
    data: Path, tmp_path: Path, act: Callable[[EmbeddedLog], None]
) -> None:
    """INV-VIEW-MOVED."""
    with open_log(data, SETTINGS) as log:
        log.create_topic("events", segment_max_records=4)
        log.create_topic("other")
        log.publish("other", b"other")
        for first in range(1, 11, 2):
            log.publish("events", [b"%d" % first, b"%d" % (first + 1)])
        log.checkpoint()
        log.publish("events", [b"11", b"12"])
        log.create_topic("quiet")
        log.publish("quiet", b"quiet")
    for at in range(1_000):
        copy = shutil.copytree(data, tmp_path / f"copy-{at}")
        with open_log(copy, SETTINGS) as log:
            files = InterruptedFiles(at, lambda log=log: act(log))
            with open_view(copy, files) as view:
                found = everything(view)
                assert found[:12] == [b"%d" % number for number in range(1, 13)]
                assert values(list(view.follow("quiet"))) == [b"quiet"]
                assert {*found[12:]} <= {b"later", b"later" * 6_000}
                view.refresh()
                assert everything(view) == values(list(log.follow("events")))
        shutil.rmtree(copy)
        if files.left >= 0:
            break
    assert 5 < at < 999


def test_a_topic_deleted_meanwhile_is_not_found(writer: EmbeddedLog, data: Path) -> None:
    for value in (b"1", b"2"):
        writer.publish("events", [value] * 4)
    writer.checkpoint()
    with open_view(data) as view:
        writer.delete_topic("events")
        with pytest.raises(NotFoundError):
            everything(view)


def test_a_missing_segment_is_named(writer: EmbeddedLog, data: Path) -> None:
    writer.publish("events", [b"1"])
    writer.checkpoint()
    with open_view(data) as view:
        [active] = data.rglob("*.active")
        active.rename(data / "elsewhere")
        with pytest.raises(CorruptionError, match=rf"{active} is missing; seawall verify"):
            everything(view)


def test_a_hole_seen_twice_is_a_gap(writer: EmbeddedLog, data: Path) -> None:
    for value in (b"1", b"2"):
        writer.publish("events", [value] * 4)
    writer.checkpoint()
    with open_view(data) as view:
        writer.publish("events", b"3")
        [sealed] = data.rglob("*.sealed")
        sealed.rename(data / "elsewhere")
        [gap, *found] = view.follow("events")
        assert isinstance(gap, Gap)
        assert (gap.first_seq, gap.last_seq, gap.reason.name) == (1, 4, "CORRUPTION")
        # The second attempt read the log after the last commit.
        assert values(found) == [b"2"] * 4 + [b"3"]


def test_an_unreadable_log_seen_twice_is_an_error(writer: EmbeddedLog, data: Path) -> None:
    writer.publish("events", [b"1"])
    with open_view(data) as view:
        for path in (data / "wal").glob("*.wal"):
            path.write_bytes(b"!" * 8192)
        with pytest.raises(CorruptionError, match="not a file of Seawall"):
            view.refresh()
        with pytest.raises(CorruptionError, match="not a file of Seawall"):
            open_view(data)


class VanishingFiles(OsFiles):
    """Files of one kind are replaced by others each time they are opened."""

    def __init__(self, suffix: str) -> None:
        super().__init__()
        self._suffix = suffix
        self.opened = 0

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        if path.endswith(self._suffix):
            self.opened += 1
            raise FileNotFoundError(2, "gone", f"{path}{self.opened}")
        return super().open(path, create=create, exclusive=exclusive, read_only=read_only)


def test_retries_while_opening_are_bounded(writer: EmbeddedLog, data: Path) -> None:
    with pytest.raises(LockedError, match="20 times; try again"):
        open_view(data, VanishingFiles(".wal"))


def test_retries_of_a_read_are_bounded(writer: EmbeddedLog, data: Path) -> None:
    writer.publish("events", [b"1"])
    writer.checkpoint()
    files = VanishingFiles(".active")
    with open_view(data, files) as view:
        with pytest.raises(LockedError, match="20 times"):
            view.read("events")
        assert files.opened == 20


WRITER = """
import sys
from seawall import limits
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings
settings = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, checkpoint_size=100_000)
with open_log(sys.argv[1], settings) as log:
    log.create_topic("events", segment_max_records=50, durability="disk")
    print("ready", flush=True)
    for first in range(0, 3_000, 6):
        log.publish("events", [b"%d" % number + b" " * 500 for number in range(first, first + 6)])
"""


def test_a_view_follows_another_process_in_order(data: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(data)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        seen: list[int] = []
        with open_view(data) as view:
            while len(seen) < 3_000:
                new = everything(view, len(seen) + 1)
                seen += [int(value) for value in new]
                if not new and not view.refresh() and process.poll() is not None:
                    view.refresh()
        assert process.wait() == 0
    assert seen == list(range(3_000))
