"""Idempotency keys over the network: the results of the embedded log, and stored once even if connections break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import uvloop
from losing_proxy import LosingProxy
from real_server import SMALL, FakeMemory, RealServer, ServerProcess
from scripted_server import CutError, Peer, Script, ScriptedServer

import seawall
from seawall import limits
from seawall.api.publishable import Publishable
from seawall.api.received import ReceivedBatch
from seawall.client.publish.delivery import Delivery
from seawall.client.remote_log import RemoteLog
from seawall.engine.api.open_log import open_log
from seawall.errors import (
    CallerError,
    FatalError,
    FullError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    OutcomeUnknownError,
    RetryableError,
    SeawallError,
    UnsupportedError,
)
from seawall.limits import MIB
from seawall.server.connection.access import Access, Right
from seawall.wire.format.codes import Command, ErrorCode
from seawall.wire.lwp2.keyed import PublishKeyed


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data") as real:
        with seawall.connect(real.url) as log:
            log.create_topic("events")
        yield real


@pytest.fixture
def proxy(server: RealServer) -> Iterator[LosingProxy]:
    with LosingProxy(server.port, Command.PUBLISHED_KEYED) as between:
        yield between


@pytest.fixture(params=["threads", "asyncio", "uvloop"])
def publish(request: pytest.FixtureRequest) -> Callable[..., Delivery]:
    """Publish with a new client of one kind, by the URL of the server."""

    def on_thread(url: str, topic: str, records: Publishable, key: str | bytes, **named: object) -> Delivery:
        with seawall.connect(url, **named) as log:
            return log.publish(topic, records, idempotency_key=key)

    def on_event_loop(url: str, topic: str, records: Publishable, key: str | bytes, **named: object) -> Delivery:
        async def work() -> Delivery:
            async with seawall.connect_async(url, **named) as log:
                return await log.publish(topic, records, idempotency_key=key)

        with asyncio.Runner(loop_factory=make_loop) as runner:
            return runner.run(work())

    make_loop = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    return on_thread if request.param == "threads" else on_event_loop


def values(url: str, topic: str = "events") -> list[bytes]:
    with seawall.connect(url) as log:
        items = [item for item in log.follow(topic) if isinstance(item, ReceivedBatch)]
        return [bytes(record.value) for item in items for record in item]


def test_a_key_is_stored_once_and_repetitions_get_its_seqs(
    server: RealServer, publish: Callable[..., Delivery]
) -> None:
    first = publish(server.url, "events", [b"one", b"two"], "order-17")
    again = publish(server.url, "events", [b"one", b"two"], "order-17")
    assert (first.seqs, first.is_duplicate, first.done, first.topic) == (range(1, 3), False, True, "events")
    assert (again.seqs, again.is_duplicate, again.position) == (range(1, 3), True, 0)
    assert first.result() is first
    assert first.position > 0
    assert first.timestamp_ns // 1_000_000 == again.timestamp_ns // 1_000_000
    called: list[Delivery] = []
    again.add_callback(called.append)
    assert called == [again]
    assert publish(server.url, "events", {"n": 3}, b"order-18").first_seq == 3
    assert values(server.url) == [b"one", b"two", b'{"n":3}']


@pytest.mark.usefixtures("each_event_loop")
def test_a_delivery_can_be_awaited_again(server: RealServer) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            delivery = await log.publish("events", b"one", idempotency_key="k")
            assert await delivery is delivery

    asyncio.run(work())


@pytest.mark.parametrize("brokers", [0, 1])
def test_results_are_those_of_the_embedded_log(tmp_path: Path, server: RealServer, brokers: int) -> None:
    calls: list[tuple[str, Publishable, str | bytes]] = [
        ("events", [b"one", b"two"], "order-17"),
        ("events", b"whatever", "order-17"),
        ("events", [b"more"] * 5, b"order-17"),
        ("events", b"", ""),
        ("events", b"", b""),
        ("events", pa.table({"value": [b"x" * 70_000, b"y"], "key": [b"k", None]}), "schlüssel"),
        ("events", "again", "schlüssel".encode()),
        ("events", [bytes(9_000_000)] * 2, "large"),
        ("events", b"fits", "large"),
        ("events", [], "nothing"),
        ("missing", b"x", "order-17"),
        ("full", b"1", "1"),
        ("full", b"2", "2"),
        ("full", b"1", "1"),
        ("full", [b"1", b"2"], "3"),
        ("forgetful", b"1", "1"),
    ]

    def outcome(log: seawall.Log | RemoteLog, topic: str, records: Publishable, key: str | bytes) -> object:
        try:
            done = log.publish(topic, records, idempotency_key=key)
        except SeawallError as error:
            return type(error)
        return done.seqs, done.record_count, done.is_duplicate, done.first_seq, bool(done.position), done.topic

    with open_log(tmp_path / "here", SMALL, brokers=brokers) as embedded, seawall.connect(server.url) as remote:
        embedded.create_topic("events")
        for log in (embedded, remote):
            log.create_topic("full", cap_records=1, discard="reject")
            log.create_topic("forgetful", idempotency_window_ms=0)
        for call in calls:
            assert outcome(remote, *call) == outcome(embedded, *call), call


def test_a_key_survives_a_restart(server: RealServer, publish: Callable[..., Delivery]) -> None:
    with seawall.connect(server.url) as log:
        first = log.publish("events", b"once", idempotency_key="order-17")
        server.stop()
        server.start()
        # Another connection, and the same client.
        again = log.publish("events", b"once", idempotency_key="order-17")
        assert (again.seqs, again.is_duplicate, first.is_duplicate) == (first.seqs, True, False)
    assert publish(server.url, "events", b"once", "order-17").is_duplicate
    assert values(server.url) == [b"once"]


def test_a_request_whose_answer_is_lost_is_repeated(
    server: RealServer, proxy: LosingProxy, publish: Callable[..., Delivery]
) -> None:
    proxy.left = 2
    delivery = publish(proxy.url, "events", [b"one", b"two"], "order-17")
    assert proxy.lost == 2
    # The third request is answered, and it repeats the first.
    assert (delivery.seqs, delivery.is_duplicate) == (range(1, 3), True)
    assert values(server.url) == [b"one", b"two"]


def test_an_answer_that_never_arrives_leaves_the_outcome_unknown(
    server: RealServer, proxy: LosingProxy, publish: Callable[..., Delivery]
) -> None:
    """INV-KEYED-HONEST."""
    proxy.left = 1_000
    with pytest.raises(OutcomeUnknownError, match="under the same key"):
        publish(proxy.url, "events", b"once", "order-17", timeout_s=0.5)
    proxy.left = 0
    assert publish(proxy.url, "events", b"once", "order-17").seqs == range(1, 2)
    assert values(server.url) == [b"once"]


def test_a_request_that_was_never_sent_is_retryable(server: RealServer) -> None:
    with seawall.connect(server.url, timeout_s=0.5) as log:
        log.topic_named("events")
        server.stop()
        with pytest.raises(RetryableError, match="no answer"):
            log.publish("events", b"once", idempotency_key="order-17")
        server.start()
        assert not log.publish("events", b"once", idempotency_key="order-17").is_duplicate


def test_keys_are_stored_once_over_a_killed_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    numbers = range(120)
    try:
        with seawall.connect(server.url, timeout_s=60) as log:
            log.create_topic("events")

            def restart() -> None:
                server.kill()
                server.start()

            killer = threading.Thread(target=restart)
            seqs = []
            for number in numbers:
                if number == 10:
                    killer.start()
                seqs.append(log.publish("events", b"%d" % number, idempotency_key=f"{number}").first_seq)
            killer.join()
            assert seqs == sorted(set(seqs))
            again = [log.publish("events", b"again", idempotency_key=f"{number}") for number in numbers]
            assert [(each.first_seq, each.is_duplicate) for each in again] == [(seq, True) for seq in seqs]
        assert values(server.url) == [b"%d" % number for number in numbers]
    finally:
        server.stop()


@pytest.mark.usefixtures("each_event_loop")
def test_requests_beyond_the_window_of_a_connection_wait(server: RealServer) -> None:
    """Requests beyond the window of the connection wait, and are not refused."""
    count = 2 * limits.REQUESTS_MAX

    async def work() -> None:
        async with seawall.connect_async(server.url) as log:
            sent = [log.publish("events", b"%d" % number, idempotency_key=f"{number % 700}") for number in range(count)]
            found = await asyncio.gather(*sent)
            assert sum(not each.is_duplicate for each in found) == 700
            for number, each in enumerate(found):
                assert each.first_seq == found[number % 700].first_seq

    asyncio.run(work())
    assert len(values(server.url)) == 700


@pytest.mark.usefixtures("each_event_loop")
def test_threads_share_a_log_with_keys(server: RealServer) -> None:
    with seawall.connect(server.url) as log:
        found: list[tuple[int, int]] = []

        def work() -> None:
            publish = partial(log.publish, "events", b"x")
            found.extend((number, publish(idempotency_key=f"{number}").first_seq) for number in range(40))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 160
    assert len(set(found)) == 40
    assert len(values(server.url)) == 40


def test_a_topic_that_is_created_again_forgets_old_keys(server: RealServer) -> None:
    with seawall.connect(server.url) as log, seawall.connect(server.url) as other:
        assert log.publish("events", b"old", idempotency_key="k").first_seq == 1
        other.delete_topic("events")
        with pytest.raises(NotFoundError):
            log.publish("events", b"old", idempotency_key="k")
        other.create_topic("events")
        again = log.publish("events", b"new", idempotency_key="k")
        assert (again.first_seq, again.is_duplicate) == (1, False)
    assert values(server.url) == [b"new"]


def test_a_write_only_token_may_publish_and_an_unknown_one_may_not(
    tmp_path: Path, publish: Callable[..., Delivery]
) -> None:
    access = Access({"all": Right.ALL, "write": Right.WRITE_ONLY})
    with RealServer(tmp_path / "data", access) as server, seawall.connect(server.url, token="all") as owner:
        owner.create_topic("events")
        assert publish(server.url, "events", b"x", "k", token="write").first_seq == 1
        with pytest.raises(CallerError, match="not known"):
            publish(server.url, "events", b"x", "k", token="wrong")
        with seawall.connect(server.url, token="write") as log:
            with pytest.raises(CallerError, match="may only write"):
                log.read("events")
            assert log.publish("events", b"x", idempotency_key="k").is_duplicate


def test_a_full_topic_refuses_at_once(server: RealServer) -> None:
    # A client that retried would do so until its timeout.
    with seawall.connect(server.url, timeout_s=1_000) as log:
        log.create_topic("full", cap_records=1, discard="reject")
        log.publish("full", b"x", idempotency_key="1")
        with pytest.raises(FullError, match="cap_records"):
            log.publish("full", b"x", idempotency_key="2")
        log.delete("full", before_seq=2)
        assert log.publish("full", b"x", idempotency_key="2").first_seq == 2


def test_records_too_large_for_one_request_are_refused_by_the_client(
    server: RealServer, publish: Callable[..., Delivery]
) -> None:
    largest = 16 * MIB - 16 - 5 - 3
    for records in (bytes(largest + 1), [bytes(largest), b""]):
        with pytest.raises(LimitError, match="one request"):
            publish(server.url, "events", records, "key")
    assert publish(server.url, "events", bytes(largest), "key").first_seq == 1
    with pytest.raises(InvalidInputError, match="nothing to publish"):
        publish(server.url, "events", [], "key")


def test_an_older_server_gets_no_keyed_request(publish: Callable[..., Delivery]) -> None:
    with ScriptedServer(Script(features=0xFF)) as older:
        older.create("events")
        with pytest.raises(UnsupportedError, match="client_id"):
            publish(older.url, "events", b"x", "k")
        assert not older.topics[1].batches


@pytest.mark.parametrize(
    ("code", "error", "count"),
    [
        (ErrorCode.SHUTTING_DOWN, RetryableError, 3),
        (ErrorCode.STORAGE, FatalError, 1),
        (ErrorCode.OUTCOME_UNKNOWN, OutcomeUnknownError, 1),
        (ErrorCode.INVALID_PAYLOAD, InvalidInputError, 1),
    ],
)
def test_refusals_raise_typed_errors(
    publish: Callable[..., Delivery], code: ErrorCode, error: type[SeawallError], count: int
) -> None:
    asked: list[int] = []

    def refuse(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, PublishKeyed):
            asked.append(request_id)
            peer.refuse(request_id, code, "scripted")
            return False
        return True

    with ScriptedServer(Script(on_request=refuse)) as server:
        server.create("events")
        with pytest.raises(error):
            publish(server.url, "events", b"x", "k", timeout_s=0.5)
        # A retryable refusal is followed by another request.
        assert len(asked) >= count
        assert len(asked) == 1 or count > 1


def test_a_refusal_after_a_lost_answer_leaves_the_outcome_unknown(publish: Callable[..., Delivery]) -> None:
    asked: list[int] = []

    def lose_and_refuse(peer: Peer, request: object, request_id: int) -> bool:
        if not isinstance(request, PublishKeyed):
            return True
        asked.append(request_id)
        if len(asked) == 1:
            raise CutError
        peer.refuse(request_id, ErrorCode.SHUTTING_DOWN, "scripted")
        return False

    with ScriptedServer(Script(on_request=lose_and_refuse)) as server:
        server.create("events")
        with pytest.raises(OutcomeUnknownError):
            publish(server.url, "events", b"x", "k", timeout_s=0.5)


@pytest.mark.usefixtures("each_event_loop")
def test_requests_wait_while_the_server_is_short_of_memory(tmp_path: Path) -> None:
    memory = FakeMemory()

    async def work(url: str, wait_until_held: Callable[[], Awaitable[None]]) -> None:
        async with seawall.connect_async(url) as log, seawall.connect_async(url) as other:
            await log.create_topic("events")
            memory.percent = 97
            await wait_until_held()
            sent = [
                asyncio.ensure_future(log.publish("events", b"%d" % number, idempotency_key=f"{number}"))
                for number in range(20)
            ]
            await asyncio.sleep(0)
            assert await other.read("events") == []
            memory.percent = 10
            assert sorted(each.first_seq for each in await asyncio.gather(*sent)) == list(range(1, 21))

    with RealServer(tmp_path / "data", memory=memory) as server:

        async def wait_until_held() -> None:
            while not server.counts.get("memory_holds"):
                await asyncio.sleep(0.01)

        asyncio.run(work(server.url, wait_until_held))
