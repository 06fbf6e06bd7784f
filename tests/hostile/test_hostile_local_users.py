"""Other users of the machine: what they can read, and what they can put in the way of a server.

These tests run as root and look on as another user in a child process.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostile_node import HostileNode

import seawall
from seawall.core.types import Seq
from seawall.fabric.naming import SHARED_MEMORY_DIRECTORY, recorded_fabric
from seawall.io.disk.files import OsFiles
from seawall.spark.segments import FilesError, open_topic
from seawall.storage.directory import read_format
from seawall.wire.lwp2.files import FilesReply

_NOBODY = 65_534

StartNode = Callable[..., HostileNode]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def _as_nobody(work: Callable[[], str], groups: tuple[int, ...] = ()) -> str:
    """What some work returns, or the name of what it raises, in a child that is another user."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(_NOBODY - 1)
            os.setuid(_NOBODY)
            os.write(writing, work().encode())
        except (OSError, FilesError) as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            # Whatever it is, the child must not go on as a second run of the tests.
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as said_there:
        said = said_there.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def open_umask(tmp_path: Path) -> Iterator[None]:
    """A umask that keeps nothing back, and a way for other users to the directory of the test."""
    for directory in (tmp_path, *tmp_path.parents[:3]):
        if directory != Path("/tmp"):
            directory.chmod(0o755)
    before = os.umask(0)
    yield
    os.umask(before)


def _modes(data: Path) -> dict[str, set[int]]:
    """The permissions of all files and directories of a data directory."""
    found: dict[str, set[int]] = {"files": set(), "directories": {stat.S_IMODE(data.stat().st_mode)}}
    for path in data.rglob("*"):
        kind = "directories" if path.is_dir() else "files"
        found[kind].add(stat.S_IMODE(path.stat().st_mode))
    return found


def _publish(node: HostileNode) -> None:
    with seawall.connect(node.url) as log:
        log.create_topic("events", segment_max_records=10)
        for _ in range(50):
            log.publish("events", b"secret")


def _fabric_of(node: HostileNode) -> Path:
    path = recorded_fabric(OsFiles(), str(node.data))
    assert path is not None
    return Path(path)


@pytest.mark.usefixtures("open_umask")
def test_files_are_for_their_owner_whatever_the_umask(start_node: StartNode, tmp_path: Path) -> None:
    """INV-FILES-PRIVATE."""
    node = start_node()
    _publish(node)
    assert _modes(node.data) == {"files": {0o600}, "directories": {0o700}}
    assert stat.S_IMODE((tmp_path / "data-run.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(_fabric_of(node).stat().st_mode) == 0o600
    assert _as_nobody(lambda: str(os.listdir(node.data))) == "PermissionError"
    reply = FilesReply(str(node.data), read_format(OsFiles(), str(node.data)).directory_id, Seq(1), (), (), ())
    # A Spark task of another user asks the server for the records then.
    assert _as_nobody(lambda: str(open_topic(reply, 1))) == FilesError.__name__
    assert node.stop() == 0
    assert _modes(node.data) == {"files": {0o600}, "directories": {0o700}}


@pytest.mark.usefixtures("open_umask")
def test_one_group_may_read_if_it_is_configured(start_node: StartNode, tmp_path: Path) -> None:
    group = 54_321
    config = tmp_path / "seawall.toml"
    config.write_text(f'[storage]\ngroup = "{group}"\n')
    node = start_node("--config", str(config))
    _publish(node)
    assert _modes(node.data) == {"files": {0o640}, "directories": {0o750}}
    assert {path.stat().st_gid for path in node.data.rglob("*")} == {group}
    assert "FORMAT" in _as_nobody(lambda: str(os.listdir(node.data)), (group,))
    assert _as_nobody(lambda: str(os.listdir(node.data))) == "PermissionError"
    reply = FilesReply(str(node.data), read_format(OsFiles(), str(node.data)).directory_id, Seq(1), (), (), ())
    assert "TopicDirectory" in _as_nobody(lambda: str(open_topic(reply, 1)), (group,))
    assert _as_nobody(lambda: str((node.data / "FORMAT").open("r+")), (group,)) == "PermissionError"
    assert node.stop() == 0


def test_nobody_can_take_the_name_of_the_fabric(start_node: StartNode) -> None:
    """A name that follows from the directory could be taken by a FIFO, whose opening blocks the start."""
    node = start_node()
    assert node.stop() == 0
    squatted = Path(
        SHARED_MEMORY_DIRECTORY, f"seawall-{read_format(OsFiles(), str(node.data)).directory_id.hex()}.fabric"
    )
    os.mkfifo(squatted)
    try:
        os.chown(squatted, _NOBODY, _NOBODY)
        node.start()
        names = {_fabric_of(node).name}
        assert node.stop() == 0
        node.start()
        names.add(_fabric_of(node).name)
        assert node.stop() == 0
        assert len(names - {squatted.name}) == 2
    finally:
        squatted.unlink()


def test_a_fabric_that_was_unlinked_does_not_fail_the_stop(start_node: StartNode) -> None:
    node = start_node()
    _fabric_of(node).unlink()
    _publish(node)
    assert node.stop() == 0


def test_the_fabric_of_a_killed_server_is_removed_by_the_next(start_node: StartNode) -> None:
    node = start_node()
    left = _fabric_of(node)
    node.kill()
    assert left.exists()
    node.start()
    assert not left.exists()
    fresh = _fabric_of(node)
    assert fresh.exists()
    assert node.stop() == 0
    assert not fresh.exists()
    assert recorded_fabric(OsFiles(), str(node.data)) is None


def test_a_link_in_the_way_of_the_run_file_is_not_followed(start_node: StartNode, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("data-run.json", "data-run.json.new"):
        (tmp_path / name).symlink_to(victim)
    node = start_node()
    assert victim.read_text() == "precious"
    assert json.loads((tmp_path / "data-run.json").read_text())["pid"] == node.process.pid
    assert node.stop() == 0


def test_files_that_others_can_read_are_reported(start_node: StartNode, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    tokens.chmod(0o644)
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o755)
    node = start_node("--token-file", str(tokens))
    assert f"{tokens} has mode 0644: every user can read it" in node.stderr
    assert f"{node.data} has mode 0755: every user can read it" in node.stderr
    assert node.stop() == 0
    assert stat.S_IMODE(node.data.stat().st_mode) == 0o755
