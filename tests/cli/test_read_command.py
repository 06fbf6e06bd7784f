"""`seawall read`: records as text, JSON and bytes; gaps; starts and ends."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.cli.main import seawall
from seawall.cli.reading.selection import Selection, print_chosen
from seawall.core.types import ClientId, ClientSeq, Position, Seq
from seawall.engine.api.open_log import open_log
from seawall.engine.read.read_results import Message, ReceivedSkip
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("read") / "data"
    with open_log(path, SETTINGS) as log:
        log.create_topic("events")
        log.publish("events", ["one", "zwölf"])
        log.publish("events", [b"\xff\x00", {"n": 4}])
        headers = [("a", b"1"), ("a", b"\xff")]
        log.publish("events", Message("five", key=b"\xfe", headers=headers, tag="blue"))
    return path


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data")


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(seawall, ["read", "events", *arguments, "--data", str(data)])


def read_json(data: Path, *arguments: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in run(data, *arguments, "--format", "json").stdout.splitlines()]


def test_text_has_one_line_per_record(data: Path) -> None:
    result = run(data)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == 'one\nzwölf\n\\xff\x00\n{"n":4}\nfive\n'


def test_raw_is_the_values_alone(data: Path) -> None:
    assert run(data, "--format", "raw").stdout_bytes == "onezwölf".encode() + b'\xff\x00{"n":4}five'


def test_json_has_everything(data: Path) -> None:
    rows = read_json(data)
    assert [row["seq"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["type"] for row in rows] == ["raw", "raw", "raw", "json", "envelope"]
    assert list(rows[0]) == ["seq", "timestamp", "type", "key", "value", "headers", "tag"]
    assert (rows[0]["value"], rows[0]["key"], rows[0]["headers"], rows[0]["tag"]) == ("one", None, [], None)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", str(row["timestamp"])) for row in rows)
    assert (rows[2]["value"], rows[2]["encoding"]) == ("/wA=", "base64")
    assert (rows[4]["value"], rows[4]["key"], rows[4]["key_encoding"]) == ("five", "/g==", "base64")
    assert rows[4]["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "/w==", "encoding": "base64"}]
    assert rows[4]["tag"] == "blue"


@pytest.mark.parametrize(
    ("arguments", "seqs"),
    [
        (["--from", "earliest"], [1, 2, 3, 4, 5]),
        (["--from", "2"], [2, 3, 4, 5]),
        (["--from", "2", "--limit", "2"], [2, 3]),
        (["--limit", "1"], [1]),
        (["--limit", "2"], [1, 2]),
        (["--limit", "99"], [1, 2, 3, 4, 5]),
        (["--from", "6"], []),
        (["--from", "18446744073709551615"], []),
    ],
)
def test_from_and_limit_select_records(data: Path, arguments: list[str], seqs: list[int]) -> None:
    assert [row["seq"] for row in read_json(data, *arguments)] == seqs


@pytest.mark.parametrize("start", ["0", "-1", "committed", "1.5", "٣", ""])
def test_a_start_that_is_no_seq_is_refused(data: Path, start: str) -> None:
    result = run(data, f"--from={start}")
    assert result.exit_code == 2
    assert "is neither 'earliest', 'latest', nor a seq" in result.stderr


def test_a_missing_directory_or_topic_is_refused(data: Path, tmp_path: Path) -> None:
    assert run(tmp_path / "missing").exit_code == 2
    missing = CliRunner().invoke(seawall, ["read", "missing", "--data", str(data)])
    assert (missing.exit_code, "missing" in missing.stderr) == (2, True)


@pytest.fixture
def with_gap(tmp_path: Path) -> Path:
    """Seqs 1 and 2, a gap left by a killed process, and one record after it."""
    with open_log(tmp_path / "live", SETTINGS) as log:
        log.create_topic("events")
        log.publish("events", ["one", "two"])
        shutil.copytree(tmp_path / "live", tmp_path / "data")
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.publish("events", ["after"])
    return tmp_path / "data"


def test_gaps_are_reported_on_standard_error(with_gap: Path) -> None:
    result = run(with_gap)
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\nafter\n")
    assert result.stderr == "gap: seqs 3 to 64 are lost: crash\n"
    assert run(with_gap, "--limit", "2").stderr == ""


def test_gaps_are_in_order_in_json(with_gap: Path) -> None:
    rows = read_json(with_gap)
    assert [row.get("seq") for row in rows] == [1, 2, None, 65]
    assert rows[2] == {"gap": {"first_seq": 3, "last_seq": 64, "reason": "crash"}}


def test_damage_is_a_gap_and_not_the_end(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events", segment_max_records=1)
        for value in ("one", "two", "three"):
            log.publish("events", value)
        log.checkpoint()
    path = sorted((tmp_path / "data").rglob("*.sealed"))[1]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    result = run(tmp_path / "data")
    assert (result.exit_code, result.stdout) == (0, "one\nthree\n")
    assert result.stderr == "gap: seqs 2 to 2 are lost: corruption\n"


@pytest.mark.parametrize(
    ("arguments", "seqs"),
    [
        (["--from", "latest"], []),
        (["--until", "2"], [1, 2]),
        (["--until", "3", "--from", "2"], [2, 3]),
        (["--until", "end"], [1, 2, 3, 4, 5]),
        (["--until", "99"], [1, 2, 3, 4, 5]),
        (["--until", "1", "--from", "2"], []),
        (["--until", "2000-01-01"], []),
        (["--until", "2999-01-01T00:00:00Z"], [1, 2, 3, 4, 5]),
        (["--from", "2000-01-01T00:00:00"], [1, 2, 3, 4, 5]),
        (["--from", "2999-01-01T00:00+01:00"], []),
    ],
)
def test_starts_and_ends_are_names_seqs_and_times(data: Path, arguments: list[str], seqs: list[int]) -> None:
    assert [row["seq"] for row in read_json(data, *arguments)] == seqs


def test_a_time_cuts_between_batches(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events")
        log.publish("events", "one")
        log.publish("events", "two")
    rows = read_json(tmp_path / "data")
    # Whole microseconds: a time has no finer resolution.
    second = f"{str(rows[1]['timestamp'])[:-4]}Z"
    before, from_second = (
        read_json(tmp_path / "data", "--until", second),
        read_json(tmp_path / "data", "--from", second),
    )
    assert [row["value"] for row in before] in (["one"], [])
    assert [row["value"] for row in from_second] in (["two"], ["one", "two"])
    assert len(before) + len(from_second) == 2


def test_a_gap_is_cut_at_the_end(with_gap: Path) -> None:
    rows = read_json(with_gap, "--until", "10")
    assert rows[-1] == {"gap": {"first_seq": 3, "last_seq": 10, "reason": "crash"}}
    assert [row["seq"] for row in read_json(with_gap, "--until", "2")] == [1, 2]


def test_reading_an_open_directory_changes_nothing(data: Path) -> None:
    with open_log(data, SETTINGS) as log:
        log.publish("events", "six")
        before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
        assert run(data, "--from", "5").stdout == "five\nsix\n"
        assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_a_skip_is_printed_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    skip = ReceivedSkip("events", Position(9), ClientId(7), ClientSeq(3), 2, Seq(5))
    selection = Selection(1, last_seq=None, before=None, limit=None)
    print_chosen(selection.choose([skip]), "json")
    assert selection.next_seq == 5
    assert json.loads(capsys.readouterr().out) == {
        "skip": {"position": 9, "client_id": 7, "first_client_seq": 3, "count": 2}
    }
    print_chosen([skip], "text")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "skip: batches 3 to 4 of client 0000000000000007 never arrived\n")
