"""Modes of new files, lookup of groups, and warnings about files that other users can reach."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from seawall.errors import ConfigError
from seawall.io.disk.files import OsFiles, replace_file
from seawall.io.process.permissions import exposure, group_id

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture(params=[0, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize(("group", "file", "directory"), [(None, 0o600, 0o700), (os.getegid(), 0o640, 0o750)])
def test_new_files_and_directories_have_their_mode_whatever_the_umask(
    tmp_path: Path, group: int | None, file: int, directory: int
) -> None:
    files = OsFiles(group=group)
    files.make_directory(str(tmp_path / "a" / "b"))
    files.open(str(tmp_path / "a" / "made"), create=True).close()
    files.open(str(tmp_path / "a" / "exclusive"), exclusive=True).close()
    replace_file(files, str(tmp_path / "a" / "replaced"), b"bytes")
    assert {mode(path) for path in (tmp_path / "a", tmp_path / "a" / "b")} == {directory}
    assert {mode(path) for path in (tmp_path / "a").iterdir() if path.is_file()} == {file}


def test_existing_files_and_directories_keep_their_mode(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.write_text("bytes")
    path.chmod(0o644)
    tmp_path.chmod(0o755)
    OsFiles().open(str(path), create=True).close()
    OsFiles().make_directory(str(tmp_path))
    assert (mode(path), mode(tmp_path)) == (0o644, 0o755)
    with pytest.raises(FileExistsError):
        OsFiles().open(str(path), exclusive=True)
    with pytest.raises(FileExistsError):
        OsFiles().make_directory(str(path))


def test_a_group_is_found_by_name_or_number() -> None:
    assert group_id("") is None
    assert group_id(str(os.getegid())) == os.getegid()
    with pytest.raises(ConfigError, match="no group 'nobody-has-this'"):
        group_id("nobody-has-this")


@pytest.mark.parametrize(
    ("bits", "is_for_group", "message"),
    [
        (0o600, False, ""),
        (0o640, True, ""),
        (0o640, False, "has mode 0640: its group can read it"),
        (0o660, True, "has mode 0660: its group can change it"),
        (0o644, False, "has mode 0644: every user can read it"),
        (0o602, True, "has mode 0602: every user can change it"),
    ],
)
def test_exposure_describes_access_of_others(tmp_path: Path, bits: int, is_for_group: bool, message: str) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(bits)
    assert exposure(str(path), is_for_group=is_for_group) == (f"{path} {message}" if message else "")
    assert exposure(str(tmp_path / "missing")) == ""


@needs_root
def test_exposure_names_a_foreign_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, 65_534, 65_534)
    assert exposure(str(tmp_path)) == f"{tmp_path} belongs to user 65534, who can change it"
