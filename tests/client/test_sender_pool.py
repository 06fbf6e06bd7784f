"""Threads that publish concurrently get separate sessions, up to a limit; a failed session is replaced."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import RealServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.client.publish import sender_pool
from seawall.client.publish.sender_pool import SenderPool
from seawall.client.remote_log import RemoteLog
from seawall.core.types import TopicId
from seawall.errors import FencedError, WrongStateError

#: The most sessions that a log opens for its threads.
SESSIONS_MAX = 8


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RemoteLog]:
    with RealServer(tmp_path / "data") as server, seawall.connect(server.url) as connected:
        connected.create_topic("events")
        yield connected


def values(log: RemoteLog) -> list[bytes]:
    return [each.value for item in log.follow("events") if isinstance(item, ReceivedBatch) for each in item]


def publish_concurrently(log: RemoteLog, threads: int, count: int) -> None:
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
def test_concurrent_threads_get_separate_sessions(
    log: RemoteLog, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_pool, "_BUSY_CALLS", 1)
    publish_concurrently(log, threads, 100)
    assert 1 < len(log.sessions()) <= min(threads, SESSIONS_MAX)
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


def test_a_closed_pool_opens_no_session() -> None:
    pool = SenderPool(lambda: pytest.fail("a closed pool opened a session"))
    pool.close()
    with pytest.raises(WrongStateError, match="closed"):
        pool.publish("events", TopicId(1), [])
