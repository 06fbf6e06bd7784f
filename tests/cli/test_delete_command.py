"""`seawall delete`: the deleted records, the confirmation prompt, and invalid arguments."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.api.publishable import Message
from seawall.cli.main import seawall
from seawall.engine.api.open_log import open_log
from seawall.engine.api.view import open_view
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096)
TAGS = ["a", "ab", "b", "a", "b"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A topic whose five records have tags; the value of each is its seq."""
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events")
        log.publish("events", [Message(str(seq), tag=tag) for seq, tag in enumerate(TAGS, 1)])
    return tmp_path / "data"


def seqs(data: Path) -> list[int]:
    """The seqs of the records that are left."""
    with open_view(data) as view:
        return [int(record.value) for item in view.read("events") for record in item]


def run(data: Path, *arguments: str, topic: str = "events", text: str | None = None) -> Result:
    return CliRunner().invoke(seawall, ["delete", topic, *arguments, "--data", str(data)], input=text)


@pytest.mark.parametrize(
    ("arguments", "left", "which"),
    [
        (["--before", "4"], [4, 5], "below seq 4"),
        (["--tag", "a"], [2, 3, 5], "with the tag 'a'"),
        (["--tag-prefix", "a"], [3, 5], "with a tag that starts with 'a'"),
        (["--tag", "a", "--before", "4"], [2, 3, 4, 5], "below seq 4 and with the tag 'a'"),
    ],
)
def test_records_are_deleted_after_a_confirmation(
    data: Path, arguments: list[str], left: list[int], which: str
) -> None:
    refused = run(data, *arguments, text="n\n")
    assert refused.exit_code == 1
    assert f"Permanently delete the records of events {which}? [y/N]" in refused.stderr
    assert seqs(data) == [1, 2, 3, 4, 5]
    done = run(data, *arguments, text="y\n")
    assert (done.exit_code, done.stdout) == (0, f"deleted {5 - len(left)} records of events\n")
    assert seqs(data) == left


def test_yes_skips_the_confirmation_and_json_is_printed(data: Path) -> None:
    done = run(data, "--before", "5", "--yes", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"topic": "events", "deleted": 4})
    assert seqs(data) == [5]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Select records with"),
        (["--tag", "a", "--tag-prefix", "b"], "not both"),
        (["--before", "0"], "--before"),
    ],
)
def test_mistakes_exit_with_2(data: Path, arguments: list[str], message: str) -> None:
    result = run(data, *arguments, "--yes")
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert seqs(data) == [1, 2, 3, 4, 5]


def test_a_missing_topic_is_refused_before_the_confirmation(data: Path) -> None:
    result = run(data, "--before", "5", topic="missing")
    assert result.exit_code == 2
    assert "'missing'" in result.stderr
    assert "[y/N]" not in result.output


def test_a_missing_directory_is_not_created(tmp_path: Path) -> None:
    result = run(tmp_path / "missing", "--before", "1", "--yes")
    assert result.exit_code == 2
    assert not (tmp_path / "missing").exists()
