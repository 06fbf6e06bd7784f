"""Publishers over connections that break: nothing is lost, nothing is stored twice, every wait ends.

The server is scripted: it does at will what a real one does once in a year.
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
    """True once in so many times, the first included."""
    while True:
        yield True
        yield from [False] * (count - 1)


def lose_acks(server: ScriptedServer, nth: int) -> None:
    """Let connections end in place of every so many of their acks."""
    cut = every(nth)

    def lose(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(cut):
            raise CutError
        return entries

    server.script.on_ack = lose


def test_lost_acks_are_made_up_for(server: ScriptedServer, log: RemoteLog) -> None:
    lose_acks(server, 5)
    values = [b"%d" % number for number in range(200)]
    with log.publisher("events", batch_size=40) as publisher:
        deliveries = [publisher.publish(value) for value in values]
    assert stored(log) == values
    assert [seq for delivery in deliveries for seq in delivery.seqs] == list(range(1, 201))
    assert not any(delivery.is_duplicate for delivery in deliveries)
    # Lost connections rejoin: no session was fenced by its own successor.
    flags = Counter(hello.flags for hello in server.hellos if hello.flags)
    assert flags[HelloFlags.OPEN] == 1
    assert flags[HelloFlags.JOIN] >= 1


@pytest.mark.parametrize("repeats", [100, 10_000], ids=["small", "joined on their way"])
def test_lists_of_values_are_sent_again_as_they_were(server: ScriptedServer, log: RemoteLog, repeats: int) -> None:
    lose_acks(server, 3)
    expected = [[b"%d of %d " % (number, each) * repeats for number in range(20 + each)] for each in range(40)]
    lists = [[*values] for values in expected]
    with log.publisher("events", batch_size=100) as publisher:
        deliveries = [publisher.publish(values) for values in lists]
        for values in lists:
            values.clear()  # what was handed in is the caller's again
    assert stored(log) == [value for values in expected for value in values]
    seqs = [seq for delivery in deliveries for seq in delivery.seqs]
    assert seqs == list(range(1, sum(map(len, expected)) + 1))
    assert not any(delivery.is_duplicate for delivery in deliveries)


def test_connections_are_cut_while_values_are_on_their_way(server: ScriptedServer, log: RemoteLog) -> None:
    cut = every(4)

    def cut_all(_peer: Peer, _header: BatchHeader) -> bool:
        # What comes behind it is half sent.
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


def test_a_lone_publish_survives_a_lost_ack(server: ScriptedServer, log: RemoteLog) -> None:
    lose_acks(server, 2)
    assert [log.publish("events", b"%d" % number).first_seq for number in range(6)] == [1, 2, 3, 4, 5, 6]
    assert stored(log) == [b"%d" % number for number in range(6)]


def test_a_lone_publish_has_no_thread(server: ScriptedServer, log: RemoteLog) -> None:
    before = set(threading.enumerate())
    log.publish("events", b"value")
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert not any(name.startswith("seawall") for name in names)


def test_a_connection_that_is_cut_within_a_frame(server: ScriptedServer, log: RemoteLog) -> None:
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


def test_noise_ends_a_connection_and_nothing_else(server: ScriptedServer, log: RemoteLog) -> None:
    noise = every(3)

    def disturb(peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(noise):
            peer.socket.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4)
        return entries

    server.script.on_ack = disturb
    assert [log.publish("events", b"%d" % number).first_seq for number in range(5)] == [1, 2, 3, 4, 5]


def test_batches_that_are_sent_back_come_again(server: ScriptedServer, log: RemoteLog) -> None:
    seen: Counter[int] = Counter()

    def send_back(peer: Peer, header: BatchHeader) -> bool:
        seen[header.client_seq] += 1
        if seen[header.client_seq] <= 2 and header.client_seq % 3 == 0:
            peer.send_ack([rejected(header, ErrorCode.BACKPRESSURE, AckStatus.RETRY)])
            return False
        return True

    server.script.on_batch = send_back
    with log.publisher("events", batch_size=1) as publisher:
        deliveries = [publisher.publish(b"%d" % number) for number in range(12)]
    assert sorted(stored(log)) == sorted(b"%d" % number for number in range(12))
    assert all(delivery.done and delivery.error is None for delivery in deliveries)
    assert seen[3] == seen[6] == 3


def test_pressure_is_waited_out(server: ScriptedServer, log: RemoteLog) -> None:
    pressed = every(4)

    def press(peer: Peer, header: BatchHeader) -> bool:
        if next(pressed):
            peer.refuse(0, ErrorCode.BACKPRESSURE, "slowly", retry_after_ms=1, ref=int(header.client_seq))
            return False
        return True

    server.script.on_batch = press
    with log.publisher("events", batch_size=1) as publisher:
        for number in range(10):
            publisher.publish(b"%d" % number)
    assert sorted(stored(log)) == sorted(b"%d" % number for number in range(10))


def test_an_unknown_fate_is_found_out_over_another_connection(server: ScriptedServer, log: RemoteLog) -> None:
    doubt = every(4)

    def forget(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(doubt):
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


def test_acks_in_another_order(server: ScriptedServer, log: RemoteLog) -> None:
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


def test_one_of_several_connections_may_go(server: ScriptedServer, log: RemoteLog) -> None:
    def cut_some(peer: Peer, _header: BatchHeader) -> bool:
        # Not for ever: if seven come at once, not one of them is answered before.
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


def test_a_fence_is_told_on_the_connection_too(server: ScriptedServer, log: RemoteLog) -> None:
    def fence(peer: Peer, _header: BatchHeader) -> bool:
        peer.refuse(0, ErrorCode.FENCED, "another one", closes=1)
        return False

    server.script.on_batch = fence
    with pytest.raises(FencedError, match="another one"):
        log.publish("events", b"value")


def test_a_session_that_was_forgotten_is_opened_again(server: ScriptedServer, log: RemoteLog) -> None:
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


def test_acks_that_the_server_lost_are_told(server: ScriptedServer, log: RemoteLog) -> None:
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


def test_acks_that_a_server_lost_with_its_process_are_told(server: ScriptedServer, log: RemoteLog) -> None:
    def forget(peer: Peer, hello: Hello) -> Welcome | None:
        client = server.clients.get(int(hello.client_id))
        if client is None:
            return None
        peer.client_id, peer.epoch = int(hello.client_id), client.epoch
        if hello.flags & HelloFlags.JOIN:
            # Another process: an older state, and another term.
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


def test_a_number_that_was_refused_is_where_a_session_goes_on(server: ScriptedServer, log: RemoteLog) -> None:
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
    publisher = log.publisher("events", batch_size=1)
    fates = [publisher.publish(b"%d" % number) for number in range(2)]
    with pytest.raises(FullError):
        publisher.flush()
    assert [fate.error is None for fate in fates] == [True, False]
    server.script.on_hello = forget
    server.cut_all()
    assert publisher._sender.next_number == 2
    publisher.publish(b"again").result(20)
    publisher.close()
    assert [hello.start_seq for hello in server.hellos if hello.flags][-1] == 2
    assert not server.given_up


def test_a_number_refused_below_others_is_given_up(server: ScriptedServer, log: RemoteLog) -> None:
    """Those behind it wait for it: a batch without records uses it, as soon as the server can take that."""
    came: list[BatchHeader] = []

    def refuse_first(peer: Peer, header: BatchHeader) -> bool:
        came.append(header)
        if len(came) == 4:
            peer.send_ack([rejected(came[0], ErrorCode.READ_ONLY)])
        return False

    def release(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        # As of order 5: those behind it have their turn once its number is used.
        is_used = any(entry.level for entry in entries)
        released = [replace(rejected(header, ErrorCode.READ_ONLY, AckStatus.OK), reason=0) for header in came[1:]]
        return [*entries, *released] if is_used else entries

    server.script.on_batch = refuse_first
    server.script.on_ack = release
    server.script.refusals_of_nothing = [ErrorCode.READ_ONLY] * 2
    publisher = log.publisher("events", batch_size=1)
    fates = [publisher.publish(b"%d" % number) for number in range(4)]
    with pytest.raises(FullError):
        publisher.flush(20)
    assert [fate.error is None for fate in fates] == [False, True, True, True]
    assert server.given_up == [1, 1, 1]
    assert publisher._sender.next_number == 5
    publisher.close()


def test_a_batch_that_no_server_survives_is_given_up(server: ScriptedServer) -> None:
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


def test_a_server_that_says_goodbye_gets_nothing_new(
    server: ScriptedServer, log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Peer._take
    was_heard = threading.Event()

    def note_pongs(peer: Peer, frame: Frame, entries: list[AckEntry]) -> None:
        if frame.header.kind == Kind.KEEPALIVE and frame.header.id == 77:
            was_heard.set()
        answer(peer, frame, entries)

    monkeypatch.setattr(Peer, "_take", note_pongs)
    with log.publisher("events", batch_size=1) as publisher:
        publisher.publish(b"first").result()
        first = next(peer for peer in server.peers if peer.batch_count)
        first.say_goodbye()
        first.send(encode_ping(77))
        # The pong says that what came before the ping was heard, too.
        assert was_heard.wait(20)
        publisher.publish(b"second")
        first.close()
        publisher.flush(20)
    assert first.batch_count == 1
    assert stored(log) == [b"first", b"second"]


def test_what_a_server_refuses_is_raised_where_it_belongs(server: ScriptedServer, log: RemoteLog) -> None:
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
    # The number of what was refused goes to the next one.
    assert publisher.publish(b"three").result().first_seq == 2
    with pytest.raises(FullError, match="the topic is full"):
        publisher.close()
    publisher.close()
    assert [header.client_seq for header, _ in server.topic("events").batches] == [1, 2]


def test_a_server_that_does_not_come_back_is_given_up(server: ScriptedServer) -> None:
    silent = threading.Event()

    def swallow(_peer: Peer, _header: BatchHeader) -> bool:
        silent.set()
        return False

    server.script.on_batch = swallow
    log = seawall.connect(server.url, timeout_s=1, connect_timeout_s=0.5)
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


def test_a_silent_server_is_asked_and_then_left(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script(keepalive_ms=20, idle_ms=150)
    with ScriptedServer(script) as server, seawall.connect(server.url, timeout_s=10) as log:
        server.create("events")
        swallowed = every(2)
        script.on_batch = lambda _peer, _header: not next(swallowed)
        pinged = threading.Event()
        answer = Peer._take

        def stop_reading(peer: Peer, frame: Frame, entries: list[AckEntry]) -> None:
            if frame.header.kind == Kind.KEEPALIVE:
                pinged.set()
            else:
                answer(peer, frame, entries)

        monkeypatch.setattr(Peer, "_take", stop_reading)
        assert log.publish("events", b"value").first_seq == 1
        assert pinged.is_set()
        assert len([hello for hello in server.hellos if hello.flags]) == 2


def test_nobody_waits_for_ever(server: ScriptedServer, log: RemoteLog) -> None:
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


def test_callbacks_do_not_wait_for_what_is_still_under_way(server: ScriptedServer, log: RemoteLog) -> None:
    arrived, told, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def hold_back(_peer: Peer, header: BatchHeader) -> bool:
        arrived.set()
        return header.client_seq == 1 or may_go_on.wait(20)

    server.script.on_batch = hold_back
    with log.publisher("events", batch_size=1) as publisher:
        publisher.publish(b"first").add_callback(lambda _: told.set())
        # What the server receives together it acknowledges together.
        assert arrived.wait(20)
        second = publisher.publish(b"second")
        assert told.wait(20)
        assert not second.done
        may_go_on.set()


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


def test_a_client_that_comes_back_goes_on_with_its_numbers(server: ScriptedServer, log: RemoteLog) -> None:
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


def test_a_number_of_its_own_needs_a_client_id(log: RemoteLog) -> None:
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
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        PublisherOptions(**options)


def test_records_linger_for_company(server: ScriptedServer, log: RemoteLog) -> None:
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
def test_compressed_blocks_come_back_plain(server: ScriptedServer, log: RemoteLog, compression: Compression) -> None:
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


def test_a_small_window_is_kept_to(server: ScriptedServer, log: RemoteLog) -> None:
    server.script.window_batches = 2
    under_way: list[int] = []

    def look(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        under_way.append(len(entries))
        return entries

    server.script.on_ack = look
    with log.publisher("events", batch_size=1) as publisher:
        for number in range(30):
            publisher.publish(b"%d" % number)
    assert max(under_way) <= 2
    assert len(stored(log)) == 30


def test_a_publisher_without_its_server_says_so() -> None:
    with ScriptedServer() as server:
        server.create("events")
        log = seawall.connect(server.url, timeout_s=1, connect_timeout_s=0.5)
    with pytest.raises(RetryableError):
        log.publisher("events")
    with pytest.raises(RetryableError):
        log.publish("events", b"value")
    log.close()
    with pytest.raises(WrongStateError, match="closed"):
        log.topics()


def test_the_session_of_lone_publishes_is_made_anew_after_it_failed(server: ScriptedServer, log: RemoteLog) -> None:
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
