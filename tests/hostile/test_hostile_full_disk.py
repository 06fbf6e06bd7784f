"""A full disk under a server: creating topics is refused and may be tried again, and nothing else changes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostile_node import HostileNode

import seawall
from seawall.errors import DiskFullError

#: A little more than the files of an idle server take.
SIZE_MIB = 12

#: Refusals to wait for; a client retries each of them for a while.
REFUSED = 3
RETRIED_S = 0.3

CONFIG = "[storage]\nwal_file_size = 262144\nballast_size = 262144\n"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system for the data of a node, where mounting one is permitted."""
    folder = tmp_path / "data"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write a file until the disk has no page left."""
    with path.open("ab", buffering=0) as file:
        size = 1 << 20
        while size >= 512:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def create_until_refused(node: HostileNode) -> tuple[int, list[str]]:
    """Create topics until the disk has refused some: how many, and those that were created."""
    refused, created = 0, list[str]()
    with seawall.connect(node.url, timeout_s=RETRIED_S) as log:
        for number in range(3_000):
            try:
                log.create_topic(f"t{number}")
                created.append(f"t{number}")
            except DiskFullError:
                refused += 1
                if refused == REFUSED:
                    break
    return refused, created


def test_creating_topics_on_a_full_disk_is_refused(
    small_disk: Path, tmp_path: Path, start_node: Callable[..., HostileNode]
) -> None:
    config = tmp_path / "seawall.toml"
    config.write_text(CONFIG)
    node = start_node("--config", str(config), data="data/log")
    with seawall.connect(node.url) as log:
        log.create_topic("kept")
        log.publish("kept", b"first")
        filler = small_disk / "filler"
        fill(filler)
        refused, created = create_until_refused(node)
        assert (refused, len(created) > 50) == (REFUSED, True)
        assert node.is_running
        assert log.topics() == sorted(["kept", *created])
        assert len(log.read("kept")) == 1
        filler.unlink()
        log.create_topic("afterwards")
        log.publish("afterwards", b"works")
    assert node.stop() == 0
    with seawall.open(node.data) as log:
        assert log.topics() == sorted(["afterwards", "kept", *created])
