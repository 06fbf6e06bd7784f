"""Invalid bytes to a served node, in each protocol version; `make fuzz` sends more of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from network_fuzz import fuzz


@pytest.mark.parametrize("version", [1, 2])
def test_invalid_bytes_harm_no_client(tmp_path: Path, version: int) -> None:
    outcome = fuzz(tmp_path, version, "make test", 100_000)
    assert outcome.sent >= 100_000
