"""Machine code that a wheel contains, so that a first start compiles nothing: where it is, and when it may be used.

A wheel of one platform contains the machine code of every kernel for each *baseline* of its architecture: a processor
with certain extensions of the instruction set. `ship` compiles it when the wheel is built.

It is used only where compiling would give the same, but for the processor:
    sources      the hash of this package is that of the build
    Python       the ABI is the same: 3.11 and 3.12 differ, 3.11.7 and 3.11.9 do not
    libraries    numba and llvmlite have the same version; numpy has the same minor version
    mode         kernels are compiled without bounds checks
    processor    it has all extensions of the baseline, and numba's settings allow them
All but the last two are part of the directory's name: another build finds no directory, and kernels are compiled.

Machine code is loaded with `pickle`. So it is used only if nobody else can write to its directory, except those who
can write to this package itself.

This module must not know what a kernel is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import llvmlite
import numba
import numpy as np
from numba.core.codegen import get_host_cpu_features

#: The directory of `seawall.kernels`, whose sub-packages hold every kernel.
PACKAGE: Final = Path(__file__).parents[1]

#: Where an installed wheel has its machine code, one directory for each baseline. A checkout has none.
SHIPPED: Final = PACKAGE / "compiled"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The processors that have certain extensions, both by LLVM's names."""

    processor: str
    extensions: tuple[str, ...]

    @property
    def directory_name(self) -> str:
        """The name of the directory with machine code for it, of these sources, by this Python and these libraries."""
        return f"{self.processor}-{_build()}"


_X86_64_V2: Final = ("crc32", "cx16", "popcnt", "sahf", "sse3", "ssse3", "sse4.1", "sse4.2")
_X86_64_V3: Final = ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave")
_X86_64_V4: Final = ("avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")

#: The baselines of each architecture, the best first. Checksums need a quarter of the time where `codec/folding.py`
#: works, which is what the first is for. Nothing else is measurably slower with the second.
_BASELINES: Final = {
    "x86_64": (
        Baseline("x86-64-v4", (*_X86_64_V2, *_X86_64_V3, *_X86_64_V4, "pclmul", "vpclmulqdq")),
        Baseline("x86-64-v2", _X86_64_V2),
    ),
    "aarch64": (Baseline("generic", ()),),
    "arm64": (Baseline("generic", ()),),
}


def baselines() -> tuple[Baseline, ...]:
    """The baselines of this architecture, the best first; none if wheels have no machine code for it."""
    return _BASELINES.get(platform.machine(), ())


@cache
def cpu_extensions() -> frozenset[str]:
    """The extensions that machine code may use, by LLVM's names: this processor's, unless numba is set otherwise."""
    chosen = numba.config.CPU_FEATURES
    listed = get_host_cpu_features() if chosen is None else chosen
    return frozenset(each[1:] for each in listed.split(",") if each.startswith("+"))


@cache
def shipped_directory() -> Path | None:
    """The directory with the best machine code that this process may use, or None if there is none."""
    if numba.config.BOUNDSCHECK or not SHIPPED.is_dir():
        return None
    for baseline in baselines():
        directory = SHIPPED / baseline.directory_name
        if cpu_extensions().issuperset(baseline.extensions) and directory.is_dir():
            return directory if _is_safe(SHIPPED) and _is_safe(directory) else None
    return None


@cache
def sources_digest() -> bytes:
    """The hash of all sources of kernels."""
    digest = hashlib.sha256()
    for source in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(source.relative_to(PACKAGE)).encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.digest()


@cache
def _build() -> str:
    abi = (sys.platform, platform.machine(), str(sysconfig.get_config_var("SOABI")))
    libraries = (numba.__version__, llvmlite.__version__, *np.__version__.split(".")[:2])
    return hashlib.sha256(sources_digest() + "\0".join((*abi, *libraries)).encode()).hexdigest()[:16]


def _is_safe(directory: Path) -> bool:
    """True if whoever can write to a directory can write to this package, or is root or this user."""
    trusted = _writers(PACKAGE.stat()) | {("user", 0), ("user", os.getuid())}
    status = directory.lstat()
    return stat.S_ISDIR(status.st_mode) and _writers(status) <= trusted


def _writers(status: os.stat_result) -> set[tuple[str, int]]:
    writers = {("user", status.st_uid)}
    if status.st_mode & stat.S_IWGRP:
        writers.add(("group", status.st_gid))
    if status.st_mode & stat.S_IWOTH:
        writers.add(("others", 0))
    return writers
