"""Seawall: an ordered, durable shared log for Python and Spark.

    import seawall

    with seawall.open("data/") as log:
        log.create_topic("events")
        log.publish("events", [{"n": 1}, {"n": 2}])
        log.read_arrow("events")

Importing this package is cheap on purpose: numba, pyarrow, pyspark and the network stack are loaded by the rooms that
need them, when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from seawall import errors

if TYPE_CHECKING:
    from pathlib import Path

    from seawall.api.publishable import Message
    from seawall.api.received import ReceivedBatch, ReceivedRecord, ReceivedSkip
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
    "connect",
    "connect_async",
    "errors",
    "open",
    "open_async",
]

__version__ = "0.1.0"

#: Where the classes come from that are loaded by their first use.
_LAZY = {
    "Gap": "seawall.wire.format.gaps",
    "Message": "seawall.api.publishable",
    "ReceivedBatch": "seawall.api.received",
    "ReceivedRecord": "seawall.api.received",
    "ReceivedSkip": "seawall.api.received",
}


def open(path: str | Path, *, create: bool = True, brokers: int = 0, **settings: object) -> EmbeddedLog:
    """Open a data directory as an embedded log; it is made if it is not there, unless `create` is false.

    With `brokers` batches go through so many brokers over shared memory and are ordered by a sequencer, as in a pod.
    `settings` are those of `seawall config show`, with an underscore for the dot: `storage_checkpoint_size=…`.
    """
    from seawall.engine.api.open_log import open_log

    return open_log(path, config=_config(settings), create=create, brokers=brokers)


def open_async(path: str | Path, *, create: bool = True, brokers: int = 0, **settings: object) -> AsyncLog:
    """The same for asyncio: `async with seawall.open_async("data/") as log`."""
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
    """A log that lies behind a server: `seawall.connect("seawall://host:1992")` has the words of `seawall.open`.

    `timeout_s` is how long an answer may take and a lost server is looked for; `name` is what the server calls us.
    `seawalls://`, or `tls`, encrypts: True believes the authorities of the system, a path those of a file. `tls_cert`
    and `tls_key` are files with the certificate that a server is shown which asks for one; the key may be in the first.
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
    """The same for asyncio: `async with seawall.connect_async("seawall://host:1992") as log`."""
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
