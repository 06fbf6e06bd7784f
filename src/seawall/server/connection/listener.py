"""Listening ports: accepts connections, and gives each the session of the protocol version of its first frame.

A server with several event loops has one listener for each. The listener with the ports distributes accepted sockets
over all of them, round-robin (`distribute_to`).

On an encrypted port a connection starts with a TLS handshake. The duration of a handshake and the number of concurrent
handshakes are bounded. Failed ones are counted (`tls_failed`), and `stop` aborts those in progress.

A listener at its connection limit still accepts a few more sockets, to refuse them with error 32 in the version that
they speak; it closes any beyond these immediately. When the process has no file descriptor left, the listener stops
accepting for a moment. `count` counts each kind of bad input, and each connection that a limit has closed.

INV-LISTENER-BOUND: no more sockets are open than connections are allowed, plus a fixed number that are being refused.
The number is `CONNECTIONS_REFUSED_AT_ONCE`, whether their peers send anything or not.

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
from seawall.io.network.accepting import Accepted, AcceptingPort, enable_keepalive, shut_down_peer
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
#: Connections accepted in one iteration of the loop.
_ACCEPTED_AT_ONCE: Final = 64
#: Pause after a failed accept.
_ACCEPT_PAUSE_S: Final = 1.0


class Listener:
    """One or several listening ports, and the connections of one event loop."""

    def __init__(
        self,
        versions: Mapping[int, MakeSession],
        *,
        bounds: ConnectionLimits | None = None,
        connections_max: int = limits.CONNECTIONS_MAX,
        buffers: ReceiveBuffers | None = None,
        count_all: Callable[[], int] | None = None,
        memory: PeerMemory | None = None,
        needs_token: bool = False,
        publish_thread: PublishThread | None = None,
    ) -> None:
        """`versions` are the session factories by protocol version; the first one refuses peers of other versions.

        `count_all` counts the connections to which `connections_max` applies, if there are other listeners. `memory`
        bounds the memory for all peers. A peer that `needs_token` may send only small frames until it has shown one.
        Connections that publish small batches are attached to the `publish_thread`, if there is one.
        """
        #: Sockets ever assigned to this listener, and sockets closed: each counter has one writing thread.
        self._assigned = self._closed = 0
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        #: Refused and closed connections, by cause.
        self.counts: Counter[str] = Counter()
        self._versions = versions
        self._bounds = bounds or ConnectionLimits()
        self._connections_max = connections_max
        self._memory = memory or PeerMemory()
        #: Counts slow callbacks of the loop.
        self.probe = SlowCallbacks()
        self.needs_token = needs_token
        self.publish_thread = publish_thread
        self._count_all = count_all or (lambda: len(self.connections))
        #: The listeners that get the accepted sockets, round-robin, and the index of the next one.
        self._targets: Sequence[Listener] = (self,)
        self._next_target = 0
        self._ports: list[AcceptingPort] = []
        #: Sockets whose handshake or setup is in progress, the oldest first. `stop` shuts the sockets down instead of
        #: cancelling the tasks: a loop might close a connection that it has just made without reporting it.
        self._opening: dict[asyncio.Task[None], Accepted] = {}
        #: Connections whose transport does not exist yet.
        self._unestablished: set[Connection] = set()
        self._buffers = buffers or ReceiveBuffers()
        self._is_stopped = False

    async def listen(self, host: str, port: int, tls: SSLContext | None = None) -> tuple[str, int]:
        """Listen on one more address, encrypted with `tls`. Returns the bound address, also for port 0."""
        server = await self.loop.create_server(
            self._make_connection, host, port, reuse_address=True, start_serving=False
        )
        bound = server.sockets[0].getsockname()
        for each in server.sockets:
            accepting_port = AcceptingPort(each.fileno(), _BACKLOG)
            self._ports.append(accepting_port)
            self.loop.add_reader(accepting_port.fileno(), self._accept, accepting_port, tls)
        server.close()
        return str(bound[0]), int(bound[1])

    def distribute_to(self, listeners: Sequence[Listener]) -> None:
        """Distribute the sockets of all ports opened from now on over these listeners, round-robin."""
        self._targets = listeners

    def _accept(self, port: AcceptingPort, tls: SSLContext | None) -> None:
        """Accept pending connections, and assign each to the next listener."""
        try:
            for _ in range(_ACCEPTED_AT_ONCE):
                accepted = port.accept()
                if accepted is None:
                    return
                listener = self._targets[self._next_target % len(self._targets)]
                if sum(each.open_count for each in self._targets) >= self._sockets_max:
                    self.count("connection_limit")
                    accepted.close()
                    continue
                self._next_target += 1
                listener._assigned += 1
                if listener is self:
                    self.set_up(accepted, tls)
                else:
                    listener.loop.call_soon_threadsafe(listener.set_up, accepted, tls)
        except OSError:
            # No descriptors or memory for more: closing connections may free some.
            self.count("accept_failed")
            self.loop.remove_reader(port.fileno())
            self.loop.call_later(_ACCEPT_PAUSE_S, self._retry_accept, port, tls)

    @property
    def open_count(self) -> int:
        """Open sockets of this listener, established or not."""
        return self._assigned - self._closed

    @property
    def _sockets_max(self) -> int:
        """INV-LISTENER-BOUND."""
        return self._connections_max + limits.CONNECTIONS_REFUSED_AT_ONCE

    def _retry_accept(self, port: AcceptingPort, tls: SSLContext | None) -> None:
        if not self._is_stopped:
            self.loop.add_reader(port.fileno(), self._accept, port, tls)

    def set_up(self, accepted: Accepted, tls: SSLContext | None) -> None:
        """Set up an accepted socket on this loop."""
        if self._is_stopped:
            accepted.close()
            self._closed += 1
            return
        if tls is not None and len(self._opening) >= limits.HANDSHAKES_MAX:
            # An honest peer finishes quickly: drop the oldest handshake.
            self.count("handshake_limit")
            shut_down_peer(self._opening.pop(next(iter(self._opening))))
        opening = self.loop.create_task(self._establish(accepted, tls))
        self._opening[opening] = accepted
        opening.add_done_callback(lambda ended: self._opening.pop(ended, None))

    async def _establish(self, accepted: Accepted, tls: SSLContext | None) -> None:
        connection = self._make_connection()
        self._unestablished.add(connection)
        enable_keepalive(accepted)
        bounds = self._bounds
        # An idle peer may never answer the TLS shutdown: the loop waits no longer than a plain connection lingers.
        timeouts = {"ssl_handshake_timeout": bounds.handshake_s, "ssl_shutdown_timeout": bounds.linger_s} if tls else {}
        try:
            await self.loop.connect_accepted_socket(lambda: connection, accepted, ssl=tls, **timeouts)
        except OSError:
            # No client certificate, no TLS, or already disconnected.
            if tls is not None:
                self.count("tls_failed")
        finally:
            if connection in self._unestablished:
                self._unestablished.discard(connection)
                accepted.close()
                self._closed += 1

    def stop(self) -> None:
        """Stop accepting; established connections continue. May be called twice."""
        self._is_stopped = True
        for accepted in self._opening.values():
            shut_down_peer(accepted)
        while self._ports:
            port = self._ports.pop()
            self.loop.remove_reader(port.fileno())
            port.close()

    def _make_connection(self) -> Connection:
        return Connection(self, self._buffers, self._bounds, self._memory.open())

    # --- for connections -------------------------------------------------------------------------------------------

    def register(self, connection: Connection) -> None:
        """Add an established connection; abort it if the listener has stopped."""
        self._unestablished.discard(connection)
        if self._is_stopped:
            connection.abort()
        else:
            self.connections.add(connection)

    def session_for(self, version: int, connection: Connection) -> Session:
        """Create the session of a connection, by the version of its first frame."""
        make = self._versions.get(version)
        session = (make or next(iter(self._versions.values())))(connection)
        if make is None and version in {VERSION_1, VERSION_2}:
            self.count("unsupported_version")
            connection.stop_reading()
            text = f"protocol version {version} is not supported"
            session.failed(ProtocolError(text, code=ErrorCode.UNSUPPORTED_VERSION, closes=True))
        elif self._count_all() > self._connections_max:
            self.count("connection_limit")
            connection.stop_reading()
            text = f"the server is at its limit of {self._connections_max} connections: try again later"
            session.failed(ProtocolError(text, code=ErrorCode.CONNECTION_LIMIT, closes=True))
        return session

    def unregister(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._closed += 1
        self.connections.discard(connection)

    def count(self, cause: str) -> None:
        """Count a refused or closed connection by its cause."""
        self.counts[cause] += 1
