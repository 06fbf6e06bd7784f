"""Machine code of a wheel is loaded where it is exactly right, and only if nobody else can write to it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
import pytest

import seawall
from seawall.kernels.runtime import jit, shipped_code
from seawall.kernels.runtime.shipped_code import baselines

pytestmark = pytest.mark.skipif(not baselines(), reason="wheels have no machine code for this architecture")

as_installed = pytest.mark.skipif(
    jit.PYTHON_MODE or jit.CHECKED_MODE, reason="child processes always run compiled: once is enough"
)

#: Copies three bytes with a kernel; prints how that was loaded.
REPORT = """
import json, sys
from seawall.kernels.runtime import jit, memory
import numpy as np

target = np.zeros(3, np.uint8)
memory.copy_block(target, 0, np.arange(3, dtype=np.uint8), 0, 3)
assert target.tolist() == [0, 1, 2]
status, stats = jit.cache_status(), memory.copy_block.stats
compiled = sum(stats.cache_misses.values())
assert compiled == ("numba.typed.typeddict" in sys.modules)  # what numba imports when it sets up its compiler
print(json.dumps(dict(compiled=compiled, shipped=status.shipped, files=status.files, directory=status.directory)))
"""


def run(package: Path, *command: str, **environment: object) -> str:
    cleared = ("NUMBA_", "SEAWALL_", "XDG_", "TMPDIR", "COV_")
    child = {name: value for name, value in os.environ.items() if not name.startswith(cleared)}
    child |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(package.parent)}
    child |= {name: str(value) for name, value in environment.items()}
    command = (sys.executable, "-W", "error", *command)
    return subprocess.run(command, env=child, check=True, capture_output=True, text=True).stdout


def report(package: Path, **environment: object) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run(package, "-c", REPORT, **environment))
    return result


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the machine code of one module, for every baseline."""
    target = tmp_path_factory.mktemp("shipped") / "seawall"
    source = Path(seawall.__file__).parent
    target.mkdir()
    shutil.copy(source / "__init__.py", target)
    shutil.copy(source / "errors.py", target)
    shutil.copytree(source / "kernels", target / "kernels", ignore=shutil.ignore_patterns("__pycache__", "compiled"))
    run(
        target, "-m", "seawall.kernels.runtime.ship", str(target / "kernels" / "compiled"),
        "seawall.kernels.runtime.memory",
    )  # fmt: skip
    return target


@pytest.fixture
def package(shipped: Path, tmp_path: Path) -> Path:
    """A copy of that package which a test may change."""
    return Path(shutil.copytree(shipped, tmp_path / "copy" / "seawall"))


@as_installed
def test_shipped_code_is_loaded_for_each_baseline_and_nothing_is_compiled(package: Path, tmp_path: Path) -> None:
    for baseline in baselines():
        if shipped_code.cpu_extensions().issuperset(baseline.extensions):
            features = ",".join(f"+{each}" for each in baseline.extensions)
            found = report(package, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache", NUMBA_CPU_FEATURES=features)
            assert (found["compiled"], found["files"]) == (0, 0)
            assert Path(found["shipped"]).name.startswith(baseline.processor)
    assert report(package, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")["compiled"] == 0


@as_installed
def test_shipped_code_contains_no_path_of_the_machine_that_built_it(shipped: Path) -> None:
    files = list((shipped / "kernels" / "compiled").rglob("*.nbc"))
    assert len(files) >= 2 * len(baselines())
    assert not [path for path in files if str(shipped).encode() in path.read_bytes()]


@as_installed
def test_shipped_code_is_loaded_where_no_cache_can_be_written(package: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_bytes(b"")
    (package / "kernels" / "__pycache__").write_bytes(b"")
    no_temporary = f"import tempfile; tempfile.tempdir = {str(blocker / 'below')!r}\n"
    found = json.loads(run(package, "-c", no_temporary + REPORT, HOME=blocker / "below"))
    assert (found["compiled"], found["directory"]) == (0, None)


@as_installed
def test_a_kernel_that_was_not_shipped_is_compiled(package: Path, tmp_path: Path) -> None:
    for path in (package / "kernels" / "compiled").rglob("*.copy_block.nbc"):
        path.unlink()
    for compiled in (1, 0):
        found = report(package, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
        assert (found["compiled"], found["files"]) == (compiled, 1)
        assert found["shipped"]


@as_installed
def test_shipped_code_of_other_sources_is_ignored(package: Path, tmp_path: Path) -> None:
    path = package / "kernels" / "codec" / "checksum.py"
    path.write_text(path.read_text() + "\n# another source\n")
    found = report(package, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")
    assert (found["compiled"], found["shipped"]) == (1, None)


@as_installed
def test_shipped_code_is_ignored_where_extensions_are_missing_and_with_bounds_checks(
    package: Path, tmp_path: Path
) -> None:
    cache = {"SEAWALL_KERNELS_CACHE_DIR": tmp_path / "cache"}
    other: list[dict[str, object]] = [{"NUMBA_BOUNDSCHECK": 1}]
    if all(baseline.extensions for baseline in baselines()):
        other.append({"NUMBA_CPU_FEATURES": ""})
    for environment in other:
        found = report(package, **cache, **environment)
        assert (found["compiled"], found["shipped"]) == (1, None)


# --- the same functions in this process ---------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of the last baseline in a package of its own; call `chosen()` after every change."""
    package = tmp_path / "kernels"
    (package / "compiled").mkdir(parents=True)
    monkeypatch.setattr(shipped_code, "PACKAGE", package)
    monkeypatch.setattr(shipped_code, "SHIPPED", package / "compiled")
    monkeypatch.setattr(numba.config, "BOUNDSCHECK", None)
    monkeypatch.setattr(shipped_code, "cpu_extensions", lambda: frozenset(baselines()[-1].extensions))
    forget()
    path = package / "compiled" / baselines()[-1].directory_name
    path.mkdir()
    package.chmod(0o755)
    path.parent.chmod(0o755)
    path.chmod(0o755)
    yield path
    forget()


def forget() -> None:
    shipped_code.shipped_directory.cache_clear()
    shipped_code.sources_digest.cache_clear()
    shipped_code._build.cache_clear()


def chosen() -> Path | None:
    forget()
    return shipped_code.shipped_directory()


def test_the_best_usable_baseline_is_chosen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = directory.with_name(baselines()[0].directory_name)
    best.mkdir(mode=0o755, exist_ok=True)
    assert chosen() == directory
    extensions = frozenset(baselines()[0].extensions)
    monkeypatch.setattr(shipped_code, "cpu_extensions", lambda: extensions)
    assert chosen() == best


def test_a_processor_without_one_of_the_extensions_gets_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen() == directory
    for missing in baselines()[-1].extensions:
        extensions = frozenset(baselines()[-1].extensions) - {missing}
        monkeypatch.setattr(shipped_code, "cpu_extensions", lambda extensions=extensions: extensions)
        assert chosen() is None


@pytest.mark.parametrize(
    ("library", "version", "is_used"),
    [
        (numba, "0.0.1", False),
        (llvmlite, "0.0.1", False),
        (np, "1.0.0", False),
        (np, ".".join([*np.__version__.split(".")[:2], "999"]), True),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_code_by_other_libraries_is_ignored(
    directory: Path, monkeypatch: pytest.MonkeyPatch, library: Any, version: str, is_used: bool
) -> None:
    monkeypatch.setattr(library, "__version__", version)
    assert chosen() == (directory if is_used else None)


def test_code_for_another_python_is_ignored(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_code.sysconfig, "get_config_var", lambda name: f"another {name}")
    assert chosen() is None


def test_a_directory_with_more_writers_than_the_package_is_not_used(directory: Path) -> None:
    package = directory.parents[1]
    for place in (directory, directory.parent):
        for mode, is_used in ((0o777, False), (0o775, False), (0o757, False), (0o700, True), (0o755, True)):
            place.chmod(mode)
            assert (chosen() == directory) is is_used
    # Installed with umask 002, by a user whose group has no other member.
    for place in (package, directory.parent, directory):
        place.chmod(0o775)
    assert chosen() == directory
    directory.chmod(0o777)
    assert chosen() is None


def test_a_link_is_not_used(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    directory.symlink_to(directory.with_name("elsewhere"))
    assert chosen() is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_used(directory: Path) -> None:
    for place in (directory, directory.parent):
        os.chown(place, 54321, 54321)
        assert chosen() is None
        os.chown(directory.parents[1], 54321, 54321)  # who could also change the sources
        assert chosen() == directory
        os.chown(place, 0, 0)
        os.chown(directory.parents[1], 0, 0)
    assert chosen() == directory
