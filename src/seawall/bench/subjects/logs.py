"""Embedded logs to measure: each figure creates its own log and removes it afterwards."""

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
    """A subject on a new log with one topic of class fsync; closing the subject removes the log."""

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
