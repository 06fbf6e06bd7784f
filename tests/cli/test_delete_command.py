"""`seawall delete`: what it asks of the log, what it asks the person, and what it refuses."""

import json
from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner, Result

from seawall.cli import delete as delete_module
from seawall.cli.main import seawall
from seawall.errors import NotFoundError


class RecordingLog:
    """Stands for a log, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.asked.append(("closed",))

    def topic_named(self, topic: str) -> None:
        if topic != "events":
            raise NotFoundError(f"no topic {topic!r}")

    def delete(self, topic: str, *, before_seq: int | None, tag: str | None, tag_prefix: str | None) -> int:
        self.asked.append((topic, before_seq, tag, tag_prefix))
        return 7


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> RecordingLog:
    opened = RecordingLog()

    def open_writable_log(directory: Path) -> RecordingLog:
        assert directory == Path("somewhere")
        return opened

    monkeypatch.setattr(delete_module, "open_writable_log", open_writable_log)
    return opened


def run(*arguments: str, topic: str = "events", text: str | None = None) -> Result:
    return CliRunner().invoke(seawall, ["delete", topic, *arguments, "--data", "somewhere"], input=text)


@pytest.mark.parametrize(
    ("arguments", "asked", "which"),
    [
        (["--before", "5"], ("events", 5, None, None), "below seq 5"),
        (["--tag", "a"], ("events", None, "a", None), "with the tag 'a'"),
        (["--tag-prefix", "a"], ("events", None, None, "a"), "with a tag that starts with 'a'"),
        (["--tag", "a", "--before", "5"], ("events", 5, "a", None), "below seq 5 and with the tag 'a'"),
    ],
)
def test_it_asks_and_deletes(log: RecordingLog, arguments: list[str], asked: tuple[object, ...], which: str) -> None:
    refused = run(*arguments, text="n\n")
    assert refused.exit_code == 1
    assert f"Permanently delete the records of events {which}? [y/N]" in refused.stderr
    assert log.asked == [("closed",)]
    done = run(*arguments, text="y\n")
    assert (done.exit_code, done.stdout) == (0, "deleted 7 records of events\n")
    assert log.asked[1:] == [asked, ("closed",)]


def test_it_can_be_told_not_to_ask_and_answers_in_json(log: RecordingLog) -> None:
    done = run("--before", "5", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"topic": "events", "deleted": 7})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Select records with"),
        (["--tag", "a", "--tag-prefix", "b"], "not both"),
        (["--before", "0"], "--before"),
    ],
)
def test_mistakes_exit_with_2(log: RecordingLog, arguments: list[str], said: str) -> None:
    result = run(*arguments, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert log.asked == []


def test_a_topic_that_is_not_there_is_refused_before_anything_is_asked(log: RecordingLog) -> None:
    result = run("--before", "5", topic="gone")
    assert (result.exit_code, log.asked) == (2, [("closed",)])
    assert "no topic 'gone'" in result.stderr


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    result = CliRunner().invoke(seawall, ["delete", "a", "--before", "1", "--yes", "--data", str(tmp_path / "gone")])
    assert result.exit_code == 2
    assert not (tmp_path / "gone").exists()
