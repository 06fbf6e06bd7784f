"""TCP between simulated hosts, as awkward as TCP may be.

`SimNetwork` implements `Network`, with `SimListener` and `SimStream`, of `seawall.io.interfaces`. Bytes arrive in order
and once; everything else is up to the seed: how they are cut into pieces, when each piece arrives, how many bytes a
`send` takes and a `receive_into` gives.

    send ──► pieces in flight ──(delay; a partition holds them)──► inbox ──► receive_into
             └──────────── together at most `Link.buffer_size` ────────┘

Rules, the same as those of the kernel
- A `send` that takes 0 bytes means the window is full; one that takes any takes at least one.
- Closing sends what was accepted and then the end. Closing with unread bytes makes a reset, and so do bytes that arrive
  after the close.
- Connecting where nobody listens is refused one round trip later.
- A partition in either direction stalls a stream, since bytes need acknowledgements; after `Link.timeout_ns` both ends
  are broken, each without a word from the other.
- Once an end is reset it raises the same `ConnectionError` for ever, and what it had not read is gone.

This module must not know messages or what the bytes mean.
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

#: First port given to a listener that asked for port 0, and where the search starts again.
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
        #: Pieces on their way to the peer, with the time each may arrive; an empty one is the end of the stream.
        self._flying: deque[tuple[int, bytes]] = deque()
        self._stalled_since_ns: int | None = None

    def send(self, data: ReadableBuffer) -> int:
        """Hand over bytes; return how many were taken, 0 if the peer or the network cannot take more now."""
        self._require_open()
        payload = bytes(data)
        if self.peer is None or not self.connected or not payload:
            return 0
        link = self._links.get(self.local, self.remote)
        space = link.buffer_size - sum(len(piece) for _, piece in self._flying) - len(self.peer._inbox)
        taken = min(len(payload), space)
        if taken <= 0:
            return 0
        if self._links.happens(0.25):
            taken = self._links.chance.randint(1, taken)
        cut = self._links.chance.randint(1, taken)
        for piece in filter(None, (payload[:cut], payload[cut:taken])):
            self._launch(piece)
        return taken

    def receive_into(self, buffer: WritableBuffer) -> int | None:
        """Take bytes; None if there are none now (or no room for any), 0 once the peer has finished sending."""
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
        """End the connection in both directions; closing twice is fine."""
        if self.closed:
            return
        if self._inbox or self.peer is None or self.failure is not None:
            self.abort()
        else:
            self.closed = True
            self._streams.note(self, "close")
            self._launch(b"")

    def abort(self) -> None:
        """Close without sending what is on its way; the peer, if there is one, sees a reset."""
        self.closed = True
        self._flying.clear()
        self._streams.note(self, "abort")
        if self.peer is not None and self.failure is None:
            self._streams.send_reset(self, self.peer)

    @property
    def finished(self) -> bool:
        """Whether this end will never do anything again."""
        return self.failure is not None or (self.closed and not self._flying)

    def meet(self, peer: SimStream) -> None:
        """The other end exists now."""
        self.peer = peer

    def become_connected(self) -> None:
        """The other end has answered: bytes may flow."""
        self.connected = True

    def fail(self, code: int) -> None:
        """Break this end, for ever."""
        if self.failure is None:
            # OSError picks the right kind of ConnectionError by its number; a timeout is none, so it is wrapped.
            error = OSError(code, f"{self.local} to {self.remote}: {os.strerror(code)}")
            self.failure = error if isinstance(error, ConnectionError) else ConnectionError(code, error.strerror)
            self._inbox.clear()
            self._flying.clear()
            self._streams.note(self, f"broken: {os.strerror(code)}")

    def pump(self) -> None:
        """Move every piece whose time has come to the peer, unless a partition holds it."""
        peer = self.peer
        if peer is None or not self._flying or self.failure is not None:
            return
        now_ns = self._links.clock.monotonic_ns()
        if self._links.cut(self.local, self.remote):
            self._stall(peer, now_ns)
            return
        self._stalled_since_ns = None
        while self._flying and self._flying[0][0] <= now_ns:
            _, piece = self._flying.popleft()
            self._deliver(peer, piece)

    def _launch(self, piece: bytes) -> None:
        link = self._links.get(self.local, self.remote)
        now_ns = self._links.clock.monotonic_ns()
        arrival_ns = now_ns + self._links.delay_ns(link)
        if self._links.happens(link.drop):
            arrival_ns += link.retransmit_ns
        if self._flying:
            arrival_ns = max(arrival_ns, self._flying[-1][0])
        self._flying.append((arrival_ns, piece))
        self._links.clock.at(arrival_ns, self.pump)

    def _deliver(self, peer: SimStream, piece: bytes) -> None:
        """Hand one piece to the peer, which answers with a reset if it is not there any more."""
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
        """Start the clock that ends in a reset, unless it runs already."""
        if self._stalled_since_ns is None:
            self._stalled_since_ns = now_ns
            timeout_ns = self._links.get(self.local, self.remote).timeout_ns
            self._links.clock.at(now_ns + timeout_ns, lambda: self._give_up(peer, now_ns))

    def _give_up(self, peer: SimStream, since_ns: int) -> None:
        if self._stalled_since_ns == since_ns and self._flying:
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
        self._waiting: deque[SimStream] = deque()

    @property
    def address(self) -> str:
        """`host:port` really bound, also when port 0 was asked for."""
        return format_address(self.host, self.port)

    def accept(self) -> SimStream | None:
        """The next connection, or None if there is none now."""
        return self._waiting.popleft() if self._waiting else None

    def close(self) -> None:
        """Stop listening; accepted connections go on, those not accepted are reset."""
        self._streams.stop_listening(self)
        while self._waiting:
            self._waiting.popleft().abort()

    @property
    def full(self) -> bool:
        """Whether the backlog takes no more connections."""
        return len(self._waiting) >= LISTEN_BACKLOG

    def offer(self, stream: SimStream) -> None:
        """Queue a new connection for `accept`."""
        self._waiting.append(stream)


class SimNetwork:
    """The network as one host sees it. Made by `SimNet.host`."""

    def __init__(self, streams: SimStreams, name: str) -> None:
        self._streams = streams
        self.name = name

    def listen(self, address: str) -> SimListener:
        """Bind and listen; port 0 picks a free one. `OSError` if the address is taken or not of this host."""
        host, port = parse_address(address)
        if host != self.name:
            raise OSError(errno.EADDRNOTAVAIL, f"cannot listen on {address}: this host is {self.name}")
        return self._streams.listen(host, port)

    def connect(self, address: str) -> SimStream:
        """Start a connection; a refused or lost one shows as `ConnectionError` from `send` or `receive_into`."""
        host, port = parse_address(address)
        return self._streams.connect(self.name, host, port)


class SimStreams:
    """Every listener and stream of one simulated network."""

    def __init__(self, links: SimLinks) -> None:
        self.links = links
        self._networks: dict[str, SimNetwork] = {}
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._streams: list[SimStream] = []
        self._opened = 0
        links.on_change(self._pump_all)

    def network(self, name: str) -> SimNetwork:
        """The network of one host."""
        return self._networks.setdefault(name, SimNetwork(self, name))

    def listen(self, host: str, port: int) -> SimListener:
        """Bind a port, or a free one for port 0."""
        if port == 0:
            port = next(free for free in itertools.count(_FIRST_FREE_PORT) if (host, free) not in self._listeners)
        if (host, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"cannot listen on {format_address(host, port)}: the port is taken")
        listener = SimListener(self, host, port)
        self._listeners[host, port] = listener
        self.links.note(f"listen {listener.address}")
        return listener

    def stop_listening(self, listener: SimListener) -> None:
        """Free the port, if it is still this listener's."""
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    def connect(self, source: str, host: str, port: int) -> SimStream:
        """Start a connection: the first packet arrives after the delay of the link."""
        self._streams = [stream for stream in self._streams if not stream.finished]
        client = self._open(source, host)
        link = self.links.get(source, host)
        give_up_ns = self.links.clock.monotonic_ns() + link.timeout_ns
        self._after_delay(source, host, lambda: self._knock(client, port, give_up_ns))
        return client

    def send_reset(self, origin: SimStream, victim: SimStream) -> None:
        """Let `origin` tell `victim` that the connection is gone; a partition swallows that."""
        self._after_delay(origin.local, victim.local, lambda: self._arrive_reset(origin, victim))

    def reset(self, one: str, other: str) -> int:
        """Break every stream between two hosts now; return how many connections that were."""
        broken = 0
        for stream in self._streams:
            if {stream.local, stream.remote} == {one, other} and stream.failure is None:
                stream.fail(errno.ECONNRESET)
                broken += 1
                if stream.peer is not None:
                    stream.peer.fail(errno.ECONNRESET)
        return broken

    def kill(self, name: str, *, silent: bool) -> None:
        """End every listener and stream of one host."""
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

    def _knock(self, client: SimStream, port: int, give_up_ns: int) -> None:
        """The first packet of a connection arrives, or is lost in a partition and sent again."""
        if client.finished:
            return
        clock = self.links.clock
        link = self.links.get(client.local, client.remote)
        if self.links.cut(client.local, client.remote):
            if clock.monotonic_ns() >= give_up_ns:
                client.fail(errno.ETIMEDOUT)
            else:
                again_ns = clock.monotonic_ns() + link.retransmit_ns
                clock.at(again_ns, lambda: self._knock(client, port, give_up_ns))
            return
        listener = self._listeners.get((client.remote, port))
        if listener is None or listener.full:
            self._after_delay(client.remote, client.local, lambda: client.fail(errno.ECONNREFUSED))
            return
        server = self._open(client.remote, client.local)
        server.meet(client)
        client.meet(server)
        server.connected = True
        listener.offer(server)
        self._after_delay(client.remote, client.local, client.become_connected)

    def _arrive_reset(self, origin: SimStream, victim: SimStream) -> None:
        if not self.links.blocked(origin.local, victim.local):
            victim.fail(errno.ECONNRESET)

    def _time_out(self, stream: SimStream) -> None:
        """Break a stream whose peer fell silent, after the time it takes to notice."""
        clock = self.links.clock
        timeout_ns = self.links.get(stream.local, stream.remote).timeout_ns
        clock.at(clock.monotonic_ns() + timeout_ns, lambda: stream.fail(errno.ETIMEDOUT))

    def _after_delay(self, source: str, target: str, callback: Callable[[], None]) -> None:
        delay_ns = self.links.delay_ns(self.links.get(source, target))
        self.links.clock.at(self.links.clock.monotonic_ns() + delay_ns, callback)

    def _pump_all(self) -> None:
        for stream in list(self._streams):
            stream.pump()
