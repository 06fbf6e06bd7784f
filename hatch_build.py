"""Build a wheel with machine code, if SEAWALL_WHEEL_KERNELS names a directory of it, as `make wheel` does.

Such a wheel is for one platform and Python version. Any other build, such as `pip install .`, has no machine code and
is for all: kernels are compiled where they are used.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds the machine code, and lets the tag of the wheel name platform and Python version."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the machine code before the wheel is built; an architecture without a baseline has none."""
        kernels = os.environ.get("SEAWALL_WHEEL_KERNELS", "")
        if version == "standard" and os.path.isdir(kernels):
            build_data["pure_python"] = False
            build_data["infer_tag"] = True
            build_data["force_include"][os.path.abspath(kernels)] = "seawall/kernels/compiled"
