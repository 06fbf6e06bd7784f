"""The wheel: its content, that nothing need be written beside it, and that its first start compiles nothing.

The wheel goes into an empty environment without a network; its dependencies come from the environment of this run. A
system-wide install is read-only for its users, but permissions do not apply to root, who often runs the tests. So a
plain file named `__pycache__` replaces that folder in every package: even root cannot create a folder there. In the
same way a path below a plain file is an unwritable home, and a file size limit of zero imitates a full disk.
"""

from __future__ import annotations

import json
import os
import re
import site
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

import seawall
from seawall.kernels.runtime.shipped_code import baselines

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

#: Copies three bytes with a kernel; prints where its machine code was stored and which installation it came from.
KERNEL_CALL = """
import json
import numpy as np
import seawall
from seawall.kernels.runtime import jit, memory

target = np.zeros(5, np.uint8)
memory.copy_block(target, 1, np.frombuffer(b"abcd", np.uint8), 1, 3)
status = jit.cache_status()
print(json.dumps([seawall.__file__, target.tolist(), status.directory, status.files]))
"""


@dataclass(frozen=True)
class Installation:
    """A virtual environment with the wheel in it."""

    directory: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def packages(self) -> Path:
        [found] = self.directory.glob("lib/python*/site-packages")
        return found

    def run(self, *command: str, environ: Mapping[str, str], full_disk: bool = False) -> str:
        """The output of a command that must succeed without a warning; `full_disk` lets no file grow."""
        limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *command] if full_disk else list(command)
        done = subprocess.run(limited, env=dict(environ), check=False, capture_output=True, text=True, timeout=250)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def files(self) -> dict[str, tuple[int, int]]:
        """Every file of the installed package with its size and time of change."""
        found = {str(path): path.stat() for path in (self.packages / "seawall").rglob("*")}
        return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}


def build(directory: Path, **variables: str) -> Path:
    """Build the wheel, without machine code unless a variable says where it is."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory), str(ROOT)]
    done = subprocess.run(command, env=os.environ | variables, check=False, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    [built] = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def platform_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make wheel` builds, by the same two commands."""
    kernels = tmp_path_factory.mktemp("kernels")
    subprocess.run([sys.executable, "-m", "seawall.kernels.runtime.ship", str(kernels)], check=True)
    return build(tmp_path_factory.mktemp("platform"), SEAWALL_WHEEL_KERNELS=str(kernels))


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return install(wheel, tmp_path_factory.mktemp("installation"))


def install(wheel: Path, directory: Path) -> Installation:
    """Install a wheel into a new environment in which no package can be written to."""
    installed = Installation(directory)
    subprocess.run([sys.executable, "-m", "venv", str(installed.directory)], check=True, capture_output=True)
    pip = (str(installed.python), "-m", "pip", "--isolated", "--disable-pip-version-check")
    options = ("--quiet", "--no-index", "--no-deps", "--no-compile")
    installed.run(*pip, "install", *options, str(wheel), environ=environment())
    (installed.packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
    package = installed.packages / "seawall"
    for folder in (package, *(path for path in package.rglob("*") if path.is_dir())):
        (folder / "__pycache__").write_bytes(b"")
    return installed


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A path that even root cannot create."""
    file = tmp_path / "file"
    file.write_bytes(b"")
    return file / "below"


def environment(**variables: str | Path) -> dict[str, str]:
    """Nothing from this process but the search path and the language."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return kept | {name: str(value) for name, value in variables.items()}


def call_kernel(
    installation: Installation, environ: Mapping[str, str], *, full_disk: bool = False
) -> tuple[str | None, int]:
    """Run the kernel in the installation; the folder of its cache and its number of files."""
    output = installation.run(str(installation.python), "-c", KERNEL_CALL, environ=environ, full_disk=full_disk)
    origin, copied, directory, files = json.loads(output)
    assert Path(origin).is_relative_to(installation.packages)
    assert bytes(copied) == b"\0bcd\0"
    return directory, files


def test_the_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = f"seawall-{seawall.__version__}.dist-info"
        entry_points = archive.read(f"{metadata}/entry_points.txt").decode()
    sources = {path.relative_to(SOURCE) for path in SOURCE.rglob("*") if path.is_file()}
    expected = {path.as_posix() for path in sources if "__pycache__" not in path.parts}
    assert {name for name in names if not name.startswith(metadata)} == expected
    assert {"seawall/py.typed", "seawall/cli/main.py"} <= names
    assert f"{metadata}/licenses/LICENSE" in names
    assert "seawall = seawall.cli.main:main" in entry_points


def test_the_wheel_has_the_version_of_the_package(wheel: Path) -> None:
    assert wheel.name == f"seawall-{seawall.__version__}-py3-none-any.whl"


def test_small_commands_need_no_writable_directory(installation: Installation, blocked: Path) -> None:
    environ = environment(HOME=blocked, TMPDIR=blocked)
    command = str(installation.directory / "bin" / "seawall")
    version = installation.run(command, "--version", environ=environ, full_disk=True)
    assert seawall.__version__ in version
    assert "bench.directory" in installation.run(command, "config", "show", environ=environ, full_disk=True)


@pytest.mark.parametrize("choice", ["chosen", "user", "xdg", "temporary", "none"])
def test_kernels_find_a_directory_for_their_cache(
    installation: Installation, blocked: Path, tmp_path: Path, choice: str
) -> None:
    writable = tmp_path / "open"
    writable.mkdir()
    shut = {"HOME": blocked, "TMPDIR": blocked}
    environ, expected = {
        "chosen": (shut | {"SEAWALL_KERNELS_CACHE_DIR": writable}, writable),
        "user": (shut | {"HOME": writable}, writable / ".cache" / "seawall"),
        "xdg": (shut | {"XDG_CACHE_HOME": writable}, writable / "seawall"),
        "temporary": (shut | {"TMPDIR": writable}, writable / f"seawall-{os.getuid()}"),
        "none": (shut, None),
    }[choice]
    before = installation.files()
    directory, files = call_kernel(installation, environment(**environ), full_disk=expected is None)
    if expected is None:
        assert (directory, files) == (None, 0)
    else:
        assert directory is not None
        assert Path(directory).parent == expected
        assert files >= 1
    assert installation.files() == before


def test_an_unusable_cache_directory_falls_back_to_the_next(
    installation: Installation, blocked: Path, tmp_path: Path
) -> None:
    environ = environment(HOME=tmp_path, TMPDIR=blocked, SEAWALL_KERNELS_CACHE_DIR=blocked)
    directory, _ = call_kernel(installation, environ)
    assert directory is not None
    assert Path(directory).parent == tmp_path / ".cache" / "seawall"


def test_a_full_disk_loses_the_cache_and_not_the_result(installation: Installation, tmp_path: Path) -> None:
    _, files = call_kernel(installation, environment(HOME=tmp_path), full_disk=True)
    assert files == 0


# --- the wheel with machine code ----------------------------------------------------------------------------------

#: Publishes a record to an embedded log, or to a server; prints the compiled kernels and the directory of the wheel's.
PUBLISH = """
import json, sys
import seawall

where = sys.argv[1]
with seawall.connect(where) if "://" in where else seawall.open(where) as log:
    log.create_topic("orders")
    assert log.publish("orders", [b"first"]).seqs == range(1, 2)

from seawall.kernels.runtime import jit

stats = {name: each.function.stats for name, each in jit.kernels().items()}
compiled = [name for name, each in stats.items() if each.cache_misses]
loaded = [name for name, each in stats.items() if each.cache_hits]
assert loaded
print(json.dumps([compiled, jit.cache_status().shipped]))
"""


@pytest.mark.skipif(not baselines(), reason="wheels have no machine code for this architecture")
@pytest.mark.timeout(900)
def test_a_first_start_of_an_installed_wheel_compiles_no_kernel(
    platform_wheel: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """An embedded log, a server and its client, each in a process with an empty cache."""
    assert platform_wheel.name.startswith(
        f"seawall-{seawall.__version__}-cp{sys.version_info[0]}{sys.version_info[1]}-"
    )
    assert "-none-any" not in platform_wheel.name
    installed = install(platform_wheel, tmp_path_factory.mktemp("platform-installation"))
    environ = environment(HOME=tmp_path, SEAWALL_KERNELS_CACHE_DIR=tmp_path / "cache")

    def publish(where: str) -> None:
        compiled, shipped = json.loads(installed.run(str(installed.python), "-c", PUBLISH, where, environ=environ))
        assert compiled == []
        assert Path(shipped).is_relative_to(installed.packages)

    publish(str(tmp_path / "embedded"))
    command = [str(installed.directory / "bin" / "seawall"), "serve", "--listen", "127.0.0.1:0", "--data"]
    with subprocess.Popen(
        [*command, str(tmp_path / "served")], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            [address] = re.findall(r"127\.0\.0\.1:\d+", server.stdout.readline())
            publish(f"seawall://{address}")
        finally:
            server.terminate()
        assert server.communicate(timeout=60)[1] == ""  # not even a word on compiling
    assert not list((tmp_path / "cache").rglob("*.nbc"))
