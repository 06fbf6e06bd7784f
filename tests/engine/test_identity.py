"""Records that are stored once: publisher sessions and idempotency keys, through restarts and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_log import open_simulated

from seawall import limits
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.read.read_results import ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.errors import ConflictError, FencedError, FullError, InvalidInputError, LimitError
from seawall.limits import KIB
from seawall.testing import SimDisk

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)


def opened(path: Path) -> EmbeddedLog:
    log = open_log(path / "data", SMALL)
    if not log.topics():
        log.create_topic("events")
    return log


def values(log: EmbeddedLog, topic: str = "events") -> list[bytes]:
    return [record.value for item in log.follow(topic) if isinstance(item, ReceivedBatch) for record in item]


@pytest.mark.parametrize("size", [10, 70_000])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_repeated_key_returns_the_first_seq(tmp_path: Path, size: int, checkpoint: bool) -> None:
    with opened(tmp_path) as log:
        log.publish("events", b"before")
        first = log.publish("events", [bytes(size), b"second"], idempotency_key="order-17")
        again = log.publish("events", b"whatever", idempotency_key="order-17")
        assert (first.is_duplicate, again.is_duplicate) == (False, True)
        assert again.first_seq == first.first_seq == 2
        assert log.publish("events", b"other", idempotency_key=b"order-18").first_seq == 4
        if checkpoint:
            log.checkpoint()
    with opened(tmp_path) as log:
        assert log.publish("events", b"x", idempotency_key="order-17").first_seq == 2
        assert len(values(log)) == 4
        # Another topic has its own keys.
        log.create_topic("other")
        assert not log.publish("other", b"x", idempotency_key="order-17").is_duplicate


def test_a_key_counts_within_one_commit(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        twins = [log.commits.offer(log.pending_batch_of("events", b"%d" % number, "same")) for number in range(2)]
        assert [delivery.result().first_seq for delivery in twins] == [1, 1]
        assert [delivery.is_duplicate for delivery in twins] == [False, True]
        assert values(log) == [b"0"]


@pytest.mark.parametrize("brokers", [0, 1])
def test_a_duplicate_is_not_limited_by_caps(tmp_path: Path, brokers: int) -> None:
    with open_log(tmp_path / "data", SMALL, brokers=brokers) as log:
        log.create_topic("full", cap_records=2, discard="reject")
        log.create_topic("capped", cap_records=2)
        for topic in ("full", "capped"):
            log.publish(topic, b"before")
            log.publish(topic, b"once", idempotency_key="order-17")
            again = log.publish(topic, [b"more", b"than", b"fits"], idempotency_key="order-17")
            assert (again.first_seq, again.is_duplicate) == (2, True)
            assert values(log, topic) == [b"before", b"once"]
        with pytest.raises(FullError):
            log.publish("full", b"once", idempotency_key="order-18")


def test_keys_expire_and_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as log:
        log.create_topic("short", idempotency_window_ms=0)
        log.publish("short", b"a", idempotency_key="k")
        while log.publish("short", b"b", idempotency_key="k").is_duplicate:
            pass
        monkeypatch.setattr(limits, "IDEMPOTENCY_KEYS_MAX", 2)
        for number in range(2):
            log.publish("events", b"x", idempotency_key=f"{number}")
        with pytest.raises(FullError, match="idempotency keys"):
            log.publish("events", b"x", idempotency_key="one too many")
        with pytest.raises(LimitError, match="one batch"):
            log.publish("events", [bytes(9_000_000)] * 2, idempotency_key="large")


def test_a_session_stores_each_client_seq_once(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.publisher("events", client_id=7) as publisher:
        assert publisher.next_client_seq == 1
        first = publisher.publish([b"a", b"b"]).result()
        assert publisher.publish(b"c").result().first_seq == 3
        again = publisher.publish([b"a", b"b"], client_seq=1).result()
        assert (again.first_seq, again.is_duplicate, again.position) == (1, True, first.position)
        with pytest.raises(ConflictError, match="other records"):
            publisher.publish(b"not the same", client_seq=1).result()
        with pytest.raises(ConflictError):
            publisher.flush()
        assert publisher.next_client_seq == 3
        assert values(log) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("size", [10, 70_000])
def test_a_session_continues_after_a_restart(tmp_path: Path, checkpoint: bool, size: int) -> None:
    sent = [bytes([number]) * size for number in range(5)]
    with opened(tmp_path) as log:
        with log.publisher("events", client_id=7) as publisher:
            for value in sent[:3]:
                publisher.publish(value)
        if checkpoint:
            log.checkpoint()
    with opened(tmp_path) as log, log.publisher("events", client_id=7) as publisher:
        assert publisher.next_client_seq == 4
        # The client does not know whether the third arrived.
        assert publisher.publish(sent[2], client_seq=3).result().is_duplicate
        for value in sent[3:]:
            publisher.publish(value)
        publisher.flush()
        assert values(log) == sent


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("size", [10, 70_000])
def test_sessions_and_keys_survive_a_crash(checkpoint: bool, size: int) -> None:
    disk = SimDisk(seed=1)
    log = open_simulated(disk)
    log.create_topic("events")
    publisher = log.publisher("events", client_id=7)
    assert publisher.publish(bytes(size)).result().first_seq == 1
    if checkpoint:
        log.checkpoint()
    assert publisher.publish(b"second").result().first_seq == 2
    assert log.publish("events", bytes(size), idempotency_key="order-17").first_seq == 3
    publisher.close()
    disk.crash(keep="none")
    with open_simulated(disk) as log, log.publisher("events", client_id=7) as publisher:
        assert publisher.next_client_seq == 3
        assert publisher.publish(bytes(size), client_seq=1).result().is_duplicate
        assert publisher.publish(b"second", client_seq=2).result().is_duplicate
        again = log.publish("events", b"whatever", idempotency_key="order-17")
        assert (again.is_duplicate, again.first_seq) == (True, 3)
        assert values(log) == [bytes(size), b"second", bytes(size)]


def test_a_newer_session_fences_the_older(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        old = log.publisher("events", client_id=7)
        old.publish(b"a").result()
        with log.publisher("events", client_id=7) as new:
            assert new.next_client_seq == 2
            with pytest.raises(FencedError, match="newer session"):
                old.publish(b"late").result()
            new.publish(b"b").result()
        with pytest.raises(FencedError):
            old.close()
        assert values(log) == [b"a", b"b"]


def test_a_client_seq_below_the_window_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.publisher("events", client_id=7) as publisher:
        for number in range(300):
            publisher.publish(b"%d" % number)
        with pytest.raises(ConflictError, match="window"):
            publisher.publish(b"0", client_seq=1).result()
        with pytest.raises(ConflictError):
            publisher.flush()
        assert len(values(log)) == 300


def test_a_refused_batch_frees_its_client_seq(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("full", cap_records=1, discard="reject")
        with log.publisher("full", client_id=9) as publisher:
            publisher.publish(b"fits").result()
            with pytest.raises(FullError):
                publisher.publish(b"does not").result()
            with pytest.raises(FullError):
                publisher.flush()
            assert publisher.next_client_seq == 2
            log.delete("full", before_seq=2)
            assert publisher.publish(b"fits now").result().first_seq == 2
            assert publisher.next_client_seq == 3


def test_each_batch_of_a_delivery_takes_a_client_seq(tmp_path: Path) -> None:
    with opened(tmp_path) as log, log.publisher("events", client_id=9) as publisher:
        publisher.publish([bytes(9_000_000), bytes(9_000_000)]).result()
        assert publisher.next_client_seq == 3


def test_misuse_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        plain = log.publisher("events")
        with pytest.raises(InvalidInputError, match="client_id"):
            plain.publish(b"x", client_seq=1)
        with pytest.raises(InvalidInputError, match="no session"):
            _ = plain.next_client_seq
        with pytest.raises(InvalidInputError):
            log.publisher("events", client_id=0)
        with pytest.raises(InvalidInputError, match="client seq 0"):
            log.publisher("events", client_id=1).publish(b"x", client_seq=0)
