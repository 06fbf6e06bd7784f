"""What a machine and its libraries are, so that a figure can be read next to the hardware it came from.

Reads and reports; decides nothing. What a system does not tell is `None` or missing, never guessed. Host names, user
names and paths stay out: reports are meant to be shown.
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

#: Distributions whose version moves a figure.
LIBRARIES = ("seawall", "numpy", "numba", "llvmlite", "pyarrow", "crc32c", "lz4", "zstandard", "uvloop", "pyspark")

_CPU_INFORMATION = Path("/proc/cpuinfo")

#: Names under which kernels list the processor, in the order of preference (x86, then ARM boards, then s390 and POWER).
_CPU_MODEL_KEYS = ("model name", "Model", "Hardware", "cpu")


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine with its Python and its libraries."""

    cpu: str
    cores: int
    memory_bytes: int | None
    kernel: str
    python: str
    libraries: Mapping[str, str]


def describe() -> Machine:
    """The machine this process runs on."""
    return Machine(
        cpu=cpu_model(_CPU_INFORMATION),
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        libraries=library_versions(LIBRARIES),
    )


def cpu_model(information: Path) -> str:
    """The processor's name from the kernel's list, or what Python knows where there is no such list."""
    try:
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    # First one wins: the processors of a list are alike, or the first is what the others are compared with.
    found: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    names = (found.get(key, "") for key in _CPU_MODEL_KEYS)
    return next((name for name in names if name), "") or platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores this process may run on, which in a container are often fewer than the machine has."""
    cores = os.cpu_count() or 1
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    return cores


def memory_bytes() -> int | None:
    """Physical memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def library_versions(names: tuple[str, ...]) -> dict[str, str]:
    """Name and version of the installed ones; read from their metadata, so nothing is imported."""
    versions: dict[str, str] = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions
