"""Fixtures for those who test code that uses Seawall; pytest finds them where Seawall is installed.

    def test_orders_are_published(seawall_log):
        seawall_log.create_topic("orders")
        take_order(seawall_log, "book")
        assert len(seawall_log.read("orders")) == 1

| fixture        | gives                                                                                |
|----------------|--------------------------------------------------------------------------------------|
| `seawall_path` | the path of a data directory of its own for each test; it is not made yet            |
| `seawall_log`  | a fresh `EmbeddedLog` there, closed after the test                                   |

The log reserves little disk space, so that hundreds of tests fit a small machine; otherwise it is as any other, on real
files. The engine, and numba with it, is loaded by the first test that asks for a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from seawall.limits import KIB, MIB

if TYPE_CHECKING:
    from seawall.engine.api.embedded import EmbeddedLog

#: What a log of a test reserves: room for a commit of any size that tests make, and a ballast for form's sake.
WAL_FILE_SIZE: Final = 16 * MIB
BALLAST_SIZE: Final = 64 * KIB


@pytest.fixture
def seawall_path(tmp_path: Path) -> Path:
    """The path of a data directory for this test alone; nothing is there yet."""
    return tmp_path / "seawall-data"


@pytest.fixture
def seawall_log(seawall_path: Path) -> Iterator[EmbeddedLog]:
    """A fresh log at `seawall_path`; closed after the test."""
    from seawall.engine.api.open_log import open_log
    from seawall.engine.store.settings import StoreSettings

    with open_log(seawall_path, StoreSettings(wal_file_size=WAL_FILE_SIZE, ballast_size=BALLAST_SIZE)) as log:
        yield log
