"""The cache directory of machine code: the first one that only this user can write, one for each generation."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
import json, sys
from seawall.kernels.runtime import jit, memory
import numpy as np

target = np.zeros(3, np.uint8)
memory.copy_block(target, 0, np.arange(3, dtype=np.uint8), 0, 3)
status, stats = jit.cache_status(), memory.copy_block.stats
hits, misses = sum(stats.cache_hits.values()), sum(stats.cache_misses.values())
result = dict(copied=target.tolist(), directory=status.directory, writable=status.writable, files=status.files)
compiles = "numba.typed.typeddict" in sys.modules  # what numba imports when it sets up its compiler
print(json.dumps(result | dict(hits=hits, misses=misses, compiles=compiles)))
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the package that a test may change; its parent goes on PYTHONPATH."""
    target = tmp_path / "copy" / "seawall"
    source = Path(seawall.__file__).parent
    target.mkdir(parents=True)
    for name in ("__init__.py", "limits.py", "errors.py", "py.typed"):
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    shutil.copytree(source / "kernels", target / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return target


@pytest.fixture
def blocker(tmp_path: Path) -> Path:
    """A path below a regular file: even the superuser can create no directory there."""
    (tmp_path / "file").write_text("not a directory")
    return tmp_path / "file" / "below"


def run(script: str, package: Path | None = None, **environment: object) -> str:
    cleared = ("NUMBA_", "SEAWALL_", "XDG_", "TMPDIR", "COV_")
    child = {name: value for name, value in os.environ.items() if not name.startswith(cleared)}
    child |= {"PYTHONDONTWRITEBYTECODE": "1"} | {name: str(value) for name, value in environment.items()}
    if package is not None:
        child["PYTHONPATH"] = str(package.parent)
    command = [sys.executable, "-W", "error", "-c", script]
    return subprocess.run(command, env=child, check=True, capture_output=True, text=True).stdout


def report(**environment: object) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(REPORT, **environment))
    assert result["copied"] == [0, 1, 2]
    return result


def files_below(directory: Path) -> dict[str, tuple[int, int]]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in found}


@as_installed
def test_the_second_start_loads_and_compiles_nothing(tmp_path: Path) -> None:
    first = report(SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
    assert Path(first["directory"]).parent == tmp_path / "cache"
    # The module has two kernels; one was called.
    assert (first["hits"], first["misses"], first["files"], first["writable"]) == (0, 1, 1, True)
    assert first["compiles"]
    before = files_below(tmp_path)
    second = report(SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
    assert second == first | {"hits": 1, "misses": 0, "compiles": False}
    assert files_below(tmp_path) == before
    assert stat.S_IMODE(Path(first["directory"]).stat().st_mode) == 0o700


CALLER = """
import sys
import numpy as np
from seawall.kernels.runtime import jit, memory

target = np.zeros(3, np.uint8)
memory.copy_block(target, 0, np.arange(3, dtype=np.uint8), 0, 3)
assert "numba.typed.typeddict" not in sys.modules, "the first kernel was not loaded from the cache"

@jit.kernel(jit.void(jit.bytes_out, jit.bytes_in))
def copy_reversed(target, source):
    pieces = source[::-1].copy()
    for at in range(len(pieces)):
        memory.copy_block(target, at, pieces, at, 1)

copy_reversed(target, np.arange(3, dtype=np.uint8))
print(target.tolist())
"""


@as_installed
def test_a_kernel_that_is_compiled_calls_one_that_was_loaded(tmp_path: Path) -> None:
    """The compiler is set up after machine code was loaded without it; the caller also allocates and frees."""
    report(SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
    path = tmp_path / "caller.py"
    path.write_text(CALLER)
    script = f"exec(compile(open({str(path)!r}).read(), {str(path)!r}, 'exec'))"
    assert run(script, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache") == "[2, 1, 0]\n"


@as_installed
def test_without_disk_space_kernels_are_compiled_and_not_cached(tmp_path: Path) -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    result = json.loads(run(full + REPORT, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache"))
    assert (result["copied"], result["files"]) == ([0, 1, 2], 0)
    assert not [name for name in files_below(tmp_path) if name.endswith(".nbc")]


FORK = """
import os, threading
import numpy as np
from seawall.kernels.runtime import memory

assert not memory.copy_block.overloads, "a kernel was loaded before its first call"

def copy():
    target = np.zeros(3, np.uint8)
    memory.copy_block(target, 0, np.arange(3, dtype=np.uint8), 0, 3)
    return target.tolist() == [0, 1, 2]

compiling = threading.Event()
compile = memory.copy_block.compile

def compile_noted(signature):
    compiling.set()
    return compile(signature)

memory.copy_block.compile = compile_noted
thread = threading.Thread(target=copy)
thread.start()
compiling.wait()
child = os.fork()
if child == 0:
    os._exit(0 if copy() else 1)
assert os.waitpid(child, 0)[1] == 0
thread.join()
assert len(memory.copy_block.overloads) == 1
try:
    memory.copy_block(1.5, 0, 0, 0, 3)
except TypeError:
    print("refused")
"""


@as_installed
def test_a_kernel_is_loaded_at_its_first_call_and_a_fork_waits_for_it(tmp_path: Path) -> None:
    assert run(FORK, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache") == "refused\n"


@as_installed
def test_a_changed_kernel_starts_a_new_generation(package: Path) -> None:
    script = "from seawall.kernels.runtime import jit; print(jit.cache_directory())"
    first = run(script, package)
    path = package / "kernels" / "codec" / "checksum.py"
    path.write_text(path.read_text() + "\n# another generation\n")
    changed = run(script, package)
    assert changed != first
    assert run(script, package, NUMBA_BOUNDSCHECK=1) != changed


# --- the same functions in this process ---------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The chosen root of caches in this process. Call `chosen()` after every change: it forgets the choice before."""
    path = tmp_path / "root"
    monkeypatch.setenv("SEAWALL_KERNELS_CACHE_DIR", str(path))
    jit.cache_directory.cache_clear()
    yield path
    jit.cache_directory.cache_clear()


def chosen() -> Path | None:
    jit.cache_directory.cache_clear()
    return jit.cache_directory()


def make_unwritable(monkeypatch: pytest.MonkeyPatch, roots_max: int = 9) -> list[Path]:
    """Let writing to a directory below the first roots fail; returns the roots that were tried."""
    tried: list[Path] = []
    real = tempfile.TemporaryFile

    def fail(**named: Path) -> object:
        tried.append(named["dir"].parent)
        if len(tried) <= roots_max:
            raise PermissionError("read-only file system")
        return real(**named)

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    return tried


def test_a_directory_that_others_can_write_to_is_not_used(root: Path) -> None:
    directory = chosen()
    assert directory is not None
    assert directory.parent == root
    for mode, is_used in ((0o777, False), (0o770, False), (0o720, False), (0o755, True), (0o700, True)):
        directory.chmod(mode)
        assert (chosen() == directory) is is_used
    for mode, is_used in ((0o777, False), (0o1777, True), (0o775, True), (0o755, True)):
        root.chmod(mode)
        assert (chosen() == directory) is is_used


def test_roots_are_tried_in_order(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    package_root = Path(jit.__file__).parents[1] / "__pycache__"
    roots = [root, package_root, tmp_path / "user" / "seawall", tmp_path / "temporary" / f"seawall-{os.getuid()}"]
    for failing in range(len(roots) + 1):
        with monkeypatch.context() as patch:
            tried = make_unwritable(patch, failing)
            directory = chosen()
            assert (directory and directory.parent) == (roots[failing] if failing < len(roots) else None)
            assert tried == roots[: failing + 1]


def test_a_root_that_cannot_be_created_is_skipped(root: Path, blocker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SEAWALL_KERNELS_CACHE_DIR")
    without = chosen()
    monkeypatch.setenv("SEAWALL_KERNELS_CACHE_DIR", str(blocker))
    assert chosen() == without


def test_a_link_is_not_used(root: Path) -> None:
    directory = chosen()
    assert directory is not None
    directory.rename(root / "elsewhere")
    directory.symlink_to(root / "elsewhere")
    assert chosen() != directory


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_used(root: Path) -> None:
    directory = chosen()
    assert directory is not None
    os.chown(directory, 54321, 54321)
    assert chosen() != directory
    os.chown(directory, 0, 0)
    assert chosen() == directory
    os.chown(root, 54321, 54321)
    assert chosen() != directory


def test_roots_without_home_and_without_temporary_directory(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    def no_temporary() -> str:
        raise FileNotFoundError("none is writable")

    tried = make_unwritable(monkeypatch)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(tempfile, "gettempdir", no_temporary)
    package_root = Path(jit.__file__).parents[1] / "__pycache__"
    assert chosen() is None
    assert tried == [root, package_root]
    tried.clear()
    monkeypatch.delenv("SEAWALL_KERNELS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert chosen() is None
    assert tried == [package_root, tmp_path / "seawall"]


def test_old_generations_are_deleted(root: Path) -> None:
    for age in range(12):
        directory = root / f"seawall-kernels-{age:02}"
        directory.mkdir(parents=True)
        os.utime(directory, (1_000_000 - age, 1_000_000 - age))
    (root / "seawall-other").mkdir()
    current = chosen()
    assert current is not None
    kept = [f"seawall-kernels-{age:02}" for age in range(jit.CACHE_GENERATIONS_MAX)]
    assert sorted(path.name for path in root.iterdir()) == sorted([*kept, current.name, "seawall-other"])
    # The current one stays, even if it is the oldest.
    (root / "seawall-kernels-11").mkdir()
    os.utime(current, (0, 0))
    assert chosen() == current
    assert current.is_dir()
    assert not (root / "seawall-kernels-07").exists()


def test_status_of_a_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = jit.cache_status()
    assert (status.writable, status.files) == (True, 0)
    assert status.directory is not None
    assert jit.must_compile() is not jit.PYTHON_MODE
    (Path(status.directory) / "one.nbc").touch()
    assert jit.cache_status().files == 1
    assert not jit.must_compile()
    make_unwritable(monkeypatch)
    jit.cache_directory.cache_clear()
    assert jit.cache_status() == jit.CacheStatus(None, False, 0)


def increment(array: Any) -> int:
    array[0] += 1
    return int(array[0])


@pytest.mark.skipif(jit.PYTHON_MODE, reason="nothing is compiled")
def test_compiling_with_and_without_a_cache(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signature = jit.int64(jit.int64_out)
    before = numba.config.CACHE_DIR
    for has_cache in (False, True):
        with monkeypatch.context() as patch:
            if not has_cache:
                make_unwritable(patch)
            assert (chosen() is not None) is has_cache
            assert jit.kernel(signature)(increment)(np.zeros(1, np.int64)) == 1
        assert before == numba.config.CACHE_DIR
        found = [path.suffix for path in sorted(root.rglob("*.nb*"))]
        assert found == ([".nbc", ".nbi"] if has_cache else [])


def test_a_kernel_that_the_processor_cannot_run_stays_a_plain_function() -> None:
    def unavailable(array: Any) -> int:
        return 0

    assert jit.kernel(jit.int64(jit.int64_out), available=False)(unavailable) is unavailable
    assert not [each for each in jit.kernels().values() if each.source is unavailable]
