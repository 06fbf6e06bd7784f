"""Publishers over connections that break: nothing is lost, nothing is stored twice, every wait ends.

The server is scripted: it fails on demand.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from scripted_server import Client, CutError, Peer, Script, ScriptedServer, rejected

import seawall
from seawall.api.publisher_options import Compression, PublisherOptions
from seawall.api.received import ReceivedBatch
from seawall.client.remote_log import RemoteLog
from seawall.core.types import ClientId, ClientSeq, Term
from seawall.errors import (
    ConflictError,
    FencedError,
    FullError,
    InvalidInputError,
    OutcomeUnknownError,
    RetryableError,
    WrongStateError,
)
from seawall.wire.format.batches import BatchHeader
from seawall.wire.format.codes import AckStatus, ErrorCode, HelloFlags, Kind, SessionStatus
from seawall.wire.format.decoder import Frame
from seawall.wire.lwp2.frames import encode_ping
from seawall.wire.lwp2.session import AckEntry, Hello, Welcome


def stored(log: RemoteLog) -> list[bytes]:
    return [record.value for item in log.follow("events") if isinstance(item, ReceivedBatch) for record in item]


def every(count: int) -> Iterator[bool]:
    """True once in `count` times, beginning with the first."""
    while True:
        yield True
        yield from [False] * (count - 1)


def lose_acks(server: ScriptedServer, nth: int) -> None:
    """Cut the connection in place of every nth ack."""
    cut = every(nth)

    def lose(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(cut):
            raise CutError
        return entries

    server.script.on_ack = lose


def test_lost_acks_are_recovered(server: ScriptedServer, log: RemoteLog) -> None:
    lose_acks(server, 5)
    values = [b"%d" % number for number in range(200)]
    with log.publisher("events", batch_size=40) as publisher:
        deliveries = [publisher.publish(value) for value in values]
    assert stored(log) == values
    assert [seq for delivery in deliveries for seq in delivery.seqs] == list(range(1, 201))
    assert not any(delivery.is_duplicate for delivery in deliveries)
    # Lost connections rejoin the session: it is not fenced by a newer one of its own.
    flags = Counter(hello.flags for hello in server.hellos if hello.flags)
    assert flags[HelloFlags.OPEN] == 1
    assert flags[HelloFlags.JOIN] >= 1


@pytest.mark.parametrize("repeats", [100, 10_000], ids=["small", "streamed"])
def test_lists_of_values_are_sent_again_unchanged(server: ScriptedServer, log: RemoteLog, repeats: int) -> None:
    lose_acks(server, 3)
    expected = [[b"%d of %d " % (number, each) * repeats for number in range(20 + each)] for each in range(15)]
    lists = [[*values] for values in expected]
    with log.publisher("events", batch_size=100) as publisher:
        deliveries = [publisher.publish(values) for values in lists]
        for values in lists:
            values.clear()  # the publisher keeps no reference to the caller's lists
    assert stored(log) == [value for values in expected for value in values]
    seqs = [seq for delivery in deliveries for seq in delivery.seqs]
    assert seqs == list(range(1, sum(map(len, expected)) + 1))
    assert not any(delivery.is_duplicate for delivery in deliveries)


def test_connections_are_cut_while_values_are_streamed(server: ScriptedServer, log: RemoteLog) -> None:
    cut = every(4)

    def cut_all(_peer: Peer, _header: BatchHeader) -> bool:
        # Later batches are partly sent.
        if next(cut):
            server.cut_all()
        return True

    server.script.on_batch = cut_all
    expected = [[b"%d of %d " % (number, each) * 100 for number in range(2_000)] for each in range(20)]
    with log.publisher("events", connections=2, batch_size=100) as publisher:
        deliveries = [publisher.publish(values) for values in expected]
    found = stored(log)
    assert len(found) == sum(map(len, expected))
    assert [found[each.seqs[0] - 1 : each.seqs[-1]] for each in deliveries] == expected


def test_publish_recovers_lost_acks(server: ScriptedServer, log: RemoteLog) -> None:
    lose_acks(server, 2)
    assert [log.publish("events", b"%d" % number).first_seq for number in range(6)] == [1, 2, 3, 4, 5, 6]
    assert stored(log) == [b"%d" % number for number in range(6)]


def test_publish_starts_no_thread(server: ScriptedServer, log: RemoteLog) -> None:
    before = set(threading.enumerate())
    log.publish("events", b"value")
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert not any(name.startswith("seawall") for name in names)


def test_connections_cut_within_a_frame_are_replaced(server: ScriptedServer, log: RemoteLog) -> None:
    cut = every(3)

    def tear(peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(cut):
            peer.socket.sendall(encode_ping(1)[:20])
            raise CutError
        return entries

    server.script.on_ack = tear
    with log.publisher("events", batch_size=1) as publisher:
        for number in range(20):
            publisher.publish(b"%d" % number)
    assert stored(log) == [b"%d" % number for number in range(20)]


def test_noise_closes_a_connection_and_loses_nothing(server: ScriptedServer, log: RemoteLog) -> None:
    noise = every(3)

    def disturb(peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(noise):
            peer.socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
        return entries

    server.script.on_ack = disturb
    assert [log.publish("events", b"%d" % number).first_seq for number in range(5)] == [1, 2, 3, 4, 5]


def test_returned_batches_are_sent_again(server: ScriptedServer, log: RemoteLog) -> None:
    seen: Counter[int] = Counter()

    def return_batch(peer: Peer, header: BatchHeader) -> bool:
        seen[header.client_seq] += 1
        if seen[header.client_seq] <= 2 and header.client_seq % 3 == 0:
            peer.send_ack([rejected(header, ErrorCode.BACKPRESSURE, AckStatus.RETRY)])
            return False
        return True

    server.script.on_batch = return_batch
    with log.publisher("events", batch_size=1) as publisher:
        deliveries = [publisher.publish(b"%d" % number) for number in range(12)]
    assert sorted(stored(log)) == sorted(b"%d" % number for number in range(12))
    assert all(delivery.done and delivery.error is None for delivery in deliveries)
    assert seen[3] == seen[6] == 3


def test_batches_under_pressure_are_sent_again_after_a_pause(server: ScriptedServer, log: RemoteLog) -> None:
    refused = every(4)

    def press(peer: Peer, header: BatchHeader) -> bool:
        if next(refused):
            peer.refuse(0, ErrorCode.BACKPRESSURE, "slowly", retry_after_ms=1, ref=int(header.client_seq))
            return False
        return True

    server.script.on_batch = press
    with log.publisher("events", batch_size=1) as publisher:
        for number in range(10):
            publisher.publish(b"%d" % number)
    assert sorted(stored(log)) == sorted(b"%d" % number for number in range(10))


def test_an_unknown_outcome_is_resolved_over_another_connection(server: ScriptedServer, log: RemoteLog) -> None:
    unknown = every(4)

    def forget(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(unknown):
            return [
                AckEntry(
                    *(each.client_seq, each.base_seq, each.position, each.timestamp_ns, each.topic_id),
                    *(1, each.record_count, AckStatus.UNKNOWN, each.level, int(ErrorCode.OUTCOME_UNKNOWN)),
                )
                for each in entries
            ]
        return entries

    server.script.on_ack = forget
    assert [log.publish("events", b"%d" % number).first_seq for number in range(8)] == list(range(1, 9))
    assert len(stored(log)) == 8


def test_acks_may_arrive_out_of_order(server: ScriptedServer, log: RemoteLog) -> None:
    kept: list[AckEntry] = []

    def reorder(peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        kept.extend(entries)
        if len(kept) < 8:
            return []
        peer.send_ack(kept[5:])
        return kept[:5]

    server.script.on_ack = reorder
    with log.publisher("events", batch_size=1) as publisher:
        deliveries = [publisher.publish(b"%d" % number) for number in range(8)]
    assert [delivery.first_seq for delivery in deliveries] == list(range(1, 9))


def test_several_connections_share_one_session(server: ScriptedServer, log: RemoteLog) -> None:
    used: Counter[int] = Counter()

    def count(peer: Peer, _header: BatchHeader) -> bool:
        used[id(peer)] += 1
        return True

    server.script.on_batch = count
    with log.publisher("events", batch_size=1, connections=3) as publisher:
        publisher.publish(b"first").result()
        with server.change:
            server.change.wait_for(lambda: sum(bool(hello.flags) for hello in server.hellos) >= 3, 10)
        deliveries = [publisher.publish(b"%d" % number) for number in range(300)]
        publisher.flush()
    assert len({seq for delivery in deliveries for seq in delivery.seqs}) == 300
    sessions = [hello for hello in server.hellos if hello.flags]
    assert [hello.flags for hello in sessions] == [HelloFlags.OPEN, HelloFlags.JOIN, HelloFlags.JOIN]
    assert len({hello.client_id for hello in sessions[1:]}) == 1
    assert len(used) == 3


def test_one_of_several_connections_may_be_lost(server: ScriptedServer, log: RemoteLog) -> None:
    def cut_some(peer: Peer, _header: BatchHeader) -> bool:
        # A limited number of times: if seven batches arrive together, none of them is acknowledged first.
        if peer.batch_count == 7 and len(cuts) < 10:
            cuts.append(peer)
            raise CutError
        return True

    cuts: list[Peer] = []
    server.script.on_batch = cut_some
    values = [b"%d" % number for number in range(100)]
    with log.publisher("events", batch_size=1, connections=2) as publisher:
        for value in values:
            publisher.publish(value)
    assert sorted(stored(log)) == sorted(values)


def test_a_newer_session_fences_this_one(server: ScriptedServer, log: RemoteLog) -> None:
    with log.publisher("events", client_id=5) as publisher:
        publisher.publish(b"mine").result()
        server.clients[5].epoch += 1
        server.cut_all()
        delivery = publisher.publish(b"late")
        with pytest.raises(FencedError, match="newer session"):
            delivery.result(20)
        with pytest.raises(FencedError):
            publisher.publish(b"later")
        with pytest.raises(FencedError):
            publisher.flush()


def test_a_fencing_error_on_the_connection_is_raised(server: ScriptedServer, log: RemoteLog) -> None:
    def fence(peer: Peer, _header: BatchHeader) -> bool:
        peer.refuse(0, ErrorCode.FENCED, "another one", closes=1)
        return False

    server.script.on_batch = fence
    with pytest.raises(FencedError, match="another one"):
        log.publish("events", b"value")


def test_a_forgotten_session_is_opened_again(server: ScriptedServer, log: RemoteLog) -> None:
    def forget(peer: Peer, hello: Hello) -> Welcome | None:
        if hello.flags & HelloFlags.JOIN:
            return peer.welcome(SessionStatus.NONE, Client())
        return None

    with log.publisher("events", batch_size=1) as publisher:
        publisher.publish(b"first").result()
        server.script.on_hello = forget
        server.cut_all()
        publisher.publish(b"second").result(20)
    assert stored(log) == [b"first", b"second"]
    *_, forgotten, last = [hello for hello in server.hellos if hello.flags]
    assert (forgotten.flags, last.flags) == (HelloFlags.JOIN, HelloFlags.OPEN)
    assert (last.session_epoch, last.start_seq) == (0, 2)


def test_acknowledged_batches_lost_by_the_server_are_reported(server: ScriptedServer, log: RemoteLog) -> None:
    def refuse(peer: Peer, hello: Hello) -> Welcome | None:
        client = server.clients.get(int(hello.client_id))
        if hello.flags & HelloFlags.JOIN:
            return peer.welcome(SessionStatus.NONE, Client())
        if hello.flags == HelloFlags.OPEN and client is not None:
            client.next_seq = 1
            return peer.welcome(SessionStatus.REFUSED_GAP, client)
        return None

    publisher = log.publisher("events", batch_size=1, ack=1)
    publisher.publish(b"first").result()
    server.script.on_hello = refuse
    server.cut_all()
    publisher.publish(b"second").result(20)
    with pytest.raises(OutcomeUnknownError, match="lost batches 1 to 1"):
        publisher.close()
    assert [hello.flags for hello in server.hellos if hello.flags][-1] == HelloFlags.OPEN | HelloFlags.ABANDON


def test_acknowledged_batches_lost_by_a_new_server_process_are_reported(server: ScriptedServer, log: RemoteLog) -> None:
    def forget(peer: Peer, hello: Hello) -> Welcome | None:
        client = server.clients.get(int(hello.client_id))
        if client is None:
            return None
        peer.client_id, peer.epoch = int(hello.client_id), client.epoch
        if hello.flags & HelloFlags.JOIN:
            # Another process: older state, and another term.
            client.next_seq = 1
            return replace(peer.welcome(SessionStatus.JOINED, client), term=Term(2))
        return replace(peer.welcome(SessionStatus.RESUMED, client), term=Term(2), next_seq=ClientSeq(2))

    publisher = log.publisher("events", batch_size=1)
    publisher.publish(b"first").result()
    server.script.on_hello = forget
    server.cut_all()
    publisher.publish(b"second").result(20)
    with pytest.raises(OutcomeUnknownError, match="lost batches 1 to 1"):
        publisher.close()
    *_, joined, opened = [hello for hello in server.hellos if hello.flags]
    assert joined.flags == HelloFlags.JOIN
    assert (opened.flags, opened.start_seq) == (HelloFlags.OPEN | HelloFlags.ABANDON, 2)


def test_a_session_continues_at_a_refused_client_seq(server: ScriptedServer, log: RemoteLog) -> None:
    def refuse_second(peer: Peer, header: BatchHeader) -> bool:
        if header.client_seq == 2 and not refused:
            refused.append(True)
            peer.send_ack([rejected(header, ErrorCode.READ_ONLY)])
            return False
        return True

    def forget(peer: Peer, hello: Hello) -> Welcome | None:
        return peer.welcome(SessionStatus.NONE, Client()) if hello.flags & HelloFlags.JOIN else None

    refused: list[bool] = []
    server.script.on_batch = refuse_second
    publisher = log.publisher("events", client_id=5, batch_size=1)
    deliveries = [publisher.publish(b"%d" % number) for number in range(2)]
    with pytest.raises(FullError):
        publisher.flush()
    assert [delivery.error is None for delivery in deliveries] == [True, False]
    server.script.on_hello = forget
    server.cut_all()
    assert publisher.next_client_seq == 2
    publisher.publish(b"again").result(20)
    publisher.close()
    assert [hello.start_seq for hello in server.hellos if hello.flags][-1] == 2
    assert not server.abandoned


def test_a_client_seq_refused_below_others_is_abandoned(server: ScriptedServer, log: RemoteLog) -> None:
    """Later batches wait for it: a batch without records uses it, as soon as the server accepts that."""
    received: list[BatchHeader] = []

    def refuse_first(peer: Peer, header: BatchHeader) -> bool:
        received.append(header)
        if len(received) == 4:
            peer.send_ack([rejected(received[0], ErrorCode.READ_ONLY)])
        return False

    def release(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        # As with order 5: later batches are decided once its client seq is used.
        is_used = any(entry.level for entry in entries)
        released = [replace(rejected(header, ErrorCode.READ_ONLY, AckStatus.OK), reason=0) for header in received[1:]]
        return [*entries, *released] if is_used else entries

    server.script.on_batch = refuse_first
    server.script.on_ack = release
    server.script.refusals_of_empty = [ErrorCode.READ_ONLY] * 2
    publisher = log.publisher("events", client_id=5, batch_size=1)
    deliveries = [publisher.publish(b"%d" % number) for number in range(4)]
    with pytest.raises(FullError):
        publisher.flush(20)
    assert [delivery.error is None for delivery in deliveries] == [False, True, True, True]
    assert server.abandoned == [1, 1, 1]
    assert publisher.next_client_seq == 5
    publisher.close()


def test_a_batch_that_kills_every_connection_fails(server: ScriptedServer) -> None:
    def die(_peer: Peer, _header: BatchHeader) -> bool:
        raise CutError

    server.script.on_batch = die
    with seawall.connect(server.url, timeout_s=0.3) as log:
        with pytest.raises(OutcomeUnknownError, match="may be stored or not"):
            log.publish("events", b"poison")
        server.script.on_batch = lambda _peer, _header: True
        assert log.publish("events", b"value").first_seq == 1


def test_an_idle_publisher_stays_connected() -> None:
    with ScriptedServer(Script(keepalive_ms=5, idle_ms=200)) as server:
        server.create("events")
        pinged = threading.Event()
        with seawall.connect(server.url) as log, log.publisher("events") as publisher:
            publisher.publish(b"one").result()
            server.pings = pinged
            assert pinged.wait(20)
            publisher.publish(b"two").result()
        assert len([hello for hello in server.hellos if hello.flags]) == 1


def test_a_server_that_says_goodbye_gets_nothing_new(server: ScriptedServer, log: RemoteLog) -> None:
    has_pong = threading.Event()

    def note_pongs(_peer: Peer, frame: Frame) -> bool:
        if frame.header.kind == Kind.KEEPALIVE and frame.header.id == 77:
            has_pong.set()
        return True

    server.script.on_frame = note_pongs
    with log.publisher("events", batch_size=1) as publisher:
        publisher.publish(b"first").result()
        first = next(peer for peer in server.peers if peer.batch_count)
        first.say_goodbye()
        first.send(encode_ping(77))
        # The pong proves that the client has read the goodbye before it.
        assert has_pong.wait(20)
        publisher.publish(b"second")
        first.close()
        publisher.flush(20)
    assert first.batch_count == 1
    assert stored(log) == [b"first", b"second"]


def test_a_refusal_is_raised_by_its_delivery_and_by_close(server: ScriptedServer, log: RemoteLog) -> None:
    def refuse(peer: Peer, header: BatchHeader) -> bool:
        if header.client_seq == 2:
            peer.send_ack([rejected(header, ErrorCode.READ_ONLY)])
            server.script.on_batch = lambda _peer, _header: True
            return False
        return True

    server.script.on_batch = refuse
    publisher = log.publisher("events", batch_size=1)
    publisher.publish(b"one").result()
    bad = publisher.publish(b"two")
    with pytest.raises(FullError, match="the topic is full"):
        bad.result()
    # The next batch gets the client seq of the refused one.
    assert publisher.publish(b"three").result().first_seq == 2
    with pytest.raises(FullError, match="the topic is full"):
        publisher.close()
    publisher.close()
    assert [header.client_seq for header, _ in server.topic("events").batches] == [1, 2]


def test_publishing_fails_if_the_server_does_not_return(server: ScriptedServer) -> None:
    silent = threading.Event()

    def ignore(_peer: Peer, _header: BatchHeader) -> bool:
        silent.set()
        return False

    server.script.on_batch = ignore
    log = seawall.connect(server.url, timeout_s=0.3, connect_timeout_s=0.2)
    publisher = log.publisher("events", batch_size=1)
    sent = publisher.publish(b"sent")
    assert silent.wait(10)
    server.close()
    with pytest.raises(OutcomeUnknownError, match="may be stored or not"):
        sent.result(20)
    with pytest.raises(RetryableError, match="no server"):
        publisher.publish(b"more")
    with pytest.raises(OutcomeUnknownError):
        publisher.close()
    with pytest.raises(RetryableError):
        log.topics()
    log.close()


def test_a_silent_server_is_pinged_and_then_disconnected() -> None:
    script = Script(keepalive_ms=20, idle_ms=150)
    with ScriptedServer(script) as server, seawall.connect(server.url, timeout_s=10) as log:
        server.create("events")
        ignored = every(2)
        script.on_batch = lambda _peer, _header: not next(ignored)
        pinged = threading.Event()

        def ignore_pings(_peer: Peer, frame: Frame) -> bool:
            if frame.header.kind == Kind.KEEPALIVE:
                pinged.set()
                return False
            return True

        script.on_frame = ignore_pings
        assert log.publish("events", b"value").first_seq == 1
        assert pinged.is_set()
        assert len([hello for hello in server.hellos if hello.flags]) == 2


def test_waits_end_by_their_timeout(server: ScriptedServer, log: RemoteLog) -> None:
    server.script.on_batch = lambda _peer, _header: False
    publisher = log.publisher("events")
    delivery = publisher.publish(b"value")
    with pytest.raises(TimeoutError):
        delivery.result(0.05)
    with pytest.raises(TimeoutError):
        publisher.flush(0.05)
    assert "in flight" in repr(delivery)
    with pytest.raises(WrongStateError):
        _ = delivery.first_seq
    server.script.on_batch = lambda _peer, _header: True
    server.cut_all()
    publisher.close()
    assert delivery.first_seq == 1


def test_a_full_publisher_raises_or_waits(server: ScriptedServer, log: RemoteLog) -> None:
    gate = threading.Event()

    def hold(_peer: Peer, _header: BatchHeader) -> bool:
        gate.wait(20)
        return True

    server.script.on_batch = hold
    with log.publisher("events", max_in_flight=50, when_full="raise", batch_size=1) as publisher:
        publisher.publish(b"x" * 100)
        with pytest.raises(FullError, match="in flight"):
            publisher.publish(b"y")
        gate.set()
        publisher.flush()
        publisher.publish(b"z")
    gate.clear()
    with log.publisher("events", max_in_flight=50, batch_size=1) as publisher:
        publisher.publish(b"x" * 100)
        opener = threading.Timer(0.05, gate.set)
        opener.start()
        publisher.publish(b"y")
        assert gate.is_set()
        opener.join()
    assert len(stored(log)) == 4


def test_callbacks_are_called_once_and_may_publish(server: ScriptedServer, log: RemoteLog) -> None:
    called: list[int] = []
    with log.publisher("events", batch_size=1) as publisher:
        first = publisher.publish(b"one")
        first.add_callback(lambda delivery: called.append(delivery.first_seq))
        first.add_callback(lambda _: publisher.publish(b"two").add_callback(lambda done: called.append(done.first_seq)))
        publisher.flush()
        publisher.flush()
        first.add_callback(lambda _: called.append(0))
    assert called[0] == 1
    assert sorted(called) == [0, 1, 2]


def test_callbacks_do_not_wait_for_later_batches(server: ScriptedServer, log: RemoteLog) -> None:
    arrived, called, may_continue = threading.Event(), threading.Event(), threading.Event()

    def hold_back(_peer: Peer, header: BatchHeader) -> bool:
        arrived.set()
        return header.client_seq == 1 or may_continue.wait(20)

    server.script.on_batch = hold_back
    with log.publisher("events", batch_size=1) as publisher:
        publisher.publish(b"first").add_callback(lambda _: called.set())
        # The server acknowledges together what it receives together.
        assert arrived.wait(20)
        second = publisher.publish(b"second")
        assert called.wait(20)
        assert not second.done
        may_continue.set()


def test_a_callback_may_wait_for_others(server: ScriptedServer, log: RemoteLog) -> None:
    results: list[int] = []
    with log.publisher("events", batch_size=1) as publisher:
        second = threading.Event()

        def wait(_: object) -> None:
            results.append(publisher.publish(b"another").result(20).first_seq)
            second.set()

        publisher.publish(b"first").add_callback(wait)
        assert second.wait(20)
    assert results == [2]


def test_ack_level_0_counts_as_done_at_once(server: ScriptedServer, log: RemoteLog) -> None:
    levels: list[int] = []

    def note(_peer: Peer, header: BatchHeader) -> bool:
        levels.append(header.ack_level)
        return True

    server.script.on_batch = note
    with log.publisher("events", ack=0, batch_size=1) as publisher:
        delivery = publisher.publish([b"one", b"two"])
        assert delivery.done
        assert (delivery.record_count, list(delivery.seqs), delivery.position) == (2, [], 0)
        assert delivery.result() is delivery
    assert levels == [1]
    assert stored(log) == [b"one", b"two"]


def test_several_batches_of_one_call(server: ScriptedServer, log: RemoteLog) -> None:
    values = [b"x" * 1_000_000 for _ in range(40)]
    delivery = log.publish("events", values)
    assert delivery.seqs == range(1, 41)
    assert len(server.topic("events").batches) > 1
    done: list[int] = []
    with log.publisher("events") as publisher:
        publisher.publish(values).add_callback(lambda each: done.append(each.record_count))
    assert done == [40]


def test_records_of_others_between_the_batches_of_one_call(server: ScriptedServer, log: RemoteLog) -> None:
    def interleave(_peer: Peer, header: BatchHeader) -> bool:
        server.topic("events").next_seq += 5
        return True

    server.script.on_batch = interleave
    seqs = list(log.publish("events", [b"x" * 1_000_000 for _ in range(20)]).seqs)
    assert len(set(seqs)) == 20
    assert any(after - before > 1 for before, after in pairwise(seqs))


def test_a_returning_client_continues_its_client_seqs(server: ScriptedServer, log: RemoteLog) -> None:
    with log.publisher("events", client_id=9, batch_size=1) as publisher:
        assert publisher.next_client_seq == 1
        publisher.publish(b"one").result()
        publisher.publish(b"two").result()
    with log.publisher("events", client_id=9, batch_size=1) as publisher:
        assert publisher.next_client_seq == 3
        again = publisher.publish(b"two", client_seq=2).result()
        assert again.is_duplicate
        assert again.first_seq == 2
        assert publisher.publish(b"three").result().first_seq == 3
    assert stored(log) == [b"one", b"two", b"three"]


def test_an_explicit_client_seq_needs_a_client_id(log: RemoteLog) -> None:
    with log.publisher("events") as publisher, pytest.raises(InvalidInputError, match="client_id"):
        publisher.publish(b"value", client_seq=1)
    with pytest.raises(WrongStateError, match="closed"):
        publisher.publish(b"value")


@pytest.mark.parametrize(
    "options",
    [
        {"max_in_flight": 0},
        {"when_full": "drop"},
        {"ack": 3},
        {"batch_size": 0},
        {"linger_s": -1},
        {"compression": "gzip"},
        {"connections": 0},
        {"client_id": 0},
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        PublisherOptions(**options)


def test_lingering_records_share_a_batch(server: ScriptedServer, log: RemoteLog) -> None:
    with log.publisher("events", linger_s=60) as publisher:
        first = publisher.publish(b"one")
        publisher.publish(b"two")
        assert first.result().seqs == range(1, 2)
    assert [header.record_count for header, _ in server.topic("events").batches] == [2]
    with log.publisher("events", linger_s=0.01) as publisher:
        done = threading.Event()
        publisher.publish(b"three").add_callback(lambda _: done.set())
        assert done.wait(20)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_blocks_are_read_back_plain(
    server: ScriptedServer, log: RemoteLog, compression: Compression
) -> None:
    with log.publisher("events", compression=compression) as publisher:
        publisher.publish([b"value" * 100] * 10)
    [(header, whole)] = server.topic("events").batches
    assert len(whole) < header.raw_length
    assert stored(log) == [b"value" * 100] * 10
    assert log.read_arrow("events").num_rows == 10


def test_compression_needs_the_server_to_agree(server: ScriptedServer, log: RemoteLog) -> None:
    server.script.features = 0
    with log.publisher("events", compression="zstd") as publisher:
        publisher.publish([b"value" * 100] * 10)
    [(header, _)] = server.topic("events").batches
    assert header.codec == 0


def test_a_small_window_is_respected(server: ScriptedServer, log: RemoteLog) -> None:
    server.script.window_batches = 2
    acknowledged: list[int] = []

    def note(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        acknowledged.append(len(entries))
        return entries

    server.script.on_ack = note
    with log.publisher("events", batch_size=1) as publisher:
        for number in range(30):
            publisher.publish(b"%d" % number)
    assert max(acknowledged) <= 2
    assert len(stored(log)) == 30


def test_publishing_without_a_server_raises() -> None:
    with ScriptedServer() as server:
        server.create("events")
        log = seawall.connect(server.url, timeout_s=0.3, connect_timeout_s=0.2)
    with pytest.raises(RetryableError):
        log.publisher("events")
    with pytest.raises(RetryableError):
        log.publish("events", b"value")
    log.close()
    with pytest.raises(WrongStateError, match="closed"):
        log.topics()


def test_publish_opens_a_new_session_after_the_old_one_failed(server: ScriptedServer, log: RemoteLog) -> None:
    log.publish("events", b"one")
    server.clients[1].epoch += 1
    server.cut_all()
    with pytest.raises(FencedError):
        log.publish("events", b"two")
    assert log.publish("events", b"two").first_seq == 2
    assert ClientId(2) in server.clients


def test_threads_share_a_log(server: ScriptedServer, log: RemoteLog) -> None:
    seqs: list[int] = []

    def work() -> None:
        seqs.extend(log.publish("events", b"value").first_seq for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(1, 161))


def test_a_duplicate_with_another_payload_is_refused(server: ScriptedServer, log: RemoteLog) -> None:
    def refuse(peer: Peer, header: BatchHeader) -> bool:
        peer.send_ack([rejected(header, ErrorCode.PAYLOAD_MISMATCH)])
        return False

    server.script.on_batch = refuse
    with pytest.raises(ConflictError, match="another batch"):
        log.publish("events", b"value")
