"""Seawall: an ordered, durable shared log for Python and Spark.

    import seawall

    with seawall.open("data/") as log:
        log.create_topic("events")
        log.publish("events", [{"n": 1}, {"n": 2}])
        log.read_arrow("events")

Importing this package is cheap on purpose: the packages that need numba, pyarrow, pyspark or the network stack load
them on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from seawall import errors

if TYPE_CHECKING:
    from pathlib import Path

    from seawall.api.publishable import Message
    from seawall.api.received import ReceivedBatch, ReceivedSkip
    from seawall.api.received_record import ReceivedRecord
    from seawall.api.watch_items import TopicCaughtUp, TopicDeleted, WatchGap
    from seawall.client.aio_remote_log import AsyncRemoteLog
    from seawall.client.remote_log import RemoteLog
    from seawall.config import Config
    from seawall.engine.api.aio_embedded import AsyncLog
    from seawall.engine.api.embedded import EmbeddedLog
    from seawall.io.network.tls import Tls
    from seawall.wire.format.gaps import Gap

__all__ = [
    "Gap",
    "Message",
    "ReceivedBatch",
    "ReceivedRecord",
    "ReceivedSkip",
    "TopicCaughtUp",
    "TopicDeleted",
    "WatchGap",
    "connect",
    "connect_async",
    "errors",
    "open",
    "open_async",
]

__version__ = "0.1.0"

#: Classes that are loaded on first use, and their modules.
_LAZY = {
    "Gap": "seawall.wire.format.gaps",
    "Message": "seawall.api.publishable",
    "ReceivedBatch": "seawall.api.received",
    "ReceivedRecord": "seawall.api.received_record",
    "ReceivedSkip": "seawall.api.received",
    "TopicCaughtUp": "seawall.api.watch_items",
    "TopicDeleted": "seawall.api.watch_items",
    "WatchGap": "seawall.api.watch_items",
}


def open(path: str | Path, *, create: bool = True, brokers: int = 0, **settings: object) -> EmbeddedLog:
    """Open a data directory as an embedded log; create the directory if it does not exist and `create` is true.

    With `brokers` above 0, batches go through that many brokers over shared memory and a sequencer orders them, as in
    a pod. `settings` are those of `seawall config show`, with an underscore instead of the dot:
    `storage_checkpoint_size=…`.
    """
    from seawall.engine.api.open_log import open_log

    return open_log(path, config=_config(settings), create=create, brokers=brokers)


def open_async(path: str | Path, *, create: bool = True, brokers: int = 0, **settings: object) -> AsyncLog:
    """Like `open`, for asyncio: `async with seawall.open_async("data/") as log`."""
    from seawall.engine.api.aio_embedded import AsyncLog

    return AsyncLog(path, config=_config(settings), create=create, brokers=brokers)


def connect(
    url: str,
    *,
    token: str = "",
    name: str = "",
    timeout_s: float = 30.0,
    connect_timeout_s: float = 5.0,
    tls: Tls | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> RemoteLog:
    """Connect to the log of a server: `seawall.connect("seawall://host:1992")` has the same API as `seawall.open`.

    `timeout_s` bounds the wait for a response and the attempts to reach a lost server again; `name` is the client name
    that the server shows. `seawalls://`, or `tls`, encrypts: True trusts the certificate authorities of the system, a
    path those in the file. `tls_cert` and `tls_key` are files with the client certificate for servers that require one;
    the certificate file may contain the key.
    """
    from seawall.client.connection.targets import parse_target
    from seawall.client.remote_log import RemoteLog

    return RemoteLog(
        parse_target(
            url,
            token=token,
            name=name,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            tls=tls,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
    )


def connect_async(
    url: str,
    *,
    token: str = "",
    name: str = "",
    timeout_s: float = 30.0,
    connect_timeout_s: float = 5.0,
    tls: Tls | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
) -> AsyncRemoteLog:
    """Like `connect`, for asyncio: `async with seawall.connect_async("seawall://host:1992") as log`."""
    from seawall.client.aio_remote_log import AsyncRemoteLog
    from seawall.client.connection.targets import parse_target

    return AsyncRemoteLog(
        parse_target(
            url,
            token=token,
            name=name,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            tls=tls,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
    )


def _config(settings: dict[str, object]) -> Config:
    from seawall.config import load

    return load(flags={key.replace("_", ".", 1): value for key, value in settings.items()}).config


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
