"""Tests of the documentation import the runner of its examples, and what generates parts of its pages."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
