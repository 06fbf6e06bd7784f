"""A real log for task queues, and how tests wait for what workers do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seawall import limits
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data", SETTINGS) as opened:
        yield opened
