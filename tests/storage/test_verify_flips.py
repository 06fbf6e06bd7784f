"""Every byte of every kind of file, flipped: verification detects it, or the byte is proven irrelevant.

The directory is small, and so is every file in it. Each byte of content gets a full verification. The zeros after a
preface are as many as all other bytes, and one check covers them. So the reader of each kind checks every one of them,
and a full verification checks a sample. Irrelevant bytes are flipped all at once: verification has no findings, and
opening the directory returns every record.
"""

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.verify import verify_directory
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.errors import CorruptionError
from seawall.io.disk.files import OsFiles
from seawall.storage.directory import read_format
from seawall.storage.findings import VerifyReport
from seawall.storage.preface import DATA_START, PREFACE_SIZE
from seawall.storage.read_only import open_for_reading
from seawall.storage.segments.batch_index import load_sidecar
from seawall.storage.segments.delete_sidecar import DeletedSeqs, load_deletes, write_deletes
from seawall.storage.segments.topic_directory import TopicDirectory, read_segment_preface
from seawall.storage.snapshots import Snapshot
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, WalAddress
from seawall.storage.wal.files import open_wal_file

#: Every byte of every kind of file: minutes of work.
pytestmark = pytest.mark.slow

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, checkpoint_size=1 << 40)
FILES = OsFiles()
TOPIC = "topics/00000001"

#: A full verification checks every n-th zero after a preface.
STRIDE = 503


def fill(log: EmbeddedLog) -> None:
    """Seqs 1–2 sealed, some of them deleted; 3 flushed to the active segment; 4 only in the log."""
    log.create_topic("events", segment_max_records=2)
    log.publish("events", [b"one", b"two"])
    log.publish("events", [b"three"])
    log.checkpoint()
    log.commit("reader", "events", 2)
    log.checkpoint()
    log.publish("events", [b"four"])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cleanly closed directory; each test leaves it unchanged."""
    path = tmp_path_factory.mktemp("flips") / "data"
    with open_log(path, SETTINGS) as log:
        fill(log)
    deletes = str(path / TOPIC / f"{1:020d}.deletes")
    write_deletes(FILES, deletes, DeletedSeqs.between(Seq(1), Seq(1)), home(path).preface(Seq(1)))
    assert verify(path).is_sound
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory left by a killed process."""
    path = tmp_path_factory.mktemp("killed")
    with open_log(path / "live", SETTINGS) as log:
        fill(log)
        shutil.copytree(path / "live", path / "data")
    return path / "data"


def home(path: Path) -> TopicDirectory:
    return TopicDirectory(FILES, str(path / TOPIC), directory_id(path), TopicId(1))


def directory_id(path: Path) -> bytes:
    return (path / "FORMAT").read_bytes()[16:32]


def verify(path: Path) -> VerifyReport:
    with open_for_reading(FILES, str(path)) as directory:
        return verify_directory(FILES, directory)


def only(path: Path, pattern: str) -> Path:
    [found] = path.rglob(pattern)
    return found


def flipped(path: Path, places: Iterable[int], check: Callable[[int], None]) -> None:
    """Flip one byte after another, each back before the next; the bit depends on the position."""
    content = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in places:
            for byte in (content[at] ^ (1 << at % 8), content[at]):
                file.seek(at)
                file.write(bytes([byte]))
                if byte != content[at]:
                    check(at)
    assert path.read_bytes() == content


def flip_all(path: Path, first: int, end: int) -> None:
    content = bytearray(path.read_bytes())
    content[first:end] = bytes(byte ^ 0xFF for byte in content[first:end])
    path.write_bytes(content)


def meaningful(size: int) -> list[int]:
    """The preface, a sample of the zeros after it, and the content."""
    return [*range(PREFACE_SIZE), *range(PREFACE_SIZE, DATA_START, STRIDE), *range(DATA_START, size)]


def log_end(path: Path) -> int:
    """The end of a cleanly closed log, including its clean-shutdown marker; only zeros follow."""
    content = only(path, "*.wal").read_bytes()
    mark = content.rindex(b"EPOC")
    assert content[mark + EPOCH_HEADER_SIZE :].strip(b"\0") == b""
    return mark + EPOCH_HEADER_SIZE


def records(path: Path) -> list[bytes]:
    with open_log(path, SETTINGS) as log:
        items = list(log.follow("events"))
        return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


# --- what is found -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["*.sealed", "*.index", "*.deletes", "*.meta"])
def test_every_flipped_byte_of_an_atomic_file_is_detected(data: Path, pattern: str) -> None:
    path = max(data.rglob(pattern))

    def check(at: int) -> None:
        [finding] = verify(data).findings
        assert finding.path == str(path), at
        assert finding.from_at <= at < finding.to_at
        assert finding.remedy

    flipped(path, meaningful(path.stat().st_size), check)


def test_every_flipped_byte_of_the_older_snapshot_is_detected(data: Path) -> None:
    path = min(data.rglob("*.meta"))

    def check(at: int) -> None:
        [finding] = verify(data).findings
        assert (finding.path, "uses the snapshot before" in finding.remedy) == (str(path), True), at

    flipped(path, range(DATA_START, path.stat().st_size, 7), check)


def test_every_flipped_byte_of_a_flushed_batch_is_detected(data: Path) -> None:
    path = only(data, "*.active")
    # One batch with one record of five bytes is flushed.
    end = DATA_START + limits.BATCH_HEADER_SIZE + limits.RECORD_HEADER_SIZE + len(b"three")

    def check(at: int) -> None:
        [finding] = verify(data).findings
        assert finding.path == str(path), at
        assert finding.from_at <= at < finding.to_at

    flipped(path, meaningful(end), check)


def test_every_flipped_byte_of_the_log_up_to_its_clean_shutdown_marker_is_detected(data: Path) -> None:
    path = only(data, "*.wal")

    def check(at: int) -> None:
        finding, *_ = verify(data).findings
        assert finding.path == str(path), at
        assert finding.from_at <= at < finding.to_at
        assert "restore" in finding.remedy

    flipped(path, meaningful(log_end(data) - EPOCH_HEADER_SIZE), check)


READERS: dict[str, Callable[[Path, Path], object]] = {
    "FORMAT": lambda data, _path: read_format(FILES, str(data)),
    "*.wal": lambda data, _path: open_wal_file(
        FILES, str(data / "wal"), WalAddress(0), directory_id(data), read_only=True
    ),
    "*.sealed": lambda data, path: segment_preface(data, path, 1),
    "*.active": lambda data, path: segment_preface(data, path, 3),
    "*.index": lambda data, path: load_sidecar(FILES, str(path), home(data).preface(Seq(1))),
    "*.deletes": lambda data, path: load_deletes(FILES, str(path), home(data).preface(Seq(1))),
    "*.meta": lambda data, path: Snapshot.parse(path.read_bytes(), directory_id=directory_id(data)),
}


def segment_preface(data: Path, path: Path, first_seq: int) -> None:
    file = FILES.open(str(path), read_only=True)
    try:
        if read_segment_preface(file, home(data), Seq(first_seq)) is None:
            raise CorruptionError("as verification takes it")
    finally:
        file.close()


@pytest.mark.parametrize("pattern", READERS)
def test_every_flipped_byte_of_a_preface_page_is_detected(data: Path, pattern: str) -> None:
    path = max(data.rglob(pattern))

    def check(_at: int) -> None:
        with pytest.raises(CorruptionError):
            READERS[pattern](data, path)

    flipped(path, range(DATA_START), check)


def test_a_damaged_format_is_an_error_with_a_remedy(data: Path) -> None:
    def check(_at: int) -> None:
        with pytest.raises(CorruptionError, match=r"FORMAT: .*; restore the file from a copy"):
            verify(data)

    flipped(data / "FORMAT", range(0, DATA_START, STRIDE), check)
    (data / "FORMAT").write_bytes((data / "FORMAT").read_bytes() + b"\0")
    try:
        check(DATA_START)
    finally:
        (data / "FORMAT").write_bytes((data / "FORMAT").read_bytes()[:-1])


# --- what carries nothing ------------------------------------------------------------------------------------------

ALL = [b"one", b"two", b"three", b"four"]


def test_the_unused_rest_of_an_active_segment_is_irrelevant(data: Path, tmp_path: Path) -> None:
    """Neither the space of unflushed batches nor the space after it matters."""
    copy = shutil.copytree(data, tmp_path / "copy")
    path = only(copy, "*.active")
    end = DATA_START + limits.BATCH_HEADER_SIZE + limits.RECORD_HEADER_SIZE + len(b"three")
    flip_all(path, end, path.stat().st_size)
    report = verify(copy)
    assert (report.findings, report.totals.notes) == ((), [])
    assert records(copy) == ALL
    with open_log(copy, SETTINGS) as log:
        log.checkpoint()
        log.publish("events", b"five")
        assert log.verify().is_sound
    assert records(copy) == [*ALL, b"five"]


@pytest.mark.parametrize("name", ["LOCK", "BALLAST"])
def test_lock_and_ballast_content_is_irrelevant(data: Path, tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(data, tmp_path / "copy")
    flip_all(copy / name, 0, (copy / name).stat().st_size)
    report = verify(copy)
    assert (report.findings, report.totals.notes) == ((), [])
    assert records(copy) == ALL


@pytest.mark.parametrize("size", [None, 0])
def test_a_missing_ballast_is_noted(data: Path, tmp_path: Path, size: int | None) -> None:
    copy = shutil.copytree(data, tmp_path / "copy")
    (copy / "BALLAST").unlink()
    if size is not None:
        (copy / "BALLAST").write_bytes(bytes(size))
    assert verify(copy).totals.notes == [f"{copy}/BALLAST: no space is reserved; the next opening does it if it can"]
    assert records(copy) == ALL
    assert (copy / "BALLAST").stat().st_size == SETTINGS.ballast_size


def test_a_prepared_log_file_is_irrelevant(data: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(data, tmp_path / "copy")
    (copy / "wal" / "wal-next.preparing").write_bytes(b"!" * 9000)
    report = verify(copy)
    assert (report.findings, report.totals.notes) == ((), [])
    assert records(copy) == ALL


def test_damage_of_the_clean_shutdown_marker_loses_no_record(data: Path, tmp_path: Path) -> None:
    """The log then looks as after a crash: a note reports it, and the next opening skips seqs but loses no record."""
    mark = log_end(data) - EPOCH_HEADER_SIZE
    path = only(data, "*.wal")

    def check(at: int) -> None:
        report = verify(data)
        assert report.findings == (), at
        [note] = report.totals.notes
        assert note.startswith(f"{path}: bytes from {min(mark, at) if at < mark + EPOCH_HEADER_SIZE else mark + 64} on")

    flipped(path, [*range(mark, mark + EPOCH_HEADER_SIZE), mark + EPOCH_HEADER_SIZE, path.stat().st_size - 1], check)
    copy = shutil.copytree(data, tmp_path / "copy")
    flip_all(only(copy, "*.wal"), mark, path.stat().st_size)
    assert records(copy) == ALL
    assert verify(copy).is_sound


def test_damage_of_the_last_write_is_a_torn_tail_and_of_earlier_ones_damage(killed: Path) -> None:
    path = only(killed, "*.wal")
    content = path.read_bytes()
    last = content.rindex(b"EPOC")
    end = len(content.rstrip(b"\0"))

    def is_tail(_at: int) -> None:
        report = verify(killed)
        assert report.findings == ()
        assert [
            note.startswith(f"{path}: bytes from {last} on are an interrupted write") for note in report.totals.notes
        ] == [True]

    def is_damage(at: int) -> None:
        finding, *_ = verify(killed).findings
        assert (finding.path, finding.from_at <= at < finding.to_at) == (str(path), True)

    assert verify(killed).totals.notes == []
    flipped(path, range(last, end), is_tail)
    flipped(path, range(content.rindex(b"EPOC", 0, last), last), is_damage)


# --- the owner asks ------------------------------------------------------------------------------------------------


def test_an_open_log_can_be_verified_by_its_owner(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        fill(log)
        report = log.verify()
        assert (report.is_sound, report.totals.record_count, report.totals.notes) == (True, 4, [])
        path = only(tmp_path, "*.sealed")
        flip_all(path, DATA_START + 100, DATA_START + 101)
        [finding] = log.verify().findings
        assert (finding.path, finding.first_seq, finding.last_seq) == (str(path), 1, 2)
        # The log still works.
        log.publish("events", b"five")
        flip_all(path, DATA_START + 100, DATA_START + 101)
        assert log.verify().is_sound
