"""Routers over the network: commands and refusals, and reads and subscriptions that show what was published before."""

from lwp2_peer import world

from seawall import limits
from seawall.core.routers import RouterSettings
from seawall.engine.read.read_results import ReceivedBatch
from seawall.server.connection.access import Access, Right
from seawall.wire.format.codes import AckStatus, ErrorCode, ReadBy
from seawall.wire.lwp2.reading import Bounds, BoundsReply
from seawall.wire.lwp2.routers import RouterDelete, RouterDescribe, RouterList, RouterPut, RoutersReply
from seawall.wire.lwp2.session import Error
from seawall.wire.lwp2.subscriptions import Subscribe, Subscribed

ALL = RouterSettings()


async def routers(peer, request):
    peer.ask(request)
    return [each.name for each in (await peer.answer(RoutersReply)).routers]


async def refused(peer, request):
    peer.ask(request)
    error = await peer.answer(Error)
    assert not error.closes
    return error.code


def test_an_answer_has_a_bounded_number_of_routers(on_loop, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ROUTERS_LISTED_MAX", 2)

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for name in ("r2", "r1", "r3"):
                await routers(peer, RouterPut(name, "events", f"copies-{name}", ALL))
            assert await routers(peer, RouterList("", 9_999)) == ["r1", "r2"]
            assert await routers(peer, RouterList("r2", 9_999)) == ["r3"]
            peer.close()

    on_loop(work())


def test_routers_are_created_listed_and_deleted(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for name in ("r2", "r1", "r3"):
                assert await routers(peer, RouterPut(name, "events", f"copies-{name}", ALL)) == [name]
            assert await routers(peer, RouterList("", 2)) == ["r1", "r2"]
            assert await routers(peer, RouterList("r2", 9_999)) == ["r3"]
            assert await routers(peer, RouterList("r3", 1)) == []
            assert await routers(peer, RouterDelete("r2")) == ["r2"]
            assert await refused(peer, RouterDelete("r2")) == ErrorCode.TOPIC_NOT_FOUND
            assert await refused(peer, RouterDescribe("r2")) == ErrorCode.TOPIC_NOT_FOUND
            assert await refused(peer, RouterPut("r1", "events", "copies-r3", ALL)) == ErrorCode.TOPIC_CONFLICT
            assert await refused(peer, RouterPut("x", "copies-r1", "events", ALL)) == ErrorCode.TOPIC_CONFLICT
            assert await refused(peer, RouterPut("x", "events", "new", ALL, False)) == ErrorCode.TOPIC_NOT_FOUND
            assert await refused(peer, RouterPut("x", "events", "lwp1:default", ALL)) == ErrorCode.TOPIC_NAME
            assert await refused(peer, RouterPut("x", "events", "_staging", ALL)) == ErrorCode.INVALID_PAYLOAD
            # A topic that a router has created takes batches at once.
            topic = made.log.topic_named("copies-r1").topic_id
            assert (await peer.publish(topic, b"direct"))["status"] == AckStatus.OK
            peer.close()

    on_loop(work())


def test_reads_show_what_was_acknowledged_before(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            await routers(peer, RouterPut("r", "events", "copies", ALL))
            topic = made.log.topic_named("copies").topic_id
            assert (await peer.publish(1, b"one"))["status"] == AckStatus.OK
            peer.ask(Bounds(topic))
            assert (await peer.answer(BoundsReply)).end_seq == 2
            assert (await peer.publish(1, b"two"))["status"] == AckStatus.OK
            peer.ask(RouterDescribe("r"))
            (router,) = (await peer.answer(RoutersReply)).routers
            assert (router.forwarded, router.next_seq, router.blocked) == (2, 3, None)
            assert (await peer.publish(1, b"three"))["status"] == AckStatus.OK
            peer.ask(Subscribe(topic, ReadBy.LATEST, 0, 90_000, 900, 0), request_id=77)
            assert (await peer.answer(Subscribed)).start_seq == 4
            found = [
                each.value for item in await made.log.read("copies") if isinstance(item, ReceivedBatch) for each in item
            ]
            assert found == [b"one", b"two", b"three"]
            peer.close()

    on_loop(work())


def test_a_write_only_token_may_not_use_routers(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, access=Access({"writer": Right.WRITE_ONLY})) as made:
            peer = await made.peer(token="writer")
            for request in (
                RouterPut("r", "events", "copies", ALL),
                RouterDescribe("r"),
                RouterList("", 1),
                RouterDelete("r"),
            ):
                assert await refused(peer, request) == ErrorCode.ACCESS_DENIED
            assert (await peer.publish(1, b"continues"))["status"] == AckStatus.OK
            peer.close()

    on_loop(work())
