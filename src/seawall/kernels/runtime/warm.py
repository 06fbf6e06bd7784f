"""Fill the kernel cache in advance: compile all kernels that the cache does not hold.

`python -m seawall.kernels.runtime.warm` runs silently; `seawall doctor --warm` shows progress.
"""

from __future__ import annotations

import importlib
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path

#: Not taken from `__name__`, which is `__main__` when this module is run.
_PACKAGE = "seawall.kernels."
_SELF = f"{_PACKAGE}runtime.warm"


def kernel_modules() -> list[str]:
    """Names of all kernel modules, without this one."""
    found = pkgutil.walk_packages([str(Path(__file__).parents[1])], _PACKAGE)
    return sorted(module.name for module in found if not module.ispkg and module.name != _SELF)


def warm(progress: Callable[[str, int, int], None] | None = None) -> float:
    """Load the kernels of all modules, calling `progress(module, done, total)` after each; return the seconds."""
    from seawall.kernels.runtime import jit

    started = time.perf_counter()
    names = kernel_modules()
    for done, name in enumerate(names, start=1):
        importlib.import_module(name)
        jit.load(name)
        if progress is not None:
            progress(name, done, len(names))
    return time.perf_counter() - started


if __name__ == "__main__":
    warm()
