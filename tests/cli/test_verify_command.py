"""`seawall verify`: damage of every kind exits with 1 and a line that locates it; nothing is changed."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.cli.main import seawall
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings
from seawall.storage.preface import DATA_START

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("verify") / "data"
    with open_log(path, SETTINGS) as log:
        log.create_topic("events", segment_max_records=2)
        log.publish("events", [b"one", b"two"])
        log.publish("events", [b"three"])
        log.checkpoint()
        log.commit("reader", "events", 2)
        log.checkpoint()
        log.publish("events", [b"four"])
    return path


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data")


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(seawall, ["verify", "--data", str(data), *arguments])


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def test_a_sound_directory_exits_with_0(data: Path) -> None:
    result = run(data)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("sound: 6 files, ")
    assert ", 3 batches and 4 records in topics, " in result.stdout
    assert result.stdout.endswith(" s\n")


def test_a_sound_directory_in_json(data: Path) -> None:
    [totals] = map(json.loads, run(data, "--json").stdout.splitlines())
    assert (totals["damages"], totals["files"], totals["batches"], totals["records"]) == (0, 6, 3, 4)
    assert totals["bytes"] > 0
    assert totals["seconds"] > 0


@pytest.mark.parametrize(
    ("pattern", "at", "message"),
    [
        ("*.sealed", DATA_START + 100, f"bytes {DATA_START} to 4208 (seqs 1 to 2): damaged; the bytes before"),
        ("*.sealed", 41, f"bytes 0 to {DATA_START}: damaged; no record is lost by it; "),
        ("*.active", DATA_START + 100, "(seqs 3 to 3): damaged; the bytes before and after it are readable; restore"),
        ("*.index", DATA_START + 10, "(seqs 1 to 2): checksum of the file does not match; nothing is lost"),
        ("*.meta", DATA_START + 40, ": checksum of the snapshot does not match; nothing is lost"),
        ("*.wal", DATA_START + 20, ": no valid epoch header; what was only in it"),
        ("*.wal", 20, f"bytes 0 to {DATA_START}: checksum of the preface does not match; the directory cannot be"),
    ],
)
def test_each_damage_is_a_line_and_exits_with_1(data: Path, pattern: str, at: int, message: str) -> None:
    path = max(data.rglob(pattern))
    flip(path, at)
    result = run(data)
    assert result.exit_code == 1
    [line, summary] = result.stdout.splitlines()
    assert line.startswith(str(path))
    assert message in line
    assert summary.startswith("1 damaged: ")
    [found, totals] = map(json.loads, run(data, "--json").stdout.splitlines())
    assert found["path"] == str(path)
    assert totals["damages"] == 1


def test_damage_with_an_unknown_end_says_so(data: Path) -> None:
    (max(data.rglob("*.sealed")).with_name(f"{1:020d}.deletes")).write_bytes(b"other content")
    assert "(seqs 1 to an unknown one): not a file of Seawall" in run(data).stdout


def test_damage_in_two_files_is_two_lines(data: Path) -> None:
    flip(max(data.rglob("*.sealed")), DATA_START + 100)
    flip(max(data.rglob("*.index")), DATA_START + 10)
    result = run(data)
    assert (result.exit_code, len(result.stdout.splitlines())) == (1, 3)


def test_a_damaged_format_file_ends_the_check(data: Path) -> None:
    flip(data / "FORMAT", 20)
    result = run(data)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "FORMAT: checksum of the preface does not match; restore" in result.stderr


def test_foreign_files_are_no_damage(data: Path) -> None:
    (data / "meta" / "notes.txt").write_text("mine")
    result = run(data)
    assert result.exit_code == 0
    assert result.stderr == f"note: {data}/meta/notes.txt: not a file of Seawall; it was not read\n"


def test_records_of_an_ephemeral_topic_are_not_missed(data: Path) -> None:
    with open_log(data, SETTINGS) as log:
        log.create_topic("passing", durability="ephemeral")
        log.publish("passing", [b"one", b"two"])
    result = run(data)
    assert (result.exit_code, result.stderr) == (0, "")


def test_an_open_directory_is_refused(data: Path) -> None:
    with open_log(data, SETTINGS):
        result = run(data)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"in use by process {os.getpid()}; stop that one, or verify a copy" in result.stderr


def test_a_path_that_is_no_data_directory_is_a_usage_error(tmp_path: Path) -> None:
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "no data directory" in result.stderr


def test_no_file_is_modified(data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    result = run(data)
    assert (result.exit_code, result.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_a_directory_with_a_damaged_index_opens_and_is_repaired(data: Path) -> None:
    """The remedy that the message about a damaged index names works."""
    path = max(data.rglob("*.index"))
    flip(path, DATA_START + 10)
    assert run(data).exit_code == 1
    with open_log(data, SETTINGS) as log:
        for name in log.topics():
            log.read(name)
    assert run(data).exit_code == 0
