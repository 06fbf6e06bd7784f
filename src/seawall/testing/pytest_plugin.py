"""pytest fixtures to test code that uses Seawall; pytest finds them if Seawall is installed.

    def test_orders_are_published(seawall_log):
        seawall_log.create_topic("orders")
        take_order(seawall_log, "book")
        assert len(seawall_log.read("orders")) == 1

| fixture        | value                                                                                |
|----------------|--------------------------------------------------------------------------------------|
| `seawall_path` | the path of a data directory for this test, which does not exist yet                  |
| `seawall_log`  | a new `EmbeddedLog` there, closed after the test                                     |

The log uses real files. It reserves little disk space, so that hundreds of tests fit a small machine; otherwise it is
an ordinary log. The first test that uses a log loads the engine and numba.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from seawall.limits import KIB, MIB

if TYPE_CHECKING:
    from seawall.engine.api.embedded import EmbeddedLog

#: Disk space that a test log reserves: enough for any commit of a test, and a nominal ballast.
WAL_FILE_SIZE: Final = 16 * MIB
BALLAST_SIZE: Final = 64 * KIB


@pytest.fixture
def seawall_path(tmp_path: Path) -> Path:
    """The path of a data directory for this test; it does not exist yet."""
    return tmp_path / "seawall-data"


@pytest.fixture
def seawall_log(seawall_path: Path) -> Iterator[EmbeddedLog]:
    """A new log at `seawall_path`; closed after the test."""
    from seawall.engine.api.open_log import open_log
    from seawall.engine.store.settings import StoreSettings

    with open_log(seawall_path, StoreSettings(wal_file_size=WAL_FILE_SIZE, ballast_size=BALLAST_SIZE)) as log:
        yield log
