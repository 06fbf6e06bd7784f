"""Lets the tests of this folder import their helpers, and the clients of the server's tests."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "server", HERE.parent / "fuzz"):
    sys.path.insert(0, str(folder))
