"""Sessions as clients see them: listed, retired, expired."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from real_server import RealServer
from scripted_server import Client, Peer, ScriptedServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.client.connection.session import Session
from seawall.client.connection.targets import parse_target
from seawall.client.publish.outgoing import Outgoing
from seawall.client.remote_log import RemoteLog
from seawall.core.types import ClientId, ClientSeq, SessionEpoch, Term, TimestampNs
from seawall.errors import FencedError, InvalidInputError, NotFoundError, OutcomeUnknownError, SessionExpiredError
from seawall.limits import SESSION_WINDOW_BATCHES as WINDOW
from seawall.wire.format.batches import BatchHeader
from seawall.wire.format.codes import Codec, HelloFlags, SessionStatus
from seawall.wire.lwp2.session import Hello, Welcome


def stored(log: RemoteLog) -> list[bytes]:
    return [each.value for item in log.follow("events") if isinstance(item, ReceivedBatch) for each in item]


@pytest.mark.parametrize("event_loops", [1, 3])
def test_sessions_are_listed_and_retired(tmp_path: Path, event_loops: int) -> None:
    with RealServer(tmp_path / "data", event_loops=event_loops) as server, seawall.connect(server.url) as log:
        log.create_topic("events")
        publishers = [log.publisher("events", client_id=client_id) for client_id in (3, 4)]
        for publisher in publishers:
            publisher.publish(b"one").result()
        found = log.sessions()
        assert [(each.client_id, each.session_epoch, each.next_client_seq, each.is_live) for each in found] == [
            (3, 1, 2, True),
            (4, 1, 2, True),
        ]
        log.retire_session(4)
        with pytest.raises(FencedError):
            publishers[1].publish(b"late").result(20)
        with pytest.raises(FencedError):
            publishers[1].close()
        with pytest.raises(NotFoundError, match="client 4 has no session"):
            log.retire_session(4)
        with pytest.raises(InvalidInputError):
            log.retire_session(0)
        assert publishers[0].publish(b"two").result().first_seq == 3
        publishers[0].close()
        with log.publisher("events", client_id=4) as publisher:
            assert publisher.next_client_seq == 1 + WINDOW + 1
            again = publisher.publish(b"one", client_seq=1)
            with pytest.raises(OutcomeUnknownError, match="too late to find out"):
                again.result(20)
            publisher.publish(b"three").result()
            with pytest.raises(OutcomeUnknownError):
                publisher.flush()
        assert stored(log) == [b"one", b"one", b"two", b"three"]


def test_sessions_on_an_event_loop(tmp_path: Path) -> None:
    async def work(url: str) -> None:
        async with seawall.connect_async(url) as log:
            await log.create_topic("events")
            publisher = await log.publisher("events", client_id=3)
            await publisher.publish(b"one")
            (found,) = await log.sessions()
            assert (found.client_id, found.next_client_seq) == (3, 2)
            await log.retire_session(3)
            assert await log.sessions() == []
            with pytest.raises(FencedError):
                await publisher.publish(b"late")

    with RealServer(tmp_path / "data") as server:
        asyncio.run(work(server.url))


def expire(server: ScriptedServer) -> None:
    """Have the server forget all sessions, as it does after a long silence of their clients."""

    def on_hello(peer: Peer, hello: Hello) -> Welcome | None:
        if hello.session_epoch:
            return peer.welcome(SessionStatus.REFUSED_SUPERSEDED, Client(epoch=9, next_seq=0))
        if hello.flags & HelloFlags.OPEN:
            client = server.clients[peer.client_id] = Client(epoch=9, next_seq=500)
            return peer.welcome(SessionStatus.NEW, client)
        return None

    server.script.on_hello = on_hello


def welcome(status: SessionStatus, epoch: int, next_seq: int) -> Welcome:
    numbers = (ClientId(5), SessionEpoch(epoch), ClientSeq(next_seq), 256, 1 << 20, 10_000, 30_000)
    return Welcome(2, status, 1 << 24, 0, *numbers, Term(1), TimestampNs(1), 0)


def test_a_publisher_with_nothing_undecided_continues_in_a_new_session() -> None:
    outgoing = Outgoing(ack=2, batch_size=100, linger_ns=0, codec=Codec.NONE)
    session = Session(parse_target("seawall://127.0.0.1:1"), outgoing, 5)
    assert session.is_granted(welcome(SessionStatus.NEW, 1, 1))
    assert session.hello().flags is HelloFlags.JOIN
    assert not session.is_granted(welcome(SessionStatus.REFUSED_SUPERSEDED, 9, 0))
    again = session.hello()
    assert (again.flags, again.session_epoch, again.client_id) == (HelloFlags.OPEN, 0, 5)
    assert session.is_granted(welcome(SessionStatus.NEW, 9, 500))
    assert (outgoing.session_epoch, outgoing.next_seq) == (9, 500)
    with pytest.raises(FencedError, match="newer session"):
        session.is_granted(welcome(SessionStatus.REFUSED_SUPERSEDED, 10, 501))


def test_an_unanswered_batch_of_an_expired_session_is_not_sent_again(server: ScriptedServer, log: RemoteLog) -> None:
    """The batch is stored, its ack is lost, and then the session expires: the outcome cannot be found out."""

    def lose(_peer: Peer, _header: BatchHeader) -> bool:
        expire(server)
        server.script.on_batch = lambda _peer, _header: True
        server.cut_all()
        return False

    publisher = log.publisher("events", client_id=5)
    publisher.publish(b"first").result()
    server.script.on_batch = lose
    delivery = publisher.publish(b"second")
    with pytest.raises(OutcomeUnknownError, match="has expired on the server"):
        delivery.result(20)
    with pytest.raises(SessionExpiredError):
        publisher.publish(b"third")
    with pytest.raises((SessionExpiredError, OutcomeUnknownError)):
        publisher.close()
    assert stored(log) == [b"first"]
