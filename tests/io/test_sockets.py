"""Addresses, and what real sockets do beyond the contract with the simulator."""

import errno
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.io.network import sockets
from seawall.io.network.sockets import Address, OsNetwork, format_address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:1992", "localhost", 1992),
        ("127.0.0.1:0", "127.0.0.1", 0),
        ("[::1]:65535", "::1", 65_535),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
    ],
)
def test_addresses_are_read_and_written(text, host, port):
    assert parse_address(text) == Address(host, port)
    assert format_address(host, port) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":80", "[]:80", "::1:80", "[::1]", "[host]:80", "a]:80", "[a:80", "[[::1]]:80", "x[::1]:80"],
)
def test_a_malformed_address_is_refused(text):
    with pytest.raises(InvalidInputError, match="write host:port"):
        parse_address(text)


@pytest.mark.parametrize("text", ["host:", "host:http", "host:-1", "host:65536", "host:٣", "host: 1", "host:1.0"])
def test_a_malformed_port_is_refused(text):
    with pytest.raises(InvalidInputError, match="0 to 65535"):
        parse_address(text)


@given(
    st.sampled_from(["a", "node-1.example", "10.0.0.1", "::", "fe80::1%eth0", "2001:db8::2"]), st.integers(0, 65_535)
)
def test_formatting_and_parsing_are_inverse(host, port):
    assert parse_address(format_address(host, port)) == (host, port)


def poll(probe):
    """Repeat until there is an answer; the loopback device needs a few calls at most."""
    while (answer := probe()) is None:
        pass
    return answer


def connection_error(stream):
    def probe():
        try:
            stream.receive_into(bytearray(1))
        except ConnectionError as error:
            return error
        return None

    return poll(probe)


def test_streams_send_without_delay():
    network = OsNetwork()
    listener = network.listen("127.0.0.1:0")
    client = network.connect(listener.address)
    server = poll(listener.accept)
    poll(lambda: client.send(b"x") or None)
    for stream in (client, server):
        assert not os.get_blocking(stream.fileno())
        with socket.socket(fileno=os.dup(stream.fileno())) as same:
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    for end in (client, server, listener):
        end.close()


def test_nothing_is_sent_or_received_while_connecting(monkeypatch):
    class NotYet:
        def register(self, *_):
            pass

        def poll(self, _):
            return []

    network = OsNetwork()
    listener = network.listen("127.0.0.1:0")
    client = network.connect(listener.address)
    with monkeypatch.context() as patch:
        patch.setattr(sockets.select, "poll", NotYet)
        assert client.send(b"x") == 0
        assert client.receive_into(bytearray(1)) is None
    poll(lambda: client.send(b"x") or None)
    client.close()
    listener.close()


def resolve_to(monkeypatch, *targets):
    entries = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", target) for target in targets]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: entries)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_connect_tries_every_address_of_a_name(monkeypatch):
    network = OsNetwork()
    listener = network.listen("127.0.0.1:0")
    port = parse_address(listener.address).port
    # The first address refuses, the second is not a host address, the third answers.
    resolve_to(monkeypatch, ("127.0.0.1", closed_port()), ("255.255.255.255", port), ("127.0.0.1", port))
    client = network.connect("somewhere:1")
    poll(lambda: client.send(b"hello") or None)
    server = poll(listener.accept)
    buffer = bytearray(10)
    assert poll(lambda: server.receive_into(buffer)) == 5
    for end in (client, server, listener):
        end.close()


def test_connect_reports_the_error_of_the_last_address(monkeypatch):
    resolve_to(monkeypatch, ("127.0.0.1", closed_port()), ("255.255.255.255", 9))
    client = OsNetwork().connect("somewhere:1")
    error = connection_error(client)
    assert type(error) is ConnectionError
    assert error.errno in (errno.ENETUNREACH, errno.EACCES, errno.EADDRNOTAVAIL, errno.EINVAL, errno.EHOSTUNREACH)
    assert "somewhere:1" in str(error)
    client.close()


def test_an_unknown_name_is_a_failed_connection(monkeypatch):
    def unknown(*args, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    client = OsNetwork().connect("nowhere.invalid:1")
    with pytest.raises(ConnectionError, match=r"nowhere\.invalid:1: Name or service not known"):
        client.send(b"x")


def test_an_unsupported_address_family_is_a_failed_connection(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(-1, socket.SOCK_STREAM, 6, "", ("x", 1))])
    with pytest.raises(ConnectionError):
        OsNetwork().connect("odd:1").receive_into(bytearray(1))


def test_no_data_and_a_full_window_are_not_errors():
    network = OsNetwork()
    listener = network.listen("127.0.0.1:0")
    client = network.connect(listener.address)
    server = poll(listener.accept)
    assert server.receive_into(bytearray(10)) is None
    poll(lambda: client.send(b"x") or None)
    while client.send(bytes(1_000_000)):
        pass
    assert client.send(b"x") == 0
    for end in (client, server, listener):
        end.close()


def test_a_connection_aborted_before_accept_is_skipped(monkeypatch):
    class Aborted:
        def accept(self):
            raise ConnectionAbortedError

    assert sockets.OsListener(Aborted()).accept() is None


def test_ipv6_works_where_it_exists():
    network = OsNetwork()
    try:
        listener = network.listen("[::1]:0")
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert listener.address.startswith("[::1]:")
    client = network.connect(listener.address)
    poll(listener.accept).close()
    client.close()
    listener.close()


def test_a_refused_listen_names_the_address():
    with pytest.raises(OSError, match=r"cannot listen on 203\.0\.113\.1:0"):
        OsNetwork().listen("203.0.113.1:0")


def test_an_unexpected_socket_error_is_a_connection_error():
    class Odd:
        closed = False

        def send(self, _):
            raise OSError(errno.ENOBUFS, "no buffers")

        def recv_into(self, _):
            raise OSError(errno.ENOBUFS, "no buffers")

        def close(self):
            self.closed = True

    for call in (lambda stream: stream.send(b"x"), lambda stream: stream.receive_into(bytearray(1))):
        odd = Odd()
        stream = sockets.OsStream("peer:1", accepted=odd)
        with pytest.raises(ConnectionError, match="peer:1: no buffers"):
            call(stream)
        assert odd.closed
        with pytest.raises(ConnectionError, match="no buffers"):
            call(stream)
