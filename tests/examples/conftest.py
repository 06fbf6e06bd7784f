"""The files of the demo, which are not a package, can be imported here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "demo"))
