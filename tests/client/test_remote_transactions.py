"""Transactions over the network: the API of the embedded log, committed once even if connections or servers fail."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from losing_proxy import LosingProxy
from real_server import RealServer, ServerProcess
from scripted_server import CutError, Peer, Script, ScriptedServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.client.remote_log import RemoteLog
from seawall.core.transactions import StagedPart, StagedRange
from seawall.errors import (
    CallerError,
    ConflictError,
    FencedError,
    FullError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    RetryableError,
    WrongStateError,
)
from seawall.server.connection.access import Access, Right
from seawall.wire.format.codes import Command, ErrorCode
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.transactions import TransactionCommit, TransactionStatus


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealServer]:
    with RealServer(tmp_path / "data") as real:
        yield real


@pytest.fixture
def log(server: RealServer) -> Iterator[RemoteLog]:
    with seawall.connect(server.url) as connected:
        connected.create_topic("a")
        connected.create_topic("b", durability="disk")
        yield connected


def values(log: RemoteLog, topic: str) -> list[bytes]:
    return [bytes(record.value) for item in log.follow(topic) if isinstance(item, ReceivedBatch) for record in item]


def staged(log: RemoteLog, *records: bytes) -> list[StagedRange]:
    with log.stage() as stager:
        for record in records:
            stager.publish(record)
        return stager.ranges()


def test_a_topic_that_is_full_refuses_a_commit_at_once(server: RealServer, log: RemoteLog) -> None:
    """A client that retried would do so until its timeout."""
    log.create_topic("full", cap_records=3, discard="reject")
    log.publish("full", b"before")
    ranges = staged(log, b"1", b"2", b"3")
    with seawall.connect(server.url, timeout_s=1_000) as patient, pytest.raises(FullError, match="full"):
        patient.commit_staged("owner", 1, [("full", each) for each in ranges])
    log.configure_topic("full", cap_records=4)
    log.commit_staged("owner", 1, [("full", each) for each in ranges])
    assert values(log, "full") == [b"before", b"1", b"2", b"3"]


def test_topics_get_their_records_at_one_position(log: RemoteLog) -> None:
    log.publish("a", b"before")
    with log.transaction() as transaction:
        first = transaction.publish("a", [b"1", b"2"])
        transaction.publish("b", pa.table({"value": [b"x" * 70_000, b"y"]}))
        transaction.publish("a", b"3")
        transaction.commit_offset("reader", "a", 2)
        assert values(log, "b") == []
    assert first.seqs == range(2, 4)
    assert {span.topic: span.seqs for span in transaction.result.spans} == {"a": range(2, 5), "b": range(1, 3)}
    assert values(log, "a") == [b"before", b"1", b"2", b"3"]
    assert values(log, "b") == [b"x" * 70_000, b"y"]
    assert log.committed("reader", "a") == 2
    positions = [(item.topic, item.position) for item in log.read_positions()]
    assert [topic for topic, position in positions if position == transaction.result.position] == ["a", "a", "b"]
    assert log.topics() == ["a", "b"]


def test_transactions_use_one_session_after_another(log: RemoteLog) -> None:
    for _ in range(5):
        with log.transaction() as transaction:
            transaction.publish("a", b"1")
    assert len(log.sessions()) == 1
    first, second = log.stage(), log.stage()
    first.publish(b"x")
    second.publish(b"y")
    assert len(log.sessions()) == 2
    for stager in (first, second, first):
        stager.close()
    with pytest.raises(WrongStateError, match="this stager is closed"):
        first.publish(b"late")
    log.close()
    with pytest.raises(WrongStateError):
        log.stage()


def test_a_session_that_has_failed_is_replaced(log: RemoteLog) -> None:
    def publish() -> None:
        with log.transaction() as transaction:
            transaction.publish("a", b"1")

    publish()
    (session,) = log.sessions()
    log.retire_session(session.client_id)
    with suppress(FencedError):
        publish()
    publish()
    (other,) = log.sessions()
    assert other.client_id != session.client_id


def test_an_exception_and_a_refusal_abort(log: RemoteLog) -> None:
    def fail() -> None:
        with log.transaction("job") as transaction:
            transaction.publish("a", b"1")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(NotFoundError), log.transaction("job") as refused:
        refused.publish("missing", b"2")
    assert values(log, "a") == []
    assert log.transaction_state("job") is None
    with pytest.raises(WrongStateError):
        refused.publish("a", b"late")


def test_a_key_commits_once(log: RemoteLog) -> None:
    ranges = staged(log, b"1", b"2")
    parts = [StagedPart("a", each) for each in pickle.loads(pickle.dumps(ranges))]
    first = log.commit_staged("job", 7, parts, offsets=[("reader", "b", 3)])
    again = log.commit_staged("job", 7, parts)
    assert (again, again.is_repeated, first.is_repeated) == (first, True, False)
    assert log.transaction_state("job") == first
    with pytest.raises(FencedError, match="comes too late"):
        log.commit_staged("job", 6, [])
    with pytest.raises(NotFoundError, match="stage the records again"):
        log.commit_staged("job", 8, parts)
    with log.transaction("job") as following:
        following.publish("a", b"3")
    assert following.result.epoch == 8
    assert values(log, "a") == [b"1", b"2", b"3"]


def test_invalid_commits_are_refused(log: RemoteLog) -> None:
    (whole,) = staged(log, b"1")
    log.create_topic("brief", durability="ephemeral")
    with pytest.raises(ConflictError, match="kept in memory alone"):
        log.commit_staged("job", 1, [("brief", whole)])
    with pytest.raises(InvalidInputError):
        log.commit_staged("", 1, [])
    assert log.abort_staged([whole]) == 1
    with pytest.raises(NotFoundError):
        log.commit_staged("job", 1, [("a", whole)])
    with pytest.raises(NotFoundError):
        log.read("_staging")
    with pytest.raises(InvalidInputError):
        log.create_topic("_staging")


def test_a_large_position_arrives_in_many_answers_and_is_delivered_whole(log: RemoteLog) -> None:
    log.publish("b", b"first")
    with log.transaction() as transaction:
        for number in range(30):
            transaction.publish("ab"[number % 2], b"%02d" % number * 200_000)
    log.publish("a", b"last")
    position = transaction.result.position
    inside = [("ab"[number // 15], position, number % 15 + (1 if number < 15 else 2)) for number in range(30)]
    for bounds in ({}, {"max_bytes": 1}, {"max_bytes": 1_000_000}, {"limit": 4}):
        found, at = [], 0
        while items := log.read_positions(at, **bounds):
            found += [(item.topic, item.position, item.first_seq) for item in items]
            assert len([item for item in items if item.position == position]) in (0, 30)
            at = items[-1].next_position
        assert found == [("b", found[0][1], 1), *inside, ("a", found[-1][1], 16)]
    subscriber = log.position_subscriber(transaction.result.position)
    assert len(subscriber.poll()) >= 30


def test_a_write_only_token_may_commit_records_and_no_offsets(tmp_path: Path) -> None:
    access = Access({"all": Right.ALL, "write": Right.WRITE_ONLY})
    with RealServer(tmp_path / "data", access) as server, seawall.connect(server.url, token="all") as owner:
        owner.create_topic("a")
        with seawall.connect(server.url, token="write") as log:
            with log.transaction("job") as transaction:
                transaction.publish("a", b"1")
            with pytest.raises(CallerError, match="may only write"):
                log.commit_staged("job", 2, [], offsets=[("reader", "a", 1)])
        assert values(owner, "a") == [b"1"]


def test_a_commit_whose_answer_is_lost_is_repeated(server: RealServer, log: RemoteLog) -> None:
    with LosingProxy(server.port, Command.TRANSACTION_STATUS) as proxy, seawall.connect(proxy.url) as remote:
        proxy.left = 1
        with remote.transaction() as transaction:
            transaction.publish("a", b"once")
        assert proxy.lost == 1
    assert transaction.result.is_repeated
    assert transaction.published[0].seqs == range(1, 2)
    assert values(log, "a") == [b"once"]


@pytest.fixture(params=[False, True], ids=["lost", "lost, then refused"])
def unsure(request: pytest.FixtureRequest) -> Iterator[ScriptedServer]:
    """A server that never answers commits: it cuts the connection, or does so once and then refuses for now."""
    commits: list[int] = []

    def on_request(peer: Peer, received: object, request_id: int) -> bool:
        if not isinstance(received, TransactionCommit):
            return True
        commits.append(request_id)
        if request.param and len(commits) > 1:
            peer.refuse(request_id, ErrorCode.SHUTTING_DOWN, "scripted")
            return False
        raise CutError

    with ScriptedServer(Script(on_request=on_request)) as scripted:
        yield scripted


def refuse_all(peer: Peer, received: object, request_id: int) -> bool:
    if isinstance(received, TransactionCommit):
        peer.refuse(request_id, ErrorCode.SHUTTING_DOWN, "scripted")
        return False
    return True


def test_an_outcome_that_stays_unknown_is_reported(unsure: ScriptedServer) -> None:
    with seawall.connect(unsure.url, timeout_s=0.2) as log:
        with pytest.raises(OutcomeUnknownError, match="commit it again under the same key"):
            log.commit_staged("job", 1, [])
        unsure.script.on_request = refuse_all
        with pytest.raises(RetryableError):
            log.commit_staged("job", 1, [])


@pytest.mark.usefixtures("each_event_loop")
def test_an_outcome_that_stays_unknown_is_reported_on_an_event_loop(unsure: ScriptedServer) -> None:
    async def commit() -> None:
        async with seawall.connect_async(unsure.url, timeout_s=0.2) as remote:
            with pytest.raises(OutcomeUnknownError, match="commit it again under the same key"):
                await remote.commit_staged("job", 1, [])
            unsure.script.on_request = refuse_all
            with pytest.raises(RetryableError):
                await remote.commit_staged("job", 1, [])

    asyncio.run(commit())


def test_an_empty_answer_to_a_commit_is_a_protocol_error() -> None:
    def answer(peer: Peer, received: object, request_id: int) -> bool:
        if isinstance(received, TransactionCommit):
            peer.send(encode_control(TransactionStatus("job", None), request_id=request_id))
            return False
        return True

    with (
        ScriptedServer(Script(on_request=answer)) as scripted,
        seawall.connect(scripted.url) as log,
        pytest.raises(ProtocolError, match="response to a commit is empty"),
    ):
        log.commit_staged("job", 1, [])


def test_transactions_commit_once_over_a_killed_server(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    chance = random.Random(6)
    killers: dict[int, threading.Thread] = {}

    def kill_soon() -> None:
        threading.Event().wait(chance.random() / 50)
        server.kill()
        server.start()

    def transact(log: RemoteLog, number: int) -> None:
        with log.transaction("job", number) as transaction:
            transaction.publish("a", [b"%d" % number] * 2)
            transaction.publish("b", b"%d" % number)
            if number % 6 == 1 and number not in killers:
                transaction.published[0].call.ranges()
                killers[number] = threading.Thread(target=kill_soon)
                killers[number].start()

    try:
        with seawall.connect(server.url, timeout_s=60) as log:
            log.create_topic("a")
            log.create_topic("b")
            for number in range(9):
                is_done = False
                while not is_done:
                    try:
                        transact(log, number)
                        is_done = True
                    except (OutcomeUnknownError, RetryableError, NotFoundError):
                        # The outcome, or where the records are staged, is unknown: again under the same key.
                        continue
                if number in killers:
                    killers[number].join()
            assert values(log, "b") == [b"%d" % number for number in range(9)]
            assert values(log, "a") == [b"%d" % number for number in range(9) for _ in range(2)]
    finally:
        for killer in killers.values():
            killer.join()
        server.stop()


@pytest.mark.usefixtures("each_event_loop")
def test_the_same_api_on_an_event_loop(server: RealServer, log: RemoteLog) -> None:
    asyncio.run(transact_on_event_loop(server.url))
    found = values(log, "a")
    assert found[:3] == [b"1", b"2", b"3"]
    assert sorted(found[3:8]) == [b"%d" % number for number in range(5)]
    assert found[8:] == [b"5" * 100] * 100


async def transact_on_event_loop(url: str) -> None:
    async with seawall.connect_async(url) as remote:
        async with remote.transaction() as transaction:
            first = await transaction.publish("a", [b"1", b"2"])
            await transaction.publish("b", b"x" * 70_000)
            transaction.commit_offset("reader", "a", 2)
        assert first.seqs == range(1, 3)
        async with remote.transaction("job") as named:
            await named.publish("a", b"3")
        async with remote.transaction("job", named.result.epoch) as again:
            await again.publish("a", b"3")
        assert again.result.is_repeated

        async def fail() -> None:
            async with remote.transaction("job") as failing:
                await failing.publish("a", b"4")
                raise KeyError

        with pytest.raises(KeyError):
            await fail()

        async def refuse() -> None:
            async with remote.transaction("job") as refused:
                await refused.publish("missing", b"4")

        with pytest.raises(NotFoundError):
            await refuse()
        stager = await remote.stage(compression="lz4")
        await stager.publish([b"5" * 100] * 100)
        ranges = await stager.ranges()
        await stager.close()
        await asyncio.gather(*(transact(remote, b"%d" % number) for number in range(5)))
        await remote.commit_staged("other", 1, [("a", each) for each in ranges])
        assert await remote.abort_staged(ranges) == 0
        assert (await remote.transaction_state("other")) is not None
        items = await remote.read_positions(max_bytes=1)
        assert items
        assert await remote.committed("reader", "a") == 2


async def transact(remote: AsyncRemoteLog, value: bytes) -> None:
    async with remote.transaction() as transaction:
        await transaction.publish("a", value)
