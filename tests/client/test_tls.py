"""TLS connections: the API works over them, and servers that are not trusted are refused."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from click.testing import CliRunner
from real_server import RealServer, ServerProcess

import seawall
from seawall.api.received import Item, ReceivedBatch
from seawall.cli.main import seawall as command
from seawall.client.connection.targets import parse_target
from seawall.errors import CallerError, InvalidInputError, RetryableError
from seawall.io.network.tls import TlsStream, client_context, server_context
from seawall.limits import MIB

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "node.pem", folder / "node.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-out", str(made[0]), "-keyout", str(made[1]), "-days", "2", "-subj", "/CN=seawall"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
    return made


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    """The event loop of the server, and of the client where it has one."""
    return str(request.param)


@pytest.fixture
def server(tmp_path: Path, certificate: tuple[Path, Path], loop: str) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data", tls=server_context(*certificate), has_uvloop=loop == "uvloop") as real:
        yield real


@pytest.fixture
def run(loop: str) -> Run:
    """Run a coroutine on an event loop of the kind that the server has."""

    def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
        make_loop = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(work)

    return run_on_loop


def values(items: list[Item]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def test_threads_write_and_read(server: RealServer, certificate: tuple[Path, Path]) -> None:
    wanted = [b"small", os.urandom(3 * MIB), *(os.urandom(100_000) for _ in range(40)), b"last"]
    many = [os.urandom(1_000) for _ in range(2_000)]
    with seawall.connect(server.url, tls=certificate[0]) as log:
        assert str(log.target).startswith("seawalls://")
        log.create_topic("events")
        with log.publisher("events") as publisher:
            for value in wanted:
                publisher.publish(value)
            # Many values become one block.
            publisher.publish(many)
        wanted += many
        assert values(list(log.follow("events"))) == wanted
        # Without TLS, long runs are sent straight from files.
        assert log.read_arrow("events").column("value").to_pylist() == wanted
        subscriber = log.subscriber("events", len(wanted))
        assert values(subscriber.poll(5)) == wanted[-1:]


def test_event_loops_write_and_read(server: RealServer, certificate: tuple[Path, Path], run: Run) -> None:
    async def work() -> None:
        url = server.url.replace("seawall://", "seawalls://")
        async with seawall.connect_async(url, tls=client_context(certificate[0])) as log:
            await log.create_topic("events")
            wanted = [os.urandom(MIB) for _ in range(6)]
            for value in wanted:
                await log.publish("events", value)
            found: list[bytes] = []
            async for item in log.subscriber("events"):
                found += values([item])
                if len(found) == len(wanted):
                    break
            assert found == wanted

    run(work())


def test_an_untrusted_server_is_refused_at_once(server: RealServer, certificate: tuple[Path, Path], run: Run) -> None:
    async def work(**named: object) -> None:
        async with seawall.connect_async(server.url, **named):
            pytest.fail("the server was trusted")

    with pytest.raises(CallerError, match="not trusted"):
        seawall.connect(server.url, tls=True)
    with pytest.raises(CallerError, match="not trusted"):
        run(work(tls=True))
    elsewhere = f"seawall://127.0.0.2:{server.port}"
    with pytest.raises((CallerError, RetryableError)):
        seawall.connect(elsewhere, tls=certificate[0], timeout_s=0.2)


def test_plain_and_encrypted_connections_do_not_mix(
    server: RealServer, certificate: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    with pytest.raises(RetryableError):
        seawall.connect(server.url, timeout_s=0.2, connect_timeout_s=0.2)
    with RealServer(tmp_path / "plain") as plain:
        with pytest.raises(RetryableError, match="no answer"):
            seawall.connect(plain.url, tls=certificate[0], timeout_s=0.2)

        async def work() -> None:
            async with seawall.connect_async(plain.url, tls=certificate[0], timeout_s=0.2):
                pytest.fail("there is no TLS")

        with pytest.raises(RetryableError, match="no answer"):
            run(work())
    # The server still works.
    with seawall.connect(server.url, tls=certificate[0]) as log:
        assert log.topics() == []


def test_commands_over_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    """The certificate comes from an option of `seawall serve`, its key from the settings file."""
    settings = tmp_path / "seawall.toml"
    settings.write_text(f'[server]\ntls_key = "{certificate[1]}"\n')
    given = ["--config", str(settings), "--tls-cert", str(certificate[0])]
    node = ServerProcess(tmp_path / "data", *given)
    try:
        server = ("--url", node.url, "--tls-ca", str(certificate[0]))
        runner = CliRunner()
        created = runner.invoke(command, ["topic", "create", "events", "--order", "5", *server])
        assert created.output == "created events (topic 1)\n"
        assert runner.invoke(command, ["pub", "events", *server], input="one\ntwo\n").exit_code == 0
        assert runner.invoke(command, ["read", "events", *server]).output == "one\ntwo\n"
        untrusted = runner.invoke(command, ["topic", "list", "--url", node.url.replace("seawall:", "seawalls:")])
        assert untrusted.exit_code != 0
        assert "not trusted" in untrusted.output
    finally:
        node.stop()


def test_invalid_tls_settings_are_refused(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with pytest.raises(InvalidInputError, match="no TLS with certificate"):
        server_context(certificate[1], certificate[0])
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(InvalidInputError, match="no authorities"):
        parse_target("seawall://host", tls=tmp_path / "empty.pem")
    with pytest.raises(InvalidInputError, match="requires TLS"):
        parse_target("seawalls://host", tls=False)
    assert parse_target("seawall://host", tls=False).tls is None
    assert isinstance(parse_target("seawalls://host").tls, ssl.SSLContext)
    halves = CliRunner().invoke(command, ["serve", "--dev", "--tls-cert", str(certificate[0])])
    assert halves.exit_code == 2
    assert "needs both" in halves.output


def send_forever(stream: TlsStream, block: bytes) -> None:
    while True:
        stream.send([block])


def test_a_stream_sends_what_fits_and_keeps_decrypted_bytes(certificate: tuple[Path, Path]) -> None:
    """Decrypted bytes that were not read do not make the socket readable."""
    ours, theirs = socket.socketpair()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    peer = server_context(*certificate).wrap_bio(incoming, outgoing, server_side=True)
    context = client_context(certificate[0])
    assert context is not None
    secured = context.wrap_socket(ours, server_hostname="localhost", do_handshake_on_connect=False)
    secured.setblocking(False)
    theirs.setblocking(False)

    def exchange() -> None:
        if outgoing.pending:
            theirs.sendall(outgoing.read())
        try:
            while data := theirs.recv(1 << 20):
                incoming.write(data)
        except BlockingIOError:
            return

    is_done = [False, False]
    while not all(is_done):
        for number, step in enumerate((secured.do_handshake, peer.do_handshake)):
            try:
                step()
                is_done[number] = True
            except ssl.SSLWantReadError:
                exchange()
    exchange()
    stream = TlsStream(secured, "a peer")
    assert stream.receive_into(bytearray(10)) is None
    peer.write(b"0123456789abcdef")
    exchange()
    first = bytearray(10)
    assert (stream.receive_into(first), bytes(first)) == (10, b"0123456789")
    assert stream.has_bytes
    rest = bytearray(10)
    assert (stream.receive_into(rest), bytes(rest[:6])) == (6, b"abcdef")
    assert not stream.has_bytes
    # The peer does not read: the stream takes only what fits into the socket.
    block = bytes(4 * MIB)
    taken = stream.send([b"head", b"er", block])
    assert 0 < taken < len(block)
    assert stream.send([block[taken:]]) == 0
    theirs.close()
    with pytest.raises(ConnectionError):
        send_forever(stream, block)
    stream.close()
    stream.close()
    assert not stream.has_bytes
