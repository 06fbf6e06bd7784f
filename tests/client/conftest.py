"""Fixtures: a scripted server with a topic, and a client of it. The modules of this folder can be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import seawall

if TYPE_CHECKING:
    from scripted_server import ScriptedServer

    from seawall.client.remote_log import RemoteLog

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    from scripted_server import ScriptedServer

    with ScriptedServer() as scripted:
        scripted.create("events")
        yield scripted


@pytest.fixture
def log(server: ScriptedServer) -> Iterator[RemoteLog]:
    with seawall.connect(server.url, timeout_s=20) as connected:
        yield connected
