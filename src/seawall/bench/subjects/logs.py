"""Logs to measure: each figure works on one of its own, made for it and removed after it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from seawall.bench.harness import Run, Subject
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log

TOPIC: Final = "bench"


def on_log(directory: Path, prepare: Callable[[EmbeddedLog], Run]) -> Subject:
    """A subject that gets a fresh log with one topic of class fsync, and whose log is removed in the end."""

    @contextmanager
    def opened() -> Iterator[Run]:
        path = tempfile.mkdtemp(prefix="seawall-bench-", dir=directory)
        try:
            with open_log(path) as log:
                log.create_topic(TOPIC)
                yield prepare(log)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    return opened
