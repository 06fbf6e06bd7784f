"""Other users of the machine: what they can read, and what they can do against a server.

These tests run as root, and act as another user in a child process.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostile_node import HostileNode, StartNode

import seawall
from seawall.core.types import Seq
from seawall.engine.serving.served_log import ServedLog
from seawall.fabric.naming import recorded_fabric
from seawall.io.disk.files import OsFiles
from seawall.spark.segments import FilesError, open_topic
from seawall.storage.directory import read_format
from seawall.wire.lwp2.files import FilesReply

_NOBODY = 65_534

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def _as_nobody(work: Callable[[], str], groups: tuple[int, ...] = ()) -> str:
    """The result of a call, or the name of the error it raises, in a child process of another user."""
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
            # Whatever happens, the child must not continue as a second run of the tests.
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as output:
        result = output.read()
    os.waitpid(child, 0)
    return result


@pytest.fixture
def open_umask(tmp_path: Path) -> Iterator[None]:
    """A umask that removes no permissions, and access for other users to the directory of the test."""
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


def _fabric_of(data: Path) -> Path:
    path = recorded_fabric(OsFiles(), str(data))
    assert path is not None
    return Path(path)


@pytest.mark.usefixtures("open_umask")
def test_files_are_private_whatever_the_umask(start_node: StartNode, tmp_path: Path) -> None:
    """INV-FILES-PRIVATE."""
    node = start_node()
    _publish(node)
    assert _modes(node.data) == {"files": {0o600}, "directories": {0o700}}
    assert stat.S_IMODE((tmp_path / "data-run.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(_fabric_of(node.data).stat().st_mode) == 0o600
    assert _as_nobody(lambda: str(os.listdir(node.data))) == "PermissionError"
    reply = FilesReply(str(node.data), read_format(OsFiles(), str(node.data)).directory_id, Seq(1), (), (), ())
    # A Spark task of another user then requests the records from the server.
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


def _open_and_close(data: Path, work: Callable[[Path], None]) -> None:
    """Open the log of a server in this process, call `work` with the path of its fabric, and close the log."""

    async def main() -> None:
        async with ServedLog(data) as log:
            work(_fabric_of(data))
            if "events" not in await log.topics():
                await log.create_topic("events")
            await log.publish("events", b"value")

    asyncio.run(main())


def test_another_user_cannot_occupy_the_name_of_the_fabric(tmp_path: Path) -> None:
    """A name that follows from the directory could be taken by a FIFO, whose opening blocks the start."""
    data, names = tmp_path / "data", set[str]()
    _open_and_close(data, lambda fabric: names.add(fabric.name))
    directory_id = read_format(OsFiles(), str(data)).directory_id
    squatted = Path(os.environ["SEAWALL_FABRIC_DIRECTORY"], f"seawall-{directory_id.hex()}.fabric")
    os.mkfifo(squatted)
    try:
        os.chown(squatted, _NOBODY, _NOBODY)
        for _ in range(2):
            _open_and_close(data, lambda fabric: names.add(fabric.name))
        assert len(names - {squatted.name}) == 3
    finally:
        squatted.unlink()


def test_a_fabric_that_was_unlinked_does_not_fail_the_stop(tmp_path: Path) -> None:
    _open_and_close(tmp_path / "data", lambda fabric: fabric.unlink())


def test_the_fabric_of_a_killed_server_is_removed_by_the_next(start_node: StartNode) -> None:
    node = start_node()
    left = _fabric_of(node.data)
    node.kill()
    assert left.exists()
    found: list[Path] = []

    def check(fabric: Path) -> None:
        assert not left.exists()
        assert fabric.exists()
        found.append(fabric)

    _open_and_close(node.data, check)
    assert not found[0].exists()
    assert recorded_fabric(OsFiles(), str(node.data)) is None


@pytest.fixture(scope="module")
def exposed_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileNode]:
    """A node with a token file and a directory that others can read, and links in place of its run file."""
    path = tmp_path_factory.mktemp("exposed")
    (path / "tokens").write_text("secret\n")
    (path / "tokens").chmod(0o644)
    (path / "data").mkdir()
    (path / "data").chmod(0o755)
    (path / "victim").write_text("precious")
    for name in ("data-run.json", "data-run.json.new"):
        (path / name).symlink_to(path / "victim")
    node = HostileNode(path / "data", "--token-file", str(path / "tokens"), keep_run_file=True)
    node.start()
    yield node
    try:
        assert node.stop() == 0
        assert stat.S_IMODE(node.data.stat().st_mode) == 0o755
    finally:
        node.kill()


def test_a_link_in_place_of_the_run_file_is_not_followed(exposed_node: HostileNode) -> None:
    assert exposed_node.data.with_name("victim").read_text() == "precious"
    run_file = exposed_node.data.with_name("data-run.json")
    assert json.loads(run_file.read_text())["pid"] == exposed_node.process.pid


def test_files_that_others_can_read_are_reported(exposed_node: HostileNode) -> None:
    tokens = exposed_node.data.with_name("tokens")
    assert f"{tokens} has mode 0644: every user can read it" in exposed_node.stderr
    assert f"{exposed_node.data} has mode 0755: every user can read it" in exposed_node.stderr
