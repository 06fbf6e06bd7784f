"""Compile kernels with `@kernel(signature)`, and choose the directory that caches their machine code.

Rules for every kernel
- It never raises: callers validate before, results are integer codes. Only the checked mode raises (IndexError).
- It has one explicit signature; no type is inferred from a caller. Read-only parameters also accept writable arrays.
  Arrays that several kernels take together are one argument, a tuple (`tuple_of`).
- It does not hold the GIL, allocates nothing, and computes in int64: mixing u64 with a loop index would silently become
  float64 (a test rejects every kernel whose inferred types contain a float).
- It lives in this package and has a pure-Python twin of the same name in `tests/kernels/twins`, with identical results.

Three modes, chosen by numba's own environment variables when the process starts:
    compiled   the default
    checked    NUMBA_BOUNDSCHECK=1: array accesses, including those inside primitives, check their index
    python     NUMBA_DISABLE_JIT=1: the same functions run as plain Python, primitives through their stand-ins

Loading. A kernel is loaded, or compiled, at its first call from Python, or when one of its callers is.
Machine code contains the kernels that it calls, so a process needs only a part of all kernels. Loading all would
take most of the time of a start; `warm` does it. Loading cached machine code does not set up numba's compiler, which
takes longer than everything else; a kernel that is compiled does. A fork waits until no thread loads a kernel.

The cache. numba keeps the old machine code of a caller when a kernel that it calls in *another* module changes. So the
directory name contains a hash of all sources of this package, the library versions and the mode: any change starts an
empty directory. The first writable one is used: `SEAWALL_KERNELS_CACHE_DIR`, this package's `__pycache__`, the user's
cache directory, a private temporary directory. If none is writable, every process compiles the kernels. numba loads
cached code with `pickle`, so a directory that another user could write to is never used.

A kernel that the cache does not hold is loaded from the machine code of the installed wheel (`shipped_code`), if that
has it for this processor. Otherwise it is compiled.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite
import llvmlite.binding
import numba
import numpy as np
import numpy.ma  # numba imports it at the first kernel call, on any thread, maybe while another thread forks
from numba.core import typeinfer, types
from numba.core.caching import FunctionCache, NullCache
from numba.core.compiler import CompileResult
from numba.core.registry import CPUDispatcher
from numba.core.runtime import _nrt_python
from numba.core.serialize import dumps
from numba.core.types import containers
from numba.extending import intrinsic

from seawall.kernels.runtime.shipped_code import PACKAGE, shipped_directory, sources_digest

P = ParamSpec("P")
R = TypeVar("R")

#: Kernels run as plain Python; primitives are replaced by their stand-ins.
PYTHON_MODE = bool(numba.config.DISABLE_JIT)
#: Primitives check their own index, as numba does for plain array accesses.
CHECKED_MODE = bool(numba.config.BOUNDSCHECK)

#: Cache directories kept besides the current one: enough for a few modes and versions, not for every edit.
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
    """The cache directory of machine code, and that of the wheel; without both, every process compiles the kernels."""

    directory: str | None
    writable: bool
    files: int
    shipped: str | None = None


_registry: dict[str, Kernel] = {}


def kernels() -> dict[str, Kernel]:
    """Every kernel of the modules imported so far, by `module.name`."""
    return dict(_registry)


def load(module: str) -> None:
    """Load all kernels of one module that has been imported."""
    for each in _registry.values():
        if each.module == module and isinstance(each.function, _LazyDispatcher):
            each.function.load()


def machine_code() -> Iterator[tuple[str, bytes]]:
    """The machine code of every kernel that is loaded, and the name of its file in a directory of `shipped_code`."""
    for each in _registry.values():
        if isinstance(each.function, _LazyDispatcher) and each.function.overloads:
            yield _shipped_name(each.source), each.function.machine_code()


def kernel(
    signature: Any, *, available: bool = True, inline: bool = False, counted: bool = True, brief: bool = False
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function for one signature, through the cache. A call releases the GIL, unless the kernel is `brief`.

    A thread that releases the GIL while others want it gets it back when one of them gives it up, up to 5 ms later. So
    a kernel of few microseconds that Python calls often, from many threads, keeps it.

    Pass `available=False` for a kernel that this processor cannot run: it stays a plain function that nothing calls.

    Two options make kernels cheap to call from kernels. An `inline` kernel is compiled into each of its callers.
    `counted=False` turns off reference counting, which costs an atomic operation per array and call; such a kernel must
    not create an array, not even a slice, nor receive one from a kernel that it calls.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not available:
            return function
        compiled = (
            function
            if PYTHON_MODE
            else _dispatcher(function, signature, inline=inline, counted=counted, nogil=not brief)
        )
        key = f"{function.__module__}.{function.__name__}"
        _registry[key] = Kernel(function.__module__, function.__name__, signature, compiled, function)
        return compiled

    return decorate


def primitive(stand_in: Callable[P, R]) -> Callable[[Callable[..., Any]], Callable[P, R]]:
    """Define an LLVM-level operation for use in kernels; `stand_in` is its Python equivalent."""

    def decorate(build: Callable[..., Any]) -> Callable[P, R]:
        if PYTHON_MODE:
            return stand_in
        operation: Callable[P, R] = intrinsic(build)
        return operation

    return decorate


def record_array(dtype: np.dtype[np.void]) -> Any:
    """Numba's type of a writable array of the given structured dtype."""
    return types.Array(numba.from_dtype(dtype), 1, "C")


def tuple_of(*members: Any) -> Any:
    """Numba's type of a tuple of arrays or numbers: one argument for what several kernels take together."""
    return containers.BaseTuple.from_types(members)


def cache_status() -> CacheStatus:
    """The cache directory with its number of compiled files, and the directory of the wheel."""
    directory, found = cache_directory(), shipped_directory()
    shipped = None if found is None else str(found)
    if directory is None:
        return CacheStatus(None, False, 0, shipped)
    files = sum(1 for _ in directory.rglob("*.nbc")) if directory.is_dir() else 0
    return CacheStatus(str(directory), True, files, shipped)


def must_compile() -> bool:
    """True if there is no machine code yet: every kernel is then compiled when it is first needed."""
    if PYTHON_MODE or shipped_directory() is not None:
        return False
    directory = cache_directory()
    return directory is None or not any(directory.rglob("*.nbc"))


@cache
def cache_directory() -> Path | None:
    """The cache directory of the current kernel sources, or None if no candidate is writable."""
    for root in _cache_roots():
        directory = root / f"seawall-kernels-{_generation()}"
        if _is_usable(directory):
            _drop_old_generations(root, keep=directory)
            return directory
    return None


class _ShippedCode(NullCache):
    """The machine code of a kernel in the installed wheel, where there is no cache."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def load_overload(self, _sig: Any, target_context: Any) -> Any:
        """The machine code of a signature, or None if the wheel has none for this process (called by numba)."""
        _add_runtime_symbols()
        return _load_shipped(self._function, target_context)


class _KernelCache(FunctionCache):
    """The cache of a kernel. Loading from it does not set up numba's compiler, as numba's own cache does.

    The setup imports the rest of numba and compiles its runtime, 140 ms and 35 MB. Cached machine code needs none of
    it, but for the addresses of the functions that it calls.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code of a signature, or None if it must be compiled (called by numba)."""
        _add_runtime_symbols()
        cached = self._load_overload(sig, target_context)
        return _load_shipped(self._py_func, target_context) if cached is None else cached


def _load_shipped(function: Callable[..., Any], target_context: Any) -> Any:
    directory = shipped_directory()
    if directory is None:
        return None
    try:
        content = (directory / _shipped_name(function)).read_bytes()
    except FileNotFoundError:
        return None
    return CompileResult._rebuild(target_context, *pickle.loads(content))


def _shipped_name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}.nbc"


@cache
def _add_runtime_symbols() -> None:
    """Let machine code find the functions of numba's runtime, under the names that numba gives them."""
    for name, address in _nrt_python.c_helpers.items():
        llvmlite.binding.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)


class _LazyDispatcher(CPUDispatcher):
    """Calls a kernel from Python or from other kernels; loads or compiles its one signature when it is first needed."""

    def __init__(self, function: Callable[..., Any], signature: Any, options: dict[str, object]) -> None:
        super().__init__(function, targetoptions=options)
        self._signature = signature

    def load(self) -> None:
        """Load the kernel from the cache, or compile it, unless that has happened."""
        with _loading:
            if not self.overloads:
                self.enable_caching()
                with typeinfer.register_dispatcher(self):
                    self._compile_once()
                self.disable_compile()

    def machine_code(self) -> bytes:
        """The machine code of a loaded kernel, without the annotated source: that has the paths of this machine."""
        [result] = self.overloads.values()
        return cast(bytes, dumps(result._replace(type_annotation="")._reduce()))

    def enable_caching(self) -> None:
        """Use the machine code of the wheel, and the cache before it, if there is one."""
        self._cache = _ShippedCode(self.py_func)
        directory = cache_directory()
        if directory is not None:
            with suppress(OSError), _numba_cache_directory(directory):
                self._cache = _KernelCache(self.py_func)

    def _compile_once(self) -> None:
        try:
            self.compile(self._signature)
        except OSError:
            # The cache cannot be read, or its disk is full: the process continues without it.
            self._cache = NullCache()
            if not self.overloads:
                self.compile(self._signature)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """The types of a call in a kernel that is being compiled (called by numba)."""
        self.load()
        return super().get_call_template(args, kws)

    def _compile_for_args(self, *_args: Any, **_kws: Any) -> Any:
        """The function to call instead of a kernel that is not loaded (called by numba)."""
        self.load()
        return self


#: Held while a kernel is loaded. A child that was forked while another thread loads a kernel could never load one.
_loading = RLock()
os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def _dispatcher(
    function: Callable[P, R], signature: Any, *, inline: bool = False, counted: bool = True, nogil: bool = True
) -> Callable[P, R]:
    options: dict[str, object] = {
        "nopython": True,
        "nogil": nogil,
        "error_model": "numpy",
        "boundscheck": CHECKED_MODE,
        "forceinline": inline,
        "_nrt": counted,
    }
    return cast(Callable[P, R], _LazyDispatcher(function, signature, options))


@contextmanager
def _numba_cache_directory(directory: Path) -> Iterator[None]:
    """Set numba's cache directory while a cache is created: the setting is global and other packages use numba too."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


@cache
def _generation() -> str:
    versions = (sys.version, numba.__version__, llvmlite.__version__, np.__version__, str(CHECKED_MODE))
    return hashlib.sha256(sources_digest() + "\0".join(versions).encode()).hexdigest()[:16]


def _cache_roots() -> Iterator[Path]:
    chosen = os.environ.get("SEAWALL_KERNELS_CACHE_DIR")
    if chosen:
        yield Path(chosen)
    yield PACKAGE / "__pycache__"
    with suppress(RuntimeError):  # this user has no home directory
        yield Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seawall"
    with suppress(OSError):  # no temporary directory is writable
        yield Path(tempfile.gettempdir()) / f"seawall-{os.getuid()}"


def _is_usable(directory: Path) -> bool:
    """True if the directory can be created and written, and no other user can write to it or replace it."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
        own, parent = directory.lstat(), directory.parent.stat()
        # The owner of this file could change the kernels themselves, and root could change anything.
        trusted = (os.getuid(), 0, Path(__file__).stat().st_uid)
    except OSError:
        return False
    private = stat.S_ISDIR(own.st_mode) and not own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    # In a world-writable directory (/tmp) the sticky bit prevents others from renaming or deleting an entry.
    irreplaceable = not parent.st_mode & stat.S_IWOTH or bool(parent.st_mode & stat.S_ISVTX)
    return private and irreplaceable and own.st_uid in trusted and parent.st_uid in trusted


def _drop_old_generations(root: Path, *, keep: Path) -> None:
    with suppress(OSError):  # another process may be doing the same
        others = [path for path in root.glob("seawall-kernels-*") if path != keep]
        others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in others[CACHE_GENERATIONS_MAX:]:
            shutil.rmtree(path, ignore_errors=True)
