"""Describe the machine and the library versions that a benchmark report was made with.

A value that the system does not report is `None` or missing, never guessed. Reports are meant to be published, so they
contain no host names, user names or paths.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

#: Distributions whose version affects the figures.
LIBRARIES = ("seawall", "numpy", "numba", "llvmlite", "pyarrow", "crc32c", "lz4", "zstandard", "uvloop", "pyspark")

_CPU_INFORMATION = Path("/proc/cpuinfo")

#: Keys of the processor name in /proc/cpuinfo, in order of preference (x86, then ARM boards, then s390 and POWER).
_CPU_MODEL_KEYS = ("model name", "Model", "Hardware", "cpu")


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware, kernel, Python and library versions."""

    cpu: str
    cores: int
    memory_bytes: int | None
    kernel: str
    python: str
    libraries: Mapping[str, str]


def describe() -> Machine:
    """Describe the machine that this process runs on."""
    return Machine(
        cpu=cpu_model(_CPU_INFORMATION),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        libraries=library_versions(LIBRARIES),
    )


def cpu_model(information: Path) -> str:
    """The processor name from a file like /proc/cpuinfo, or what Python reports if there is none."""
    try:
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    # The first processor stands for all of them.
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    names = (found.get(key, "") for key in _CPU_MODEL_KEYS)
    return next((name for name in names if name), "") or platform.processor() or platform.machine()


def usable_cores() -> int:
    """The number of cores this process may run on; in a container often fewer than the machine has."""
    cores = os.cpu_count() or 1
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    return cores


def memory_bytes() -> int | None:
    """Physical memory in bytes, or None if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def library_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Versions of those distributions that are installed, from their metadata; imports nothing."""
    versions: dict[str, str] = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
