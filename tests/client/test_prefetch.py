"""Reading ahead: each answer is asked for once and before it is wanted, and what goes wrong meanwhile costs nothing."""

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

#: Values whose answers do not arrive at once, and such that do.
LARGE = [bytes([number]) * (2 * RECEIVE_SIZE) for number in range(1, 6)]
SMALL = [bytes([number]) for number in range(1, 6)]


class PendingRequest:
    """The requests for data that a server gets."""

    def __init__(self, server: ScriptedServer) -> None:
        self._changed = threading.Condition()
        self.starts: list[int] = []
        server.script.on_request = self._note

    def _note(self, _peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch):
            with self._changed:
                self.starts.append(request.start)
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


def publish(server: ScriptedServer, made: list[bytes]) -> None:
    with seawall.connect(server.url, timeout_s=20) as log:
        for value in made:
            log.publish("events", value)


def damage(server: ScriptedServer, index: int) -> None:
    """Damage a batch; whoever asks the server to look is told of it."""
    topic = server.topic("events")
    header, whole = topic.batches[index]
    topic.batches[index] = (header, whole[:-1] + bytes([whole[-1] ^ 1]))

    def look_if_asked(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch) and not request.flags & ReadFlags.STORED_CODEC:
            topic.lost.append((index + 1, index + 1))
        return True

    server.script.on_request = look_if_asked


@pytest.mark.parametrize("made", [LARGE, SMALL], ids=["large", "small"])
def test_each_answer_is_asked_for_once_and_before_it_is_wanted(
    server: ScriptedServer, log: RemoteLog, made: list[bytes]
) -> None:
    publish(server, made)
    asked = PendingRequest(server)
    reading = log.subscriber("events")
    for number, value in enumerate(made, 1):
        assert values(reading.poll()) == [value]
        assert reading.next_seq == number + 1
        if number < len(made):
            asked.wait_for(number + 1)
    assert reading.poll() == []
    assert asked.starts == [1, 2, 3, 4, 5, 6]
    asked.starts.clear()
    assert log.read_arrow("events").column("value").to_pylist() == made
    assert asked.starts == [1, 2, 3, 4, 5]
    assert not log._requests._in_flight


@pytest.mark.usefixtures("each_event_loop")
@pytest.mark.parametrize("made", [LARGE, SMALL], ids=["large", "small"])
def test_a_loop_asks_once_and_before_it_is_wanted(server: ScriptedServer, made: list[bytes]) -> None:
    publish(server, made)
    asked = PendingRequest(server)

    async def work(log: AsyncRemoteLog) -> None:
        reading = log.subscriber("events")
        for number, value in enumerate(made, 1):
            assert values(await reading.poll()) == [value]
            if number < len(made):
                await asyncio.to_thread(asked.wait_for, number + 1)
        assert await reading.poll() == []
        assert asked.starts == [1, 2, 3, 4, 5, 6]
        asked.starts.clear()
        table = await log.read_arrow("events")
        assert table.column("value").to_pylist() == made
        assert asked.starts == [1, 2, 3, 4, 5]

    run(server, work)


@pytest.mark.parametrize("made", [LARGE, SMALL], ids=["large", "small"])
def test_the_answer_behind_a_damaged_one_is_not_taken(
    server: ScriptedServer, log: RemoteLog, made: list[bytes]
) -> None:
    publish(server, made)
    damage(server, 1)
    reading = log.subscriber("events")
    found = [item for _ in range(5) for item in reading.poll()]
    assert found[1] == Gap(Seq(2), Seq(2), GapReason.CRASH)
    assert values(found) == [made[0], *made[2:]]


@pytest.mark.usefixtures("each_event_loop")
def test_a_loop_passes_the_answer_behind_a_damaged_one_over(server: ScriptedServer) -> None:
    publish(server, LARGE)
    damage(server, 1)

    async def work(log: AsyncRemoteLog) -> None:
        reading = log.subscriber("events")
        found = [item for _ in range(5) for item in await reading.poll()]
        assert found[1] == Gap(Seq(2), Seq(2), GapReason.CRASH)
        assert values(found) == [LARGE[0], *LARGE[2:]]

    run(server, work)


def test_an_answer_that_is_lost_is_asked_for_again(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    reading = log.subscriber("events")
    for value in LARGE:
        assert values(reading.poll()) == [value]
        server.cut_all()


@pytest.mark.usefixtures("each_event_loop")
def test_a_loop_asks_again_for_what_is_lost(server: ScriptedServer) -> None:
    publish(server, LARGE)

    async def work(log: AsyncRemoteLog) -> None:
        reading = log.subscriber("events")
        for value in LARGE:
            assert values(await reading.poll()) == [value]
            server.cut_all()

    run(server, work)


def test_what_the_server_refuses_is_raised(server: ScriptedServer, log: RemoteLog) -> None:
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
    assert not log._requests._in_flight


def test_a_log_that_is_closed_ends_what_is_under_way(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    reading = log.subscriber("events")
    assert values(reading.poll()) == [LARGE[0]]
    assert len(log._requests._in_flight) == 1
    log.close()
    assert not log._requests._in_flight
    with pytest.raises(WrongStateError, match="closed"):
        reading.poll()


def test_a_subscriber_that_nobody_has_leaves_nothing_behind(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    reading = log.subscriber("events")
    assert values(reading.poll()) == [LARGE[0]]
    [connection] = log._requests._in_flight
    del reading
    gc.collect()
    assert not log._requests._in_flight
    assert connection.stream.fileno() == -1


def test_nothing_is_asked_of_a_server_that_says_goodbye(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)

    def leave(peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch):
            peer.say_goodbye()
        return True

    server.script.on_request = leave
    reading = log.subscriber("events")
    for value in LARGE:
        assert values(reading.poll()) == [value]
        assert not log._requests._in_flight


def test_a_read_asks_ahead_within_its_bounds(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    asked = PendingRequest(server)
    assert values(log.read("events", max_bytes=64 * MIB)) == LARGE
    assert values(log.read("events", max_bytes=1)) == LARGE[:1]
    assert values(log.read("events", limit=2, max_bytes=1)) == LARGE[:1]
    assert asked.starts == [1, 1, 1]
    assert Budget(FETCH_SIZE_MAX, None).prefetch_size == 0
    assert Budget(FETCH_SIZE_MAX + 5, None).prefetch_size == 5
    assert Budget(64 * MIB, 7).prefetch_size == 0


def test_what_comes_behind_an_answer_is_not_lost(server: ScriptedServer, log: RemoteLog) -> None:
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


def test_a_follower_stands_behind_what_it_has_handed_out(server: ScriptedServer, log: RemoteLog) -> None:
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
def test_a_follower_on_a_loop_stands_behind_what_it_has_handed_out(server: ScriptedServer) -> None:
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


def test_going_back_never_goes_ahead() -> None:
    reader = TopicReader("events", TopicId(1), ReadBy.SEQ, 5)
    reader.go_back(Seq(9))
    assert reader.next_seq == 5
    reader.go_back(Seq(3))
    assert reader.start == (ReadBy.SEQ, 3)


def test_following_to_the_end_asks_ahead_too(server: ScriptedServer, log: RemoteLog) -> None:
    publish(server, LARGE)
    asked = PendingRequest(server)
    assert values(list(log.follow("events", 2))) == LARGE[1:]
    assert asked.starts == [2, 3, 4, 5, 6]
    with pytest.raises(InvalidInputError, match="begin at 1"):
        next(log.follow("events", 0))
    server.create("others")
    del server.topics[server.topic("events").reply.topic_id]
    server.create("events")
    publish(server, SMALL)
    assert values(list(log.follow("events"))) == SMALL
