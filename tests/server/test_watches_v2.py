"""Watches over real sockets: events and batches of many topics, credit, limits, access, and slow peers."""

import asyncio
import os

import pytest
from lwp2_peer import Data, world

from seawall import limits
from seawall.core.types import Seq, TopicEpoch, TopicId
from seawall.core.watches import ANY_EPOCH, TopicEventKind, TopicPatterns, WatchPosition, WatchSpec
from seawall.limits import KIB, MIB
from seawall.server.connection.access import Access, Right
from seawall.wire.format.codes import ErrorCode, GapReason, ReadBy, ReadFlags
from seawall.wire.format.records import iter_records
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.reading import Gap
from seawall.wire.lwp2.session import Error
from seawall.wire.lwp2.subscriptions import Credit, Subscribe, Subscribed, Unsubscribe, Unsubscribed
from seawall.wire.lwp2.watches import Watch, Watched

PLENTY = 1 << 40
MANY = 10_000

JOINED, RECREATED, CAUGHT_UP, DELETED = TopicEventKind


def watch(*texts, credit_bytes=PLENTY, credit_records=PLENTY, max_frame=0, flags=ReadFlags.NONE, **named):
    return Watch(WatchSpec(TopicPatterns(texts), **named), credit_bytes, credit_records, max_frame, flags)


def shown(data):
    """The topic, seqs and values of a data frame."""
    found = [
        (seq, record.value)
        for header, block in data.batches
        for seq, record in enumerate(iter_records(block), header.base_seq)
        if record.record_type
    ]
    return data.prefix.topic_id, found


def kinds(watched):
    return [(event.kind, event.name, event.seq) for event in watched.events]


def test_events_and_batches_of_all_topics_that_match(on_each_loop, tmp_path):
    async def work():
        async with world(tmp_path, topics=("a", "b.1", "b.2", "c")) as made:
            writer, peer = await made.peer(8), await made.peer()
            await writer.publish(1, b"1")
            await writer.publish(4, b"unseen")
            peer.ask(watch("a", "b.*"), request_id=9)
            begun = await peer.answer(Watched)
            assert begun.later_from == 5
            assert kinds(begun) == [
                (JOINED, "a", 1),
                (JOINED, "b.1", 1),
                (CAUGHT_UP, "b.1", 1),
                (JOINED, "b.2", 1),
                (CAUGHT_UP, "b.2", 1),
            ]
            assert shown(await peer.answer(Data)) == (1, [(1, b"1")])
            assert kinds(await peer.answer(Watched)) == [(CAUGHT_UP, "a", 2)]
            # From here on the wake-up sends.
            for topic_id, name in ((3, "b.2"), (1, "a"), (2, "b.1")):
                await writer.publish(topic_id, name.encode())
                data = await peer.answer(Data)
                assert (shown(data)[0], data.header.id) == (topic_id, 9)
            await made.log.create_topic("b.3")
            assert kinds(await peer.answer(Watched)) == [(JOINED, "b.3", 1), (CAUGHT_UP, "b.3", 1)]
            await made.log.delete_topic("b.1")
            (event,) = (await peer.answer(Watched)).events
            assert (event.kind, event.name, event.topic_id, event.seq, event.end_seq) == (DELETED, "b.1", 2, 2, 2)
            await made.log.delete_topic("a")
            await made.log.create_topic("a")
            events = []
            while len(events) < 2 or events[-1][0] is not CAUGHT_UP:
                events += kinds(await peer.answer(Watched))
            assert events in (
                [(DELETED, "a", 3), (JOINED, "a", 1), (CAUGHT_UP, "a", 1)],
                [(RECREATED, "a", 1), (CAUGHT_UP, "a", 1)],
            )
            peer.ask(Unsubscribe(), request_id=9)
            ended = await peer.answer(Unsubscribed)
            assert ended.bytes_sent > 0
            await writer.publish(3, b"nobody watches")
            peer.send(encode_ping(3))
            assert (await peer.frame()).header.id == 3
            peer.close()
            writer.close()

    on_each_loop(work())


def test_a_watch_continues_at_its_positions(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, topics=("a", "b", "c", "d"), cap_records=3) as made:
            for number in range(5):
                await made.log.publish("a", b"%d" % number)
                await made.log.publish("b", b"%d" % number)
            positions = {
                "a": WatchPosition(TopicEpoch(1), Seq(2)),
                "b": WatchPosition(TopicEpoch(99), Seq(2)),
                "gone": WatchPosition(TopicEpoch(7), Seq(4)),
                "unwatched": WatchPosition(TopicEpoch(8), Seq(4)),
            }
            peer = await made.peer()
            # `d` has appeared later, so it starts at its beginning; `c` is new to the watch.
            await made.log.publish("c", b"before")
            await made.log.publish("d", b"later")
            spec = {"from_end": True, "positions": positions, "later_from": TopicId(4)}
            peer.ask(watch("a", "b", "c", "d", "gone", "missing", **spec))
            assert kinds(await peer.answer(Watched)) == [
                (JOINED, "a", 2),
                (RECREATED, "b", 3),
                (JOINED, "c", 2),
                (CAUGHT_UP, "c", 2),
                (JOINED, "d", 1),
                (DELETED, "gone", 4),
            ]
            gap = await peer.answer(Gap)
            assert (gap.topic_id, gap.reason, gap.first, gap.last) == (1, GapReason.CAP, 2, 2)
            found = {}
            while len(found) < 3:
                answer = await peer.answer(Data, Watched)
                if isinstance(answer, Data):
                    found.update([shown(answer)])
            assert found == {
                1: [(3, b"2"), (4, b"3"), (5, b"4")],
                2: [(3, b"2"), (4, b"3"), (5, b"4")],
                4: [(1, b"later")],
            }
            peer.close()

    on_loop(work())


def test_refused_watches_keep_the_connection_open(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for request, code in (
                (watch("nowhere"), ErrorCode.TOPIC_NOT_FOUND),
                (watch("*", positions={"x": WatchPosition(ANY_EPOCH, Seq(1))}), ErrorCode.TOPIC_NOT_FOUND),
            ):
                peer.ask(request, request_id=5)
                error = await peer.answer(Error)
                assert (error.code, error.closes) == (code, False)
            peer.ask(watch("events"), request_id=5)
            await peer.answer(Watched)
            for request in (watch("events"), Subscribe(TopicId(1), ReadBy.EARLIEST, 0, 1, 1, 0)):
                peer.ask(request, request_id=5)
                assert (await peer.answer(Error)).code == ErrorCode.WRONG_STATE
            peer.ask(Credit(PLENTY - 1, PLENTY), request_id=5)
            assert (await peer.answer(Error)).code == ErrorCode.INVALID_PAYLOAD
            peer.ask(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0), request_id=6)
            await peer.answer(Subscribed)
            await peer.answer()
            peer.ask(watch("events"), request_id=6)
            assert (await peer.answer(Error)).code == ErrorCode.WRONG_STATE
            for number in range(10, 10 + limits.WATCHES_MAX):
                peer.ask(watch("events"), request_id=number)
            answers = [await peer.answer(Watched, Error) for _ in range(limits.WATCHES_MAX)]
            assert [each.code for each in answers if isinstance(each, Error)] == [ErrorCode.LIMIT]
            # An id is free again after the end of its watch.
            peer.ask(Unsubscribe(), request_id=5)
            await peer.answer(Unsubscribed)
            peer.ask(watch("events"), request_id=5)
            await peer.answer(Watched)
            peer.close()

    on_loop(work())


def test_a_write_only_token_may_not_watch(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, access=Access({"writer": Right.WRITE_ONLY, "all": Right.ALL})) as made:
            for token, answer in (("writer", Error), ("all", Watched)):
                peer = await made.peer(token=token)
                peer.ask(watch("events"))
                found = await peer.answer(answer)
                assert answer is Watched or found.code == ErrorCode.ACCESS_DENIED
                peer.close()

    on_loop(work())


def test_a_watch_sends_within_credit(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, topics=("a", "b")) as made:
            for number in range(6):
                await made.log.publish("ab"[number % 2], bytes(10 * KIB))
            peer = await made.peer()
            peer.ask(watch("*", credit_bytes=PLENTY, credit_records=2, max_frame=1))
            await peer.answer(Watched)
            # Topics take turns.
            assert [shown(await peer.answer(Data))[0] for _ in range(2)] == [1, 2]
            peer.send(encode_ping(3))
            assert (await peer.frame()).header.id == 3
            peer.ask(Credit(PLENTY, 3))
            assert shown(await peer.answer(Data))[0] == 1
            peer.send(encode_ping(4))
            assert (await peer.frame()).header.id == 4
            peer.close()

    on_loop(work())


def test_a_slow_watcher_takes_no_memory_and_delays_nobody(on_each_loop, tmp_path):
    async def work():
        async with world(tmp_path, topics=("a", "b")) as made:
            for _ in range(10):
                await made.log.publish("a", os.urandom(900 * KIB))
                await made.log.publish("b", os.urandom(900 * KIB))
            slow, fast, writer = await made.peer(7), await made.peer(8), await made.peer(9)
            slow.ask(watch("*"))
            await slow.answer(Watched)
            fast.ask(watch("*", from_end=True))
            await fast.answer(Watched)
            for number in range(50):
                # The slow one reads nothing meanwhile.
                await writer.publish(1, b"%d" % number)
                assert shown(await fast.answer(Data))[1] == [(11 + number, b"%d" % number)]
                for connection in made.listener.connections:
                    assert connection.unsent_size < 8 * MIB
            seqs = {1: [], 2: []}
            while len(seqs[1]) < 60 or len(seqs[2]) < 10:
                answer = await slow.answer(Data, Watched)
                if isinstance(answer, Data):
                    topic_id, records = shown(answer)
                    seqs[topic_id] += [seq for seq, _ in records]
            assert seqs == {1: list(range(1, 61)), 2: list(range(1, 11))}
            for peer in (slow, fast, writer):
                peer.close()

    on_each_loop(work())


def test_ten_thousand_watched_topics_on_one_connection(on_loop, tmp_path):
    """A wake-up looks at the topics that have changed, and plans reads of those only."""

    async def work():
        async with world(tmp_path, durability="disk") as made:
            names = [f"sensor.{number}" for number in range(MANY)]
            created = await made.log.create_topics(names)
            await made.log.create_topic("other")
            peer, writer = await made.peer(), await made.peer(8)
            peer.ask(watch("sensor.*"))
            watched = await peer.answer(Watched)
            events = [*watched.events]
            while not watched.later_from:
                watched = await peer.answer(Watched)
                events += watched.events
            assert len(events) == 2 * MANY
            (session,) = [each._session for each in made.listener.connections if each._session._watches]
            (live,) = session._watches._live.values()
            assert live.memory_size == limits.REQUEST_SIZE + MANY * limits.WATCH_TOPIC_SIZE
            for number in (5, 9_999, 4_321):
                before = live.topics.topics_examined
                await made.log.publish("other", b"unwatched")
                await writer.publish(created[number].topic_id, b"x")
                topic_id, records = shown(await peer.answer(Data))
                assert (topic_id, records) == (created[number].topic_id, [(1, b"x")])
                assert live.topics.topics_examined - before <= 8
            peer.close()
            writer.close()

    on_loop(work())


def test_the_memory_of_watched_topics_is_bounded(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            names = [f"sensor.{number}" for number in range(2_000)]
            await made.log.create_topics(names)
            peer = await made.peer()
            (connection,) = made.listener.connections
            account = connection.memory.standing
            account.limit = account.used + limits.REQUEST_SIZE + 1_000 * limits.WATCH_TOPIC_SIZE
            used = account.used
            for text in ("sensor.*", "sensor.1*"):
                # It ends when there is no memory for more of its topics, and releases what it had.
                peer.ask(watch(text))
                while not isinstance(error := await peer.answer(Watched, Error), Error):
                    assert not error.later_from
                assert (error.code, error.closes) == (ErrorCode.LIMIT, False)
                while account.used != used:
                    await asyncio.sleep(0)
            peer.ask(watch("sensor.19*"), request_id=2)
            while not (await peer.answer(Watched)).later_from:
                continue
            assert account.used > used
            peer.ask(Unsubscribe(), request_id=2)
            await peer.answer(Unsubscribed)
            while account.used != used:
                await asyncio.sleep(0)
            peer.close()

    on_loop(work())


@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_with_strong_consistency_records_are_sent_after_a_sync(on_loop, tmp_path, durability):
    async def work():
        async with world(tmp_path, durability=durability) as made:
            eventual, strong = await made.peer(7), await made.peer(8)
            for peer, is_strong in ((eventual, False), (strong, True)):
                peer.ask(watch("events", is_strong=is_strong))
                await peer.answer(Watched)
            for number in range(3):
                await made.log.publish("events", b"%d" % number)
                assert shown(await eventual.answer(Data))[1] == [(number + 1, b"%d" % number)]
                assert shown(await strong.answer(Data))[1] == [(number + 1, b"%d" % number)]
                # Nothing was published since: what was sent is synced.
                assert await made.log.ask(lambda store: store.queries.is_synced)
            eventual.close()
            strong.close()

    on_loop(work())


def test_no_watch_remains_after_a_disconnect(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            peer.ask(watch("*"))
            await peer.answer(Watched)
            peer.close()
            while made.listener.connections:
                await asyncio.sleep(0)
            assert not made.log.delivery.has_readers

    on_loop(work())
