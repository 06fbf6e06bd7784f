"""Waits of the client end: by their timeout, or because an internal error fails everything undecided."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import Any

import pytest
from scripted_server import ScriptedServer

import seawall
from seawall.client.connection.session import Session
from seawall.client.publish import ack_handler
from seawall.client.publish.aio_publisher import AsyncRemotePublisher
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.outgoing import Outgoing
from seawall.client.publish.publisher import RemotePublisher
from seawall.client.publish.waiting_exchange import WaitingExchange
from seawall.client.remote_log import RemoteLog
from seawall.errors import FatalError, OutcomeUnknownError, RetryableError

#: A wait that must end and takes longer fails its test.
TIMEOUT_S = 20
BROKEN = (FatalError, OutcomeUnknownError)

#: Where an unexpected error is injected: an object and its attribute. Records are in flight when it happens.
SEAMS: dict[str, tuple[Any, str]] = {
    "making a frame": (Outgoing, "frame_of"),
    "choosing a batch": (Outgoing, "next_batch"),
    "taking an ack": (Outgoing, "acked"),
    "the window of an ack": (ack_handler, "ack_window"),
    "when something is due": (Outgoing, "due_ns"),
}
ASYNC_SEAMS: dict[str, tuple[Any, str]] = {
    "making a frame": (Outgoing, "frame_of"),
    "choosing a batch": (Outgoing, "next_batch"),
    "taking an ack": (Outgoing, "acked"),
    "the window of an ack": (ack_handler, "ack_window"),
}


class UnexpectedError(Exception):
    """A bug."""


def broken(*_arguments: object, **_named: object) -> None:
    raise UnexpectedError("a bug at the seam")


def ends(work: Callable[[], object]) -> object:
    """Run a call on a thread, which must end: its result or its exception."""
    outcome: list[object] = []
    with ThreadPool(1) as pool:
        pool.apply_async(work, callback=outcome.append, error_callback=outcome.append).wait(TIMEOUT_S)
    assert outcome, "the wait did not end"
    return outcome[0]


def outcome_of(delivery: Delivery) -> object:
    return ends(delivery.result)


@pytest.mark.parametrize("seam", SEAMS)
def test_an_error_in_a_sender_fails_records_in_flight(
    server: ScriptedServer, log: RemoteLog, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    """INV-SENDER-ENDS."""
    arrived, called = threading.Event(), threading.Event()

    def note_arrival(*_: object) -> bool:
        arrived.set()
        return False

    server.script.on_batch = note_arrival
    publisher = log.publisher("events", batch_size=1)
    first = publisher.publish(b"first")
    first.add_callback(lambda _: called.set())
    assert arrived.wait(TIMEOUT_S), "the first batch was not sent"
    with monkeypatch.context() as patch:
        patch.setattr(*SEAMS[seam], broken)
        server.script.on_batch = lambda _peer, _header: True
        second = ends(lambda: publisher.publish(b"second"))
        server.cut_all()
        assert isinstance(outcome_of(first), BROKEN)
        assert called.wait(TIMEOUT_S), "the callback was not called"
        if isinstance(second, Delivery):
            second = outcome_of(second)
        # If acks still work, its own may have arrived before a timer was due.
        assert isinstance(second, BROKEN) or (seam == "when something is due" and isinstance(second, Delivery))
        assert isinstance(ends(publisher.flush), BROKEN)
    assert isinstance(ends(lambda: publisher.publish(b"third")), BROKEN)
    assert not isinstance(ends(publisher.close), AssertionError)
    assert not publisher.in_flight
    # The log still works, with another session.
    assert isinstance(ends(lambda: log.publish("events", b"fourth")), Delivery)


@pytest.mark.parametrize("seam", ASYNC_SEAMS)
def test_an_error_in_a_sender_on_an_event_loop_fails_records_in_flight(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    """INV-SENDER-ENDS."""

    async def outcome(publisher: AsyncRemotePublisher, value: bytes) -> object:
        try:
            return await publisher.publish(value)
        except BROKEN as error:
            return error

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), seawall.connect_async(server.url, timeout_s=10) as log:
            publisher = await log.publisher("events", batch_size=1)
            with monkeypatch.context() as patch:
                patch.setattr(*ASYNC_SEAMS[seam], broken)
                found = await asyncio.gather(outcome(publisher, b"first"), outcome(publisher, b"second"))
                assert all(isinstance(each, BROKEN) for each in found)
                with pytest.raises(BROKEN):
                    await publisher.flush()
            with pytest.raises(BROKEN):
                publisher.publish(b"third")
            await publisher.close()
            assert (await log.publish("events", b"fourth")).record_count == 1

    asyncio.run(main())


def test_an_error_in_a_connecting_task_fails_records_in_flight(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), seawall.connect_async(server.url, timeout_s=10) as log:
            publisher = await log.publisher("events")
            server.script.on_batch = lambda _peer, _header: False
            delivery = publisher.publish(b"value")
            await asyncio.sleep(0)
            monkeypatch.setattr(Session, "hello", broken)
            server.cut_all()
            with pytest.raises(BROKEN):
                await delivery
            with pytest.raises(BROKEN):
                await publisher.close()

    asyncio.run(main())


def test_an_error_while_opening_a_publisher_is_raised(
    server: ScriptedServer, log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def open_one() -> None:
        async with asyncio.timeout(TIMEOUT_S), seawall.connect_async(server.url, timeout_s=10) as loop_log:
            with pytest.raises(BROKEN):
                await loop_log.publisher("events")

    monkeypatch.setattr(Session, "hello", broken)
    assert isinstance(ends(lambda: log.publisher("events")), BROKEN)
    asyncio.run(open_one())


def test_an_error_in_publish_is_raised_and_the_next_publish_works(
    server: ScriptedServer, log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert log.publish("events", b"first").first_seq == 1
    with monkeypatch.context() as patch:
        patch.setattr(WaitingExchange, "execute", broken)
        assert isinstance(ends(lambda: log.publish("events", b"second")), BROKEN)
    assert isinstance(ends(lambda: log.publish("events", b"third")), Delivery)


def test_threads_waiting_for_a_failed_leader_end(
    server: ScriptedServer, log: RemoteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script.on_batch = lambda _peer, _header: False
    publisher = log.publisher("events", batch_size=1)
    deliveries = [publisher.publish(b"value") for _ in range(4)]
    outcomes: list[object] = []
    threads = [threading.Thread(target=lambda each=each: outcomes.append(ends(each.result))) for each in deliveries]
    for thread in threads:
        thread.start()
    monkeypatch.setattr(Outgoing, "lost", broken)
    server.cut_all()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert [isinstance(each, BROKEN) for each in outcomes] == [True] * 4
    assert isinstance(ends(publisher.close), BROKEN)


def test_closing_ends_by_its_timeout(server: ScriptedServer, log: RemoteLog) -> None:
    server.script.on_batch = lambda _peer, _header: False
    publisher: RemotePublisher = log.publisher("events")
    delivery = publisher.publish(b"value")
    assert isinstance(ends(lambda: publisher.close(0.05)), TimeoutError)
    assert isinstance(outcome_of(delivery), OutcomeUnknownError | RetryableError)

    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), seawall.connect_async(server.url, timeout_s=10) as loop_log:
            on_loop = await loop_log.publisher("events")
            sent = on_loop.publish(b"value")
            with pytest.raises(TimeoutError):
                await on_loop.close(0.05)
            with pytest.raises((OutcomeUnknownError, RetryableError)):
                await sent

    asyncio.run(main())


def test_a_callback_that_raises_blocks_no_other_delivery(
    server: ScriptedServer, log: RemoteLog, caplog: pytest.LogCaptureFixture
) -> None:
    called = threading.Event()
    with log.publisher("events", linger_s=60) as publisher:
        first, second = publisher.publish(b"first"), publisher.publish(b"second")
        first.add_callback(broken)
        second.add_callback(lambda _: called.set())
        assert isinstance(outcome_of(second), Delivery)
        assert called.wait(TIMEOUT_S)
        assert isinstance(outcome_of(publisher.publish(b"third")), Delivery)
    assert "a callback of a delivery to 'events' raised" in caplog.text
