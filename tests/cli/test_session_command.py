"""`seawall session`: sessions of a data directory are listed and retired."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.cli.main import seawall
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with open_log(tmp_path / "data", SETTINGS) as log:
        log.create_topic("events")
        for client_id in (7, 12):
            with log.publisher("events", client_id=client_id) as publisher:
                publisher.publish(b"one")
    return tmp_path / "data"


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(seawall, ["session", *arguments, "--data", str(data)])


def test_sessions_are_listed_while_the_directory_is_open(data: Path) -> None:
    with open_log(data, SETTINGS):
        lines = run(data, "list").output.splitlines()
    assert [line.split("  seen ")[0] for line in lines] == [
        " 7  epoch 1  next client seq 2",
        "12  epoch 1  next client seq 2",
    ]
    listed = json.loads(run(data, "list", "--json").output)
    assert [(each["client_id"], each["session_epoch"], each["live"]) for each in listed] == [
        (7, 1, False),
        (12, 1, False),
    ]
    assert listed[0]["last_seen_ms"] > 1_700_000_000_000


def test_no_sessions_are_an_empty_list(tmp_path: Path) -> None:
    open_log(tmp_path / "data", SETTINGS).close()
    assert run(tmp_path / "data", "list").output == ""
    assert run(tmp_path / "data", "list", "--json").output == "[]\n"


def test_sessions_are_retired(data: Path) -> None:
    retired = json.loads(run(data, "retire", "12", "--json").output)
    assert [each["client_id"] for each in retired] == [12]
    assert [each["client_id"] for each in json.loads(run(data, "list", "--json").output)] == [7]
    again = run(data, "retire", "12")
    assert again.exit_code == 2
    assert "client 12 has no session here" in again.output


def test_invalid_client_ids_are_refused(data: Path) -> None:
    for wrong in ("0", "x", str(1 << 63)):
        assert run(data, "retire", wrong).exit_code == 2
    assert len(json.loads(run(data, "list", "--json").output)) == 2
