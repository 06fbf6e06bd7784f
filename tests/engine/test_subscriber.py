"""Subscribers: where they start, that they continue where they stopped, commits, and waiting."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import seawall
from seawall.engine.api.embedded import EmbeddedLog
from seawall.errors import InvalidInputError, NotFoundError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with seawall.open(tmp_path / "data") as opened:
        opened.create_topic("events")
        yield opened


def values(items: list) -> list[bytes]:
    return [record.value for batch in items for record in batch]


def test_a_subscriber_continues_where_it_stopped(log: EmbeddedLog) -> None:
    reader = log.subscriber("events")
    assert reader.poll() == []
    log.publish("events", [b"a", b"b"])
    assert values(reader.poll()) == [b"a", b"b"]
    assert reader.poll() == []
    log.publish("events", b"c")
    assert values(reader.poll()) == [b"c"]
    assert reader.next_seq == 4


def test_a_subscriber_starts_where_requested(log: EmbeddedLog) -> None:
    before = datetime.now(UTC) - timedelta(seconds=5)
    log.publish("events", [b"a", b"b"])
    latest = log.subscriber("events", "latest")
    log.publish("events", [b"c"])
    assert values(latest.poll()) == [b"c"]
    assert values(log.subscriber("events", 2).poll()) == [b"b", b"c"]
    assert values(log.subscriber("events", before).poll()) == [b"a", b"b", b"c"]
    assert log.subscriber("events", datetime.now(UTC) + timedelta(hours=1)).poll() == []
    for wrong in (0, -3, "yesterday"):
        with pytest.raises(InvalidInputError):
            log.subscriber("events", wrong)
    with pytest.raises(NotFoundError):
        log.subscriber("nowhere")


def test_a_committed_cursor_survives_a_restart(tmp_path: Path) -> None:
    with seawall.open(tmp_path / "data") as log:
        log.create_topic("events")
        log.publish("events", [b"a", b"b"])
        reader = log.subscriber("events", "committed", owner="billing")
        reader.poll()
        reader.commit()
        log.publish("events", [b"c"])
    with seawall.open(tmp_path / "data") as log:
        assert log.committed("billing", "events") == 3
        assert values(log.subscriber("events", "committed", owner="billing").poll()) == [b"c"]


def test_committing_needs_an_owner(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidInputError, match="owner"):
        log.subscriber("events", "committed")
    with pytest.raises(InvalidInputError, match="owner"):
        log.subscriber("events").commit()


def test_a_poll_waits_for_another_thread(log: EmbeddedLog) -> None:
    reader = log.subscriber("events")
    found: list[bytes] = []
    ready = threading.Event()

    def wait() -> None:
        ready.set()
        found.extend(values(reader.poll(timeout_s=60)))

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    log.publish("events", b"awaited")
    thread.join(60)
    assert found == [b"awaited"]
    assert reader.poll(timeout_s=0.01) == []
