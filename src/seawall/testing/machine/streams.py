"""TCP streams between simulated hosts, with the worst behaviour that TCP allows.

`SimNetwork`, `SimListener` and `SimStream` implement `Network` and its parts of `seawall.io.interfaces`. Bytes arrive
in order and once. The seed decides everything else: how they are split into pieces, when each piece arrives, and how
many bytes one `send` or `receive_into` handles.

    send ──► pieces in flight ──(delay; a partition holds them)──► inbox ──► receive_into
             └──────────── together at most `Link.buffer_size` ────────┘

Rules, the same as those of the kernel
- A `send` that accepts 0 bytes means that the window is full.
- Closing sends the accepted bytes and then the end of the stream. Closing with unread bytes causes a reset, and so do
  bytes that arrive after the close.
- Connecting to a port without a listener is refused one round trip later.
- A partition in either direction stalls a stream, because bytes need acknowledgements; after `Link.timeout_ns` both
  ends fail independently.
- After a reset, an end raises the same `ConnectionError` on every call, and its unread bytes are lost.

This module must not know messages or the meaning of the bytes.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import deque
from collections.abc import Callable

from seawall.io.interfaces import ReadableBuffer, WritableBuffer
from seawall.io.network.sockets import format_address, parse_address
from seawall.limits import LISTEN_BACKLOG
from seawall.testing.machine.links import SimLinks

__all__ = ["SimListener", "SimNetwork", "SimStream", "SimStreams"]

#: Where the search for a free port starts, for listeners on port 0.
_FIRST_FREE_PORT = 49_152


class SimStream:
    """One end of a connection. Made by `SimNetwork.connect` and `SimListener.accept`."""

    def __init__(self, streams: SimStreams, local: str, remote: str, number: int) -> None:
        self._streams = streams
        self._links = streams.links
        self.local = local
        self.remote = remote
        self.number = number
        self.peer: SimStream | None = None
        self.failure: ConnectionError | None = None
        self.closed = False
        self.connected = False
        self._inbox = bytearray()
        self._ended = False
        #: Pieces in flight to the peer, each with its arrival time; an empty piece is the end of the stream.
        self._in_flight: deque[tuple[int, bytes]] = deque()
        self._stalled_since_ns: int | None = None

    def send(self, data: ReadableBuffer) -> int:
        """Send bytes; return how many were accepted, 0 if the window is full."""
        self._require_open()
        payload = bytes(data)
        if self.peer is None or not self.connected or not payload:
            return 0
        link = self._links.get(self.local, self.remote)
        space = link.buffer_size - sum(len(piece) for _, piece in self._in_flight) - len(self.peer._inbox)
        accepted = min(len(payload), space)
        if accepted <= 0:
            return 0
        if self._links.happens(0.25):
            accepted = self._links.chance.randint(1, accepted)
        cut = self._links.chance.randint(1, accepted)
        for piece in filter(None, (payload[:cut], payload[cut:accepted])):
            self._put_in_flight(piece)
        return accepted

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Receive bytes; None if none are available or the buffer is empty, 0 at the end of the stream."""
        self._require_open()
        view = memoryview(buffer).cast("B") if len(buffer) else None
        if view is None:
            return None
        if not self._inbox:
            return 0 if self._ended else None
        count = min(len(view), len(self._inbox))
        if self._links.happens(0.25):
            count = self._links.chance.randint(1, count)
        view[:count] = self._inbox[:count]
        del self._inbox[:count]
        return count

    def close(self) -> None:
        """Close the connection in both directions; closing twice is allowed."""
        if self.closed:
            return
        if self._inbox or self.peer is None or self.failure is not None:
            self.abort()
        else:
            self.closed = True
            self._streams.note(self, "close")
            self._put_in_flight(b"")

    def abort(self) -> None:
        """Close and drop the bytes in flight; the peer, if there is one, sees a reset."""
        self.closed = True
        self._in_flight.clear()
        self._streams.note(self, "abort")
        if self.peer is not None and self.failure is None:
            self._streams.send_reset(self, self.peer)

    @property
    def finished(self) -> bool:
        """True if this end failed, or is closed with nothing in flight."""
        return self.failure is not None or (self.closed and not self._in_flight)

    def set_peer(self, peer: SimStream) -> None:
        """Connect this end to the other one, which the listener has made."""
        self.peer = peer

    def become_connected(self) -> None:
        """Allow sending, because the other end has answered."""
        self.connected = True

    def fail(self, code: int) -> None:
        """Fail this end permanently."""
        if self.failure is None:
            # OSError selects the kind of ConnectionError by its errno; a timeout is not one, so wrap it.
            error = OSError(code, f"{self.local} to {self.remote}: {os.strerror(code)}")
            self.failure = error if isinstance(error, ConnectionError) else ConnectionError(code, error.strerror)
            self._inbox.clear()
            self._in_flight.clear()
            self._streams.note(self, f"broken: {os.strerror(code)}")

    def deliver_due(self) -> None:
        """Deliver every piece that is due, unless a partition holds it."""
        peer = self.peer
        if peer is None or not self._in_flight or self.failure is not None:
            return
        now_ns = self._links.clock.monotonic_ns()
        if self._links.cut(self.local, self.remote):
            self._stall(peer, now_ns)
            return
        self._stalled_since_ns = None
        while self._in_flight and self._in_flight[0][0] <= now_ns:
            _, piece = self._in_flight.popleft()
            self._deliver(peer, piece)

    def _put_in_flight(self, piece: bytes) -> None:
        link = self._links.get(self.local, self.remote)
        now_ns = self._links.clock.monotonic_ns()
        arrival_ns = now_ns + self._links.delay_ns(link)
        if self._links.happens(link.drop):
            arrival_ns += link.retransmit_ns
        if self._in_flight:
            arrival_ns = max(arrival_ns, self._in_flight[-1][0])
        self._in_flight.append((arrival_ns, piece))
        self._links.clock.at(arrival_ns, self.deliver_due)

    def _deliver(self, peer: SimStream, piece: bytes) -> None:
        """Deliver one piece to the peer, which answers with a reset if it is closed."""
        peer.connected = True
        if not piece:
            peer._ended = True
            self._streams.note(self, "end arrives")
        elif peer.closed or peer.failure is not None:
            self._streams.send_reset(peer, self)
        else:
            peer._inbox += piece
            self._streams.note(self, f"{len(piece)}B arrive")

    def _stall(self, peer: SimStream, now_ns: int) -> None:
        """Start the timeout of a stalled stream, unless it is running."""
        if self._stalled_since_ns is None:
            self._stalled_since_ns = now_ns
            timeout_ns = self._links.get(self.local, self.remote).timeout_ns
            self._links.clock.at(now_ns + timeout_ns, lambda: self._time_out_stall(peer, now_ns))

    def _time_out_stall(self, peer: SimStream, since_ns: int) -> None:
        if self._stalled_since_ns == since_ns and self._in_flight:
            self.fail(errno.ETIMEDOUT)
            peer.fail(errno.ECONNRESET)

    def _require_open(self) -> None:
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.closed:
            raise ConnectionError(errno.EBADF, f"{self.local} to {self.remote}: closed by this side")


class SimListener:
    """A listening port of a simulated host. Made by `SimNetwork.listen`."""

    def __init__(self, streams: SimStreams, host: str, port: int) -> None:
        self._streams = streams
        self.host = host
        self.port = port
        self._backlog: deque[SimStream] = deque()

    @property
    def address(self) -> str:
        """The bound address as `host:port`, with the real port if port 0 was requested."""
        return format_address(self.host, self.port)

    def accept(self) -> SimStream | None:
        """The next connection, or None."""
        return self._backlog.popleft() if self._backlog else None

    def close(self) -> None:
        """Stop listening; accepted connections stay open, the others are reset."""
        self._streams.stop_listening(self)
        while self._backlog:
            self._backlog.popleft().abort()

    @property
    def full(self) -> bool:
        """True if the backlog is full."""
        return len(self._backlog) >= LISTEN_BACKLOG

    def offer(self, stream: SimStream) -> None:
        """Queue a new connection for `accept`."""
        self._backlog.append(stream)


class SimNetwork:
    """The network of one host. Made by `SimNet.host`."""

    def __init__(self, streams: SimStreams, name: str) -> None:
        self._streams = streams
        self.name = name

    def listen(self, address: str) -> SimListener:
        """Bind and listen; port 0 picks a free one. `OSError` if the address is in use or belongs to another host."""
        host, port = parse_address(address)
        if host != self.name:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen on {address}: this host is {self.name}")
        return self._streams.listen(host, port)

    def connect(self, address: str) -> SimStream:
        """Start a connection; if it fails, `send` and `receive_into` raise `ConnectionError`."""
        host, port = parse_address(address)
        return self._streams.connect(self.name, host, port)


class SimStreams:
    """All listeners and streams of one simulated network."""

    def __init__(self, links: SimLinks) -> None:
        self.links = links
        self._networks: dict[str, SimNetwork] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._streams: list[SimStream] = []
        self._opened = 0
        links.on_change(self._deliver_all_due)

    def network(self, name: str) -> SimNetwork:
        """The network of one host."""
        return self._networks.setdefault(name, SimNetwork(self, name))

    def listen(self, host: str, port: int) -> SimListener:
        """Bind a port; port 0 picks a free one."""
        if port == 0:
            port = next(free for free in itertools.count(_FIRST_FREE_PORT) if (host, free) not in self._listeners)
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {format_address(host, port)}: the port is in use")
        listener = SimListener(self, host, port)
        self._listeners[host, port] = listener
        self.links.note(f"listen {listener.address}")
        return listener

    def stop_listening(self, listener: SimListener) -> None:
        """Free the port, if this listener still has it."""
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    def connect(self, source: str, host: str, port: int) -> SimStream:
        """Start a connection; its first packet arrives after the delay of the link."""
        self._streams = [stream for stream in self._streams if not stream.finished]
        client = self._open(source, host)
        link = self.links.get(source, host)
        give_up_ns = self.links.clock.monotonic_ns() + link.timeout_ns
        self._after_delay(source, host, lambda: self._arrive_connect(client, port, give_up_ns))
        return client

    def send_reset(self, origin: SimStream, victim: SimStream) -> None:
        """Send a reset from `origin` to `victim`; a partition drops it."""
        self._after_delay(origin.local, victim.local, lambda: self._arrive_reset(origin, victim))

    def reset(self, one: str, other: str) -> int:
        """Reset every stream between two hosts now; return the number of connections."""
        broken = 0
        for stream in self._streams:
            if {stream.local, stream.remote} == {one, other} and stream.failure is None:
                stream.fail(errno.ECONNRESET)
                broken += 1
                if stream.peer is not None:
                    stream.peer.fail(errno.ECONNRESET)
        return broken

    def kill(self, name: str, *, silent: bool) -> None:
        """Close every listener and stream of one host; `silent` sends no resets."""
        for listener in [listener for listener in self._listeners.values() if listener.host == name]:
            self.stop_listening(listener)
        for stream in [stream for stream in self._streams if stream.local == name and stream.failure is None]:
            stream.fail(errno.ECONNABORTED)
            peer = stream.peer
            if peer is not None and silent:
                self._time_out(peer)
            elif peer is not None:
                self.send_reset(stream, peer)

    def note(self, stream: SimStream, event: str) -> None:
        """Add an event of one stream to the history."""
        self.links.note(f"stream {stream.number} {stream.local}->{stream.remote} {event}")

    def _open(self, local: str, remote: str) -> SimStream:
        self._opened += 1
        stream = SimStream(self, local, remote, self._opened)
        self._streams.append(stream)
        self.note(stream, "opens")
        return stream

    def _arrive_connect(self, client: SimStream, port: int, give_up_ns: int) -> None:
        """Handle the first packet of a connection; a partition drops it, and it is sent again later."""
        if client.finished:
            return
        clock = self.links.clock
        link = self.links.get(client.local, client.remote)
        if self.links.cut(client.local, client.remote):
            if clock.monotonic_ns() >= give_up_ns:
                client.fail(errno.ETIMEDOUT)
            else:
                retry_ns = clock.monotonic_ns() + link.retransmit_ns
                clock.at(retry_ns, lambda: self._arrive_connect(client, port, give_up_ns))
            return
        listener = self._listeners.get((client.remote, port))
        if listener is None or listener.full:
            self._after_delay(client.remote, client.local, lambda: client.fail(errno.ECONNREFUSED))
            return
        server = self._open(client.remote, client.local)
        server.set_peer(client)
        client.set_peer(server)
        server.connected = True
        listener.offer(server)
        self._after_delay(client.remote, client.local, client.become_connected)

    def _arrive_reset(self, origin: SimStream, victim: SimStream) -> None:
        if not self.links.blocked(origin.local, victim.local):
            victim.fail(errno.ECONNRESET)

    def _time_out(self, stream: SimStream) -> None:
        """Fail a stream whose peer is gone, after the timeout of the link."""
        clock = self.links.clock
        timeout_ns = self.links.get(stream.local, stream.remote).timeout_ns
        clock.at(clock.monotonic_ns() + timeout_ns, lambda: stream.fail(errno.ETIMEDOUT))

    def _after_delay(self, source: str, target: str, callback: Callable[[], None]) -> None:
        delay_ns = self.links.delay_ns(self.links.get(source, target))
        self.links.clock.at(self.links.clock.monotonic_ns() + delay_ns, callback)

    def _deliver_all_due(self) -> None:
        for stream in list(self._streams):
            stream.deliver_due()
