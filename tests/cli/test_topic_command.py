"""`seawall topic`: topics are created, listed, described, changed and deleted."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from seawall import limits
from seawall.cli.main import seawall
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("topic") / "data"
    with open_log(path, SETTINGS) as log:
        log.create_topic("events")
        log.create_topic("empty")
        log.publish("events", [b"one", b"two"])
    return path


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data")


def run(data: Path, *arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(seawall, ["topic", *arguments, "--data", str(data)], input=text)


def test_a_topic_is_created_with_its_settings_and_its_directory(tmp_path: Path) -> None:
    made = run(tmp_path / "new", "create", "events", "--set", "ttl_ms=60000", "--set", "durability=disk")
    assert (made.exit_code, made.output) == (0, "created events (topic 1)\n")
    described = json.loads(run(tmp_path / "new", "describe", "events", "--json").output)
    assert (described["config"]["ttl_ms"], described["config"]["durability"]) == (60_000, "disk")
    assert (described["next_seq"], described["record_count"], described["floor"]) == (1, 0, 1)


def test_creating_prints_json(data: Path) -> None:
    made = json.loads(run(data, "create", "more", "--json", "--set", "auto_create=false").output)
    assert (made["name"], made["topic_id"], made["config"]["auto_create"]) == ("more", 3, False)


def test_topics_are_listed(data: Path) -> None:
    assert run(data, "list").output == "empty   0 records  0 bytes  empty\nevents  2 records  16 bytes  seqs 1 to 2\n"
    listed = json.loads(run(data, "list", "--json").output)
    assert [(each["name"], each["record_count"]) for each in listed] == [("empty", 0), ("events", 2)]


def test_no_topics_are_an_empty_list(tmp_path: Path) -> None:
    open_log(tmp_path / "data", SETTINGS).close()
    assert run(tmp_path / "data", "list").output == ""
    assert run(tmp_path / "data", "list", "--json").output == "[]\n"


def test_a_topic_is_described_in_aligned_text(data: Path) -> None:
    lines = run(data, "describe", "events").output.splitlines()
    assert lines[0] == "name                   events"
    assert "next_seq               3" in lines
    assert "durability             fsync" in lines
    assert "dead_letter            null" in lines
    assert "durable                true" in lines


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("ttl_ms=5", "ttl_ms", 5),
        ("discard=reject", "discard", "reject"),
        ('discard="reject"', "discard", "reject"),
        ("auto_priority=false", "auto_priority", False),
        ("priority=null", "priority", None),
        (" dead_letter =later", "dead_letter", "later"),
    ],
)
def test_settings_are_changed(data: Path, text: str, key: str, value: object) -> None:
    changed = run(data, "set", "events", text, "cap_records=9")
    assert (changed.exit_code, changed.output) == (0, "changed events\n")
    config = json.loads(run(data, "describe", "events", "--json").output)["config"]
    assert (config[key], config["cap_records"]) == (value, 9)


def test_changing_prints_json(data: Path) -> None:
    assert json.loads(run(data, "set", "events", "ttl_ms=7", "--json").output)["config"]["ttl_ms"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["create", "events"], "events"),
        (["create", "x", "--set", "ttl=5"], "no setting 'ttl'"),
        (["create", "x", "--set", "name=5"], "no setting 'name'"),
        (["create", "x", "--set", "self=5"], "no setting 'self'"),
        (["create", "x", "--set", "ttl_ms"], "'ttl_ms' has no value; write key=value"),
        (["create", "x", "--set", "ttl_ms=NaN"], "'NaN'"),
        (["create", "x", "--set", "ttl_ms=" + "[" * 100_000], "ttl_ms"),
        (["create", "a/../b"], "a/../b"),
        (["describe", "missing"], "missing"),
        (["delete", "missing", "--yes"], "missing"),
        (["set", "missing", "ttl_ms=5"], "missing"),
        (["set", "events", "discard=a=b"], "discard of a topic is 'a=b'"),
        (["set", "events", "order=1"], "order of a topic is fixed"),
        (["set", "events"], "Missing argument"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(data: Path, arguments: list[str], message: str) -> None:
    result = run(data, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [["list"], ["describe", "a"], ["delete", "a"], ["set", "a", "ttl_ms=5"]])
def test_a_missing_directory_is_not_created(tmp_path: Path, arguments: list[str]) -> None:
    result = run(tmp_path / "missing", *arguments)
    assert result.exit_code == 2
    assert "missing is not a data directory of Seawall" in result.stderr
    assert not (tmp_path / "missing").exists()


def test_a_directory_in_use_is_refused(data: Path) -> None:
    with open_log(data, SETTINGS):
        result = run(data, "create", "more")
    assert result.exit_code == 1
    assert f"in use by process {os.getpid()}: " in result.stderr


def test_listing_and_describing_work_while_the_directory_is_open(data: Path) -> None:
    with open_log(data, SETTINGS) as log:
        log.publish("events", b"three")
        assert "events  3 records" in run(data, "list").output
        assert json.loads(run(data, "describe", "events", "--json").output)["next_seq"] == 4


def test_listing_and_describing_change_nothing(data: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in data.rglob("*")}
    assert run(data, "list").exit_code == run(data, "describe", "events").exit_code == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in data.rglob("*")} == before


def test_deleting_asks_for_confirmation(data: Path) -> None:
    refused = run(data, "delete", "events", text="n\n")
    assert refused.exit_code == 1
    assert "Permanently delete events and its 2 records? [y/N]" in refused.stderr
    assert run(data, "describe", "events").exit_code == 0
    done = run(data, "delete", "events", text="y\n")
    assert (done.exit_code, done.stdout) == (0, "deleted events\n")
    assert run(data, "describe", "events").exit_code == 2


def test_deleting_with_yes_does_not_ask(data: Path) -> None:
    done = run(data, "delete", "events", "--yes")
    assert (done.exit_code, done.output) == (0, "deleted events\n")
    deleted = json.loads(run(data, "delete", "empty", "--yes", "--json").output)
    assert (deleted["name"], deleted["record_count"]) == ("empty", 0)


def test_importing_commands_loads_no_engine() -> None:
    code = (
        "import sys, seawall.cli.data_directory, seawall.cli.topic, seawall.cli.publish, seawall.cli.reading.read, "
        "seawall.cli.verify, seawall.cli.dump\n"
        "print({'numba', 'numpy', 'pyarrow', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


def test_the_default_directory_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = CliRunner().invoke(seawall, ["topic", "create", "events"])
    assert (made.exit_code, made.stdout, made.stderr) == (0, "created events (topic 1)\n", "")
    assert (tmp_path / "seawall-data" / "FORMAT").exists()


def test_the_order_of_a_topic_is_an_option(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    made = CliRunner().invoke(seawall, ["topic", "create", "strong", "--order", "5", "--data", data, "--json"])
    assert (made.exit_code, json.loads(made.output)["config"]["order"]) == (0, 5)
    refused = CliRunner().invoke(seawall, ["topic", "create", "odd", "--order", "3", "--data", data])
    assert refused.exit_code == 2
