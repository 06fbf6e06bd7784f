"""`seawall dump`: files as text lines and as JSON, limited in length, and recognised by their preface."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.cli.main import seawall
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "data"
    with open_log(path, SETTINGS) as log:
        log.create_topic("events", segment_max_records=2)
        log.publish("events", [b"one", b"two words"])
        log.publish("events", [b"three"])
        log.checkpoint()
    return path


def run(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(seawall, ["dump", str(path), *arguments])


def test_a_segment_as_text(data: Path) -> None:
    result = run(max(data.rglob("*.sealed")), "--records")
    assert (result.exit_code, result.stderr) == (0, "")
    preface, batch, one, two = result.stdout.splitlines()
    assert preface.startswith("preface   kind=segment format=2 directory_id=")
    assert batch.startswith("batch     at=4096 to=4214 position=")
    assert " first_seq=1 last_seq=2 records=2 " in batch
    assert batch.endswith(" codec=none opaque=false")
    assert one == "record    seq=1 type=raw size=3 value=one"
    assert two == 'record    seq=2 type=raw size=9 value="two words"'


@pytest.mark.parametrize(
    ("pattern", "kind", "items"),
    [
        ("FORMAT", "directory", {"preface"}),
        ("*.wal", "wal", {"preface", "epoch", "control", "batch", "empty"}),
        ("*.active", "segment", {"preface", "batch", "empty"}),
        ("*.index", "index", {"preface", "entry"}),
        ("*.meta", "snapshot", {"preface", "snapshot", "section"}),
    ],
)
def test_every_kind_of_file_as_json_lines(data: Path, pattern: str, kind: str, items: set[str]) -> None:
    rows = [json.loads(line) for line in run(max(data.rglob(pattern)), "--json").stdout.splitlines()]
    assert rows[0]["kind"] == kind
    assert {row["item"] for row in rows} == items


def test_a_file_is_recognised_without_its_name(data: Path, tmp_path: Path) -> None:
    (tmp_path / "unnamed").write_bytes(max(data.rglob("*.index")).read_bytes())
    assert run(tmp_path / "unnamed").stdout.startswith("preface   kind=index ")


def test_the_output_is_limited(data: Path) -> None:
    path = max(data.rglob("*.wal"))
    result = run(path, "--limit", "3")
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == "stopped after 3 lines; --limit shows more\n"
    count = len(run(path).stdout.splitlines())
    assert run(path, "--limit", str(count)).stderr == ""


@pytest.mark.parametrize("arguments", [["--limit", "0"], ["--limit", "x"]])
def test_mistakes_exit_with_2(data: Path, arguments: list[str]) -> None:
    assert run(data / "FORMAT", *arguments).exit_code == 2


def test_missing_and_foreign_files_are_refused(data: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "missing").exit_code == 2
    assert run(tmp_path).exit_code == 2
    (tmp_path / "text").write_text("some other content" * 9)
    result = run(tmp_path / "text")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"seawall: {tmp_path}/text: not a file of Seawall")
