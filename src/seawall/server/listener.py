"""Listening ports: take connections, and give each the session of the version its first frame has.

A listener that has all the connections it may have still takes one more, to tell it so (error 32) in the version it
speaks. `count` keeps how often each kind of bad input and each end by a limit was seen.

A crash closes the port and all connections. This module must not know what sessions do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from ssl import SSLContext
from typing import Final

from seawall import limits
from seawall.errors import ProtocolError
from seawall.server.connection import Connection
from seawall.server.receive_room import ReceiveRoom
from seawall.server.session import ConnectionLimits, Session
from seawall.wire.codes import VERSION_1, VERSION_2, ErrorCode

__all__ = ["Listener", "MakeSession"]

MakeSession = Callable[[Connection], Session]

_BACKLOG: Final = limits.LISTEN_BACKLOG


class Listener:
    """One or several listening ports and their connections."""

    def __init__(
        self,
        versions: Mapping[int, MakeSession],
        *,
        bounds: ConnectionLimits | None = None,
        connections_max: int = limits.CONNECTIONS_MAX,
        room: ReceiveRoom | None = None,
    ) -> None:
        """`versions` are the sessions of each protocol version; a peer of none of them is told so by the first."""
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        #: Causes for which connections were refused or ended.
        self.counts: Counter[str] = Counter()
        self._versions = versions
        self._bounds = bounds or ConnectionLimits()
        self._connections_max = connections_max
        self._room = room or ReceiveRoom()
        self._servers: list[asyncio.Server] = []
        self._is_stopped = False

    async def listen(self, host: str, port: int, tls: SSLContext | None = None) -> tuple[str, int]:
        """Begin to take connections at one more address, encrypted with `tls`; the one bound, also for port 0."""
        server = await self.loop.create_server(self._make, host, port, backlog=_BACKLOG, reuse_address=True, ssl=tls)
        self._servers.append(server)
        bound = server.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def stop(self) -> None:
        """Take no more connections; those that are there go on."""
        self._is_stopped = True
        for server in self._servers:
            server.close()

    def _make(self) -> Connection:
        return Connection(self, self._room, self._bounds)

    # --- for connections -------------------------------------------------------------------------------------------

    def remember(self, connection: Connection) -> None:
        """A connection is there; one that was taken just before the end is too late."""
        if self._is_stopped:
            connection.abort()
        else:
            self.connections.add(connection)

    def session_for(self, version: int, connection: Connection) -> Session:
        """The session of a connection whose first frame is of a version."""
        make = self._versions.get(version)
        session = (make or next(iter(self._versions.values())))(connection)
        if make is None and version in {VERSION_1, VERSION_2}:
            self.count("unsupported_version")
            connection.be_deaf()
            text = f"protocol version {version} is not spoken here"
            session.failed(ProtocolError(text, code=ErrorCode.UNSUPPORTED_VERSION, closes=True))
        elif len(self.connections) > self._connections_max:
            self.count("connection_limit")
            connection.be_deaf()
            text = f"{self._connections_max} connections are all this server takes: try again later"
            session.failed(ProtocolError(text, code=ErrorCode.CONNECTION_LIMIT, closes=True))
        return session

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self.connections.discard(connection)

    def count(self, cause: str) -> None:
        """One more refused or ended for this cause."""
        self.counts[cause] += 1
