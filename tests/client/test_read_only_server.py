"""Clients of a server whose disk fails: writers get typed errors and do not retry forever, and readers continue."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from real_server import RealServer

import seawall
from seawall.api.received import ReceivedBatch
from seawall.client.publish.delivery import Delivery
from seawall.client.publish.publisher import RemotePublisher
from seawall.engine.maintenance.flushing import FlushJob
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import OutcomeUnknownError, ReadOnlyError, SeawallError, SyncError
from seawall.io.disk.disk_ring import Completion, DiskRing
from seawall.server.lwp2 import session as lwp2_session

_REAP = DiskRing.reap


def _failing_reap(self: DiskRing, **named: bool) -> list[Completion]:
    return [Completion(tag, -errno.EIO) for tag, _ in _REAP(self, **named)]


@pytest.fixture(params=[1, 2], ids=["one loop", "two loops"])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealServer]:
    """A server that writes through its disk ring alone, so that a test can make writes fail."""
    monkeypatch.setattr(lwp2_session, "_ATTACH_AFTER", 1 << 60)
    made = RealServer(tmp_path / "data", event_loops=request.param)
    made.start()
    yield made
    monkeypatch.undo()
    made.stop()


def _stored(log: seawall.RemoteLog) -> set[bytes]:
    items = [item for item in log.read("events", max_bytes=1 << 26) if isinstance(item, ReceivedBatch)]
    return {record.value for item in items for record in item}


def _errors_of(publisher: RemotePublisher, values: Iterable[bytes]) -> Iterator[SeawallError]:
    """Publish all values without waiting: the error of each, raised by the call or by its delivery."""
    in_flight: list[Delivery] = []
    for value in values:
        try:
            in_flight.append(publisher.publish(value))
        except SeawallError as error:
            yield error
    for delivery in in_flight:
        with pytest.raises(SeawallError) as raised:
            delivery.result(20)
        yield raised.value


async def release_memory(log: ServedLog) -> None:
    """Have the server flush, as it does under memory pressure."""
    log.release_memory()


def test_deliveries_in_flight_end_and_later_ones_are_refused(
    server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with seawall.connect(server.url, timeout_s=20) as log:
        log.create_topic("events")
        publisher = log.publisher("events", batch_size=1_000)
        durable = [publisher.publish(b"before %d" % number) for number in range(50)]
        publisher.flush(20)
        monkeypatch.setattr(DiskRing, "reap", _failing_reap)
        # Enough that some are in flight when the disk fails; later ones are refused on arrival.
        kinds = {type(error) for error in _errors_of(publisher, [b"after %d" % number * 100 for number in range(20)])}
        assert OutcomeUnknownError in kinds
        assert kinds <= {OutcomeUnknownError, ReadOnlyError}
        with pytest.raises(ReadOnlyError, match="Input/output error"):
            publisher.publish(b"late")
        assert all(delivery.result(1) for delivery in durable)
        assert {b"before %d" % number for number in range(50)} <= _stored(log)
        with pytest.raises(ReadOnlyError, match="read-only"):
            log.commit("reader", "events", 3)
        with pytest.raises(ReadOnlyError, match="read-only"):
            log.publish("events", b"keyed", idempotency_key="one")
        assert log.status().details["state"] == "read-only"
        with pytest.raises((OutcomeUnknownError, ReadOnlyError)):
            publisher.close()


def test_deliveries_on_an_event_loop_end_and_later_ones_are_refused(
    server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with seawall.connect_async(server.url, timeout_s=20) as log:
            await log.create_topic("events")
            publisher = await log.publisher("events")
            await publisher.publish(b"before")
            monkeypatch.setattr(DiskRing, "reap", _failing_reap)
            with pytest.raises(OutcomeUnknownError):
                await publisher.publish(b"in flight")
            with pytest.raises(ReadOnlyError, match="read-only"):
                await publisher.publish(b"late")
            with pytest.raises(ReadOnlyError, match="read-only"):
                await log.publish("events", b"late")
            assert [record.value for item in await log.read("events") for record in item] == [b"before"]
            assert (await log.status()).details["reason"] == "a write or a sync failed (Input/output error)"
            with pytest.raises((OutcomeUnknownError, ReadOnlyError)):
                await publisher.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_change_in_flight_has_an_unknown_outcome(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with seawall.connect(server.url, timeout_s=20) as log:
        log.create_topic("events")
        monkeypatch.setattr(DiskRing, "reap", _failing_reap)
        with pytest.raises(OutcomeUnknownError):
            log.publish("events", b"keyed", idempotency_key="one")
        with pytest.raises(ReadOnlyError):
            log.publish("events", b"keyed", idempotency_key="one")


def test_a_failure_beside_the_commits_is_reported_to_publishers(
    server: RealServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that cannot be written makes the log read-only, though no commit was in flight."""

    def execute(_: FlushJob) -> None:
        raise SyncError("the disk is gone")

    with seawall.connect(server.url, timeout_s=20) as log:
        log.create_topic("events")
        publisher = log.publisher("events")
        publisher.publish(b"before").result(20)
        monkeypatch.setattr(FlushJob, "execute", execute)
        server.run(release_memory)
        while log.status().details["state"] != "read-only":
            pass
        with pytest.raises(ReadOnlyError, match="read-only"):
            publisher.publish(b"after").result(20)
        assert _stored(log) == {b"before"}
        with pytest.raises(ReadOnlyError):
            publisher.close()
