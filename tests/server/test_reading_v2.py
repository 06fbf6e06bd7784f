"""Version 2 reading over real sockets: FETCH by all kinds of start, gaps, deletes, cursors, subscriptions."""

import asyncio
import os

import pytest
from lwp2_peer import Data, world

from seawall.core.types import Offset, Seq, TopicEpoch, TopicId
from seawall.limits import KIB, MIB
from seawall.wire.format.codes import (
    ALL_TOPICS,
    Codec,
    Command,
    DataFlags,
    ErrorCode,
    Features,
    GapReason,
    GapUnit,
    ReadBy,
    ReadFlags,
)
from seawall.wire.format.records import iter_records
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.reading import Bounds, BoundsReply, Commit, Committed, Fetch, Gap
from seawall.wire.lwp2.session import Error
from seawall.wire.lwp2.subscriptions import CaughtUp, Credit, Subscribe, Subscribed, Unsubscribe, Unsubscribed

PLENTY = 1 << 40


def shown(data, from_seq=1):
    """The seqs and values in a frame of batches."""
    found = []
    for header, block in data.batches:
        assert header.codec is Codec.NONE
        for seq, record in enumerate(iter_records(block), header.base_seq):
            if seq >= from_seq and record.record_type:
                found.append((seq, record.value))
    return found


def fetch(by=ReadBy.SEQ, start=1, topic_id=1, max_bytes=1 << 20, max_records=0, **named):
    return Fetch(TopicId(topic_id), by, start, max_bytes, max_records, **named)


async def filled(made, count=10):
    peer = await made.peer(features=0xFF)
    for number in range(1, count + 1):
        await peer.publish(1, b"%d" % number)
    return peer


def test_batches_are_fetched_by_seq_position_offset_and_time(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await filled(made)
            stored = await made.log.read("events")
            await made.log.commit("consumer:44", "events", 7)
            starts = [
                (ReadBy.SEQ, 4, 4),
                (ReadBy.POSITION, stored[4].position, 5),
                (ReadBy.TIME, stored[5].timestamp_ns, 6),
                (ReadBy.OFFSET, 6 * 2 * 3, 7),
                (ReadBy.EARLIEST, 0, 1),
                (ReadBy.COMMITTED, 44, 7),
                (ReadBy.COMMITTED, 45, 1),
            ]
            for by, start, first in starts:
                peer.ask(fetch(by, start), request_id=by + 100)
                data = await peer.answer(Data)
                assert data.header.id == by + 100
                assert shown(data) == [(seq, b"%d" % seq) for seq in range(first, 11)], by
                prefix = data.prefix
                assert (prefix.first_seq, prefix.next_seq, prefix.end_seq, prefix.floor_seq) == (first, 11, 11, 1)
                assert prefix.next_position == stored[-1].position + 1
                assert prefix.flags == DataFlags.CAUGHT_UP
            peer.ask(fetch(ReadBy.LATEST))
            data = await peer.answer(Data)
            assert (data.batches, data.prefix.first_seq) == ([], 11)
            peer.close()

    on_loop(work())


def test_limits_are_soft_by_one_batch(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await filled(made)
            peer.ask(fetch(max_bytes=1))
            data = await peer.answer(Data)
            assert (shown(data), data.prefix.flags) == ([(1, b"1")], DataFlags.MORE)
            peer.ask(fetch(max_records=3))
            data = await peer.answer(Data)
            assert [seq for seq, _ in shown(data)] == [1, 2, 3]
            assert data.prefix.next_seq == 4
            peer.close()

    on_loop(work())


def test_a_long_poll_ends_with_the_next_batch(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer, writer = await made.peer(), await made.peer(8)
            peer.ask(fetch(start=1, wait_ms=30_000, min_bytes=150), request_id=5)
            peer.send(encode_ping(6))
            pong = await peer.frame()
            assert pong.header.id == 6
            await writer.publish(1, b"one")
            await writer.publish(1, b"two")
            data = await peer.answer(Data)
            assert shown(data) == [(1, b"one"), (2, b"two")]
            peer.ask(fetch(start=3, wait_ms=10))
            assert (await peer.answer(Data)).batches == []
            peer.close()
            writer.close()

    on_loop(work())


def test_an_invalid_fetch_is_refused_and_the_connection_stays_open(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            for request, code in (
                (fetch(topic_id=9), ErrorCode.TOPIC_NOT_FOUND),
                (fetch(start=0), ErrorCode.INVALID_OFFSET),
                (Bounds(TopicId(9)), ErrorCode.TOPIC_NOT_FOUND),
                (Commit(TopicId(1), 4, TopicEpoch(9), Seq(1)), ErrorCode.TOPIC_DELETED),
                (Commit(TopicId(1), 0, TopicEpoch(1), Seq(1)), ErrorCode.CONSUMER),
                (Credit(1, 1), ErrorCode.WRONG_STATE),
                (Unsubscribe(), ErrorCode.WRONG_STATE),
            ):
                peer.ask(request, request_id=77)
                error = await peer.answer(Error)
                assert (error.code, error.closes) == (code, False), request
            peer.close()

    on_loop(work())


def test_cursors_and_bounds(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await filled(made, 3)
            peer.ask(Commit(TopicId(1), 4, TopicEpoch(1), Seq(3)), request_id=9)
            assert await peer.answer() == Committed(TopicId(1), 4, TopicEpoch(1), Seq(3))
            assert await made.log.committed("consumer:4", "events") == 3
            first = (await made.log.read("events"))[0].position
            peer.ask(Bounds(TopicId(1)))
            bounds = await peer.answer(BoundsReply)
            assert (bounds.floor_seq, bounds.end_seq, bounds.ordered_end_seq) == (1, 4, 4)
            assert (bounds.floor_offset, bounds.end_offset) == (Offset(0), Offset(18))
            assert (bounds.first_position, bounds.topic_epoch) == (first, 1)
            assert bounds.end_position > first
            peer.close()

    on_loop(work())


def test_an_empty_topic_has_bounds_too(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            peer.ask(Bounds(TopicId(1)))
            bounds = await peer.answer(BoundsReply)
            assert (bounds.floor_seq, bounds.end_seq, bounds.first_position) == (1, 1, bounds.end_position)
            peer.close()

    on_loop(work())


def test_a_batch_with_deleted_records_is_sent_rebuilt(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            await made.log.publish("events", [b"one", b"two", b"three"])
            await made.log.publish("events", [b"four"])
            await made.log.delete("events", before_seq=3)
            peer = await made.peer()
            for flags in (ReadFlags.NONE, ReadFlags.STORED_CODEC):
                peer.ask(fetch(flags=flags))
                data = await peer.answer(Data)
                assert shown(data) == [(3, b"three"), (4, b"four")]
                assert [header.record_count for header, _ in data.batches] == [3, 1]
            peer.close()

    on_loop(work())


def test_lost_records_are_reported_by_a_gap(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, cap_records=2) as made:
            for number in range(1, 6):
                await made.log.publish("events", b"%d" % number)
            await made.log.checkpoint()
            peer = await made.peer()
            peer.ask(fetch(), request_id=3)
            gap = await peer.answer(Gap)
            assert (gap.reason, gap.unit, gap.first) == (GapReason.CAP, GapUnit.TOPIC_SEQ, 1)
            peer.ask(fetch(start=gap.last + 1))
            assert shown(await peer.answer(Data)) == [(seq, b"%d" % seq) for seq in range(gap.last + 1, 6)]
            peer.ask(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0), request_id=4)
            assert isinstance(await peer.answer(), Subscribed)
            assert await peer.answer(Gap) == gap
            assert shown(await peer.answer(Data)) == [(seq, b"%d" % seq) for seq in range(gap.last + 1, 6)]
            peer.close()

    on_loop(work())


def test_compressed_batches_are_sent_unchanged_to_readers_that_accept_them(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=int(Features.LZ4))
            await peer.publish(1, b"x" * 1000, codec=Codec.LZ4)
            peer.ask(fetch())
            assert shown(await peer.answer(Data)) == [(1, b"x" * 1000)]
            peer.ask(fetch(flags=ReadFlags.STORED_CODEC))
            data = await peer.answer(Data)
            assert data.batches[0][0].codec is Codec.LZ4
            peer.close()

    on_loop(work())


@pytest.mark.parametrize("flags", [ReadFlags.NONE, ReadFlags.STORED_CODEC])
def test_long_ranges_are_sent_from_files(on_each_loop, tmp_path, flags):
    values = [os.urandom(size) for size in (100 * KIB, 90 * KIB, 10, 200 * KIB, 3 * MIB, 80 * KIB, 5)]

    async def work():
        async with world(tmp_path) as made:
            for value in values:
                await made.log.publish("events", value)
            peer = await made.peer()
            found, seq = [], 1
            while seq <= len(values):
                peer.ask(fetch(start=seq, max_bytes=MIB, flags=flags))
                data = await peer.answer(Data)
                found += [value for _, value in shown(data, seq)]
                seq = data.prefix.next_seq
            assert found == values
            await made.log.checkpoint()
            peer.ask(fetch(start=2, max_bytes=8 * MIB, flags=flags))
            assert [value for _, value in shown(await peer.answer(Data), 2)] == values[1:]
            peer.close()

    on_each_loop(work())


def test_everything_is_read_by_position(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, topics=("events", "others")) as made:
            peer = await made.peer()
            for number in range(6):
                await peer.publish(1 + number % 2, b"%d" % number)
            peer.ask(fetch(ReadBy.EARLIEST, topic_id=ALL_TOPICS))
            data = await peer.answer(Data)
            assert [header.topic_id for header, _ in data.batches] == [1, 2] * 3
            positions = [header.position for header, _ in data.batches]
            assert positions == sorted(positions)
            assert data.prefix.next_position == positions[-1] + 1
            peer.ask(fetch(ReadBy.POSITION, positions[3], topic_id=ALL_TOPICS, max_records=2))
            data = await peer.answer(Data)
            assert [header.position for header, _ in data.batches] == positions[3:5]
            when = data.batches[1][0].timestamp_ns
            for start, expected in ((when, positions[4:]), (0, positions), (when + 10**12, [])):
                peer.ask(fetch(ReadBy.TIME, start, topic_id=ALL_TOPICS))
                found = await peer.answer(Data)
                assert [header.position for header, _ in found.batches] == expected
            peer.ask(fetch(ReadBy.LATEST, topic_id=ALL_TOPICS))
            assert (await peer.answer(Data)).batches == []
            peer.close()

    on_loop(work())


def test_a_subscription_pushes_new_batches(on_each_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer, writer = await made.peer(8), await filled(made, 3)
            peer.ask(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0), request_id=70)
            begun = await peer.answer(Subscribed)
            assert (begun.start_seq, begun.end_seq, begun.floor_seq, begun.topic_epoch) == (1, 4, 1, 1)
            data = await peer.answer(Data)
            assert (data.header.id, shown(data)) == (70, [(1, b"1"), (2, b"2"), (3, b"3")])
            assert (await peer.answer(CaughtUp)).next_seq == 4
            for seq in (4, 5):
                await writer.publish(1, b"%d" % seq)
                assert shown(await peer.answer(Data)) == [(seq, b"%d" % seq)]
                assert (await peer.answer(CaughtUp)).next_seq == seq + 1
            peer.ask(Unsubscribe(), request_id=70)
            gone = await peer.answer(Unsubscribed)
            assert gone.next_seq == 6
            await writer.publish(1, b"unheard")
            peer.send(encode_ping(9))
            assert (await peer.frame()).header.id == 9
            peer.close()
            writer.close()

    on_each_loop(work())


def test_a_subscription_stops_at_its_credit(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await filled(made, 6)
            peer.ask(Subscribe(TopicId(1), ReadBy.SEQ, 2, PLENTY, 2, 1), request_id=7)
            await peer.answer(Subscribed)
            for seq in (2, 3):
                assert shown(await peer.answer(Data)) == [(seq, b"%d" % seq)]
            peer.send(encode_ping(1))
            assert (await peer.frame()).header.id == 1
            peer.ask(Credit(1, 1), request_id=7)
            assert (await peer.answer(Error)).code == ErrorCode.INVALID_PAYLOAD
            peer.ask(Credit(PLENTY, PLENTY), request_id=7)
            for seq in (4, 5, 6):
                assert shown(await peer.answer(Data)) == [(seq, b"%d" % seq)]
            await peer.answer(CaughtUp)
            peer.ask(Subscribe(TopicId(1), ReadBy.SEQ, 2, 1, 1, 1), request_id=7)
            assert (await peer.answer(Error)).code == ErrorCode.WRONG_STATE
            peer.close()

    on_loop(work())


def test_a_subscription_to_everything_reports_skips(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, order=5) as made:
            writer = await made.peer(gap_timeout_ms=20)
            await writer.publish(1, b"one", seq=1)
            row = await writer.publish(1, b"four", seq=4)
            assert row["base_seq"] == 2
            peer = await made.peer(9)
            for request in (
                Subscribe(TopicId(ALL_TOPICS), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0),
                Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0),
            ):
                peer.ask(request, request_id=request.topic_id)
                await peer.answer(Subscribed)
                assert shown(await peer.answer(Data)) == [(1, b"one")]
                gap = await peer.answer(Gap)
                assert (gap.topic_id, gap.reason, gap.unit) == (1, GapReason.SKIPPED, GapUnit.CLIENT_SEQ)
                assert (gap.first, gap.last, gap.client_id) == (2, 3, 7)
                assert shown(await peer.answer(Data)) == [(2, b"four")]
                await peer.answer(CaughtUp)
                peer.ask(Unsubscribe(), request_id=request.topic_id)
                await peer.answer(Unsubscribed)
            peer.close()
            writer.close()

    on_loop(work())


def test_a_fetch_stops_before_a_skip_and_reports_it(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, order=5) as made:
            writer = await made.peer(gap_timeout_ms=20)
            await writer.publish(1, b"one", seq=1)
            await writer.publish(1, b"four", seq=4)
            await writer.publish(1, b"seven", seq=7)
            for flags in (ReadFlags.NONE, ReadFlags.STORED_CODEC):
                peer = await made.peer(9)
                items, by, start = [], ReadBy.EARLIEST, 0
                while len(items) < 5:
                    peer.ask(fetch(by, start, flags=flags))
                    answer = await peer.answer(Data, Gap)
                    if isinstance(answer, Gap):
                        assert (answer.reason, answer.unit) == (GapReason.SKIPPED, GapUnit.CLIENT_SEQ)
                        items.append((answer.first, answer.last))
                        by, start = ReadBy.POSITION, answer.position + 1
                    else:
                        items += shown(answer)
                        by, start = ReadBy.SEQ, answer.prefix.next_seq
                assert items == [(1, b"one"), (2, 3), (2, b"four"), (5, 6), (3, b"seven")]
                peer.close()
            writer.close()

    on_loop(work())


def test_a_short_push_waits_for_more_batches_as_requested(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            writer, peer = await made.peer(), await made.peer(9)
            for number, max_frame in ((1, 0), (2, 1)):
                peer.ask(
                    Subscribe(TopicId(1), ReadBy.LATEST, 0, PLENTY, PLENTY, max_frame, linger_us=60_000_000),
                    request_id=number,
                )
                await peer.answer(Subscribed)
                await peer.answer(CaughtUp)
            for number in range(10):
                await writer.publish(1, b"%d" % number)
            found = {1: [], 2: []}
            while sum(len(shown(each)) for frames in found.values() for each in frames) < 20:
                frame = await peer.frame()
                if frame.header.command == Command.DATA:
                    found[frame.header.id].append(Data(frame))
            # One frame is full with one batch, so it is sent at once; the other has space.
            assert len(found[2]) == 10
            assert len(found[1]) < 10
            writer.close()
            peer.close()

    on_loop(work())


def test_a_slow_subscriber_takes_no_memory(on_each_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            for _ in range(20):
                await made.log.publish("events", os.urandom(900 * KIB))
            peer = await made.peer()
            peer.ask(Subscribe(TopicId(1), ReadBy.EARLIEST, 0, PLENTY, PLENTY, 0), request_id=2)
            await peer.answer(Subscribed)
            (connection,) = made.listener.connections
            for _ in range(200):
                await asyncio.sleep(0)
                assert connection.unsent_size < 8 * MIB
            seqs = []
            while len(seqs) < 20:
                answer = await peer.answer(Data)
                seqs += [seq for seq, _ in shown(answer)]
            assert seqs == list(range(1, 21))
            peer.close()

    on_each_loop(work())
