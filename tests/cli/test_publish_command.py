"""`seawall pub`: lines, JSON lines and whole files, in batches, from files and from standard input."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.cli import input as input_module
from seawall.cli import publish
from seawall.cli.main import seawall
from seawall.engine.api.open_log import open_log
from seawall.engine.api.view import open_view
from seawall.engine.read.read_results import ReceivedBatch, ReceivedRecord
from seawall.engine.store.settings import StoreSettings
from seawall.wire.format.records import RecordType

SETTINGS = StoreSettings(wal_file_size=4 * limits.WAL_FILE_SIZE_MIN, ballast_size=4096)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events")
    return tmp_path / "data"


def run(data: Path, *arguments: str, content: bytes | None = None) -> Result:
    return CliRunner().invoke(seawall, ["pub", "events", *arguments, "--data", str(data)], input=content)


def batches(data: Path) -> list[list[ReceivedRecord]]:
    with open_log(data, SETTINGS) as log:
        return [list(item) for item in log.follow("events") if isinstance(item, ReceivedBatch)]


def values(data: Path) -> list[bytes]:
    return [record.value for batch in batches(data) for record in batch]


@pytest.mark.parametrize(
    ("content", "expected", "size"),
    [
        (b"one\ntwo\nthree\n", [b"one", b"two", b"three"], 1 << 20),
        (b"one\ntwo", [b"one", b"two"], 3),
        (b"one\r\ntwo\r\n", [b"one", b"two"], 1),
        (b"one\r\ntwo\r\n", [b"one", b"two"], 4),
        (b"one\n\n\ntwo\n", [b"one", b"", b"", b"two"], 1),
        (b"\xff\x00\rx\n", [b"\xff\x00\rx"], 3),
    ],
)
def test_each_line_is_a_record(
    data: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, expected: list[bytes], size: int
) -> None:
    """Also if lines are split between reads of the input."""
    monkeypatch.setattr(input_module, "COPY_BUFFER_SIZE", size)
    result = run(data, content=content)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{len(expected)} records, seqs 1 to {len(expected)}, ")
    assert result.stdout.endswith(" records/s\n")
    assert result.stderr == ""
    assert values(data) == expected


def test_an_empty_input_publishes_nothing(data: Path) -> None:
    assert run(data, content=b"").output == "0 records: the input is empty\n"
    shown = json.loads(run(data, "--json", content=b"").output)
    assert (shown["records"], shown["first_seq"], shown["last_seq"]) == (0, None, None)
    assert values(data) == []


def test_a_file_can_be_named(data: Path, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"a\nb\n")
    assert run(data, str(tmp_path / "input")).exit_code == 0
    assert run(data, "-", content=b"c").exit_code == 0
    assert values(data) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(("size", "expected"), [(2, [2, 2, 1]), (5, [5]), (1, [1] * 5), (1000, [5])])
def test_batches_have_the_size_asked_for(data: Path, size: int, expected: list[int]) -> None:
    shown = json.loads(run(data, "--batch", str(size), "--json", content=b"a\nb\nc\nd\ne\n").output)
    assert (shown["topic"], shown["records"], shown["first_seq"], shown["last_seq"]) == ("events", 5, 1, 5)
    assert shown["seconds"] > 0
    assert shown["records_per_second"] > 0
    assert [len(batch) for batch in batches(data)] == expected


def test_batches_are_limited_in_bytes(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_module, "BLOCK_SIZE_MAX", 10)
    monkeypatch.setattr(input_module, "COPY_BUFFER_SIZE", 6)
    assert run(data, content=b"12345\n" * 5).exit_code == 0
    assert [len(batch) for batch in batches(data)] == [2, 2, 1]


def test_objects_and_arrays_are_json_records(data: Path) -> None:
    content = '{"n": 1, "text": "ä"}\n\n  \n[1, 2]\n'.encode()
    assert run(data, "--format", "json", content=content).exit_code == 0
    [[first, second]] = batches(data)
    assert (first.record_type, first.value) == (RecordType.JSON, '{"n":1,"text":"ä"}'.encode())
    assert second.value == b"[1,2]"


def test_blank_json_lines_alone_publish_nothing(data: Path) -> None:
    assert run(data, "--format", "json", content=b"\n \n").output == "0 records: the input is empty\n"


@pytest.mark.parametrize(
    ("field", "key"), [('"a"', b"a"), ("7", b"7"), ("true", b"true"), ('[1, "ä"]', '[1,"ä"]'.encode())]
)
def test_a_field_becomes_the_key(data: Path, field: str, key: bytes) -> None:
    content = f'{{"id": {field}, "n": 1}}\n'.encode()
    assert run(data, "--format", "json", "--key-field", "id", content=content).exit_code == 0
    [[record]] = batches(data)
    assert record.key == key
    assert json.loads(record.value)["n"] == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2 is not JSON"),
        (b'{"a": NaN}', "line 2 is not JSON: NaN is not JSON"),
        (b'"\xff"', "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON"),
        (b"5", "line 2 is a JSON int: it must be an object or array"),
    ],
)
def test_bad_json_is_named_by_its_line(data: Path, line: bytes, message: str) -> None:
    result = run(data, "--format", "json", "--batch", "1", content=b"{}\n" + line + b"\n")
    assert result.exit_code == 2
    assert result.stderr.startswith("1 records, up to seq 1, are in the log\nseawall: ")
    assert message in result.stderr
    assert values(data) == [b"{}"]


@pytest.mark.parametrize("line", [b"{}", b'{"id": null}', b"[]", b'{"id": "\\ud800"}'])
def test_a_record_without_its_key_is_refused(data: Path, line: bytes) -> None:
    result = run(data, "--format", "json", "--key-field", "id", content=line)
    assert result.exit_code == 2
    assert "line 1" in result.stderr
    assert values(data) == []


@pytest.mark.parametrize("content", [b"", b"two\nlines\n", bytes(range(256))])
def test_raw_input_is_one_record(data: Path, content: bytes) -> None:
    assert run(data, "--format", "raw", content=content).exit_code == 0
    assert values(data) == [content]


@pytest.mark.parametrize("form", ["raw", "lines", "json"])
def test_input_larger_than_a_record_is_refused(data: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(input_module, "RECORD_VALUE_SIZE_MAX", 10)
    result = run(data, "--format", form, content=b"x" * 11)
    assert result.exit_code == 2
    assert "larger than a record may be, 10 bytes; split it" in result.stderr


def test_missing_topics_and_directories_are_created_on_request(data: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    missing = runner.invoke(seawall, ["pub", "more", "--data", str(data)], input="x")
    assert (missing.exit_code, "more" in missing.stderr) == (2, True)
    made = runner.invoke(seawall, ["pub", "more", "--create", "--data", str(data)], input="x")
    assert made.exit_code == 0
    assert runner.invoke(seawall, ["pub", "more", "--create", "--data", str(data)], input="y").exit_code == 0
    assert run(tmp_path / "missing", content=b"x").exit_code == 2
    assert not (tmp_path / "missing").exists()
    assert run(tmp_path / "new", "--create", content=b"x").exit_code == 0
    assert values(tmp_path / "new") == [b"x"]


@pytest.mark.parametrize("arguments", [["--key-field", "id"], ["--batch", "0"], ["--format", "csv"], ["no such file"]])
def test_mistakes_exit_with_2(data: Path, arguments: list[str]) -> None:
    assert run(data, *arguments, content=b"x").exit_code == 2
    assert values(data) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("size", [30, None])
def test_progress_is_shown_on_a_terminal(size: int | None) -> None:
    terminal = Terminal()
    with publish.show_progress(size, terminal) as advance:
        advance(10)
        advance(20)
    assert ("30/30 bytes" if size else "30/? bytes") in terminal.getvalue()


def test_lines_of_a_pipe_are_published_as_they_arrive(data: Path) -> None:
    command = [sys.executable, "-m", "seawall", "pub", "events", "--data", str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhal")
        process.stdin.flush()
        with open_view(data) as view:
            while view.describe("events").next_seq < 3:
                view.refresh()
            assert [record.value for item in view.read("events") for record in item] == [b"one", b"two"]
        process.stdin.write(b"f\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    assert values(data) == [b"one", b"two", b"half"]


@pytest.mark.parametrize("count", [1, 3, 7, 1000])
@pytest.mark.parametrize("size", [1, 64, 1 << 20])
def test_batches_of_lines_join_to_the_input(monkeypatch: pytest.MonkeyPatch, count: int, size: int) -> None:
    monkeypatch.setattr(input_module, "COPY_BUFFER_SIZE", size)
    lines = [b"x" * (number % 5) for number in range(50)]
    content = b"\n".join(lines)
    batches = list(input_module.line_batches(io.BytesIO(content), count))
    assert b"".join(each.data for each in batches) == content + b"\n"
    assert [len(each.ends) for each in batches[:-1]] == [count] * (len(batches) - 1)
    assert [value.as_py() for each in batches for value in each.to_arrow()["value"]] == lines


def test_a_closed_standard_input_is_an_error(data: Path) -> None:
    command = f'exec "{sys.executable}" -m seawall pub events --data "{data}" <&-'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "standard input is closed" in done.stderr
    assert "Traceback" not in done.stderr
    assert values(data) == []
