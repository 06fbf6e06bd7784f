"""Watches over random histories: from every cursor on the way, a watch gets exactly the rest. INV-WATCH-ONCE.

The log is embedded or behind a server; it is closed and opened again, or its server restarted, in between. Topics are
created, deleted and created again; records are deleted and evicted.
"""

from __future__ import annotations

import random
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from real_server import RealServer
from watch_history import WATCHED, Watcher, WatchHistory, check_rest, coming

import seawall

SMALL = {"storage_wal_file_size": 4 * 1024 * 1024}
CHANGES = 60


class Place:
    """A data directory, and how a log in it is opened: here, or behind a server that is restarted."""

    def __init__(self, path: Path, *, is_served: bool) -> None:
        self._path = path
        self._is_served = is_served
        self._stack = ExitStack()

    def open(self) -> Any:
        """The log."""
        if not self._is_served:
            return self._stack.enter_context(seawall.open(self._path, **SMALL))
        server = self._stack.enter_context(RealServer(self._path))
        return self._stack.enter_context(seawall.connect(server.url, timeout_s=60))

    def close(self) -> None:
        """Close the log, and stop its server."""
        self._stack.close()


# A served run starts four servers, so there are fewer of them.
RUNS = [*(("open", seed) for seed in range(8)), *(("connect", seed) for seed in range(100, 102))]


@pytest.mark.parametrize(("kind", "seed"), RUNS)
def test_a_watch_from_any_cursor_gets_exactly_the_rest(tmp_path: Path, kind: str, seed: int) -> None:
    """INV-WATCH-ONCE."""
    here = Place(tmp_path / "data", is_served=kind == "connect")
    with closing(here):
        check_history(here, random.Random(seed))


def check_history(here: Place, chance: random.Random) -> None:
    """Make a history, watch it, and check what a watch gets from each of some cursors."""
    history = WatchHistory(chance)
    log = here.open()
    history.create_all(log)
    watcher = Watcher(log, chance)
    for step in range(CHANGES):
        history.change(log)
        if chance.random() < 0.5:
            watcher.read(log)
        if step % 20 == 19:
            watcher.close()
            here.close()
            log = here.open()
            watcher.resume(log)
    watcher.read_rest(log)
    watcher.check_order()
    watcher.close()
    for cursor in [watcher.cursors[0], *chance.sample(watcher.cursors, min(12, len(watcher.cursors)))]:
        watch = log.watch(WATCHED, cursor=cursor)
        check_rest(log, cursor, list(coming(watch, log)))
        watch.close()
