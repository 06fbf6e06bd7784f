"""A short form of the long run (`make fuzz`): some hundred thousand bad bytes to a served node, in each version."""

from __future__ import annotations

from pathlib import Path

import pytest
from network_fuzz import fuzz


@pytest.mark.parametrize("version", [1, 2])
def test_bad_bytes_harm_nobody(tmp_path: Path, version: int) -> None:
    outcome = fuzz(tmp_path, version, "make test", 200_000)
    assert outcome.sent >= 200_000
