"""Contract of streams, tested on real sockets and on simulated ones."""

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from seawall.errors import InvalidInputError
from seawall.io.interfaces import Listener, Network, Stream
from seawall.io.network.sockets import OsNetwork
from seawall.testing import Link, SimClock, SimNet

PATIENCE_NS = 20_000_000_000


@dataclass
class World:
    """Two hosts, and a function that lets a little time pass."""

    client: Network
    server: Network
    server_host: str
    settle: Callable[[], None]

    def until(self, probe: Callable[[], object]) -> object:
        """Ask until the answer is neither None nor nothing, letting time pass in between."""
        deadline_ns = time.monotonic_ns() + PATIENCE_NS
        while True:
            answer = probe()
            if answer is not None and answer is not False:
                return answer
            assert time.monotonic_ns() < deadline_ns, "nothing happened"
            self.settle()

    def pair(self) -> tuple[Stream, Stream, Listener]:
        listener = self.server.listen(f"{self.server_host}:0")
        client = self.client.connect(listener.address)
        server = self.until(listener.accept)
        return client, server, listener

    def send_all(self, stream: Stream, data: bytes) -> None:
        view = memoryview(data)
        while view:
            taken = stream.send(view)
            view = view[taken:]
            if not taken:
                self.settle()

    def receive(self, stream: Stream, length: int) -> bytes:
        """Bytes until `length` are there or the peer has finished."""
        received, buffer = bytearray(), bytearray(100_000)
        while len(received) < length:
            count = self.until(lambda: stream.receive_into(buffer))
            if count == 0:
                break
            received += buffer[:count]
        return bytes(received)

    def broken(self, stream: Stream) -> ConnectionError:
        """Poke a stream until it breaks."""

        def poke() -> ConnectionError | None:
            try:
                stream.receive_into(bytearray(10_000))
                stream.send(b"are you there?")
            except ConnectionError as error:
                return error
            return None

        return self.until(poke)


def real() -> World:
    return World(OsNetwork(), OsNetwork(), "127.0.0.1", lambda: None)


def simulated() -> World:
    clock = SimClock()
    net = SimNet(7, clock, Link(drop=0.05))
    return World(net.host("a"), net.host("b"), "b", lambda: clock.advance(300_000))


@pytest.fixture(params=[real, simulated], ids=["real", "simulated"])
def world(request) -> World:
    return request.param()


def test_bytes_arrive_in_order_in_both_directions(world):
    client, server, listener = world.pair()
    question, answer = bytes(range(256)) * 40, b"answer" * 1_000
    world.send_all(client, question)
    assert world.receive(server, len(question)) == question
    world.send_all(server, answer)
    assert world.receive(client, len(answer)) == answer
    assert client.receive_into(bytearray(10)) is None
    for end in (client, server, listener):
        end.close()


def test_bytes_sent_before_the_accept_are_received(world):
    listener = world.server.listen(f"{world.server_host}:0")
    assert listener.accept() is None
    client = world.client.connect(listener.address)
    world.send_all(client, b"early")
    server = world.until(listener.accept)
    assert listener.accept() is None
    assert world.receive(server, 5) == b"early"
    for end in (client, server, listener):
        end.close()


def test_the_end_follows_the_last_byte_and_stays(world):
    client, server, listener = world.pair()
    world.send_all(client, b"last words")
    client.close()
    assert world.receive(server, 1_000) == b"last words"
    assert server.receive_into(bytearray(10)) == 0
    assert server.receive_into(bytearray(10)) == 0
    server.close()
    listener.close()


def test_a_peer_that_does_not_read_fills_the_window(world):
    client, server, listener = world.pair()
    world.until(lambda: client.send(b"x") or None)
    block, sent, refusals = bytes(65_536), 1, 0
    while refusals < 50:
        taken = client.send(block)
        sent += taken
        refusals = 0 if taken else refusals + 1
        world.settle()
    assert len(world.receive(server, sent)) == sent
    world.until(lambda: client.send(b"y") or None)
    for end in (client, server, listener):
        end.close()


def test_empty_buffers_move_nothing_and_end_nothing(world):
    client, server, listener = world.pair()
    assert client.send(b"") == 0
    assert server.receive_into(bytearray(0)) is None
    world.send_all(client, b"x")
    assert server.receive_into(memoryview(bytearray(0))) is None
    assert world.receive(server, 1) == b"x"
    for end in (client, server, listener):
        end.close()


def test_connecting_without_a_listener_is_refused(world):
    listener = world.server.listen(f"{world.server_host}:0")
    address = listener.address
    listener.close()
    client = world.client.connect(address)
    first = world.broken(client)
    assert isinstance(first, ConnectionRefusedError)
    with pytest.raises(ConnectionRefusedError):
        client.send(b"x")
    with pytest.raises(ConnectionRefusedError):
        client.receive_into(bytearray(1))
    client.close()


def test_sending_to_a_closed_peer_breaks(world):
    client, server, listener = world.pair()
    server.close()
    assert isinstance(world.broken(client), ConnectionResetError | BrokenPipeError)
    with pytest.raises(ConnectionError):
        client.send(b"x")
    client.close()
    listener.close()


def test_closing_with_unread_bytes_resets_the_peer(world):
    client, server, listener = world.pair()
    world.send_all(client, b"never read")
    buffer = bytearray(1)
    world.until(lambda: server.receive_into(buffer))
    server.close()

    def reset() -> bool:
        try:
            return client.receive_into(bytearray(10)) is not None
        except ConnectionResetError:
            return True

    world.until(reset)
    with pytest.raises(ConnectionError):
        client.receive_into(bytearray(10))
    client.close()
    listener.close()


def test_a_closed_stream_refuses_calls(world):
    client, server, listener = world.pair()
    client.close()
    client.close()
    with pytest.raises(ConnectionError):
        client.send(b"x")
    with pytest.raises(ConnectionError):
        client.receive_into(bytearray(1))
    server.close()
    listener.close()


def test_connections_outlive_their_listener(world):
    client, server, listener = world.pair()
    listener.close()
    world.send_all(client, b"still here")
    assert world.receive(server, 10) == b"still here"
    client.close()
    server.close()


def test_a_port_has_one_listener(world):
    listener = world.server.listen(f"{world.server_host}:0")
    with pytest.raises(OSError, match=rf"\[Errno {errno.EADDRINUSE}\]"):
        world.server.listen(listener.address)
    address = listener.address
    listener.close()
    world.server.listen(address).close()


def test_addresses_are_checked(world):
    for call in (world.server.listen, world.client.connect):
        with pytest.raises(InvalidInputError):
            call("no port")
    with pytest.raises(OSError, match=rf"\[Errno {errno.EADDRNOTAVAIL}\]"):
        world.server.listen("203.0.113.1:0")
