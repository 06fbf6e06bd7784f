"""Compile all kernels for the baselines of this architecture: the build of a wheel adds their machine code to it.

`python -m seawall.kernels.runtime.ship DIRECTORY` makes one directory for each baseline in DIRECTORY. Each is compiled
by a process of its own, since numba takes the processor from its environment; they run side by side. They do not use
the kernel cache of this machine, where nobody looks for the code of another processor.

`shipped_code` says when machine code of a wheel is used.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seawall.kernels.runtime.shipped_code import Baseline

#: Not taken from `__name__`, which is `__main__` when this module is run.
_SELF = "seawall.kernels.runtime.ship"


def ship(directory: Path, modules: Sequence[str] = ()) -> None:
    """Compile the kernels of some modules, or of all, for every baseline of this architecture."""
    from seawall.kernels.runtime.shipped_code import baselines

    with tempfile.TemporaryDirectory() as caches:
        compilers = [_start(each, directory, modules, Path(caches) / each.processor) for each in baselines()]
        failed = [compiler for compiler in compilers if compiler.wait()]
        if failed:
            raise SystemExit("seawall: the kernels could not be compiled for another processor")


def _start(baseline: Baseline, directory: Path, modules: Sequence[str], cache: Path) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
    chosen = {
        "NUMBA_CPU_NAME": baseline.processor,
        "NUMBA_CPU_FEATURES": ",".join(f"+{each}" for each in baseline.extensions),
        "SEAWALL_KERNELS_CACHE_DIR": str(cache),
    }
    script = f"from {_SELF} import compile_into; import sys; compile_into(*sys.argv[1:])"
    command = [sys.executable, "-c", script, str(directory / baseline.directory_name), *modules]
    return subprocess.Popen(command, env=kept | chosen)


def compile_into(directory: str, *modules: str) -> None:
    """Compile the kernels of some modules, or of all, for the processor that numba is set to; write them to files."""
    from seawall.kernels.runtime import jit, warm

    for name in modules or warm.kernel_modules():
        importlib.import_module(name)
        jit.load(name)
    Path(directory).mkdir(parents=True)
    for name, content in jit.machine_code():
        (Path(directory) / name).write_bytes(content)


if __name__ == "__main__":
    ship(Path(sys.argv[1]), sys.argv[2:])
