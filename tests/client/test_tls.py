"""Encrypted connections: everything works over them, and nobody is believed who is not to be."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from real_server import RealServer, ServerProcess

import seawall
from seawall.api.received import Item, ReceivedBatch
from seawall.cli.main import seawall as command
from seawall.client.connection.targets import parse_target
from seawall.errors import CallerError, InvalidInputError, RetryableError
from seawall.io.network.tls import TlsStream, client_context, server_context
from seawall.limits import MIB


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that vouches for itself, and its key."""
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
def server(tmp_path: Path, certificate: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[RealServer]:
    tls = server_context(*certificate)
    with RealServer(tmp_path / "data", tls=tls, has_uvloop=request.param == "uvloop") as real:
        yield real


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
            # Many values become one block, which is sent as such.
            publisher.publish(many)
        wanted += many
        assert values(list(log.follow("events"))) == wanted
        # Long stretches come straight out of files, where a connection allows that.
        assert log.read_arrow("events").column("value").to_pylist() == wanted
        subscriber = log.subscriber("events", len(wanted))
        assert values(subscriber.poll(5)) == wanted[-1:]


@pytest.mark.usefixtures("each_event_loop")
def test_loops_write_and_read(server: RealServer, certificate: tuple[Path, Path]) -> None:
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

    asyncio.run(work())


@pytest.mark.usefixtures("each_event_loop")
def test_who_is_not_trusted_is_told_at_once(server: RealServer, certificate: tuple[Path, Path]) -> None:
    async def work(**named: object) -> None:
        async with seawall.connect_async(server.url, **named):
            pytest.fail("it was trusted")

    with pytest.raises(CallerError, match="not trusted"):
        seawall.connect(server.url, tls=True)
    with pytest.raises(CallerError, match="not trusted"):
        asyncio.run(work(tls=True))
    elsewhere = f"seawall://127.0.0.2:{server.port}"
    with pytest.raises((CallerError, RetryableError)):
        seawall.connect(elsewhere, tls=certificate[0], timeout_s=0.2)


@pytest.mark.usefixtures("each_event_loop")
def test_plain_and_encrypted_do_not_mix(server: RealServer, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(RetryableError):
        seawall.connect(server.url, timeout_s=0.2, connect_timeout_s=0.2)
    with RealServer(tmp_path / "plain") as plain:
        with pytest.raises(RetryableError, match="no answer"):
            seawall.connect(plain.url, tls=certificate[0], timeout_s=0.2)

        async def work() -> None:
            async with seawall.connect_async(plain.url, tls=certificate[0], timeout_s=0.2):
                pytest.fail("there is no TLS")

        with pytest.raises(RetryableError, match="no answer"):
            asyncio.run(work())
    # The server is as it was.
    with seawall.connect(server.url, tls=certificate[0]) as log:
        assert log.topics() == []


@pytest.mark.parametrize("source", ["options", "file"])
def test_a_node_of_its_own_and_commands(tmp_path: Path, certificate: tuple[Path, Path], source: str) -> None:
    given = ["--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1])]
    if source == "file":
        settings = tmp_path / "seawall.toml"
        settings.write_text(f'[server]\ntls_cert = "{certificate[0]}"\ntls_key = "{certificate[1]}"\n')
        given = ["--config", str(settings)]
    node = ServerProcess(tmp_path / "data", *given)
    try:
        place = ("--url", node.url, "--tls-ca", str(certificate[0]))
        runner = CliRunner()
        created = runner.invoke(command, ["topic", "create", "events", "--order", "5", *place])
        assert created.output == "created events (topic 1)\n"
        assert runner.invoke(command, ["pub", "events", *place], input="one\ntwo\n").exit_code == 0
        assert runner.invoke(command, ["read", "events", *place]).output == "one\ntwo\n"
        untrusted = runner.invoke(command, ["topic", "list", "--url", node.url.replace("seawall:", "seawalls:")])
        assert untrusted.exit_code != 0
        assert "not trusted" in untrusted.output
    finally:
        node.stop()


def test_settings_that_cannot_be(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
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


def send_for_ever(stream: TlsStream, block: bytes) -> None:
    while True:
        stream.send([block])


def test_a_stream_takes_what_fits_and_says_what_is_left(certificate: tuple[Path, Path]) -> None:
    """What was decrypted and not taken does not show on the socket."""
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
    # As much as the socket takes, and no more: nobody reads at the other end.
    block = bytes(4 * MIB)
    taken = stream.send([b"head", b"er", block])
    assert 0 < taken < len(block)
    assert stream.send([block[taken:]]) == 0
    theirs.close()
    with pytest.raises(ConnectionError):
        send_for_ever(stream, block)
    stream.close()
    stream.close()
    assert not stream.has_bytes
