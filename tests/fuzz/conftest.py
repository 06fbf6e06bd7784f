"""Lets the tests of this folder import helpers of other tests."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("chaos", "server")]
