"""Fixtures of a small fabric, over real and over simulated shared memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from seawall.fabric.header import Identity
from seawall.fabric.layout import FabricSizes
from seawall.io.interfaces import SharedMemory
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.limits import KIB
from seawall.testing import SimSharedMemory


@pytest.fixture
def sizes() -> FabricSizes:
    return FabricSizes(brokers=2, goi_entries=128, pbr_entries=64, checkpoint_size=8 * KIB, blog_size=64 * KIB)


@pytest.fixture
def identity() -> Identity:
    return Identity(b"boot" * 4, b"data" * 4)


@pytest.fixture(params=[OsSharedMemory, SimSharedMemory], ids=["real", "simulated"])
def shared_memory(request: pytest.FixtureRequest) -> SharedMemory:
    return request.param()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "seawall.fabric")
