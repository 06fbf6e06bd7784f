"""Open the embedded log on the real machine, with or without brokers in front of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from seawall.config import Config
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.store.opening import open_store
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.errors import NotFoundError
from seawall.io.disk.direct_sync import configured_direct_sync
from seawall.io.disk.files import OsFiles
from seawall.io.process.boot import boot_id
from seawall.io.process.clocks import OsClock
from seawall.io.process.own_process import process_id, random_bytes
from seawall.io.process.permissions import group_id
from seawall.io.process.shared_lock import SharedLock
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.kernels.runtime import jit
from seawall.storage.directory import FORMAT_NAME

_LOG: Final = logging.getLogger("seawall")


def open_log(
    path: str | Path,
    settings: StoreSettings | None = None,
    *,
    config: Config | None = None,
    create: bool = True,
    brokers: int = 0,
    networks: int = 0,
) -> EmbeddedLog:
    """Open a data directory as a log; creates the directory if it does not exist, unless `create` is False.

    With `brokers`, that many brokers and a sequencer in this process order the batches. `networks` is the number of
    additional rings, to which network connections publish.
    """
    directory, config = str(path), config or Config()
    group = group_id(config.storage.group)
    files = OsFiles(group=group)
    if not create and not files.exists(f"{directory}/{FORMAT_NAME}"):
        raise NotFoundError(f"{directory} is no data directory; create a topic in it first, or check the path")
    files.make_directory(directory)
    _warn_of_compiling()
    direct_sync = configured_direct_sync(config, directory)
    machine = Machine(OsFiles(direct_sync=direct_sync, group=group), OsClock(), random_bytes, process_id())
    store_settings = settings or StoreSettings.of(config)
    if not brokers:
        return EmbeddedLog(open_store(machine, directory, store_settings))
    from seawall.engine.ordering.sequenced_orderer import open_sequenced_store

    fabric = replace(config.fabric, brokers=brokers + networks)
    store = open_sequenced_store(
        machine, directory, OsSharedMemory(), boot_id(), fabric, store_settings, networks=networks
    )
    return EmbeddedLog(store, SharedLock() if networks else None)


@cache
def _warn_of_compiling() -> None:
    """Log once why the first calls take long, if they will."""
    if jit.must_compile():
        _LOG.warning(
            "Seawall compiles its kernels for this machine, while the first calls wait: about 20 s, once. "
            "`seawall doctor --warm` compiles them in advance."
        )
