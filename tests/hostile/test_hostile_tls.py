"""TLS: shutdown with encrypted connections open, half-open handshakes, and client certificates."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import uvloop
from hostile_node import PATIENCE_S, HostileNode
from hostile_peers import Peers, watching

import seawall
from seawall.errors import CallerError, RetryableError
from seawall.io.network.tls import client_context, server_context
from seawall.io.process.descriptors import raise_descriptor_limit
from seawall.limits import MIB
from seawall.server.connection.access import Access, Admission, Right
from seawall.server.node import NodeSettings, start_node
from seawall.wire.format.codes import Command, V1Flags
from seawall.wire.format.frames import encode_header_v1
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp1.frames import encode_request
from seawall.wire.lwp1.requests import ListTopics

if TYPE_CHECKING:
    from hostile_node import StartNode


class Certificates(NamedTuple):
    """An authority, certificates that it has signed, and one of another authority."""

    authority: Path
    node: Path
    loader: Path
    stranger: Path


def sign(folder: Path, name: str, authority: Path | None) -> Path:
    """A key and its certificate in one file, signed by an authority or by itself."""
    made = folder / f"{name}.pem"
    signed = [] if authority is None else ["-CA", str(authority), "-CAkey", str(authority)]
    purpose = ["-addext", "basicConstraints=critical,CA:TRUE"] if authority is None else []
    if authority is not None:
        purpose = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-out", str(made), "-keyout", str(folder / "key"), "-days", "2", "-subj", f"/CN={name}", *purpose),
            *signed,
        ],
        check=True,
        capture_output=True,
    )
    made.write_text(made.read_text() + (folder / "key").read_text())
    return made


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    folder = tmp_path_factory.mktemp("tls")
    authority, other = sign(folder, "authority", None), sign(folder, "other", None)
    return Certificates(
        authority, sign(folder, "node", authority), sign(folder, "loader", authority), sign(folder, "stranger", other)
    )


def encrypted_options(certificates: Certificates) -> list[str]:
    return ["--tls-cert", str(certificates.node), "--tls-key", str(certificates.node)]


def assert_orderly_shutdown(node: HostileNode) -> None:
    assert node.stop() == 0, node.stderr
    with seawall.open(node.data) as log:
        gaps = [item for name in log.topics() for item in log.read(name) if hasattr(item, "reason")]
    assert gaps == [], "a node that ended in order leaves no gap"


def test_a_node_with_encrypted_clients_shuts_down_orderly(start_node: StartNode, certificates: Certificates) -> None:
    # A drain that takes 25 s is cut off with exit code 1: exit code 0 means that no peer delayed it.
    node = start_node(*encrypted_options(certificates))
    url = node.url.replace("seawall:", "seawalls:")
    stop = threading.Event()
    with seawall.connect(url, tls=certificates.authority) as log, ExitStack() as open_connections:
        log.create_topic("events")
        idle = open_connections.enter_context(seawall.connect(url, tls=certificates.authority))
        idle.topics()
        publisher = log.publisher("events")
        publisher.publish(b"first").result(30)

        def publish() -> None:
            while not stop.is_set():
                publisher.publish(b"more")
                stop.wait(0.001)

        subscriber = idle.subscriber("events")
        assert subscriber.poll(30)
        context = client_context(certificates.authority)
        assert context is not None
        for _ in range(20):
            # Completes its handshake, requests nothing, and never answers the end of TLS.
            raw = open_connections.enter_context(socket.create_connection(node.address))
            open_connections.enter_context(context.wrap_socket(raw, server_hostname="127.0.0.1"))
            # In the middle of its handshake.
            half = open_connections.enter_context(socket.create_connection(node.address))
            half.send(b"\x16\x03\x01")
        busy = threading.Thread(target=publish)
        busy.start()
        try:
            node.process.terminate()
            node.process.communicate(timeout=PATIENCE_S)
        finally:
            stop.set()
            busy.join()
        assert node.process.returncode == 0, node.stderr
        node.start()
        with seawall.connect(node.url, tls=certificates.authority) as again:
            assert not [item for item in again.read("events") if hasattr(item, "reason")]
        publisher.close()
    assert_orderly_shutdown(node)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_drain_does_not_wait_for_silent_tls_peers(
    tmp_path: Path, certificates: Certificates, make_loop: object
) -> None:
    async def work() -> None:
        tls = server_context(certificates.node, certificates.node)
        node = await start_node(tmp_path / "data", NodeSettings(port=0, tls=tls))
        port = int(node.address.rpartition(":")[2])
        context = client_context(certificates.authority)
        assert context is not None
        silent = []
        for _ in range(3):
            raw = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", port))
            silent.append(await asyncio.to_thread(context.wrap_socket, raw, server_hostname="127.0.0.1"))
        assert await node.drain(25), "the drain was cut off"
        for each in silent:
            each.close()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(work())


def test_handshakes_that_never_complete_are_closed(tmp_path: Path, certificates: Certificates) -> None:
    from seawall.server.connection.session import ConnectionLimits

    async def work() -> None:
        tls = server_context(certificates.node, certificates.node)
        settings = NodeSettings(port=0, tls=tls, bounds=ConnectionLimits(handshake_s=0.2))
        node = await start_node(tmp_path / "data", settings)
        port = int(node.address.rpartition(":")[2])
        peers = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        for peer in peers:
            peer.settimeout(PATIENCE_S)
            assert await asyncio.to_thread(peer.recv, 1) == b"", "the node has closed it"
            peer.close()
        assert node.counts["tls_failed"] == len(peers)
        assert await node.drain(25)

    asyncio.run(work())


def test_an_honest_client_is_served_beside_half_open_handshakes(
    start_node: StartNode, certificates: Certificates
) -> None:
    """More of them than the limit: the oldest are closed, and memory stays bounded."""
    raise_descriptor_limit()
    node = start_node(*encrypted_options(certificates))
    hello = first_bytes(certificates)
    with Peers(node) as peers, watching(node) as watch, ExitStack() as stack:
        before = node.resident_size
        for number in range(1_500):
            # Some send nothing, some a part of their first message.
            peers.connect().sendall(hello[: number % len(hello)])
        log = stack.enter_context(seawall.connect(node.url, tls=certificates.authority, timeout_s=PATIENCE_S))
        log.create_topic("events")
        log.publish("events", b"value")
    assert watch.most - before < 256 * MIB, f"{(watch.most - before) // MIB} MiB"
    assert_orderly_shutdown(node)
    assert "handshake_limit" in node.stderr


def first_bytes(certificates: Certificates) -> bytes:
    """The first message of a client in a handshake."""
    context = client_context(certificates.authority)
    assert context is not None
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


@pytest.fixture(scope="module")
def certificate_node(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[HostileNode]:
    """A node that requires client certificates."""
    options = (*encrypted_options(certificates), "--tls-client-ca", str(certificates.authority))
    node = HostileNode(tmp_path_factory.mktemp("certificates") / "data", *options)
    node.start()
    yield node
    try:
        assert node.stop() == 0
    finally:
        node.kill()


def test_clients_are_admitted_by_certificate(certificate_node: HostileNode, certificates: Certificates) -> None:
    node = certificate_node
    with seawall.connect(node.url, tls=certificates.authority, tls_cert=certificates.loader) as log:
        log.create_topic("events")
        log.publish("events", b"value")

    async def work() -> None:
        given = {"tls": certificates.authority, "tls_cert": certificates.loader}
        async with seawall.connect_async(node.url, **given) as log:
            await log.publish("events", b"another")

    asyncio.run(work())
    # The published clients of version 1 can show a certificate, and nothing else.
    context = client_context(certificates.authority, certificates.loader)
    assert context is not None
    with (
        socket.create_connection(node.address) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as peer,
    ):
        peer.settimeout(PATIENCE_S)
        # Its first frame may have any size: the certificate was all it had to show.
        value = encode_raw(bytes(100_000))
        crc = zlib.crc32(value)
        peer.sendall(
            encode_header_v1(V1Flags.BATCH, batch_id=1, payload_length=len(value), payload_crc=crc, topic_id=1)
        )
        peer.sendall(value)
        assert len(peer.recv(44)) == 44
        peer.sendall(encode_request(ListTopics()))
        assert b'"name":"events"' in peer.recv(4096)


@pytest.mark.parametrize(("shown", "kind"), [("nothing", CallerError), ("a stranger's", RetryableError)])
def test_a_client_without_a_trusted_certificate_is_refused(
    certificate_node: HostileNode, certificates: Certificates, shown: str, kind: type[Exception]
) -> None:
    node = certificate_node
    certificate = None if shown == "nothing" else certificates.stranger
    failures_before = failed_handshakes(node, certificates)

    async def work() -> None:
        given = {"tls": certificates.authority, "tls_cert": certificate, "timeout_s": 1}
        async with seawall.connect_async(node.url, **given) as log:
            await log.topics()

    with pytest.raises(kind, match="certificate"):
        seawall.connect(node.url, tls=certificates.authority, tls_cert=certificate, timeout_s=1).topics()
    with pytest.raises(kind, match="certificate"):
        asyncio.run(work())
    # Without a certificate the handshake succeeds, and the node refuses the client afterwards.
    assert (shown == "nothing") == (failed_handshakes(node, certificates) == failures_before)


def failed_handshakes(node: HostileNode, certificates: Certificates) -> int:
    """How many handshakes have failed, as a client with a trusted certificate sees it."""
    with seawall.connect(node.url, tls=certificates.authority, tls_cert=certificates.loader) as log:
        return log.status().details["counts"].get("tls_failed", 0)


def test_tokens_and_certificates_together(start_node: StartNode, certificates: Certificates, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\ncn=loader write_only\n")
    node = start_node(
        *encrypted_options(certificates),
        *("--tls-client-ca", str(certificates.authority), "--token-file", str(tokens)),
    )
    with seawall.connect(node.url, tls=certificates.authority, token="secret") as log:
        log.create_topic("events")
    with seawall.connect(node.url, tls=certificates.authority, tls_cert=certificates.loader) as loader:
        loader.publish("events", b"value")
        with pytest.raises(CallerError, match="may only write"):
            loader.read("events")
    with pytest.raises(CallerError):
        seawall.connect(node.url, tls=certificates.authority).topics()
    assert node.stop() == 0


def test_rights_of_certificates() -> None:
    access = Access({"secret": Right.ALL}, certificates={"loader": Right.WRITE_ONLY})
    assert Admission(access).check(Command.FETCH) is not None
    assert Admission(access, "loader").check(Command.FETCH) is not None
    assert Admission(access, "loader").check_ingest() is None
    assert Admission(access, "anybody").check(Command.FETCH) is None
    loader = Admission(access, "loader")
    assert loader.authenticate("secret")
    assert loader.check(Command.FETCH) is None


def test_invalid_tls_settings_are_refused(certificates: Certificates) -> None:
    from click.testing import CliRunner

    from seawall.cli.main import seawall as command

    alone = CliRunner().invoke(command, ["serve", "--dev", "--tls-client-ca", str(certificates.authority)])
    assert (alone.exit_code, "needs TLS" in alone.output) == (2, True), alone.output
    with pytest.raises(CallerError, match="no client certificate in"):
        client_context(True, certificates.authority.with_name("nowhere.pem"))
    with pytest.raises(CallerError, match="has no certificate"):
        client_context(True, None, certificates.loader)
    with pytest.raises(CallerError, match="needs TLS"):
        seawall.connect("seawall://127.0.0.1:1", tls=False, tls_cert=certificates.loader)
    with pytest.raises(CallerError, match="its own client certificate"):
        client_context(ssl.create_default_context(), certificates.loader)
