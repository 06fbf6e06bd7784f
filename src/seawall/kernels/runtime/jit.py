"""The one way a kernel is made: `@kernel(signature)`, and where its machine code is cached.

Rules every kernel keeps
- It never raises: callers validate before, results are integer codes. Only the checked mode raises (IndexError).
- It has one explicit signature and is compiled when its module is imported. No type is ever inferred from a caller,
  so nothing is compiled at run time; read-only parameters take writable arrays too.
- It holds no GIL, allocates nothing, and works in int64 inside: mixing u64 with a loop index would silently become
  float64 (a test rejects every kernel whose inferred types contain a float).
- It lives in this package and has a pure-Python twin of the same name in `tests/kernels/twins`, with identical results.

Three modes, chosen by numba's own environment variables when the process starts:
    compiled   the default
    checked    NUMBA_BOUNDSCHECK=1: array accesses, also those inside primitives, check their index
    python     NUMBA_DISABLE_JIT=1: the same functions run as plain Python, primitives through their stand-ins

The cache. numba keeps the old machine code of a caller when a kernel it calls in *another* module changes. So the
folder is named by a hash over all sources of this package, the library versions and the mode: a change anywhere starts
an empty folder. First writable of: `SEAWALL_KERNELS_CACHE_DIR`, this package's `__pycache__`, the user's cache folder,
a private temporary folder; if none is, kernels are compiled in every process. Cached code is loaded by `pickle`, so a
folder that another user could write to is never used.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import llvmlite
import numba
import numpy as np
import numpy.ma  # numba asks for it when a kernel is first called: on some thread, maybe while another one forks
from numba.core import types
from numba.extending import intrinsic

P = ParamSpec("P")
R = TypeVar("R")

#: The folder of `seawall.kernels`: its sub-packages hold every kernel.
_PACKAGE = Path(__file__).parents[1]

#: Kernels run as plain Python; primitives are replaced by their stand-ins.
PYTHON_MODE = bool(numba.config.DISABLE_JIT)
#: Primitives check their own index, as numba does for plain array accesses.
CHECKED_MODE = bool(numba.config.BOUNDSCHECK)

#: Cache folders kept beside the one in use: a few modes and versions, not every edit of a working copy.
CACHE_GENERATIONS_MAX = 8

int64 = types.int64
uint64 = types.uint64
void = types.void
bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
bytes_out = types.Array(types.uint8, 1, "C")
int32_out = types.Array(types.int32, 1, "C")
int64_in = types.Array(types.int64, 1, "C", readonly=True)
int64_out = types.Array(types.int64, 1, "C")
uint32_out = types.Array(types.uint32, 1, "C")
uint64_out = types.Array(types.uint64, 1, "C")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One registered kernel."""

    module: str
    name: str
    signature: Any
    function: Callable[..., Any]
    source: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class CacheStatus:
    """Where machine code is kept: no directory means it is compiled in every process."""

    directory: str | None
    writable: bool
    files: int


_registry: dict[str, Kernel] = {}


def kernels() -> dict[str, Kernel]:
    """Every kernel of the modules imported so far, by `module.name`."""
    return dict(_registry)


def kernel(
    signature: Any, *, available: bool = True, inline: bool = False, counted: bool = True
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function for one signature, without the GIL, through the cache.

    A kernel that this processor cannot run is not `available`: it stays a plain function that nothing calls.

    Two options make kernels cheap to call from kernels. One that is `inline` becomes a part of each kernel that calls
    it. One that is not `counted` leaves the references to its arrays alone, which otherwise takes an atomic operation
    for each array of each call; it must not make an array, be it a slice, nor take one from a kernel that it calls.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not available:
            return function
        compiled = function if PYTHON_MODE else _compile(function, signature, inline=inline, counted=counted)
        key = f"{function.__module__}.{function.__name__}"
        _registry[key] = Kernel(function.__module__, function.__name__, signature, compiled, function)
        return compiled

    return decorate


def primitive(stand_in: Callable[P, R]) -> Callable[[Callable[..., Any]], Callable[P, R]]:
    """Make an LLVM-level building block that kernels call; `stand_in` is what it means, in Python."""

    def decorate(build: Callable[..., Any]) -> Callable[P, R]:
        if PYTHON_MODE:
            return stand_in
        made: Callable[P, R] = intrinsic(build)
        return made

    return decorate


def record_array(dtype: np.dtype[np.void]) -> Any:
    """Numba's type of a writable array of the given structured dtype."""
    return types.Array(numba.from_dtype(dtype), 1, "C")


def cache_status() -> CacheStatus:
    """Where the cache is and how many compiled files it holds."""
    directory = cache_directory()
    if directory is None:
        return CacheStatus(None, False, 0)
    files = sum(1 for _ in directory.rglob("*.nbc")) if directory.is_dir() else 0
    return CacheStatus(str(directory), True, files)


@cache
def cache_directory() -> Path | None:
    """The folder of this generation of kernels, or None where nothing is writable."""
    for root in _cache_roots():
        directory = root / f"seawall-kernels-{_generation()}"
        if _is_usable(directory):
            _drop_old_generations(root, keep=directory)
            return directory
    return None


def _compile(function: Callable[P, R], signature: Any, *, inline: bool = False, counted: bool = True) -> Callable[P, R]:
    options = {
        "nogil": True,
        "error_model": "numpy",
        "boundscheck": CHECKED_MODE,
        "forceinline": inline,
        "_nrt": counted,
    }
    directory = cache_directory()
    if directory is not None:
        # A disk that fills up while the cache is written costs the cache, not the command.
        with suppress(OSError), _cache_folder(directory):
            cached: Callable[P, R] = numba.njit([signature], cache=True, **options)(function)
            return cached
    uncached: Callable[P, R] = numba.njit([signature], **options)(function)
    return uncached


@contextmanager
def _cache_folder(directory: Path) -> Iterator[None]:
    """Point numba at our folder for one decoration only: the setting is global and other packages use numba too."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


@cache
def _generation() -> str:
    digest = hashlib.sha256()
    for source in sorted(_PACKAGE.rglob("*.py")):
        digest.update(str(source.relative_to(_PACKAGE)).encode() + b"\0" + source.read_bytes() + b"\0")
    versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__, str(CHECKED_MODE))
    digest.update("\0".join(versions).encode())
    return digest.hexdigest()[:16]


def _cache_roots() -> Iterator[Path]:
    chosen = os.environ.get("SEAWALL_KERNELS_CACHE_DIR")
    if chosen:
        yield Path(chosen)
    yield _PACKAGE / "__pycache__"
    with suppress(RuntimeError):  # no home folder is known for this user
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seawall"
    with suppress(OSError):  # no temporary folder is writable
        yield Path(tempfile.gettempdir()) / f"seawall-{os.getuid()}"


def _is_usable(directory: Path) -> bool:
    """Whether the folder can be made and written, and neither it nor its name can be replaced by another user."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
        inside, around = directory.lstat(), directory.parent.stat()
        # Whoever owns this file could change the kernels themselves, and root could do anything.
        trusted = (os.getuid(), 0, Path(__file__).stat().st_uid)
    except OSError:
        return False
    private = stat.S_ISDIR(inside.st_mode) and not inside.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a folder open to all (/tmp) the sticky bit keeps a name with its owner.
    lasting = not around.st_mode & stat.S_IWOTH or bool(around.st_mode & stat.S_ISVTX)
    return private and lasting and inside.st_uid in trusted and around.st_uid in trusted


def _drop_old_generations(root: Path, *, keep: Path) -> None:
    with suppress(OSError):  # another process may be doing the same
        others = [path for path in root.glob("seawall-kernels-*") if path != keep]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[CACHE_GENERATIONS_MAX:]:
            shutil.rmtree(path, ignore_errors=True)
