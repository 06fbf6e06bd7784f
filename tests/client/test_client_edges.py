"""Edge cases of the client: forgotten acks, late callbacks, closed senders, stray frames, silence."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime

import pytest
from scripted_server import Peer, ScriptedServer, rejected

import seawall
from seawall.api.received import ReceivedBatch
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.client.connection.connection import Connection
from seawall.client.connection.requests import Requests
from seawall.client.connection.targets import parse_target
from seawall.client.publish.outgoing import Outgoing
from seawall.client.publish.sender import Sender
from seawall.client.read import granted_credit
from seawall.client.remote_log import RemoteLog
from seawall.errors import NotFoundError, WrongStateError
from seawall.io.network.waitable_streams import await_streams
from seawall.testing.machine.clock import SimClock
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.batches import BatchHeader
from seawall.wire.format.codes import POSITION_UNKNOWN, Codec, ErrorCode, ReadBy
from seawall.wire.format.records import encode_raw
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import Committed, Fetch
from seawall.wire.lwp2.session import AckEntry, Hello

MS = 1_000_000


def without_seqs(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
    """Acks without seqs, as for a repetition that the server no longer remembers."""
    return [
        AckEntry(each.client_seq, 0, POSITION_UNKNOWN, 0, each.topic_id, 1, each.record_count, each.status, each.level)
        for each in entries
    ]


def test_deliveries_without_known_seqs(server: ScriptedServer, log: RemoteLog) -> None:
    server.script.on_ack = without_seqs
    delivery = log.publish("events", b"value")
    assert (delivery.first_seq, delivery.position, delivery.timestamp_ns, list(delivery.seqs)) == (0, 0, 0, [])
    several = log.publish("events", [b"x" * 1_000_000] * 20)
    assert list(several.seqs) == []


def test_a_delivery_shows_its_state(server: ScriptedServer, log: RemoteLog) -> None:
    assert "from seq 1" in repr(log.publish("events", b"value"))

    def refuse(peer: Peer, header: BatchHeader) -> bool:
        peer.send_ack([rejected(header, ErrorCode.TOPIC_DELETED)])
        return False

    server.script.on_batch = refuse
    publisher = log.publisher("events")
    delivery = publisher.publish(b"value")
    with pytest.raises(NotFoundError):
        publisher.close()
    assert "failed" in repr(delivery)
    assert "deleted" in str(delivery.error)


def test_a_callback_waits_for_every_batch(server: ScriptedServer, log: RemoteLog) -> None:
    # The last batch is acknowledged first.
    kept: list[AckEntry] = []

    def hold(peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        kept.extend(entries)
        if len(kept) < 3:
            return []
        peer.send_ack(kept[-1:])
        return kept[:-1]

    server.script.on_ack = hold
    done: list[int] = []
    with log.publisher("events", batch_size=1) as publisher:
        delivery = publisher.publish([b"x" * 9_000_000, b"y" * 9_000_000, b"z" * 9_000_000])
        delivery.add_callback(lambda each: done.append(each.record_count))
    assert done == [3]


@pytest.mark.usefixtures("each_event_loop")
def test_a_delivery_of_a_thread_is_awaited_on_a_loop(server: ScriptedServer, log: RemoteLog) -> None:
    gate = threading.Event()

    def hold(_peer: Peer, _header: BatchHeader) -> bool:
        gate.wait(20)
        return True

    server.script.on_batch = hold

    async def work() -> int:
        with log.publisher("events") as publisher:
            delivery = publisher.publish(b"value")
            waiting = asyncio.ensure_future(delivery)
            await asyncio.sleep(0)
            gate.set()
            return (await waiting).first_seq

    assert asyncio.run(work()) == 1


def test_a_closed_sender_accepts_nothing(server: ScriptedServer) -> None:
    topic_id = server.topic("events").reply.topic_id
    sender = Sender(parse_target(server.url), Outgoing(ack=2, batch_size=100, linger_ns=0, codec=Codec.NONE))
    sender.open()
    delivery = sender.offer("events", topic_id, [EncodedBlock(encode_raw(b"value"), 1)])
    assert sender.flush(20)
    sender.close()
    sender.close()
    called: list[int] = []
    delivery.add_callback(lambda each: called.append(each.first_seq))
    assert called == [1]
    with pytest.raises(WrongStateError, match="closed"):
        sender.offer("events", topic_id, [])


def test_an_interrupted_request_closes_its_connection(server: ScriptedServer) -> None:
    requests = Requests(parse_target(server.url))

    def interrupt(_connection: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        requests.with_connection(interrupt)
    server.wait_closed(server.peers[0])
    requests.check_server()
    assert len(server.peers) == 2
    requests.close()


def test_a_prefetched_response_is_not_used_after_damage(server: ScriptedServer, log: RemoteLog) -> None:
    for number in range(4):
        log.publish("events", bytes([number]) * 5_000_000)
    topic = server.topic("events")
    header, whole = topic.batches[2]
    topic.batches[2] = (header, whole[:-1] + b"X")

    def verify_if_asked(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch) and not request.flags:
            topic.lost.append((3, 3))
        return True

    server.script.on_request = verify_if_asked
    assert log.read_arrow("events").column("seq").to_pylist() == [1, 2, 4]
    server.script.on_request = lambda _peer, _request, _id: True
    # It stops before the current end, with a response in flight.
    topic.next_seq -= 1
    last = topic.batches.pop()
    reader = log.read_arrow("events", 2)
    assert reader.column("seq").to_pylist() == [2]
    topic.batches.append(last)


def test_a_cursor_inside_a_gap(server: ScriptedServer, log: RemoteLog) -> None:
    topic = server.topic("events")
    topic.lost.append((1, 4))
    topic.next_seq = 5
    log.commit("billing", "events", 3)
    assert log.committed("billing", "events") == 3
    assert log.seq_at("events", datetime(2030, 1, 1, tzinfo=UTC)) == 5


@pytest.mark.usefixtures("each_event_loop")
def test_frames_of_another_subscription_are_ignored(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(granted_credit, "CREDIT_BYTES", 300)

    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            await log.publish("events", b"one")
            following = aiter(log.subscriber("events"))
            assert isinstance(await anext(following), ReceivedBatch)
            stray = Committed(1, 1, 1, 1)
            for peer in server.peers:
                if peer.subscriptions:
                    peer.send(encode_control(stray, request_id=99))
            for number in range(4):
                await log.publish("events", b"%d" % number * 50)
                assert isinstance(await anext(following), ReceivedBatch)
            await following.aclose()

    asyncio.run(work())


@pytest.mark.usefixtures("each_event_loop")
def test_a_refused_fetch_raises_not_found(server: ScriptedServer) -> None:
    def refuse(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, Fetch):
            peer.refuse(request_id, ErrorCode.TOPIC_NOT_FOUND, "not there")
            return False
        return True

    server.script.on_request = refuse
    with seawall.connect(server.url) as log, pytest.raises(NotFoundError, match="not there"):
        log.read("events")

    async def work() -> None:
        async with seawall.connect_async(server.url) as other:
            with pytest.raises(NotFoundError, match="not there"):
                await other.read("events")

    asyncio.run(work())


@pytest.mark.usefixtures("each_event_loop")
def test_a_closed_async_publisher_accepts_nothing(server: ScriptedServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            publisher = await log.publisher("events")
            delivery = publisher.publish(b"value")
            called: list[int] = []
            await publisher.close()
            delivery.add_callback(lambda each: called.append(each.first_seq))
            assert called == [1]
            await publisher.close()
            with pytest.raises(WrongStateError, match="closed"):
                publisher.publish(b"late")
            with pytest.raises(WrongStateError, match="closed"):
                await publisher.put(b"late")

    asyncio.run(work())


@pytest.mark.usefixtures("each_event_loop")
def test_a_host_without_an_address_is_refused() -> None:
    async def work() -> None:
        log = AsyncRemoteLog(seawall.connect_async("seawall://no.such.host.invalid:1", timeout_s=0.05).target)
        with pytest.raises(Exception, match="no connection with"):
            await log.open()

    asyncio.run(work())


def test_a_read_delivers_nothing_before_its_start(server: ScriptedServer, log: RemoteLog) -> None:
    starts: list[tuple[ReadBy, int]] = []

    def note(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch):
            starts.append((request.by, request.start))
        return True

    log.publish("events", [b"one", b"two"])
    server.script.on_request = note
    # A server may send batches that end before the start: their records are not delivered.
    server.script.ignores_start = True
    assert log.read("events", 3) == []
    assert starts == [(ReadBy.SEQ, 3)]
    assert server.topic("events").next_seq == 3


def test_silence_is_measured_from_the_first_unanswered_ping() -> None:
    with ScriptedServer() as server:
        server.script.keepalive_ms, server.script.idle_ms = 10, 30
        clock = SimClock()
        connection = Connection.open(f"127.0.0.1:{server.port}", Hello(), timeout_s=20, clock=clock)
        start = clock.monotonic_ns()
        assert connection.keep_alive(start) == start + 10 * MS
        # Nothing was read for an hour: the server is pinged first, and again.
        late = start + 3_600_000 * MS
        assert connection.keep_alive(late) == late + 10 * MS
        assert connection.keep_alive(late + 10 * MS) == late + 20 * MS
        with pytest.raises(ConnectionError, match="has been silent"):
            connection.keep_alive(late + 20 * MS)
        # An answer ends the silence, however old it is.
        clock.advance(late + 20 * MS - start)
        await_streams([connection.stream], None, 20)
        assert connection.receive() == []
        assert connection.keep_alive(late + 20 * MS) > late
        connection.close()


def test_an_idle_publisher_keeps_pinging_its_server() -> None:
    with ScriptedServer() as server:
        server.create("events")
        server.script.keepalive_ms, server.script.idle_ms = 5, 40
        with seawall.connect(server.url) as log, log.publisher("events") as publisher:
            publisher.publish(b"one").result()
            for _ in range(5):
                server.pings = threading.Event()
                assert server.pings.wait(20)
            publisher.publish(b"two").result()
        assert len([hello for hello in server.hellos if hello.flags]) == 1


def test_a_closed_log_publishes_nothing(server: ScriptedServer) -> None:
    log = seawall.connect(server.url)
    log.publish("events", b"before")
    log.close()
    with pytest.raises(WrongStateError, match="closed"):
        log.publish("events", b"after")
    assert len(server.topic("events").batches) == 1
