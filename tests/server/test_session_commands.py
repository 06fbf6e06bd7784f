"""Sessions over the network: clients whose session is retired, the commands that list and retire, and expiry."""

import asyncio
import time
from dataclasses import replace

import pytest
from lwp2_peer import SMALL, world

from seawall.core.types import ClientId, SessionEpoch
from seawall.engine.read.read_results import ReceivedBatch
from seawall.errors import NotFoundError
from seawall.limits import SESSION_WINDOW_BATCHES as WINDOW
from seawall.limits import SESSIONS_LISTED_MAX
from seawall.server.connection.access import Access, Right
from seawall.wire.format.codes import AckStatus, Command, ErrorCode, HelloFlags, SessionStatus
from seawall.wire.lwp2.session import Error
from seawall.wire.lwp2.sessions import SessionList, SessionRetire, SessionsReply

OUTSIDE = (AckStatus.REJECTED, ErrorCode.OUTSIDE_SESSION_WINDOW)


async def values(log):
    return [each.value for item in await log.read("events") if isinstance(item, ReceivedBatch) for each in item]


async def until(condition):
    """Wait for something that a server does by itself."""
    deadline = time.monotonic() + 30
    while not await condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.01)


def test_a_client_that_names_a_retired_session_is_refused(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            await peer.publish(1, b"one")
            peer.close()
            await made.log.retire_session(7)
        async with world(tmp_path) as made:
            for flags in (HelloFlags.JOIN, HelloFlags.OPEN):
                late = await made.connect()
                welcome = await late.hello(flags=flags, session_epoch=SessionEpoch(1))
                assert (welcome.status, welcome.session_epoch) == (SessionStatus.REFUSED_SUPERSEDED, 3)
                assert welcome.next_seq == 0, "nothing is known of the client"
                late.close()
            other = await made.connect()
            welcome = await other.hello(flags=HelloFlags.JOIN, session_epoch=SessionEpoch(99))
            assert (welcome.status, welcome.session_epoch) == (SessionStatus.REFUSED_SUPERSEDED, 0), "of another log"
            other.close()
            assert await made.log.session_of(ClientId(7)) is None
            new = await made.peer()
            assert (new.welcome.status, new.welcome.session_epoch) == (SessionStatus.NEW, 3)
            assert new.welcome.next_seq == 1 + WINDOW + 1
            late = await new.publish(1, b"one", seq=1)
            assert (late["status"], late["reason"]) == OUTSIDE
            assert (await new.publish(1, b"two"))["status"] == AckStatus.OK
            assert await values(made.log) == [b"one", b"two"]
            new.close()
            drawn = await made.peer(0)
            assert (drawn.welcome.status, drawn.welcome.next_seq) == (SessionStatus.NEW, 1)
            drawn.close()

    on_loop(work())


def test_a_session_is_listed_and_retired_and_its_connections_are_fenced(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peers = [await made.peer(client_id) for client_id in (5, 9)]
            second = await made.connect()
            await second.hello(9, flags=HelloFlags.JOIN, session_epoch=SessionEpoch(1))
            await peers[1].publish(1, b"one")
            asking = await made.peer(flags=HelloFlags.NONE)
            asking.ask(SessionList(0, 1))
            (first,) = (await asking.answer(SessionsReply)).sessions
            asking.ask(SessionList(first.client_id, SESSIONS_LISTED_MAX + 1))
            (last,) = (await asking.answer(SessionsReply)).sessions
            assert [(each.client_id, each.next_client_seq, each.is_live) for each in (first, last)] == [
                (5, 1, True),
                (9, 2, True),
            ]
            asking.ask(SessionRetire(ClientId(9)))
            (retired,) = (await asking.answer(SessionsReply)).sessions
            assert (retired.client_id, retired.session_epoch) == (9, 1)
            for peer in (peers[1], second):
                error = await peer.answer(Error)
                assert (error.code, error.closes) == (ErrorCode.FENCED, True)
                await peer.ended()
            asking.ask(SessionRetire(ClientId(9)))
            error = await asking.answer(Error)
            assert (error.code, error.closes) == (ErrorCode.TOPIC_NOT_FOUND, False)
            assert "client 9 has no session" in error.text
            assert (await peers[0].publish(1, b"continues"))["status"] == AckStatus.OK
            peers[0].close()
            asking.close()
            with pytest.raises(NotFoundError):
                await made.log.retire_session(9)

    on_loop(work())


def test_a_malformed_request_is_refused_and_closes_nothing(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for payload in (SessionList(0, 0), SessionList(1 << 63, 1), SessionRetire(0), SessionRetire(1 << 63)):
                peer.ask(payload)
                error = await peer.answer(Error)
                assert (error.code, error.closes) == (ErrorCode.INVALID_PAYLOAD, False)
            assert (await peer.publish(1, b"continues"))["status"] == AckStatus.OK
            peer.close()

    on_loop(work())


def test_a_write_only_token_may_neither_list_nor_retire(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, access=Access({"writer": Right.WRITE_ONLY})) as made:
            peer = await made.peer(token="writer")
            for payload in (SessionList(0, 1), SessionRetire(ClientId(7))):
                peer.ask(payload)
                assert (await peer.answer(Error)).code == ErrorCode.ACCESS_DENIED
            assert (await peer.publish(1, b"continues"))["status"] == AckStatus.OK
            peer.close()

    on_loop(work())


def test_silent_sessions_expire_and_those_with_a_connection_do_not(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, store=replace(SMALL, session_ttl_ms=300)) as made:
            stays = await made.peer(5)
            for client_id in range(100, 110):
                (await made.peer(client_id)).close()

            async def is_alone():
                return [each.client_id for each in await made.log.sessions()] == [5]

            await until(is_alone)
            assert (await stays.publish(1, b"there"))["status"] == AckStatus.OK
            stays.close()

            async def is_empty():
                return await made.log.sessions() == []

            await until(is_empty)
            joins = await made.connect()
            welcome = await joins.hello(5, flags=HelloFlags.JOIN, session_epoch=stays.welcome.session_epoch)
            assert (welcome.status, welcome.next_seq) == (SessionStatus.REFUSED_SUPERSEDED, 0)
            joins.close()

    on_loop(work())


def test_a_session_over_the_limit_is_refused_if_all_are_connected(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, store=replace(SMALL, sessions_max=3)) as made:
            peers = [await made.peer(client_id) for client_id in (1, 2, 3)]
            more = await made.connect()
            error = await more.hello(4)
            assert isinstance(error, Error)
            assert error.code == ErrorCode.BACKPRESSURE
            more.close()
            for peer in peers:
                assert (await peer.publish(1, b"continues"))["status"] == AckStatus.OK
            peers.pop().close()

            async def is_accepted():
                peer = await made.connect()
                answer = await peer.hello(4)
                peer.close()
                return not isinstance(answer, Error)

            await until(is_accepted)
            assert 4 in [each.client_id for each in await made.log.sessions()]
            for peer in peers:
                peer.close()

    on_loop(work())


def test_codes_are_fixed():
    assert [int(code) for code in (Command.SESSION_LIST, Command.SESSIONS, Command.SESSION_RETIRE)] == [
        0x6E,
        0x6F,
        0x70,
    ]
