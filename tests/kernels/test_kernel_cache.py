"""Where machine code is kept: the first folder that is writable and nobody else's, one for each generation."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

import seawall
from seawall.kernels.runtime import jit

as_installed = pytest.mark.skipif(
    jit.PYTHON_MODE or jit.CHECKED_MODE, reason="child processes always run compiled: once is enough"
)

REPORT = """
import json
from seawall.kernels.runtime import jit, memory
import numpy as np

target = np.zeros(3, np.uint8)
memory.copy_block(target, 0, np.arange(3, dtype=np.uint8), 0, 3)
status, stats = jit.cache_status(), memory.copy_block.stats
hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
result = dict(copied=target.tolist(), directory=status.directory, writable=status.writable, files=status.files)
print(json.dumps(result | dict(hits=hits, misses=misses)))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that a test may change; its parent goes on PYTHONPATH."""
    space = tmp_path / "copy" / "seawall"
    source = Path(seawall.__file__).parent
    space.mkdir(parents=True)
    for name in ("__init__.py", "limits.py", "errors.py", "py.typed"):
        if (source / name).exists():
            shutil.copy(source / name, space / name)
    shutil.copytree(source / "kernels", space / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return space


@pytest.fixture
def blocker(tmp_path: Path) -> Path:
    """A path below a regular file: even root can make no folder there."""
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file" / "below"


def run(script: str, package: Path | None = None, **environment: object) -> str:
    cleared = ("NUMBA_", "SEAWALL_", "XDG_", "TMPDIR", "COV_")
    child = {name: value for name, value in os.environ.items() if not name.startswith(cleared)}
    child |= {"PYTHONDONTWRITEBYTECODE": "1"} | {name: str(value) for name, value in environment.items()}
    if package is not None:
        child["PYTHONPATH"] = str(package.parent)
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, env=child, check=True, capture_output=True, text=True).stdout


def report(package: Path | None = None, before: str = "", **environment: object) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(before + REPORT, package, **environment))
    assert result["copied"] == [0, 1, 2]
    return result


def files_below(folder: Path) -> dict[str, tuple[int, int]]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in found}


@as_installed
def test_the_second_start_loads_and_compiles_nothing(tmp_path: Path) -> None:
    first = report(SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
    assert Path(first["directory"]).parent == tmp_path / "cache"
    # The module has two kernels, compiled as they are defined.
    assert (first["hits"], first["misses"], first["files"], first["writable"]) == (0, 1, 2, True)
    before = files_below(tmp_path)
    second = report(SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
    assert second == first | {"hits": 1, "misses": 0}
    assert files_below(tmp_path) == before
    assert stat.S_IMODE(Path(first["directory"]).stat().st_mode) == 0o700


@as_installed
def test_places_are_tried_in_turn(package: Path, blocker: Path, tmp_path: Path) -> None:
    places = {
        "SEAWALL_KERNELS_CACHE_DIR": tmp_path / "chosen",
        "XDG_CACHE_HOME": tmp_path / "user",
        "TMPDIR": tmp_path / "temporary",
    }
    places["TMPDIR"].mkdir()
    assert Path(report(package, **places)["directory"]).parent == tmp_path / "chosen"
    places["SEAWALL_KERNELS_CACHE_DIR"] = blocker
    assert Path(report(package, **places)["directory"]).parent == package / "kernels" / "__pycache__"
    shutil.rmtree(package / "kernels" / "__pycache__")
    (package / "kernels" / "__pycache__").write_text("in the way")
    assert Path(report(package, **places)["directory"]).parent == tmp_path / "user" / "seawall"
    places["XDG_CACHE_HOME"] = blocker
    private = tmp_path / "temporary" / f"seawall-{os.getuid()}"
    assert Path(report(package, **places)["directory"]).parent == private
    nowhere = f"import tempfile; tempfile.tempdir = {str(blocker)!r}\n"
    last = report(package, before=nowhere, **places)
    assert (last["directory"], last["writable"], last["files"]) == (None, False, 0)


@as_installed
def test_a_folder_open_to_others_is_not_used(package: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    directory = Path(report(package, SEAWALL_KERNELS_CACHE_DIR=chosen)["directory"])
    directory.chmod(0o777)
    inside = report(package, SEAWALL_KERNELS_CACHE_DIR=chosen)["directory"]
    assert Path(inside).parent == package / "kernels" / "__pycache__"
    directory.chmod(0o700)
    assert report(package, SEAWALL_KERNELS_CACHE_DIR=chosen)["directory"] == str(directory)
    chosen.chmod(0o777)
    assert report(package, SEAWALL_KERNELS_CACHE_DIR=chosen)["directory"] == inside


@as_installed
def test_a_disk_without_room_costs_the_cache_only(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    script = full + "from seawall.kernels.runtime import memory\nassert not memory.copy_block.stats.cache_path"
    run(script, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
    assert not [name for name in files_below(tmp_path) if name.endswith(".nbc")]


@as_installed
def test_a_changed_kernel_starts_a_new_generation(package: Path) -> None:
    script = "from seawall.kernels.runtime import jit; print(jit._generation())"
    first = run(script, package)
    assert run(script, package) == first
    for name in ("codec/checksum.py", "runtime/jit.py"):
        path = package / "kernels" / name
        path.write_text(path.read_text() + "\n# another generation\n")
        changed = run(script, package)
        assert changed != first
        first = changed
    assert run(script, package, NUMBA_BOUNDSCHECK=1) != first


# --- the same functions in this process ---------------------------------------------------------------------------


def test_who_may_write_decides(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    directory = parent / "generation"
    assert jit._is_usable(directory)
    for mode, usable in ((0o777, False), (0o770, False), (0o720, False), (0o755, True), (0o700, True)):
        directory.chmod(mode)
        assert jit._is_usable(directory) is usable
    for mode, usable in ((0o777, False), (0o1777, True), (0o775, True), (0o755, True)):
        parent.chmod(mode)
        assert jit._is_usable(directory) is usable


def test_the_next_place_is_taken_where_one_fails(
    tmp_path: Path, blocker: Path, monkeypatch: pytest.MonkeyPatch, fresh_choice: None
) -> None:
    assert not jit._is_usable(blocker)
    monkeypatch.setattr(jit, "_cache_roots", lambda: iter((blocker, tmp_path / "second")))
    chosen = jit.cache_directory()
    assert chosen is not None
    assert chosen.parent == tmp_path / "second"


def test_a_link_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    assert not jit._is_usable(tmp_path / "link")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    assert jit._is_usable(parent / "generation")
    os.chown(parent / "generation", 54321, 54321)
    assert not jit._is_usable(parent / "generation")
    os.chown(parent / "generation", 0, 0)
    os.chown(parent, 54321, 54321)
    assert not jit._is_usable(parent / "generation")


def test_roots_without_home_and_without_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    def no_temporary() -> str:
        raise FileNotFoundError("none is writable")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("SEAWALL_KERNELS_CACHE_DIR", "/chosen")
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary)
    assert list(jit._cache_roots()) == [Path("/chosen"), Path(jit.__file__).parents[1] / "__pycache__"]
    monkeypatch.delenv("SEAWALL_KERNELS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/user")
    assert list(jit._cache_roots())[1:] == [Path("/user/seawall")]


def test_old_generations_go(tmp_path: Path) -> None:
    for age in range(12):
        folder = tmp_path / f"seawall-kernels-{age:02}"
        folder.mkdir()
        os.utime(folder, (1_000_000 - age, 1_000_000 - age))
    (tmp_path / "seawall-other").mkdir()
    jit._drop_old_generations(tmp_path, keep=tmp_path / "seawall-kernels-11")
    kept = [f"seawall-kernels-{age:02}" for age in [*range(jit.CACHE_GENERATIONS_MAX), 11]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*kept, "seawall-other"]
    jit._drop_old_generations(tmp_path / "missing", keep=tmp_path / "missing" / "x")


@pytest.fixture
def fresh_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the folder be chosen anew, and forget the choice afterwards."""
    monkeypatch.setattr(jit, "cache_directory", jit.cache_directory.__wrapped__)


def test_status_of_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_choice: None) -> None:
    monkeypatch.setenv("SEAWALL_KERNELS_CACHE_DIR", str(tmp_path))
    status = jit.cache_status()
    assert (status.writable, status.files) == (True, 0)
    assert status.directory is not None
    (Path(status.directory) / "one.nbc").touch()
    assert jit.cache_status().files == 1
    monkeypatch.setattr(jit, "_cache_roots", lambda: iter(()))
    assert jit.cache_status() == jit.CacheStatus(None, False, 0)


def increment(array: Any) -> int:
    array[0] += 1
    return int(array[0])


@pytest.mark.skipif(jit.PYTHON_MODE, reason="nothing is compiled")
def test_compiling_with_and_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = jit.int64(jit.int64_out)
    before = numba.config.CACHE_DIR
    for directory in (None, tmp_path / "file" / "below", tmp_path / "cache"):
        (tmp_path / "file").write_text("")
        monkeypatch.setattr(jit, "cache_directory", lambda directory=directory: directory)
        array = np.zeros(1, np.int64)
        assert jit._compile(increment, signature)(array) == 1
        assert before == numba.config.CACHE_DIR
    assert [path.suffix for path in sorted((tmp_path / "cache").rglob("*.nb*"))] == [".nbc", ".nbi"]


def test_a_kernel_the_processor_cannot_run_stays_a_function() -> None:
    def unavailable(array: Any) -> int:
        return 0

    assert jit.kernel(jit.int64(jit.int64_out), available=False)(unavailable) is unavailable
    assert not [each for each in jit.kernels().values() if each.source is unavailable]
