"""A log for task queues, embedded and connected to a served node."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import seawall
from seawall import limits
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.store.settings import StoreSettings

sys.path.insert(0, str(Path(__file__).parents[1] / "client"))
from real_server import RealServer

SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, ceiling_step=64)


@pytest.fixture(params=["embedded", "connected"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedLog | RemoteLog]:
    if request.param == "embedded":
        with open_log(tmp_path / "data", SETTINGS) as opened:
            yield opened
        return
    with RealServer(tmp_path / "data") as server, seawall.connect(server.url) as connected:
        yield connected
