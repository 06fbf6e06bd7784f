"""The fast path of `publish`: one exchange with the server, and everything that may arrive instead of its ack."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from scripted_server import CutError, Peer, ScriptedServer, rejected

from seawall.client.publish.waiting_exchange import BLOCK_SIZE_MAX
from seawall.client.remote_log import RemoteLog
from seawall.core.types import SessionEpoch
from seawall.errors import NotFoundError, OutcomeUnknownError, RetryableError
from seawall.kernels.network import waiting_exchange as kernels
from seawall.wire.format.batches import BatchHeader
from seawall.wire.format.codes import ErrorCode
from seawall.wire.lwp2.frames import encode_ack, encode_ping
from seawall.wire.lwp2.session import Ack, AckEntry


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The result code of the kernel for each exchange."""
    real, codes = kernels.exchange_one_batch, []

    def counted(*arguments: Any) -> int:
        codes.append(real(*arguments))
        return codes[-1]

    monkeypatch.setattr(kernels, "exchange_one_batch", counted)
    return codes


def stored(server: ScriptedServer) -> list[int]:
    """The client seqs of all stored batches."""
    with server.lock:
        (topic,) = (each for each in server.topics.values() if each.batches)
        return [int(header.client_seq) for header, _ in topic.batches]


def test_each_record_is_one_exchange(server: ScriptedServer, log: RemoteLog, exchanges: list[int]) -> None:
    for number in range(1, 6):
        delivery = log.publish("events", {"number": number})
        assert (delivery.first_seq, delivery.record_count, delivery.done, delivery.error) == (number, 1, True, None)
    assert log.publish("events", [b"two", b"records"]).seqs == range(6, 8)
    assert exchanges == [kernels.STORED] * 6
    assert stored(server) == [1, 2, 3, 4, 5, 6]


def test_large_records_take_the_ordinary_path(server: ScriptedServer, log: RemoteLog, exchanges: list[int]) -> None:
    assert log.publish("events", bytes(BLOCK_SIZE_MAX)).first_seq == 1
    assert log.publish("events", b"small").first_seq == 2
    assert exchanges == [kernels.STORED]


def test_an_ack_in_parts_with_a_ping_behind_it(server: ScriptedServer, log: RemoteLog, exchanges: list[int]) -> None:
    pieces = threading.Semaphore(0)

    def in_pieces(peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        ack = Ack(SessionEpoch(peer.epoch), 256, 4096, tuple(entries))
        data = encode_ack(ack, through=peer.through)
        peer.send(data[:50])
        pieces.acquire(timeout=0.05)
        peer.send(data[50:] + encode_ping(1))
        return []

    server.script.on_ack = in_pieces
    assert log.publish("events", b"one").first_seq == 1
    server.script.on_ack = lambda _peer, entries: entries
    # The frame behind the ack sends the next publish on the ordinary path, and no later one.
    assert [log.publish("events", b"%d" % number).first_seq for number in (2, 3)] == [2, 3]
    assert (exchanges[0], exchanges[-1]) == (kernels.UNRESOLVED, kernels.STORED)
    assert stored(server) == [1, 2, 3]


def test_a_lost_connection_is_replaced_and_nothing_is_stored_twice(
    server: ScriptedServer, log: RemoteLog, exchanges: list[int]
) -> None:
    log.publish("events", b"one")
    cuts = iter([True, False])

    def cut(_peer: Peer, entries: list[AckEntry]) -> list[AckEntry]:
        if next(cuts, False):
            raise CutError
        return entries

    server.script.on_ack = cut
    delivery = log.publish("events", b"two")
    assert (delivery.first_seq, delivery.is_duplicate) == (2, False)
    assert log.publish("events", b"three").first_seq == 3
    assert exchanges == [kernels.STORED, kernels.UNRESOLVED, kernels.STORED]
    assert stored(server) == [1, 2, 3]


def test_a_refusal_is_raised_and_its_client_seq_is_used_again(
    server: ScriptedServer, log: RemoteLog, exchanges: list[int]
) -> None:
    def refuse(peer: Peer, header: BatchHeader) -> bool:
        peer.send_ack([rejected(header, ErrorCode.TOPIC_DELETED)])
        return False

    server.script.on_batch = refuse
    with pytest.raises(NotFoundError):
        log.publish("events", b"one")
    server.script.on_batch = lambda _peer, _header: True
    assert log.publish("events", b"two").first_seq == 1
    assert kernels.UNRESOLVED in exchanges


def test_threads_share_the_session(server: ScriptedServer, log: RemoteLog, exchanges: list[int]) -> None:
    seqs: list[int] = []
    threads = [
        threading.Thread(target=lambda: seqs.extend(log.publish("events", b"x").first_seq for _ in range(50)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seqs) == list(range(1, 201))


def test_closing_ends_an_exchange(server: ScriptedServer, log: RemoteLog, exchanges: list[int]) -> None:
    log.publish("events", b"one")
    arrived = threading.Event()

    def never(_peer: Peer, _header: BatchHeader) -> bool:
        arrived.set()
        return False

    server.script.on_batch = never
    raised: list[Exception] = []

    def publish() -> None:
        try:
            log.publish("events", b"two")
        except (OutcomeUnknownError, RetryableError) as error:
            raised.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    assert arrived.wait(10)
    log.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(raised) == 1
