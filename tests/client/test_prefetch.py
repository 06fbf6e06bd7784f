"""Prefetching: each response is requested once and early, and failures in between lose nothing."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import cast

import pytest
from scripted_server import Peer, ScriptedServer

import seawall
from seawall.api.received import Item, ReceivedBatch
from seawall.client.aio_remote_log import AsyncRemoteLog
from seawall.client.read import aio_prefetch as aio_ahead
from seawall.client.read import aio_subscriber, subscriber
from seawall.client.read import prefetch as ahead
from seawall.client.read.reading import Budget, TopicReader
from seawall.client.remote_log import RemoteLog
from seawall.core.types import Seq, TopicId
from seawall.errors import InvalidInputError, NotFoundError, WrongStateError
from seawall.limits import FETCH_SIZE_MAX, MIB, RECEIVE_SIZE
from seawall.wire.format.codes import ErrorCode, GapReason, ReadBy, ReadFlags
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp1.requests import GetTopic
from seawall.wire.lwp2.frames import encode_control, encode_ping
from seawall.wire.lwp2.reading import Fetch

#: Values whose responses arrive in several parts, and in one.
LARGE = [bytes([number]) * (2 * RECEIVE_SIZE) for number in range(1, 6)]
SMALL = [bytes([number]) for number in range(1, 6)]


class Fetches:
    """The starts of the fetches that a server receives, and the connections that they used."""

    def __init__(self, server: ScriptedServer) -> None:
        self._changed = threading.Condition()
        self.starts: list[int] = []
        self.peers: list[Peer] = []
        server.script.on_request = self._note

    def _note(self, peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch):
            with self._changed:
                self.starts.append(request.start)
                self.peers.append(peer)
                self._changed.notify_all()
        return True

    def wait_for(self, start: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: start in self.starts, 30)


@pytest.fixture(autouse=True)
def _one_batch_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ahead, aio_ahead, subscriber, aio_subscriber):
        monkeypatch.setattr(module, "FETCH_SIZE_MAX", 1)


def run(server: ScriptedServer, work: Callable[[AsyncRemoteLog], Awaitable[None]]) -> None:
    async def main() -> None:
        async with seawall.connect_async(server.url, timeout_s=20) as log:
            await work(log)

    asyncio.run(main())


def values(items: list[Item]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def assert_idle(server: ScriptedServer, log: RemoteLog) -> None:
    """No response is in flight: the next request uses the only open connection."""
    before = len(server.peers)
    assert log.topics() == ["events"]
    assert len(server.peers) == before


def publish(server: ScriptedServer, made: list[bytes]) -> None:
    with seawall.connect(server.url, timeout_s=20) as log:
        for value in made:
            log.publish("events", value)


def damage(server: ScriptedServer, index: int) -> None:
    """Damage a batch; the server reports it as lost to a reader that asks it to verify."""
    topic = server.topic("events")
    header, whole = topic.batches[index]
    topic.batches[index] = (header, whole[:-1] + bytes([whole[-1] ^ 1]))

    def verify_if_asked(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch) and not request.flags & ReadFlags.STORED_CODEC:
            topic.lost.append((index + 1, index + 1))
        return True

    server.script.on_request = verify_if_asked


@pytest.mark.parametrize("made", [LARGE, SMALL], ids=["large", "small"])
def test_each_response_is_requested_once_and_early(server: ScriptedServer, log: RemoteLog, made: list[bytes]) -> None:
    publish(server, made)
    fetches = Fetches(server)
    reading = log.subscriber("events")
    for number, value in enumerate(made, 1):
        assert values(reading.poll()) == [value]
        assert reading.next_seq == number + 1
        if number < len(made):
            fetches.wait_for(number + 1)
    assert reading.poll() == []
    assert fetches.starts == [1, 2, 3, 4, 5, 6]
    fetches.starts.clear()
    assert log.read_arrow("events").column("value").to_pylist() == made
    assert fetches.starts == [1, 2, 3, 4, 5]
    assert_idle(server, log)


@pytest.mark.usefixtures("each_event_loop")
@pytest.mark.parametrize("made", [LARGE, SMALL], ids=["large", "small"])
def test_an_event_loop_requests_each_response_once_and_early(server: ScriptedServer, made: list[bytes]) -> None:
    publish(server, made)
    fetches = Fetches(server)

    async def work(log: AsyncRemoteLog) -> None:
        reading = log.subscriber("events")
        for number, value in enumerate(made, 1):
            assert values(await reading.poll()) == [value]
            if number < len(made):
                await asyncio.to_thread(fetches.wait_for, number + 1)
        assert await reading.poll() == []
        assert fetches.starts == [1, 2, 3, 4, 5, 6]
        fetches.starts.clear()
        table = await log.read_arrow("events")
        assert table.column("value").to_pylist() == made
        assert fetches.starts == [1, 2, 3, 4, 5]

    run(server, work)


@pytest.mark.parametrize("made", [LARGE, SMALL], ids=["large", "small"])
def test_the_response_prefetched_behind_a_damaged_one_is_dropped(
    server: ScriptedServer, log: RemoteLog, made: list[bytes]
) -> None:
    publish(server, made)
    damage(server, 1)
    reading = log.subscriber("events")
    found = [item for _ in range(5) for item in reading.poll()]
    assert found[1] == Gap(Seq(2), Seq(2), GapReason.CRASH)
    assert values(found) == [made[0], *made[2:]]


@pytest.mark.usefixtures("each_event_loop")
def test_an_event_loop_drops_the_response_behind_a_damaged_one(server: ScriptedServer) -> None:
    publish(server, LARGE)
    damage(server, 1)

    async def work(log: AsyncRemoteLog) -> None:
        reading = log.subscriber("events")
        found = [item for _ in range(5) for item in await reading.poll()]
        assert found[1] == Gap(Seq(2), Seq(2), GapReason.CRASH)
        assert values(found) == [LARGE[0], *LARGE[2:]]

    run(server, work)


def test_a_lost_response_is_requested_again(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    reading = log.subscriber("events")
    for value in LARGE:
        assert values(reading.poll()) == [value]
        server.cut_all()


@pytest.mark.usefixtures("each_event_loop")
def test_an_event_loop_requests_a_lost_response_again(server: ScriptedServer) -> None:
    publish(server, LARGE)

    async def work(log: AsyncRemoteLog) -> None:
        reading = log.subscriber("events")
        for value in LARGE:
            assert values(await reading.poll()) == [value]
            server.cut_all()

    run(server, work)


def test_a_refusal_of_a_prefetch_is_raised(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)

    def refuse_others(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, Fetch) and request.start > 1:
            peer.refuse(request_id, ErrorCode.TOPIC_NOT_FOUND, "it was deleted")
            return False
        return True

    server.script.on_request = refuse_others
    reading = log.subscriber("events")
    assert values(reading.poll()) == [LARGE[0]]
    with pytest.raises(NotFoundError, match="deleted"):
        reading.poll()
    assert_idle(server, log)


def test_closing_a_log_closes_connections_with_a_prefetch_in_flight(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    fetches = Fetches(server)
    reading = log.subscriber("events")
    assert values(reading.poll()) == [LARGE[0]]
    fetches.wait_for(2)
    log.close()
    server.wait_closed(fetches.peers[-1])
    with pytest.raises(WrongStateError, match="closed"):
        reading.poll()


def test_a_collected_subscriber_closes_its_prefetch(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    fetches = Fetches(server)
    reading = log.subscriber("events")
    assert values(reading.poll()) == [LARGE[0]]
    fetches.wait_for(2)
    del reading
    gc.collect()
    server.wait_closed(fetches.peers[-1])


def test_nothing_is_prefetched_from_a_server_that_says_goodbye(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)

    fetches: list[Peer] = []

    def leave(peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch):
            fetches.append(peer)
            peer.say_goodbye()
        return True

    server.script.on_request = leave
    reading = log.subscriber("events")
    for value in LARGE:
        assert values(reading.poll()) == [value]
    # Each connection got one fetch, and nothing was prefetched behind the last.
    assert len(set(map(id, fetches))) == len(fetches) == len(LARGE)


def test_a_read_prefetches_within_its_limits(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    fetches = Fetches(server)
    assert values(log.read("events", max_bytes=64 * MIB)) == LARGE
    assert values(log.read("events", max_bytes=1)) == LARGE[:1]
    assert values(log.read("events", limit=2, max_bytes=1)) == LARGE[:1]
    assert fetches.starts == [1, 1, 1]
    assert Budget(FETCH_SIZE_MAX, None).prefetch_size == 0
    assert Budget(FETCH_SIZE_MAX + 5, None).prefetch_size == 5
    assert Budget(64 * MIB, 7).prefetch_size == 0


def test_frames_behind_a_response_are_kept(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, SMALL)

    def say_more(peer: Peer, request: object, request_id: int) -> bool:
        if not isinstance(request, GetTopic):
            return True
        reply = server.topic("events").reply
        others = encode_ping(5) + encode_control(reply, request_id=99)
        peer.send(encode_control(reply, request_id=request_id) + others)
        return False

    server.script.on_request = say_more
    assert log.describe("events").next_seq == 6
    assert log.describe("events").next_seq == 6


def test_an_iterator_is_positioned_behind_the_delivered_items(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, SMALL)
    reading = log.subscriber("events", owner="billing")
    following = iter(reading)
    assert values([next(following)]) == SMALL[:1]
    assert reading.next_seq == 2
    reading.commit()
    assert log.committed("billing", "events") == 2
    cast(Generator[Item], following).close()
    assert values([item for _ in range(4) for item in reading.poll()]) == SMALL[1:]
    assert reading.next_seq == 6


@pytest.mark.usefixtures("each_event_loop")
def test_an_async_iterator_is_positioned_behind_the_delivered_items(server: ScriptedServer) -> None:
    publish(server, SMALL)

    async def work(log: AsyncRemoteLog) -> None:
        reading = log.subscriber("events", owner="billing")
        following = cast(AsyncGenerator[Item], aiter(reading))
        assert values([await anext(following)]) == SMALL[:1]
        assert reading.next_seq == 2
        await reading.commit()
        assert await log.committed("billing", "events") == 2
        await following.aclose()
        found = [item for _ in range(4) for item in await reading.poll()]
        assert values(found) == SMALL[1:]

    run(server, work)


def test_going_back_never_moves_forward() -> None:
    reader = TopicReader("events", TopicId(1), ReadBy.SEQ, 5)
    reader.go_back(Seq(9))
    assert reader.next_seq == 5
    reader.go_back(Seq(3))
    assert reader.start == (ReadBy.SEQ, 3)


def test_following_to_the_end_prefetches(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    fetches = Fetches(server)
    assert values(list(log.follow("events", 2))) == LARGE[1:]
    assert fetches.starts == [2, 3, 4, 5, 6]
    with pytest.raises(InvalidInputError, match="begin at 1"):
        next(log.follow("events", 0))
    server.create("others")
    del server.topics[server.topic("events").reply.topic_id]
    server.create("events")
    publish(server, SMALL)
    assert values(list(log.follow("events"))) == SMALL
