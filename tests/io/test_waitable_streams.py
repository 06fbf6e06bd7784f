"""Streams for blocking threads: connect with a deadline, wait for data or space, wake-ups, lost connections."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator

import pytest

from seawall.errors import InvalidInputError
from seawall.io.network.waitable_streams import BlockingStream, Waker, await_streams, open_stream


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def pair(listener: socket.socket) -> Iterator[tuple[BlockingStream, socket.socket]]:
    stream = open_stream(f"127.0.0.1:{listener.getsockname()[1]}", 10)
    accepted, _ = listener.accept()
    with accepted:
        yield stream, accepted
    stream.close()


def test_bytes_go_both_ways(pair: tuple[BlockingStream, socket.socket]) -> None:
    stream, peer = pair
    assert stream.send([b"one", memoryview(b"two")]) == 6
    assert peer.recv(100) == b"onetwo"
    buffer = bytearray(10)
    assert stream.receive_into(buffer) is None
    peer.sendall(b"back")
    await_streams([stream], None, 20)
    assert stream.receive_into(buffer) == 4
    peer.shutdown(socket.SHUT_WR)
    await_streams([stream], None, 20)
    assert stream.receive_into(buffer) == 0


def test_fill_returns_the_bytes_that_have_arrived(pair: tuple[BlockingStream, socket.socket]) -> None:
    stream, peer = pair
    buffer = bytearray(8)
    assert stream.waits
    assert stream.fill(buffer) is None
    peer.sendall(b"abc")
    # It returns what is there and does not wait for a full buffer.
    assert (stream.fill(buffer), bytes(buffer[:3])) == (3, b"abc")
    sender = threading.Timer(0.01, lambda: peer.sendall(b"5678"))
    peer.sendall(b"1234")
    sender.start()
    filled = 0
    while filled < 8:
        filled += stream.fill(memoryview(buffer)[filled:]) or 0
    sender.join()
    assert bytes(buffer) == b"12345678"
    peer.sendall(b"rest")
    peer.shutdown(socket.SHUT_WR)
    assert stream.fill(buffer) == 4
    assert stream.fill(buffer) == 0


def test_fill_by_maps_results_of_a_receive_function(pair: tuple[BlockingStream, socket.socket]) -> None:
    stream, _ = pair
    assert stream.fill_by(lambda descriptor: descriptor) == stream.fileno()
    assert stream.fill_by(lambda _: 0) == 0
    assert stream.fill_by(lambda _: -errno.EAGAIN) is None
    assert stream.fill_by(lambda _: -errno.EINTR) is None
    for code in (errno.ECONNRESET, errno.EBADF):
        with pytest.raises(ConnectionError):
            stream.fill_by(lambda _, code=code: -code)


def test_await_streams_waits_for_send_space(pair: tuple[BlockingStream, socket.socket]) -> None:
    stream, peer = pair
    sent = 0
    while taken := stream.send([bytes(1 << 20)]):
        sent += taken
    stream.wants_space = True
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.extend(iter(lambda: peer.recv(1 << 20), b"")))
    reader.start()
    while not (taken := stream.send([b"more"])):
        await_streams([stream], None, 20)
    stream.close()
    reader.join()
    assert b"".join(received) == bytes(sent) + b"more"[:taken]


def test_a_lost_connection_is_always_a_connection_error(pair: tuple[BlockingStream, socket.socket]) -> None:
    stream, peer = pair
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    peer.close()
    await_streams([stream], None, 20)
    with pytest.raises(ConnectionError):
        stream.receive_into(bytearray(1))
    stream.close()
    assert stream.fileno() == -1
    for call in (
        lambda: stream.send([b"x"]),
        lambda: stream.receive_into(bytearray(1)),
        lambda: stream.fill(bytearray(1)),
    ):
        with pytest.raises(ConnectionError, match="connection with 127"):
            call()


def test_connecting_to_no_listener_is_an_error(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(ConnectionError, match="no connection with"):
        open_stream(f"127.0.0.1:{port}", 10)
    with pytest.raises(ConnectionError, match="no connection with"):
        open_stream("no.such.host.invalid:1", 10)
    with pytest.raises(InvalidInputError):
        open_stream("nowhere", 10)


def test_a_connect_timeout_is_a_connection_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> socket.socket:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", never)
    with pytest.raises(ConnectionError, match=r"within 0\.5 s"):
        open_stream("127.0.0.1:1", 0.5)


def test_a_wake_ends_the_current_or_the_next_wait() -> None:
    waker = Waker()
    waker.wake()
    waker.wake()
    await_streams([], waker, 60)
    woken = threading.Event()
    waiting = threading.Thread(target=lambda: (await_streams([], waker, 60), woken.set()))
    waiting.start()
    waker.wake()
    waiting.join()
    assert woken.is_set()
    await_streams([], waker, 0)
    for _ in range(5_000):
        waker.wake()
    await_streams([], waker, 60)
    waker.close()
    waker.wake()
