"""`seawall router`: routers of a data directory and of a server are created, listed, described and deleted."""

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
        log.create_topic("orders")
    return tmp_path / "data"


def run(data: Path, *arguments: str) -> Result:
    return CliRunner().invoke(seawall, ["router", *arguments, "--data", str(data)])


def test_a_router_is_created_listed_described_and_deleted(data: Path) -> None:
    made = run(data, "create", "orders->audit", "orders", "audit", "--tag-prefix", "eu.", "--drop-node")
    assert (made.exit_code, made.output) == (0, "orders->audit copies orders to audit\n")
    with open_log(data, SETTINGS) as log:
        log.publish("orders", b"not copied")
        log.describe("audit")
        # Without the lock of the directory.
        assert run(data, "list").output == "orders->audit  orders to audit  0 copied\n"
        (listed,) = json.loads(run(data, "list", "--json").output)
    assert (listed["name"], listed["tag_prefix"], listed["preserve_node"]) == ("orders->audit", "eu.", False)
    assert json.loads(run(data, "describe", "orders->audit", "--json").output) == listed
    lines = run(data, "describe", "orders->audit").output.splitlines()
    assert "source         orders" in lines
    assert "tag_prefix     eu." in lines
    assert "blocked        null" in lines
    deleted = json.loads(run(data, "delete", "orders->audit", "--json").output)
    assert deleted["name"] == "orders->audit"
    assert run(data, "list").output == ""


def test_settings_are_changed_by_creating_again(data: Path) -> None:
    assert run(data, "create", "r", "orders", "audit").exit_code == 0
    changed = json.loads(run(data, "create", "r", "orders", "audit", "--tag", "x", "--node", "n", "--json").output)
    assert (changed["tag"], changed["node"], changed["next_seq"]) == ("x", "n", 1)
    assert changed["guarantee"] == "at_least_once"
    changed = json.loads(run(data, "create", "r", "orders", "audit", "--guarantee", "exactly_once", "--json").output)
    assert changed["guarantee"] == "exactly_once"
    assert run(data, "create", "back", "audit", "orders", "--allow-cycle").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("create", "r", "orders", "audit", "--no-create"), "no topic 'audit'"),
        (("create", "r", "orders", "orders"), "to itself"),
        (("create", "r", "orders", "audit", "--tag", "a", "--tag-prefix", "b"), "not by both"),
        (("create", "a b", "orders", "audit"), "router name 'a b'"),
        (("describe", "r"), "no router 'r'"),
        (("delete", "r"), "no router 'r'"),
    ],
)
def test_mistakes_are_refused(data: Path, arguments: tuple[str, ...], words: str) -> None:
    refused = run(data, *arguments)
    assert refused.exit_code == 2
    assert words in refused.output
