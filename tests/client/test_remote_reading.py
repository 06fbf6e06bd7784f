"""Reading over the network: batches, gaps, SKIPs, starts, cursors and pushes; damage, deletes, lost connections."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from scripted_server import CutError, Peer, ScriptedServer

import seawall
from seawall.api.read_options import PositionStart, Start
from seawall.api.received import Item, ReceivedBatch, ReceivedSkip
from seawall.api.topic_config import Durability, TopicConfig
from seawall.client.commands import ReadMode, consumer_of
from seawall.client.read import granted_credit
from seawall.client.remote_log import RemoteLog
from seawall.core.types import ClientId, Position, Seq, TimestampNs, TopicId
from seawall.errors import (
    ConflictError,
    CorruptionError,
    FullError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    OutcomeUnknownError,
    ProtocolError,
    RetryableError,
    UnsupportedError,
)
from seawall.limits import BATCH_HEADER_SIZE
from seawall.wire.format.batches import BatchSource, batch_header, encode_batch, parse_batch_header, stamp
from seawall.wire.format.codes import ALL_TOPICS, Command, DataFlags, ErrorCode, GapReason, GapUnit, ReadBy, ReadFlags
from seawall.wire.format.gaps import Gap
from seawall.wire.format.records import Record, RecordType, encode_block
from seawall.wire.lwp1.requests import ListTopics
from seawall.wire.lwp2.frames import encode_control, encode_data_start
from seawall.wire.lwp2.reading import DataPrefix, Fetch
from seawall.wire.lwp2.reading import Gap as WireGap
from seawall.wire.lwp2.subscriptions import Credit, Subscribe
from seawall.wire.lwp2.topics import TopicCreate, TopicDescribe


def values(items: list[Item]) -> list[bytes]:
    return [record.value for item in items if isinstance(item, ReceivedBatch) for record in item]


def store_records(server: ScriptedServer, *records: Record) -> None:
    """Add a batch to the topic as a server stores it after deletes."""
    topic = server.topic("events")
    block = encode_block(records)
    header = batch_header(
        block,
        topic_id=topic.reply.topic_id,
        client_id=ClientId(1),
        client_seq=1,
        session_epoch=1,
        record_count=len(records),
        timestamp_ns=TimestampNs(1),
    )
    stored = bytearray(encode_batch(header, block))
    stamp(
        stored,
        position=Position(server.position),
        base_seq=Seq(topic.next_seq),
        base_offset=0,
        timestamp_ns=TimestampNs(server.position + 1),
        term=1,
    )
    topic.batches.append((parse_batch_header(stored, source=BatchSource.STORED), bytes(stored)))
    topic.next_seq += len(records)
    server.position += 1


def skip_frame(topic_id: int, request_id: int, *, position: int) -> bytes:
    skip = WireGap(
        TopicId(topic_id),
        GapReason.SKIPPED,
        GapUnit.CLIENT_SEQ,
        3,
        4,
        ClientId(7),
        Position(position),
        TimestampNs(0),
    )
    return encode_control(skip, request_id=request_id)


# --- reading once ---------------------------------------------------------------------------------------------------


def test_published_records_are_read_with_their_seqs(log: RemoteLog) -> None:
    log.publish("events", [b"one", "two", {"n": 3}])
    log.publish("events", b"four")
    first, second = log.read("events")
    assert isinstance(first, ReceivedBatch)
    assert isinstance(second, ReceivedBatch)
    assert values([first, second]) == [b"one", b"two", b'{"n":3}', b"four"]
    assert (first.seqs, second.seqs, first.topic, second.position) == ([1, 2, 3], [4], "events", 1)
    assert log.read("events", 5) == []


def test_records_below_the_start_are_not_shown(log: RemoteLog) -> None:
    log.publish("events", [b"one", b"two", b"three"])
    [batch] = log.read("events", 2)
    assert isinstance(batch, ReceivedBatch)
    assert (batch.seqs, len(batch), values([batch])) == ([2, 3], 2, [b"two", b"three"])
    assert log.read_arrow("events", 3).column("value").to_pylist() == [b"three"]


def test_a_read_ends_at_its_limits(log: RemoteLog) -> None:
    for number in range(10):
        log.publish("events", b"%d" % number)
    assert len(log.read("events", max_bytes=1)) == 1
    assert values(log.read("events", limit=3, max_bytes=1)) == [b"0"]
    assert len(log.read("events", mode="ordered")) == 10
    assert len(list(log.follow("events", 4))) == 7
    with pytest.raises(InvalidInputError, match="begin at 1"):
        log.read("events", 0)
    with pytest.raises(InvalidInputError, match="durable or ordered"):
        log.read("events", mode=cast("ReadMode", "fast"))


def test_a_limit_is_sent_to_the_server(server: ScriptedServer, log: RemoteLog) -> None:
    for number in range(4):
        log.publish("events", b"%d" % number)
    fetches: list[Fetch] = []

    def note(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Fetch):
            fetches.append(request)
        return True

    server.script.on_request = note
    log.read("events", limit=2)
    assert fetches[0].max_records == 2
    assert fetches[0].flags == ReadFlags.STORED_CODEC


def test_gaps_are_reported_in_order_with_the_batches(server: ScriptedServer, log: RemoteLog) -> None:
    log.publish("events", [b"one", b"two"])
    topic = server.topic("events")
    topic.lost.append((3, 7))
    topic.next_seq = 8
    log.publish("events", b"eight")
    first, gap, last = log.read("events")
    assert gap == Gap(Seq(3), Seq(7), GapReason.CRASH)
    assert values([first, last]) == [b"one", b"two", b"eight"]
    assert log.read("events", 5)[0] == Gap(Seq(5), Seq(7), GapReason.CRASH)
    assert log.read_arrow("events").num_rows == 3
    assert log.start_seq("events", 5, None) == 5


def test_deleted_records_are_skipped_and_their_seqs_count(server: ScriptedServer, log: RemoteLog) -> None:
    deleted, kept = Record(RecordType.DELETED, b""), Record(RecordType.RAW, b"kept")
    store_records(server, deleted, kept, kept, deleted, kept, deleted)
    [batch] = log.read("events")
    assert isinstance(batch, ReceivedBatch)
    assert batch.live == ((2, 3), (5, 5))
    assert (batch.seqs, len(batch), len(values([batch]))) == ([2, 3, 5], 3, 3)
    assert log.read_arrow("events").column("seq").to_pylist() == [2, 3, 5]
    [rest] = log.read("events", 3)
    assert isinstance(rest, ReceivedBatch)
    assert rest.live == ((3, 3), (5, 5))
    # A batch without live records is not delivered.
    store_records(server, deleted, deleted)
    assert log.read("events", 6) == []
    store_records(server, kept)
    assert [item.first_seq for item in log.read("events", 6) if isinstance(item, ReceivedBatch)] == [9]


def test_damage_is_verified_by_the_server_and_reported_as_a_gap(server: ScriptedServer, log: RemoteLog) -> None:
    for number in range(3):
        log.publish("events", b"%d" % number)
    topic = server.topic("events")
    header, whole = topic.batches[1]
    topic.batches[1] = (header, whole[:-1] + b"X")

    def verify_if_asked(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, Fetch) and not request.flags & ReadFlags.STORED_CODEC:
            assert (request.by, request.start) == (ReadBy.SEQ, 2)
            topic.lost.append((2, 2))
        return True

    server.script.on_request = verify_if_asked
    first, gap, last = log.read("events")
    assert gap == Gap(Seq(2), Seq(2), GapReason.CRASH)
    assert values([first, last]) == [b"0", b"2"]


def test_damage_that_the_server_does_not_find_is_raised(server: ScriptedServer, log: RemoteLog) -> None:
    log.publish("events", b"value")
    topic = server.topic("events")
    [(header, whole)] = topic.batches
    topic.batches[0] = (header, whole[:-1] + b"X")
    with pytest.raises(CorruptionError, match="checksum"):
        log.read("events")


def test_a_batch_that_contradicts_its_header_is_damage(server: ScriptedServer, log: RemoteLog) -> None:
    store_records(server, Record(RecordType.RAW, b"12345"))
    topic = server.topic("events")
    [(header, _)] = topic.batches
    block = encode_block([Record(RecordType.RAW, b""), Record(RecordType.RAW, b"")])
    assert len(block) == header.block_length
    wrong = batch_header(
        block,
        topic_id=topic.reply.topic_id,
        client_id=ClientId(1),
        client_seq=1,
        session_epoch=1,
        record_count=1,
        timestamp_ns=TimestampNs(1),
    )
    forged = encode_batch(replace(wrong, base_seq=Seq(1)), block)
    topic.batches[0] = (header, forged)
    with pytest.raises(CorruptionError, match="do not match its header"):
        log.read("events")
    assert len(forged) == BATCH_HEADER_SIZE + len(block)


def test_a_skip_is_reported_once(server: ScriptedServer, log: RemoteLog) -> None:
    log.publish("events", b"one")
    starts: list[tuple[ReadBy, int]] = []

    def skip_at_2(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, Fetch):
            starts.append((request.by, request.start))
            if (request.by, request.start) == (ReadBy.SEQ, 2):
                peer.send(skip_frame(request.topic_id, request_id, position=0))
                return False
        return True

    server.script.on_request = skip_at_2
    log.publish("events", b"two")
    [skip, batch] = log.read("events", 2)
    assert skip == ReceivedSkip("events", Position(0), ClientId(7), 3, 2, Seq(2))
    assert values([batch]) == [b"two"]
    assert starts == [(ReadBy.SEQ, 2), (ReadBy.POSITION, 1)]


def test_starts_become_seqs(log: RemoteLog) -> None:
    log.publish("events", [b"one", b"two"])
    log.publish("events", b"three")
    assert log.start_seq("events", "earliest", None) == 1
    assert log.start_seq("events", "latest", None) == 4
    assert log.start_seq("events", 2, None) == 2
    assert log.seq_at("events", datetime.fromtimestamp(0.002, UTC)) == 3
    assert log.seq_at("events", datetime(2030, 1, 1, tzinfo=UTC)) == 4
    for bad in ("newest", 0):
        with pytest.raises(InvalidInputError):
            log.start_seq("events", cast("Start", bad), None)
    with pytest.raises(InvalidInputError, match="name the owner"):
        log.start_seq("events", "committed", None)


def test_cursors_are_committed_and_read(server: ScriptedServer, log: RemoteLog) -> None:
    log.publish("events", [b"one", b"two", b"three"])
    assert log.committed("billing", "events") is None
    log.commit("billing", "events", 3)
    assert log.committed("billing", "events") == 3
    assert log.committed("other", "events") is None
    log.commit("consumer:17", "events", 2)
    assert server.topic("events").cursors[17] == 2
    subscriber = log.subscriber("events", "committed", owner="billing")
    assert subscriber.next_seq == 3
    assert values(subscriber.poll()) == [b"three"]
    subscriber.commit()
    assert log.committed("billing", "events") == 4
    with pytest.raises(InvalidInputError, match="without an owner"):
        log.subscriber("events").commit()


def test_owner_names_are_limited() -> None:
    assert consumer_of("consumer:5") == 5
    assert len({consumer_of(owner) for owner in ("a", "b", "5", "consumer:0", "consumer:x", "consumer:-1")}) == 6
    for owner in ("", "x" * 256):
        with pytest.raises(LimitError):
            consumer_of(owner)


def test_reading_all_topics_by_position(server: ScriptedServer, log: RemoteLog) -> None:
    log.publish("events", b"one")

    def answer(peer: Peer, request: object, request_id: int) -> bool:
        if not isinstance(request, Fetch) or request.topic_id != ALL_TOPICS:
            return True
        start = 0 if request.by is ReadBy.POSITION else server.position
        start = request.start if request.by is ReadBy.POSITION else start
        if start == 1:
            peer.send(skip_frame(1, request_id, position=1))
            return False
        chunks = [whole for topic in server.topics.values() for header, whole in topic.batches if not start]
        after = 1 if not start else max(start, 2)
        flags = DataFlags.MORE if not start else DataFlags.CAUGHT_UP
        nothing = Seq(0)
        prefix = DataPrefix(
            TopicId(ALL_TOPICS), flags, len(chunks), nothing, nothing, Position(after), nothing, nothing
        )
        size = sum(map(len, chunks))
        head = encode_data_start(
            Command.FETCH_DATA, prefix, request_id=request_id, record_count=len(chunks), chunks_length=size
        )
        peer.send(head + b"".join(chunks))
        return False

    server.script.on_request = answer
    [batch] = log.read_positions()
    assert isinstance(batch, ReceivedBatch)
    assert (batch.topic, batch.next_position) == ("events", 1)
    [skip] = log.read_positions(1)
    assert skip == ReceivedSkip("events", Position(1), ClientId(7), 3, 2, Seq(0))
    subscriber = log.position_subscriber()
    assert [type(item) for _ in range(2) for item in subscriber.poll()] == [ReceivedBatch, ReceivedSkip]
    assert subscriber.poll(0.01) == []
    assert subscriber.next_position == 2
    # A client that does not know the topic asks for its name.
    with seawall.connect(server.url) as other:
        assert other.read_positions()[0].topic == "events"
    assert log.position_subscriber("latest").next_position == 2
    with pytest.raises(InvalidInputError):
        log.read_positions(-1)
    with pytest.raises(InvalidInputError):
        log.position_subscriber(cast("PositionStart", "newest"))


# --- following ------------------------------------------------------------------------------------------------------


def test_a_poll_waits_for_new_records(server: ScriptedServer, log: RemoteLog) -> None:
    subscriber = log.subscriber("events", "latest")
    assert subscriber.poll() == []
    assert subscriber.poll(0.02) == []
    assert not log.wait_for("events", 1, 0.01)
    writer = threading.Timer(0.02, log.publish, ("events", b"late"))
    writer.start()
    assert values(subscriber.poll(20)) == [b"late"]
    writer.join()
    assert subscriber.next_seq == 2
    assert log.wait_for("events", 1, 5)


def test_an_iterator_survives_lost_connections(
    server: ScriptedServer, log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_credit, "CREDIT_BYTES", 400)
    granted: dict[int, list[int]] = {}

    def note(peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, Credit):
            granted.setdefault(id(peer), []).append(request.bytes_total)
        return True

    server.script.on_request = note
    log.publish("events", [b"one", b"two"])
    following = iter(log.subscriber("events", 2))
    assert values([next(following)]) == [b"two"]
    log.publish("events", b"three")
    assert values([next(following)]) == [b"three"]
    server.cut_all()
    log.publish("events", b"four")
    assert values([next(following)]) == [b"four"]
    for number in range(5):
        log.publish("events", b"%d" % number)
        assert values([next(following)]) == [b"%d" % number]
    assert granted
    assert all(totals == sorted(totals) for totals in granted.values())


def test_an_iterator_raises_a_refusal(server: ScriptedServer, log: RemoteLog) -> None:
    following = iter(log.subscriber("events"))
    log.delete_topic("events")
    with pytest.raises(NotFoundError):
        next(following)


def test_an_iterator_reports_damage_that_the_server_verified(server: ScriptedServer, log: RemoteLog) -> None:
    for number in range(3):
        log.publish("events", b"%d" % number)
    topic = server.topic("events")
    header, whole = topic.batches[1]
    topic.batches[1] = (header, whole[:-1] + b"X")

    def verify_if_asked(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, Subscribe) and not request.flags & ReadFlags.STORED_CODEC:
            topic.lost.append((2, 2))
        return True

    server.script.on_request = verify_if_asked
    following = iter(log.subscriber("events"))
    items = [next(following) for _ in range(3)]
    assert items[1] == Gap(Seq(2), Seq(2), GapReason.CRASH)
    assert values(items) == [b"0", b"2"]


def test_an_iterator_without_a_server_raises() -> None:
    with ScriptedServer() as server:
        server.create("events")
        log = seawall.connect(server.url, timeout_s=0.3, connect_timeout_s=0.2)
        following = iter(log.subscriber("events"))
    # Another process may listen on the port by now.
    with pytest.raises(RetryableError, match=r"no (server|answer)"):
        next(following)
    log.close()


# --- topics and requests -------------------------------------------------------------------------------------------


def test_topics_are_created_listed_changed_and_deleted(log: RemoteLog) -> None:
    assert log.create_topic("aged", ttl_ms=60_000).config == TopicConfig(ttl_ms=60_000)
    assert log.topics() == ["aged", "events"]
    assert log.configure_topic("aged", cap_bytes=5).config == TopicConfig(ttl_ms=60_000, cap_bytes=5)
    log.publish("events", [b"one", b"two"])
    info = log.describe("events")
    assert (info.name, info.floor, info.next_seq, info.record_count, info.byte_count) == ("events", 1, 3, 2, 16)
    with pytest.raises(ConflictError, match="exists already"):
        log.create_topic("events")
    log.delete_topic("aged")
    with pytest.raises(NotFoundError, match="there is no topic"):
        log.describe("aged")


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"dead_letter": "x" * 20_000}, LimitError), ({"ttl_ms": float("nan")}, InvalidInputError)],
)
def test_unencodable_settings_are_refused(log: RemoteLog, settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        log.create_topic("other", **settings)


@pytest.mark.usefixtures("each_event_loop")
def test_clients_say_goodbye(server: ScriptedServer) -> None:
    with seawall.connect(server.url) as log, log.publisher("events") as publisher:
        publisher.publish(b"one")
    with server.change:
        assert server.change.wait_for(lambda: len(server.goodbyes) == 2, 30)

    async def work() -> None:
        async with seawall.connect_async(server.url) as other:
            await other.publish("events", b"two")

    asyncio.run(work())
    with server.change:
        assert server.change.wait_for(lambda: len(server.goodbyes) == 4, 30)


def test_deletes_need_exactly_one_valid_selection(log: RemoteLog) -> None:
    log.publish("events", [b"one", b"two", b"three"])
    assert log.delete("events", before_seq=3) == 2
    for wrong in ({}, {"tag": "a", "tag_prefix": "a"}, {"before_seq": 0}, {"tag": "x" * 257}):
        with pytest.raises(InvalidInputError):
            log.delete("events", **wrong)


def test_an_incomplete_description_is_a_protocol_error(server: ScriptedServer, log: RemoteLog) -> None:
    def answer_partly(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, TopicDescribe):
            peer.send(encode_control(server.topic("events").reply, request_id=request_id))
            return False
        return True

    server.script.on_request = answer_partly
    with pytest.raises(ProtocolError, match="some of it is missing"):
        log.describe("events")


def test_unknown_settings_are_ignored_and_invalid_ones_are_errors(server: ScriptedServer, log: RemoteLog) -> None:
    def answer(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, TopicDescribe):
            whole = {"span": (Seq(1), Seq(1)), "record_count": 0, "byte_count": 0}
            reply = replace(server.topic("events").reply, **whole, settings={"durability": durability, "of later": 1})
            peer.send(encode_control(reply, request_id=request_id))
            return False
        return True

    server.script.on_request = answer
    durability = "disk"
    assert log.describe("events").config == TopicConfig(durability=Durability.DISK)
    durability = "tape"
    with pytest.raises(ProtocolError, match="durability of a topic is 'tape'"):
        log.describe("events")


def test_a_topic_that_is_created_again_is_found(server: ScriptedServer, log: RemoteLog) -> None:
    log.publish("events", b"old")
    with seawall.connect(server.url) as other:
        other.create_topic("other")
        other.delete_topic("events")
        other.create_topic("events")
    assert log.read("events") == []
    assert log.publish("events", b"new").first_seq == 1
    with seawall.connect(server.url) as other:
        other.delete_topic("events")
    with pytest.raises(NotFoundError):
        log.read("events")


def test_calls_that_the_protocol_lacks_are_refused(log: RemoteLog) -> None:
    with pytest.raises(UnsupportedError, match="no such command"):
        log.verify()
    with pytest.raises(InvalidInputError, match="nothing to publish"):
        log.publish("events", [])


def test_a_request_is_repeated_after_a_lost_connection(server: ScriptedServer, log: RemoteLog) -> None:
    left = [3]

    def cut(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, TopicDescribe) and left[0]:
            left[0] -= 1
            raise CutError
        return True

    server.script.on_request = cut
    assert log.describe("events").next_seq == 1
    assert left == [0]


def test_a_request_that_is_not_repeatable_is_not_repeated(server: ScriptedServer, log: RemoteLog) -> None:
    def cut(_peer: Peer, request: object, _id: int) -> bool:
        if isinstance(request, TopicCreate):
            raise CutError
        return True

    server.script.on_request = cut
    with pytest.raises(OutcomeUnknownError, match="before the answer came"):
        log.create_topic("other")


def test_a_retryable_refusal_is_retried_until_the_timeout(server: ScriptedServer) -> None:
    refusals = [2]

    def refuse(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, ListTopics) and refusals[0]:
            refusals[0] -= 1
            peer.refuse(request_id, ErrorCode.RATE_LIMITED, "later")
            return False
        return True

    server.script.on_request = refuse
    with seawall.connect(server.url, timeout_s=0.3) as log:
        assert log.topics() == ["events"]
        refusals[0] = 1_000
        with pytest.raises(RetryableError, match="later"):
            log.topics()


def test_a_refusal_because_of_a_full_server_is_not_retried(server: ScriptedServer) -> None:
    asked: list[int] = []

    def refuse(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, TopicCreate):
            asked.append(request_id)
            peer.refuse(request_id, ErrorCode.BACKPRESSURE, "no topic can be added")
            return False
        return True

    server.script.on_request = refuse
    with seawall.connect(server.url, timeout_s=100) as log:
        with pytest.raises(FullError, match="no topic can be added"):
            log.create_topic("other")
        assert log.topics() == ["events"]
    assert len(asked) == 1


def test_a_missing_answer_ends_with_a_typed_error(server: ScriptedServer) -> None:
    with seawall.connect(server.url, timeout_s=0.3) as log:
        server.script.on_request = lambda _peer, request, _id: not isinstance(request, (ListTopics, TopicCreate))
        with pytest.raises(RetryableError, match="did not answer"):
            log.topics()
        with pytest.raises(OutcomeUnknownError, match="did not answer"):
            log.create_topic("other")


def test_one_server_of_several_is_enough(server: ScriptedServer) -> None:
    with ScriptedServer() as closed:
        port = closed.port
    with seawall.connect(f"seawall://127.0.0.1:{port},127.0.0.1:{server.port}", timeout_s=10) as log:
        assert log.topics() == ["events"]
        assert log.publish("events", b"value").first_seq == 1
        with log.publisher("events") as publisher:
            publisher.publish(b"more")
    with pytest.raises(RetryableError, match="no answer"):
        seawall.connect(f"seawall://127.0.0.1:{port}", timeout_s=0.1)


def test_an_answer_by_another_command_is_refused(server: ScriptedServer, log: RemoteLog) -> None:
    def confuse(peer: Peer, request: object, request_id: int) -> bool:
        if isinstance(request, Fetch):
            peer.send(encode_control(Credit(1, 1), request_id=request_id))
            return False
        return True

    server.script.on_request = confuse
    with pytest.raises(Exception, match="answered by command"):
        log.read("events")
    with pytest.raises(UnsupportedError, match="answered by command"):
        log.seq_at("events", datetime.now(UTC))
    with pytest.raises(Exception, match="answered by command"):
        log.read_positions()


def test_idle_connections_are_reused_until_they_end(server: ScriptedServer, log: RemoteLog) -> None:
    log.topics()
    count = len(server.peers)
    log.topics()
    assert len(server.peers) == count
    server.cut_all()
    assert log.topics() == ["events"]
    (peer,) = server.peers[count:]
    peer.say_goodbye()
    # Until the client has received the goodbye, it may use the connection.
    while len(server.peers) == count + 1:
        assert log.topics() == ["events"]
    assert len(server.peers) == count + 2
