"""Version 2 publishing over real sockets: sessions, batches, acks, refusals."""

import asyncio

import pytest
from lwp2_peer import world

from seawall.server.connection.access import Access, Right
from seawall.server.lwp2 import session as lwp2_session
from seawall.wire.format.codes import AckStatus, Codec, ErrorCode, Features, HelloFlags, SessionStatus
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.session import Error, Goodbye, Welcome

OK, DUPLICATE, REJECTED = int(AckStatus.OK), int(AckStatus.DUPLICATE), int(AckStatus.REJECTED)


@pytest.fixture(params=["event loop", "publish thread"])
def receiver(request, monkeypatch):
    """Receive small batches by one thread or the other: no peer can see which."""
    monkeypatch.setattr(lwp2_session, "_ATTACH_AFTER", 1 if request.param == "publish thread" else 1 << 60)


async def values(log, topic="events"):
    return [record.value for batch in await log.read(topic) for record in batch]


def test_a_batch_is_stored_and_acked(on_each_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=0xFF)
            assert peer.welcome.status is SessionStatus.NEW
            assert (peer.welcome.client_id, peer.welcome.session_epoch, peer.welcome.next_seq) == (7, 1, 1)
            first = await peer.publish(1, b"one", b"two")
            second = await peer.publish(1, b"three")
            assert (first["base_seq"], second["base_seq"]) == (1, 3)
            assert (first["status"], first["level"], first["topic_id"], first["record_count"]) == (OK, 2, 1, 2)
            assert second["position"] > first["position"]
            assert peer.through == 2
            assert await values(made.log) == [b"one", b"two", b"three"]
            peer.close()

    on_each_loop(work())


def test_many_batches_at_once_are_acked_as_runs(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=int(Features.ACK_RUNS))
            batches = [peer.batch(1, b"%d" % number) for number in range(1000)]
            peer.send(b"".join(batches))
            rows = await peer.acks(1000)
            assert len(rows) < 100
            assert sum(row["run"] for row in rows) == 1000
            assert rows[-1]["client_seq"] == rows[-1]["base_seq"] == peer.through == 1000
            assert await values(made.log) == [b"%d" % number for number in range(1000)]
            peer.close()

    on_loop(work())


@pytest.mark.parametrize(("order", "level"), [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (5, 1), (5, 2)])
def test_every_order_and_level(on_loop, receiver, tmp_path, order, level):
    async def work():
        async with world(tmp_path, order=order, ack_level=level) as made:
            peer = await made.peer()
            peer.send(b"".join(peer.batch(1, b"%d" % number) for number in range(20)))
            rows = await peer.acks(20)
            assert [row["client_seq"] for row in rows] == list(range(1, 21))
            assert {(row["status"], row["level"]) for row in rows} == {(OK, level)}
            is_known = (order, level) != (0, 1)
            assert [row["base_seq"] for row in rows] == (list(range(1, 21)) if is_known else [0] * 20)
            await made.log.sync()
            assert sorted(await values(made.log)) == sorted(b"%d" % number for number in range(20))
            peer.close()

    on_loop(work())


def test_ack_level_0_answers_only_failures(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            peer.send(peer.batch(1, b"quiet", ack_level=0) + peer.batch(9, b"lost", ack_level=0))
            (row,) = await peer.acks(1)
            assert (row["client_seq"], row["status"], row["reason"]) == (2, REJECTED, 0x10)
            assert (await peer.publish(1, b"loud"))["base_seq"] == 2
            peer.close()

    on_loop(work())


def test_order_5_waits_for_missing_batches(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path, order=5) as made:
            peer, other = await made.peer(), await made.connect()
            await other.hello(flags=HelloFlags.JOIN, session_epoch=1)
            assert other.welcome.status is SessionStatus.JOINED
            peer.send(peer.batch(1, b"three", seq=3) + peer.batch(1, b"two", seq=2))
            assert (await other.publish(1, b"one", seq=1))["base_seq"] == 1
            rows = await peer.acks(2)
            assert [(row["client_seq"], row["base_seq"]) for row in rows] == [(2, 2), (3, 3)]
            assert await values(made.log) == [b"one", b"two", b"three"]
            peer.close()
            other.close()

    on_loop(work())


def test_a_gap_that_lasts_too_long_is_skipped(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path, order=5) as made:
            peer = await made.peer(gap_timeout_ms=20)
            row = await peer.publish(1, b"third", seq=3)
            assert (row["status"], row["base_seq"]) == (OK, 1)
            late = await peer.publish(1, b"first", seq=1)
            assert (late["status"], late["reason"]) == (REJECTED, 0x26)
            peer.close()

    on_loop(work())


def test_a_duplicate_gets_the_numbers_of_the_original(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            first = await peer.publish(1, b"one")
            again = await peer.publish(1, b"one", seq=1)
            assert again == first | {"status": DUPLICATE}
            other = await peer.publish(1, b"another", seq=1)
            assert (other["status"], other["reason"]) == (REJECTED, 0x28)
            peer.close()
        async with world(tmp_path) as made:
            peer = await made.peer()
            assert peer.welcome.status is SessionStatus.RESUMED
            assert (peer.welcome.session_epoch, peer.welcome.next_seq) == (2, 2)
            again = await peer.publish(1, b"one", seq=1)
            assert again["status"] == DUPLICATE
            peer.close()

    on_loop(work())


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_batches_are_stored_as_they_are(on_loop, receiver, tmp_path, codec):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(features=int(Features.LZ4 | Features.ZSTD))
            row = await peer.publish(1, b"x" * 1000, b"y" * 1000, codec=codec)
            assert (row["status"], row["record_count"]) == (OK, 2)
            assert await values(made.log) == [b"x" * 1000, b"y" * 1000]
            wrong = await peer.publish(1, b"x" * 1000, codec=codec, record_count=2)
            assert (wrong["status"], wrong["reason"]) == (REJECTED, 0x04)
            damaged = bytearray(peer.batch(1, b"z" * 1000, codec=codec, raw_length=2000))
            peer.send(bytes(damaged))
            (row,) = await peer.acks(1)
            assert (row["status"], row["reason"]) == (REJECTED, 0x04)
            plain = await made.peer(8)
            refused = await plain.publish(1, b"x" * 1000, codec=codec)
            assert (refused["status"], refused["reason"]) == (REJECTED, 0x04)
            peer.close()
            plain.close()

    on_loop(work())


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"topic_id": 99}, ErrorCode.TOPIC_NOT_FOUND),
        ({"order": 5}, ErrorCode.NOT_ALLOWED_BY_TOPIC),
        ({"record_count": 2}, ErrorCode.INVALID_PAYLOAD),
        ({"client_id": 9}, ErrorCode.INVALID_PAYLOAD),
        ({"session_epoch": 9}, ErrorCode.FENCED),
    ],
)
def test_a_refused_batch_leaves_the_others_alone(on_loop, receiver, tmp_path, changed, reason):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            named = {"topic_id": 1} | changed
            topic_id = named.pop("topic_id")
            peer.send(peer.batch(1, b"a") + peer.batch(topic_id, b"bad", **named) + peer.batch(1, b"b"))
            rows = sorted(await peer.acks(3), key=lambda row: row["client_seq"])
            assert [row["status"] for row in rows] == [OK, REJECTED, OK]
            assert rows[1]["reason"] == reason
            assert peer.through == 3
            assert await values(made.log) == [b"a", b"b"]
            peer.close()

    on_loop(work())


def test_a_server_header_closes_the_connection_after_earlier_frames(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            peer.send(peer.batch(1, b"good") + peer.batch(1, b"bad", seq=0) + peer.batch(1, b"unread"))
            (row,) = await peer.acks(1)
            assert (row["client_seq"], row["status"]) == (1, OK)
            error = await peer.answer(Error)
            assert (error.code, error.closes) == (ErrorCode.INVALID_PAYLOAD, True)
            await peer.ended()
            assert await values(made.log) == [b"good"]

    on_loop(work())


def test_a_newer_session_fences_the_older(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            old = await made.peer()
            await old.publish(1, b"one")
            new = await made.peer()
            assert (new.welcome.status, new.welcome.session_epoch, new.welcome.next_seq) == (
                SessionStatus.RESUMED,
                2,
                2,
            )
            error = await old.answer(Error)
            assert (error.code, error.closes) == (ErrorCode.FENCED, True)
            await old.ended()
            late = await made.connect()
            await late.hello(flags=HelloFlags.JOIN, session_epoch=1)
            assert late.welcome.status is SessionStatus.REFUSED_SUPERSEDED
            assert late.welcome.session_epoch == 2
            late.ask(Goodbye(0, 0))
            assert isinstance(await late.answer(), Goodbye)
            assert (await new.publish(1, b"two"))["base_seq"] == 2
            new.close()
            late.close()

    on_loop(work())


def test_an_abandoned_client_seq_is_never_stored(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, order=5) as made:
            peer = await made.peer()
            await peer.publish(1, b"one")
            peer.close()
            refused = await made.connect()
            await refused.hello(start_seq=5)
            assert (refused.welcome.status, refused.welcome.next_seq) == (SessionStatus.REFUSED_GAP, 2)
            refused.close()
            peer = await made.connect()
            await peer.hello(flags=HelloFlags.OPEN | HelloFlags.ABANDON, start_seq=5)
            assert (peer.welcome.status, peer.welcome.next_seq) == (SessionStatus.RESUMED, 5)
            late = await peer.publish(1, b"late", seq=3)
            assert (late["status"], late["reason"]) == (REJECTED, 0x26)
            assert (await peer.publish(1, b"five", seq=5))["base_seq"] == 2
            peer.close()
        async with world(tmp_path) as made:
            peer = await made.peer()
            assert peer.welcome.next_seq == 6
            peer.close()

    on_loop(work())


def test_a_client_without_an_id_gets_one(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peers = [await made.peer(0) for _ in range(2)]
            ids = {peer.welcome.client_id for peer in peers}
            assert len(ids) == 2
            assert all(0 < client_id < 1 << 63 for client_id in ids)
            for peer in peers:
                peer.close()

    on_loop(work())


def test_nothing_is_accepted_before_hello(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.connect()
            peer.send(encode_ping(4))
            error = await peer.answer(Error)
            assert (error.code, error.closes) == (ErrorCode.WRONG_STATE, True)
            await peer.ended()
            reader = await made.connect()
            await reader.hello(0, flags=HelloFlags.NONE)
            assert reader.welcome.status is SessionStatus.NONE
            reader.send(reader.batch(1, b"no session", seq=1))
            error = await reader.answer(Error)
            assert (error.code, error.closes) == (ErrorCode.WRONG_STATE, True)
            await reader.ended()

    on_loop(work())


def test_unsupported_versions_are_refused(on_loop, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.connect()
            error = await peer.hello(min_version=3, max_version=4)
            assert (error.code, error.closes) == (ErrorCode.UNSUPPORTED_VERSION, True)
            await peer.ended()

    on_loop(work())


def test_a_full_window_stops_reading_and_loses_nothing(on_loop, receiver, tmp_path):
    """INV-INGEST-WINDOW."""

    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer(window_batches=4)
            assert peer.welcome.window_batches == 4
            peer.send(b"".join(peer.batch(1, b"%d" % number) for number in range(300)))
            rows = await peer.acks(300)
            assert [row["base_seq"] for row in rows] == list(range(1, 301))
            peer.close()

    on_loop(work())


def test_records_of_this_process_and_of_connections_share_one_order(on_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            peer.send(b"".join(peer.batch(1, b"far %d" % number) for number in range(50)))
            own = [made.log.publish("events", b"near %d" % number) for number in range(50)]
            await asyncio.gather(*own)
            await peer.acks(50)
            found = await values(made.log)
            assert len(found) == 100
            assert [value for value in found if value.startswith(b"far")] == [b"far %d" % n for n in range(50)]
            peer.close()

    on_loop(work())


def test_a_goodbye_answers_batches_in_flight(on_each_loop, receiver, tmp_path):
    async def work():
        async with world(tmp_path) as made:
            peer = await made.peer()
            peer.send(b"".join(peer.batch(1, b"%d" % number) for number in range(30)))
            peer.ask(Goodbye(0, 0))
            assert len(await peer.acks(30)) == 30
            assert isinstance(await peer.answer(), Goodbye)
            await peer.ended()

    on_each_loop(work())


def test_a_token_is_required_where_tokens_are_configured(on_loop, tmp_path):
    async def work():
        async with world(tmp_path, access=Access({"secret": Right.ALL})) as made:
            peer = await made.connect()
            assert (await peer.hello()).code == ErrorCode.AUTHENTICATION_REQUIRED
            assert isinstance(await peer.hello(token="secret"), Welcome)
            peer.close()
            bad = await made.connect()
            for closes in (False, False, True):
                error = await bad.hello(token="guess")
                assert (error.code, error.closes) == (ErrorCode.AUTHENTICATION_FAILED, closes)
            await bad.ended()

    on_loop(work())
