"""Threads that publish at once have sessions of their own, up to a bound; one that has failed is replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import RealServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.client.publish import sender_pool
from seawall.client.remote_log import RemoteLog
from seawall.core.types import TopicId
from seawall.errors import FencedError, WrongStateError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RemoteLog]:
    with RealServer(tmp_path / "data") as server, seawall.connect(server.url) as connected:
        connected.create_topic("events")
        yield connected


def values(log: RemoteLog) -> list[bytes]:
    return [each.value for item in log.follow("events") if isinstance(item, ReceivedBatch) for each in item]


def publish_at_once(log: RemoteLog, threads: int, count: int) -> None:
    def publish(name: int) -> None:
        for number in range(count):
            log.publish("events", b"%d %d" % (name, number))

    running = [threading.Thread(target=publish, args=(name,)) for name in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def test_one_thread_has_one_session(log: RemoteLog) -> None:
    for number in range(200):
        log.publish("events", b"%d" % number)
    assert len(log.sessions()) == 1
    assert len(values(log)) == 200


@pytest.mark.parametrize("threads", [3, 20])
def test_threads_that_meet_get_sessions_of_their_own(
    log: RemoteLog, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_pool, "_BUSY_CALLS", 1)
    publish_at_once(log, threads, 100)
    assert 1 < len(log.sessions()) <= min(threads, sender_pool._SENDERS_MAX)
    found = values(log)
    assert len(found) == len(set(found)) == 100 * threads
    for name in range(threads):
        own = [value for value in found if value.startswith(b"%d " % name)]
        assert own == [b"%d %d" % (name, number) for number in range(100)]


def test_a_session_that_has_failed_is_replaced(log: RemoteLog) -> None:
    log.publish("events", b"before")
    (session,) = log.sessions()
    log.retire_session(session.client_id)
    with pytest.raises(FencedError):
        log.publish("events", b"refused")
    log.publish("events", b"after")
    assert values(log) == [b"before", b"after"]
    assert [each.client_id for each in log.sessions()] != [session.client_id]


def test_a_closed_log_opens_no_session(log: RemoteLog) -> None:
    log.publish("events", b"before")
    log.close()
    with pytest.raises(WrongStateError, match="closed"):
        log.publish("events", b"after")
    with pytest.raises(WrongStateError, match="closed"):
        log._senders.publish("events", TopicId(1), [])
