"""Fill the kernel cache ahead of use: import every kernel module, which compiles what the cache does not hold.

`python -m seawall.kernels.warm` does it quietly; `seawall doctor --warm` shows progress.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path


def kernel_modules() -> list[str]:
    """Names of all modules of this room, this one left out."""
    room = str(Path(__file__).parent)
    package = __name__.rpartition(".")[0]
    found = [f"{package}.{module.name}" for module in pkgutil.iter_modules([room]) if not module.ispkg]
    return sorted(name for name in found if name != __name__)


def warm(progress: Callable[[str, int, int], None] | None = None) -> float:
    """Import all kernel modules, calling `progress(module, done, total)` after each; return the seconds it took."""
    started = time.perf_counter()
    names = kernel_modules()
    for done, name in enumerate(names, start=1):
        importlib.import_module(name)
        if progress is not None:
            progress(name, done, len(names))
    return time.perf_counter() - started


if __name__ == "__main__":
    warm()
