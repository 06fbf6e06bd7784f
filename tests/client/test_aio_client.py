"""The client on an event loop, with a scripted server whose connections break."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from scripted_server import Client, CutError, Peer, Script, ScriptedServer, rejected

import seawall
from seawall.api.received import Item, ReceivedBatch
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.errors import (
    ConflictError,
    FencedError,
    FullError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
    UnsupportedError,
    WrongStateError,
)
from seawall.wire.format.batches import BatchHeader
from seawall.wire.format.codes import AckStatus, ErrorCode, GapReason, HelloFlags, Kind, ReadFlags, SessionStatus
from seawall.wire.format.decoder import Frame
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp1.requests import ListTopics
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.session import AckEntry, Hello, Welcome
from seawall.wire.lwp2.subscriptions import Credit, Subscribe
from seawall.wire.lwp2.topics import TopicCreate

pytestmark = pytest.mark.usefixtures("each_event_loop")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as scripted:
        scripted.create("events")
        yield scripted


def run(server: ScriptedServer, work: Callable[[AsyncRemoteLog], Awaitable[None]], **named: Any) -> None:
    async def main() -> None:
        async with seawall.connect_async(server.url, **({"timeout_s": 10} | named)) as log:
            await work(log)

    asyncio.run(main())


def values(items: list[Item]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def every(count: int) -> Iterator[bool]:
    while True:
        yield True
        yield from [False] * (count - 1)


def test_the_api_of_the_log(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        assert (await log.create_topic("aged", ttl_ms=1_000)).config.ttl_ms == 1_000
        assert (await log.configure_topic("aged", cap_bytes=7)).config.cap_bytes == 7
        assert await log.topics() == ["aged", "events"]
        await log.delete_topic("aged")
        with pytest.raises(NotFoundError):
            await log.describe("aged")
        with pytest.raises(ConflictError):
            await log.create_topic("events")
        assert (await log.publish("events", [b"one", b"two"])).seqs == range(1, 3)
        assert values(await log.read("events", 2, limit=5, mode="ordered")) == [b"two"]
        assert (await log.read_arrow("events")).num_rows == 2
        assert (await log.read_arrow("events", 3)).num_rows == 0
        assert await log.start_seq("events", "latest", None) == 3
        assert await log.start_seq("events", "earliest", None) == 1
        assert await log.seq_at("events", datetime(2030, 1, 1, tzinfo=UTC)) == 3
        await log.commit("billing", "events", 2)
        assert await log.committed("billing", "events") == 2
        assert await log.committed("other", "events") is None
        assert await log.delete("events", before_seq=2) == 1
        with pytest.raises(UnsupportedError):
            await log.verify()
        with pytest.raises(InvalidInputError):
            await log.read("events", 0)

    run(server, work)


def test_a_log_that_is_not_open_refuses_calls() -> None:
    async def work() -> None:
        log = seawall.connect_async("seawall://127.0.0.1:1")
        with pytest.raises(WrongStateError, match="not open"):
            await log.topics()
        await log.close()

    asyncio.run(work())


def test_opening_without_a_server_fails(server: ScriptedServer) -> None:
    server.close()

    async def work() -> None:
        with pytest.raises(RetryableError, match="no answer"):
            async with seawall.connect_async(server.url, timeout_s=0.1):
                pass

    asyncio.run(work())


def test_subscribers_poll_and_commit(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        await log.publish("events", [b"one", b"two"])
        subscriber = log.subscriber("events", "committed", owner="billing")
        assert subscriber.next_seq == 0
        assert values(await subscriber.poll()) == [b"one", b"two"]
        assert await subscriber.poll(0.01) == []
        await subscriber.commit()
        assert log.subscriber("events").next_seq == 0
        with pytest.raises(InvalidInputError, match="without an owner"):
            await log.subscriber("events").commit()
        with pytest.raises(InvalidInputError, match="name the owner"):
            log.subscriber("events", "committed")
        late = asyncio.create_task(subscriber.poll(20))
        await log.publish("events", b"three")
        assert values(await late) == [b"three"]

    run(server, work)


def test_an_iterator_survives_lost_connections_and_reports_damage(server: ScriptedServer) -> None:
    topic = server.topic("events")

    def verify_if_asked(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Subscribe) and not request.flags & ReadFlags.STORED_CODEC:
            topic.lost.append((3, 3))
        return True

    async def work(log: AsyncRemoteLog) -> None:
        await log.publish("events", b"one")
        following = aiter(log.subscriber("events"))
        assert values([await anext(following)]) == [b"one"]
        server.cut_all()
        await log.publish("events", b"two")
        assert values([await anext(following)]) == [b"two"]
        await log.publish("events", b"three")
        header, whole = topic.batches[2]
        topic.batches[2] = (header, whole[:-1] + b"X")
        server.script.on_request = verify_if_asked
        await following.aclose()
        assert await anext(aiter(log.subscriber("events", 3))) == Gap(3, 3, GapReason.CRASH)

    run(server, work)


def test_an_iterator_without_a_server_raises() -> None:
    server = ScriptedServer()
    server.create("events")

    async def work(log: AsyncRemoteLog) -> None:
        subscriber = log.subscriber("events")
        await subscriber.poll()
        await asyncio.to_thread(server.close)
        with pytest.raises(RetryableError, match="no server"):
            await anext(aiter(subscriber))

    run(server, work, timeout_s=0.3, connect_timeout_s=0.2)


def test_lost_acks_are_recovered(server: ScriptedServer) -> None:
    cut = every(5)

    def lose(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(cut):
            raise CutError
        return entries

    server.script.on_ack = lose

    async def work(log: AsyncRemoteLog) -> None:
        wanted = [b"%d" % number for number in range(300)]
        async with await log.publisher("events", batch_size=40) as publisher:
            deliveries = [publisher.publish(value) for value in wanted]
            found = [await delivery for delivery in deliveries]
        assert [seq for delivery in found for seq in delivery.seqs] == list(range(1, 301))
        assert values(await log.read("events")) == wanted

    run(server, work)
    flags = Counter(hello.flags for hello in server.hellos if hello.flags)
    assert flags[HelloFlags.OPEN] == 1
    assert flags[HelloFlags.JOIN] >= 1


def test_retry_pressure_unknown_outcomes_and_noise_are_recovered(server: ScriptedServer) -> None:
    seen: Counter[int] = Counter()

    def disturb(peer: Peer, header: BatchHeader) -> bool:
        seen[header.client_seq] += 1
        if seen[header.client_seq] > 1:
            return True
        match header.client_seq % 4:
            case 1:
                peer.send_ack([rejected(header, ErrorCode.BACKPRESSURE, AckStatus.RETRY)])
            case 2:
                peer.refuse(0, ErrorCode.BACKPRESSURE, "slowly", retry_after_ms=1, ref=int(header.client_seq))
            case 3:
                peer.send_ack([rejected(header, ErrorCode.OUTCOME_UNKNOWN, AckStatus.UNKNOWN)])
            case _:
                peer.socket.sendall(b"noise, and enough of it to be a frame header" * 4)
        return False

    server.script.on_batch = disturb

    async def work(log: AsyncRemoteLog) -> None:
        wanted = [b"%d" % number for number in range(16)]
        async with await log.publisher("events", batch_size=1) as publisher:
            for value in wanted:
                await publisher.put(value)
        assert sorted(values(await log.read("events"))) == sorted(wanted)

    run(server, work)


def test_a_full_publisher_raises_or_waits(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        async with await log.publisher("events", max_in_flight=50, client_id=5) as publisher:
            publisher.publish(b"x" * 100)
            with pytest.raises(FullError, match="await put"):
                publisher.publish(b"y")
            delivery = await publisher.put(b"y")
            with pytest.raises(WrongStateError, match="await it"):
                delivery.result()
            await publisher.flush(20)
            assert publisher.in_flight == 0
            assert publisher.next_client_seq == 3
        with pytest.raises(WrongStateError, match="closed"):
            publisher.publish(b"late")
        await publisher.close()

    run(server, work)


def test_linger_client_seqs_and_ack_levels(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        async with await log.publisher("events", linger_s=0.01, compression="lz4", connections=2) as publisher:
            first, second = publisher.publish(b"one" * 100), publisher.publish(b"two" * 100)
            assert [(await first).first_seq, (await second).first_seq] == [1, 2]
        assert len(server.topic("events").batches) == 1
        async with await log.publisher("events", client_id=9, ack=0) as publisher:
            assert publisher.publish(b"three").done
            await publisher.flush()
            assert publisher.next_client_seq == 2
        async with await log.publisher("events", client_id=9) as publisher:
            again = await publisher.publish(b"three", client_seq=1)
            assert again.is_duplicate

    run(server, work)


def test_a_newer_session_fences_a_publisher(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        publisher = await log.publisher("events", client_id=5)
        await publisher.publish(b"mine")
        server.clients[5].epoch += 1
        server.cut_all()
        with pytest.raises(FencedError, match="newer session"):
            await publisher.publish(b"late")
        with pytest.raises(FencedError):
            publisher.publish(b"later")
        with pytest.raises(FencedError):
            await publisher.close()

    run(server, work)


def test_publish_opens_a_new_session_after_it_was_fenced(server: ScriptedServer) -> None:
    def fence(peer: Peer, _header: BatchHeader) -> bool:
        peer.refuse(0, ErrorCode.FENCED, "another one", closes=1)
        return False

    async def work(log: AsyncRemoteLog) -> None:
        server.script.on_batch = fence
        with pytest.raises(FencedError, match="another one"):
            await log.publish("events", b"value")
        server.script.on_batch = lambda _peer, _header: True
        assert (await log.publish("events", b"value")).first_seq == 1

    run(server, work)


def test_a_forgotten_session_is_opened_again(server: ScriptedServer) -> None:
    def forget(peer: Peer, hello: Hello) -> Welcome | None:
        return peer.welcome(SessionStatus.NONE, Client()) if hello.flags & HelloFlags.JOIN else None

    async def work(log: AsyncRemoteLog) -> None:
        await log.publish("events", b"first")
        server.script.on_hello = forget
        server.cut_all()
        assert (await log.publish("events", b"second")).first_seq == 2

    run(server, work)


def test_publishing_fails_if_the_server_does_not_return() -> None:
    server = ScriptedServer()
    server.create("events")
    server.script.on_batch = lambda _peer, _header: False

    async def work(log: AsyncRemoteLog) -> None:
        publisher = await log.publisher("events")
        sent = publisher.publish(b"sent")
        waiter = asyncio.ensure_future(sent)
        while not any(peer.batch_count for peer in server.peers):
            await asyncio.sleep(0)
        await asyncio.to_thread(server.close)
        with pytest.raises(OutcomeUnknownError, match="may be stored or not"):
            await waiter
        with pytest.raises(OutcomeUnknownError):
            await publisher.close()
        with pytest.raises(RetryableError):
            await log.publisher("events")

    run(server, work, timeout_s=0.3, connect_timeout_s=0.2)


def test_a_batch_that_kills_every_connection_fails(server: ScriptedServer) -> None:
    def die(_peer: Peer, _header: BatchHeader) -> bool:
        raise CutError

    async def work(log: AsyncRemoteLog) -> None:
        server.script.on_batch = die
        with pytest.raises(OutcomeUnknownError, match="may be stored or not"):
            await log.publish("events", b"poison")
        server.script.on_batch = lambda _peer, _header: True
        assert (await log.publish("events", b"value")).first_seq == 1

    run(server, work, timeout_s=0.3)


def test_a_server_that_sends_no_welcome_is_refused() -> None:
    with ScriptedServer() as server:
        server.script.on_request = lambda _peer, _request, _id: False

        async def work() -> None:
            with pytest.raises(RetryableError, match="did not welcome us"):
                async with seawall.connect_async(server.url, timeout_s=0.1, connect_timeout_s=0.05):
                    pass

        asyncio.run(work())

        def confuse(peer: Peer, _request: object, request_id: int) -> bool:
            peer.send(encode_control(Credit(1, 1), request_id=request_id))
            return False

        server.script.on_request = confuse
        with pytest.raises(RetryableError, match="answered HELLO"):
            seawall.connect(server.url, timeout_s=1)

        async def again() -> None:
            with pytest.raises(RetryableError, match="answered HELLO"):
                async with seawall.connect_async(server.url, timeout_s=1):
                    pass

        asyncio.run(again())
        server.script.on_request = lambda _peer, _request, _id: False
        with pytest.raises(RetryableError, match="did not welcome us"):
            seawall.connect(server.url, timeout_s=0.1, connect_timeout_s=0.05)


def test_an_unsolicited_error_closes_the_connection(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        server.peers[0].refuse(0, ErrorCode.TOO_SLOW, "too slow", closes=1)
        while len(server.peers) < 2:
            assert await log.topics() == ["events"]
        # The refused connection is closed, and the new one is kept.
        assert await log.topics() == ["events"]
        assert len(server.peers) == 2

    run(server, work)


def test_a_publisher_that_fills_the_socket(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        wanted = [bytes([number]) * 1_000_000 for number in range(40)]
        async with await log.publisher("events") as publisher:
            for value in wanted:
                await publisher.put(value)
        assert [item.record_count for item in await log.read("events", max_bytes=1 << 30)] == [1] * 40

    run(server, work)


def test_closing_fails_records_in_flight(server: ScriptedServer) -> None:
    server.script.on_batch = lambda _peer, _header: False

    async def work(log: AsyncRemoteLog) -> None:
        publishing = asyncio.ensure_future(log.publish("events", b"value"))
        while not any(peer.batch_count for peer in server.peers):
            await asyncio.sleep(0)
        await log.close()
        with pytest.raises(OutcomeUnknownError):
            await publishing
        with pytest.raises(WrongStateError, match="closed"):
            await log.topics()

    run(server, work)


def test_a_silent_server_is_pinged_and_then_disconnected() -> None:
    script = Script(keepalive_ms=20, idle_ms=150)
    pinged: list[int] = []

    def ignore_pings(_peer: Peer, frame: Frame) -> bool:
        if frame.header.kind == Kind.KEEPALIVE:
            pinged.append(frame.header.id)
            return False
        return True

    with ScriptedServer(script) as server:
        server.create("events")
        ignored = every(2)
        script.on_batch = lambda _peer, _header: not next(ignored)
        script.on_frame = ignore_pings

        async def work(log: AsyncRemoteLog) -> None:
            assert (await log.publish("events", b"value")).first_seq == 1

        run(server, work)
    assert pinged


def test_pings_are_answered(server: ScriptedServer) -> None:
    pongs: list[int] = []

    def note_pongs(_peer: Peer, frame: Frame) -> bool:
        if frame.header.kind == Kind.KEEPALIVE and frame.header.command == 1:
            pongs.append(frame.header.id)
        return True

    server.script.on_frame = note_pongs

    async def work(log: AsyncRemoteLog) -> None:
        server.peers[0].send(encode_ping(77))
        while not pongs:
            await log.topics()
        assert pongs == [77]
        server.peers[0].say_goodbye()
        while len(server.peers) < 2:
            await log.topics()

    run(server, work)


def test_requests_are_repeated_or_end_with_a_typed_error(server: ScriptedServer) -> None:
    refusals = [2]

    def refuse(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, TopicCreate):
            raise CutError
        if isinstance(request, ListTopics) and refusals[0]:
            refusals[0] -= 1
            peer.refuse(request_id, ErrorCode.RATE_LIMITED, "later")
            return False
        return True

    server.script.on_request = refuse

    async def work(log: AsyncRemoteLog) -> None:
        with pytest.raises(OutcomeUnknownError, match="before the answer came"):
            await log.create_topic("other")
        assert await log.topics() == ["events"]
        refusals[0] = 1_000
        with pytest.raises(RetryableError, match="later"):
            await log.topics()
        server.script.on_request = lambda _peer, request, _id: not isinstance(request, (ListTopics, TopicCreate))
        with pytest.raises(RetryableError, match="in time"):
            await log.topics()
        with pytest.raises(OutcomeUnknownError, match="in time"):
            await log.create_topic("other")

    run(server, work, timeout_s=0.3)


def test_a_topic_that_is_created_again_is_found(server: ScriptedServer) -> None:
    async def work(log: AsyncRemoteLog) -> None:
        await log.publish("events", b"old")
        await log.create_topic("other")
        server.create("moved")
        async with seawall.connect_async(server.url) as other:
            await other.delete_topic("events")
            await other.create_topic("events")
        assert await log.read("events") == []
        assert (await log.publish("moved", b"new")).first_seq == 1
        async with seawall.connect_async(server.url) as other:
            await other.delete_topic("events")
        with pytest.raises(NotFoundError):
            await log.read("events")

    run(server, work)
