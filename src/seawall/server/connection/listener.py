"""Listening ports: take connections, and give each the session of the version its first frame has.

A listener of a server with several loops may deal what it takes to the listeners of all of them, in turn (`deal_to`).

On an encrypted port a connection begins with a TLS handshake. How long one may take and how many are under way at once
is bounded; those that fail are counted (`tls_failed`), and a stop cancels those under way.

A listener that has all the connections it may have still takes some more, to tell them so (error 32) in the version
they speak; those beyond are closed at once. Where no descriptor is left, none is taken for a moment. `count` keeps how
often each kind of bad input and each end by a limit was seen.

INV-LISTENER-BOUND: no more sockets are open than connections are allowed, plus a fixed number that are being refused.
The number is `CONNECTIONS_REFUSED_AT_ONCE`, whether their peers say anything or not.

A crash closes the port and all connections. This module must not know what sessions do.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLContext
from typing import Final

from seawall import limits
from seawall.errors import ProtocolError
from seawall.io.network.accepting import Accepted, AcceptingPort, hang_up, watch_peer
from seawall.server.connection.budget import PeerMemory
from seawall.server.connection.connection import Connection
from seawall.server.connection.receive_buffers import ReceiveBuffers
from seawall.server.connection.session import ConnectionLimits, Session
from seawall.server.connection.slow_callbacks import SlowCallbacks
from seawall.server.publish.publish_thread import PublishThread
from seawall.wire.format.codes import VERSION_1, VERSION_2, ErrorCode

__all__ = ["Listener", "MakeSession"]

MakeSession = Callable[[Connection], Session]

_BACKLOG: Final = limits.LISTEN_BACKLOG
#: Connections that are taken in one turn of the loop.
_ACCEPTED_AT_ONCE: Final = 64
#: How long no connection is taken after one could not be.
_ACCEPT_PAUSE_S: Final = 1.0


class Listener:
    """One or several listening ports and their connections."""

    def __init__(
        self,
        versions: Mapping[int, MakeSession],
        *,
        bounds: ConnectionLimits | None = None,
        connections_max: int = limits.CONNECTIONS_MAX,
        space: ReceiveBuffers | None = None,
        count_all: Callable[[], int] | None = None,
        memory: PeerMemory | None = None,
        needs_token: bool = False,
        publish_thread: PublishThread | None = None,
    ) -> None:
        """`versions` are the sessions of each protocol version; a peer of none of them is told so by the first.

        `count_all` counts the connections that `connections_max` is for, where there are other listeners. `memory` is
        what may be held for all peers. Where a peer `needs_token`, little is taken from it before it has shown one.
        Connections that publish small batches are attached to the `publish_thread`, if there is one.
        """
        #: Sockets that were ever given to this listener, and those of them that are closed: each has one writer.
        self._given = self._gone = 0
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        #: Causes for which connections were refused or ended.
        self.counts: Counter[str] = Counter()
        self._versions = versions
        self._bounds = bounds or ConnectionLimits()
        self._connections_max = connections_max
        self._memory = memory or PeerMemory()
        #: Counts what takes too long on the loop.
        self.probe = SlowCallbacks()
        self.needs_token = needs_token
        self.publish_thread = publish_thread
        self._count_all = count_all or (lambda: len(self.connections))
        #: The listeners that have connections in turn, and the ports whose they are.
        self._dealt: Sequence[Listener] = (self,)
        self._turn = 0
        self._ports: list[AcceptingPort] = []
        #: Those that shake hands, or are about to be made: the oldest first. None is cancelled, since a loop may then
        #: close a connection that it has made already, and report that to nobody: they are hung up on.
        self._opening: dict[asyncio.Task[None], Accepted] = {}
        #: Connections that are not made yet.
        self._unmade: set[Connection] = set()
        self._space = space or ReceiveBuffers()
        self._is_stopped = False

    async def listen(self, host: str, port: int, tls: SSLContext | None = None) -> tuple[str, int]:
        """Begin to take connections at one more address, encrypted with `tls`; the one bound, also for port 0."""
        server = await self.loop.create_server(self._make, host, port, reuse_address=True, start_serving=False)
        bound = server.sockets[0].getsockname()
        for each in server.sockets:
            port_again = AcceptingPort(each.fileno(), _BACKLOG)
            self._ports.append(port_again)
            self.loop.add_reader(port_again.fileno(), self._deal, port_again, tls)
        server.close()
        return str(bound[0]), int(bound[1])

    def deal_to(self, listeners: Sequence[Listener]) -> None:
        """From the next address on, give connections to these in turn, each on its own loop."""
        self._dealt = listeners

    def _deal(self, port: AcceptingPort, tls: SSLContext | None) -> None:
        """Take connections that wait, and give each to the next loop."""
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                accepted = port.accept()
                if accepted is None:
                    return
                listener = self._dealt[self._turn % len(self._dealt)]
                if sum(each.open_count for each in self._dealt) >= self._sockets_max:
                    self.count("connection_limit")
                    accepted.close()
                    continue
                self._turn += 1
                listener._given += 1
                if listener is self:
                    self.take(accepted, tls)
                else:
                    listener.loop.call_soon_threadsafe(listener.take, accepted, tls)
        except OSError:
            # No descriptors or memory for more: others may be let go meanwhile.
            self.count("accept_failed")
            self.loop.remove_reader(port.fileno())
            self.loop.call_later(_ACCEPT_PAUSE_S, self._deal_again, port, tls)

    @property
    def open_count(self) -> int:
        """Sockets of this listener that are open, whether they are connections yet or not."""
        return self._given - self._gone

    @property
    def _sockets_max(self) -> int:
        """INV-LISTENER-BOUND."""
        return self._connections_max + limits.CONNECTIONS_REFUSED_AT_ONCE

    def _deal_again(self, port: AcceptingPort, tls: SSLContext | None) -> None:
        if not self._is_stopped:
            self.loop.add_reader(port.fileno(), self._deal, port, tls)

    def take(self, accepted: Accepted, tls: SSLContext | None) -> None:
        """A connection was dealt to this loop."""
        if self._is_stopped:
            accepted.close()
            self._gone += 1
            return
        if tls is not None and len(self._opening) >= limits.HANDSHAKES_MAX:
            # An honest peer is done within moments: the one that has taken longest is the least likely to be one.
            self.count("handshake_limit")
            hang_up(self._opening.pop(next(iter(self._opening))))
        opening = self.loop.create_task(self._open(accepted, tls))
        self._opening[opening] = accepted
        opening.add_done_callback(lambda ended: self._opening.pop(ended, None))

    async def _open(self, accepted: Accepted, tls: SSLContext | None) -> None:
        connection = self._make()
        self._unmade.add(connection)
        watch_peer(accepted)
        bounds = self._bounds
        # An idle peer may never answer the end of an encrypted connection: the loop waits for that no longer than a
        # plain connection lingers.
        timeouts = {"ssl_handshake_timeout": bounds.handshake_s, "ssl_shutdown_timeout": bounds.linger_s} if tls else {}
        try:
            await self.loop.connect_accepted_socket(lambda: connection, accepted, ssl=tls, **timeouts)
        except OSError:
            # A peer without a certificate, that speaks no TLS, or that is gone already.
            if tls is not None:
                self.count("tls_failed")
        finally:
            if connection in self._unmade:
                self._unmade.discard(connection)
                accepted.close()
                self._gone += 1

    def stop(self) -> None:
        """Take no more connections; those that are there go on. Stopping twice is fine."""
        self._is_stopped = True
        for accepted in self._opening.values():
            hang_up(accepted)
        while self._ports:
            port = self._ports.pop()
            self.loop.remove_reader(port.fileno())
            port.close()

    def _make(self) -> Connection:
        return Connection(self, self._space, self._bounds, self._memory.open())

    # --- for connections -------------------------------------------------------------------------------------------

    def remember(self, connection: Connection) -> None:
        """A connection is there; one that was taken just before the end is too late."""
        self._unmade.discard(connection)
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
            connection.stop_reading()
            text = f"protocol version {version} is not spoken here"
            session.failed(ProtocolError(text, code=ErrorCode.UNSUPPORTED_VERSION, closes=True))
        elif self._count_all() > self._connections_max:
            self.count("connection_limit")
            connection.stop_reading()
            text = f"{self._connections_max} connections are all this server takes: try again later"
            session.failed(ProtocolError(text, code=ErrorCode.CONNECTION_LIMIT, closes=True))
        return session

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._gone += 1
        self.connections.discard(connection)

    def count(self, cause: str) -> None:
        """One more refused or ended for this cause."""
        self.counts[cause] += 1
