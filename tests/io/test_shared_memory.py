"""Shared memory of this machine beyond what the contract with the simulator covers."""

import errno
import os
import platform

import pytest

from seawall.io.process.shared_memory import OsSharedMemory


def test_create_reserves_every_page(tmp_path):
    path = tmp_path / "fabric"
    mapping = OsSharedMemory().create(str(path), 1_000_000)
    status = path.stat()
    assert status.st_size % os.sysconf("SC_PAGE_SIZE") == 0
    assert status.st_blocks * 512 >= status.st_size >= 1_000_000
    assert status.st_mode & 0o077 == 0
    mapping.close()


def test_attach_fills_holes(tmp_path):
    path = tmp_path / "copy"
    path.touch()
    os.truncate(path, 1_048_576)
    OsSharedMemory().attach(str(path), 1_048_576, read_only=True).close()
    assert path.stat().st_blocks == 0
    OsSharedMemory().attach(str(path), 1_048_576).close()
    assert path.stat().st_blocks * 512 >= path.stat().st_size == 1_048_576


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.ENOMEM])
def test_missing_space_is_explained_and_leaves_no_file(tmp_path, monkeypatch, code):
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    path = str(tmp_path / "fabric")
    with pytest.raises(OSError, match=r"needs 8192 bytes and \d+ are free: make the fabric smaller") as caught:
        OsSharedMemory().create(path, 5_000)
    assert caught.value.errno == code
    assert caught.value.filename == path
    assert os.listdir(tmp_path) == []


def test_other_errors_are_raised_unchanged(tmp_path, monkeypatch):
    def broken(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken, raising=False)
    with pytest.raises(OSError, match="broken"):
        OsSharedMemory().create(str(tmp_path / "fabric"), 5_000)
    assert os.listdir(tmp_path) == []


def test_a_view_kept_alive_keeps_the_mapping_usable(tmp_path):
    mapping = OsSharedMemory().create(str(tmp_path / "fabric"), 100)
    part = mapping.view[10:20]
    with pytest.raises(BufferError):
        mapping.close()
    mapping.view[10] = 3
    assert part[0] == 3
    part.release()
    mapping.close()


def test_a_preferred_node_does_not_change_the_content(tmp_path):
    mapping = OsSharedMemory(node=0).create(str(tmp_path / "fabric"), 10_000)
    assert bytes(mapping.view) == bytes(10_000)
    mapping.close()


@pytest.mark.skipif(platform.system() != "Linux", reason="memory nodes are a matter of Linux")
def test_an_unsupported_node_preference_is_ignored(tmp_path, monkeypatch):
    # No machine has node 900, so the kernel refuses, and that must not be an error.
    refused = OsSharedMemory(node=900).create(str(tmp_path / "no such node"), 8_192)
    monkeypatch.setattr(platform, "machine", lambda: "pdp11")
    unknown = OsSharedMemory(node=0).create(str(tmp_path / "no such call"), 8_192)
    for mapping in (refused, unknown):
        assert bytes(mapping.view) == bytes(8_192)
        mapping.close()
