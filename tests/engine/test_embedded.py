"""The embedded log on a real directory: values, topics, reading, threads, forks and closing."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from simulated_log import GatedDisk, open_simulated

import seawall
from seawall.engine.api import open_log as open_log_module
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.delivery import Delivery
from seawall.engine.read.read_results import Message, ReceivedBatch, ReceivedRecord
from seawall.engine.store.settings import StoreSettings
from seawall.errors import (
    ConfigError,
    ConflictError,
    FatalError,
    InvalidInputError,
    LimitError,
    LockedError,
    NotFoundError,
    SeawallError,
    SyncError,
    UnsupportedError,
    WrongStateError,
)
from seawall.kernels.runtime import jit
from seawall.limits import KIB, MIB, RECORD_VALUE_SIZE_MAX
from seawall.topics.gaps import Gap
from seawall.wire.format.records import RecordType

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data", SMALL) as opened:
        opened.create_topic("events")
        yield opened


def records(log: EmbeddedLog, topic: str = "events", from_seq: int = 1) -> list[ReceivedRecord]:
    return [record for item in log.follow(topic, from_seq) if isinstance(item, ReceivedBatch) for record in item]


def values(log: EmbeddedLog, topic: str = "events") -> list[bytes]:
    return [record.value for record in records(log, topic)]


# --- what can be published ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (b"bytes", [b"bytes"]),
        (bytearray(b"array"), [b"array"]),
        (memoryview(b"view"), [b"view"]),
        ("text \N{SNOWMAN}", ["text \N{SNOWMAN}".encode()]),
        ({"a": 1}, [b'{"a":1}']),
        ([{"a": 1}, "two", b"three"], [b'{"a":1}', b"two", b"three"]),
        ([[1, 2], (3, 4)], [b"[1,2]", b"[3,4]"]),
        ((value for value in (b"x", b"y")), [b"x", b"y"]),
        ([b""], [b""]),
    ],
)
def test_every_kind_of_value_is_stored(log: EmbeddedLog, given: object, stored: list[bytes]) -> None:
    published = log.publish("events", given)
    assert list(published.seqs) == list(range(1, len(stored) + 1))
    assert values(log) == stored


def test_json_records_have_their_type(log: EmbeddedLog) -> None:
    log.publish("events", [b"raw", {"json": True}])
    assert [record.record_type for record in records(log)] == [RecordType.RAW, RecordType.JSON]


def test_a_message_keeps_all_its_fields(log: EmbeddedLog) -> None:
    message = Message(
        {"n": 1},
        key="key",
        headers=[("one", "1"), ("one", b"2")],
        timestamp_ns=77,
        tag="tag",
        node="node",
        meta=b"meta",
    )
    log.publish("events", message)
    log.publish("events", [Message(b"plain"), Message("more", headers={"h": "v"})])
    first, plain, more = records(log)
    assert (first.value, first.key, first.tag, first.node, first.meta) == (b'{"n":1}', b"key", b"tag", b"node", b"meta")
    assert first.headers == ((b"one", b"1"), (b"one", b"2"))
    assert first.client_timestamp_ns == 77
    assert (plain.value, plain.key, plain.headers) == (b"plain", None, ())
    assert more.headers == ((b"h", b"v"),)


def test_arrow_tables_are_published_and_read(log: EmbeddedLog) -> None:
    table = pa.table({"value": pa.array([b"a", b"b", b"c"], pa.binary())})
    log.publish("events", table)
    log.publish("events", table.to_batches()[0])
    found = log.read_arrow("events", columns=("value",))
    assert found.column("value").to_pylist() == [b"a", b"b", b"c"] * 2
    assert log.read_arrow("events", 5, columns=("value",)).column("value").to_pylist() == [b"b", b"c"]
    assert log.read_arrow("events", 7).num_rows == 0


def test_a_data_frame_is_published(log: EmbeddedLog) -> None:
    pandas = pytest.importorskip("pandas")
    log.publish("events", pandas.DataFrame({"value": [b"a", b"b"]}))
    assert values(log) == [b"a", b"b"]


@pytest.mark.parametrize("given", [7, [7], None, object(), {"a": object()}, [{1, 2}]])
def test_unsupported_values_are_refused(log: EmbeddedLog, given: object) -> None:
    with pytest.raises(InvalidInputError):
        log.publish("events", given)
    assert log.describe("events").next_seq == 1


@pytest.mark.parametrize("nothing", [[], pa.table({"value": pa.array([], pa.binary())})])
def test_an_empty_publish_is_refused(log: EmbeddedLog, nothing: object) -> None:
    with pytest.raises(InvalidInputError, match="nothing to publish"):
        log.publish("events", nothing)


def test_a_too_large_value_is_refused(log: EmbeddedLog) -> None:
    with pytest.raises(LimitError):
        log.publish("events", bytes(RECORD_VALUE_SIZE_MAX + 1))
    log.publish("events", b"goes on")
    assert values(log) == [b"goes on"]


def test_one_publish_may_exceed_a_wal_file(log: EmbeddedLog) -> None:
    """Large batches are in their segment; the WAL has only a reference to each."""
    given = [bytes([number]) * 1_000_000 for number in range(20)]
    assert sum(map(len, given)) > 2 * SMALL.wal_file_size
    log.publish("events", given)
    assert values(log) == given


# --- topics, cursors ----------------------------------------------------------------------------------------------


def test_topics_are_created_configured_and_deleted(log: EmbeddedLog) -> None:
    log.create_topic("other", durability="disk", ttl_ms=5_000)
    assert log.topics() == ["events", "other"]
    assert log.describe("other").config.ttl_ms == 5_000
    assert log.configure_topic("other", ttl_ms=9_000).config.ttl_ms == 9_000
    log.publish("other", [b"a", b"b"])
    info = log.describe("other")
    assert (info.floor, info.next_seq, info.record_count) == (1, 3, 2)
    log.delete_topic("other")
    assert log.topics() == ["events"]
    with pytest.raises(ConflictError):
        log.create_topic("events")
    with pytest.raises(ConfigError):
        log.create_topic("bad", durability="sometimes")


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.publish("absent", b"x"),
        lambda log: log.read("absent"),
        lambda log: log.describe("absent"),
        lambda log: log.delete_topic("absent"),
        lambda log: log.commit("me", "absent", 1),
        lambda log: log.committed("me", "absent"),
    ],
)
def test_an_unknown_topic_is_refused(log: EmbeddedLog, use: Callable[[EmbeddedLog], object]) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        use(log)


def test_cursors_survive_a_restart(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SMALL) as log:
        log.create_topic("events")
        assert log.committed("me", "events") is None
        log.commit("me", "events", 5)
    with open_log(tmp_path / "data", SMALL) as log:
        assert log.committed("me", "events") == 5


# --- reading ------------------------------------------------------------------------------------------------------


def test_reads_stop_at_their_bounds(log: EmbeddedLog) -> None:
    for number in range(10):
        log.publish("events", [b"%d" % number, b"-"])
    log.checkpoint()
    assert [len(item) for item in log.read("events", limit=3) if isinstance(item, ReceivedBatch)] == [2, 2]
    assert len(log.read("events", max_bytes=1)) == 1
    (item,) = log.read("events", 20)
    assert isinstance(item, ReceivedBatch)
    assert (item.first_seq, item.next_seq, len(item)) == (20, 21, 1)
    assert [record.seq for record in item] == [20]
    assert log.read("events", 21) == []
    assert log.read("events", limit=0) == []
    with pytest.raises(InvalidInputError, match="begin at 1"):
        log.read("events", 0)


def test_seqs_lost_in_a_crash_are_reported_as_a_gap(tmp_path: Path) -> None:
    log = open_log(tmp_path / "data", SMALL)
    log.create_topic("events")
    log.publish("events", b"before")
    # Release the directory without an orderly shutdown, as a kill does.
    with log.changing() as store:
        store.parts.wal.close(clean=False)
        store.parts.directory.close()
    with open_log(tmp_path / "data", SMALL) as again:
        again.publish("events", b"after")
        first, gap, last = again.follow("events")
        assert isinstance(gap, Gap)
        assert (gap.first_seq, gap.last_seq) == (2, again.describe("events").next_seq - 2)
        assert [record.value for item in (first, last) for record in item] == [b"before", b"after"]
        assert again.read_arrow("events").num_rows == 2
        # A limit that is reached ends the read, even before a gap.
        assert again.read("events", limit=1) == [first]
        assert len(again.read("events", limit=2)) == 3


# --- threads ------------------------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run in several threads that start together; raises if one of them does."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except Exception as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_threads_publish_together(log: EmbeddedLog) -> None:
    log.create_topic("other", durability="memory")
    acked: list[tuple[str, int, bytes]] = []

    def work(number: int) -> None:
        topic = "events" if number % 2 else "other"
        for attempt in range(20):
            value = b"%d %d" % (number, attempt)
            published = log.publish(topic, [value, value + b"!"])
            acked.extend((topic, seq, value + b"!" * each) for each, seq in enumerate(published.seqs))

    in_threads(8, work)
    for topic in ("events", "other"):
        found = {(topic, record.seq, record.value) for record in records(log, topic)}
        assert found == {each for each in acked if each[0] == topic}
        assert len(found) == 160


@pytest.mark.parametrize("error", [SyncError("the disk failed"), KeyboardInterrupt()])
def test_a_commit_error_reaches_every_waiting_publisher(error: BaseException) -> None:
    """One thread commits for three, and its error reaches all of them."""
    disk = GatedDisk()
    log = open_simulated(disk)
    log.create_topic("events")
    disk.close_gate()
    outcomes: list[BaseException | None] = []

    def publish() -> None:
        try:
            log.publish("events", b"x")
        except (SeawallError, KeyboardInterrupt) as caught:
            outcomes.append(caught)
        else:
            outcomes.append(None)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    threads[0].start()
    disk.wait_for_write()
    for thread in threads[1:]:
        thread.start()
    while log.commits.record_count < 3:
        os.sched_yield()
    disk.write_error = error
    disk.open_gate()
    for thread in threads:
        thread.join()
    failures = [outcome for outcome in outcomes if outcome is not None]
    assert len(failures) == 3
    if isinstance(error, SyncError):
        assert all(failure is error for failure in failures)
    else:
        # The thread that was interrupted, and the two for which it committed.
        assert sorted(type(failure).__name__ for failure in failures) == [
            "KeyboardInterrupt",
            "OutcomeUnknownError",
            "OutcomeUnknownError",
        ]
    with pytest.raises(FatalError, match="an earlier change failed"):
        log.publish("events", b"after")
    log.close()


def test_a_batch_for_a_recreated_topic_is_refused(log: EmbeddedLog) -> None:
    late = log.pending_batch_of("events", b"for the old one")
    log.delete_topic("events")
    log.create_topic("events")
    with pytest.raises(NotFoundError, match="publish anew"):
        log.commits.publish(late)
    log.publish("events", b"for the new one")
    assert values(log) == [b"for the new one"]


# --- open and close------------------------------------------------------------------------------------------------


def test_open_accepts_paths_and_strings(tmp_path: Path) -> None:
    with seawall.open(tmp_path / "data") as log:
        log.create_topic("events", durability="disk")
        log.publish("events", "one")
        log.sync()
    with seawall.open(str(tmp_path / "data")) as log:
        assert values(log) == [b"one"]


def test_a_closed_log_refuses_every_call(log: EmbeddedLog) -> None:
    log.close()
    log.close()
    for use in (log.topics, log.sync, lambda: log.publish("events", b"x"), lambda: log.read("events")):
        with pytest.raises(WrongStateError, match="closed"):
            use()


@pytest.mark.parametrize("brokers", [0, 1])
def test_a_directory_with_little_in_it_takes_little_space(tmp_path: Path, brokers: int) -> None:
    with seawall.open(tmp_path / "data", brokers=brokers) as log:
        log.create_topic("events")
        log.publish("events", b"x")
        allocated = sum(path.stat().st_blocks * 512 for path in (tmp_path / "data").rglob("*"))
        assert MIB < allocated < 8 * MIB


def test_a_second_opener_is_refused(tmp_path: Path, log: EmbeddedLog) -> None:
    with pytest.raises(LockedError, match=f"in use by process {os.getpid()}"):
        open_log(tmp_path / "data", SMALL)
    log.publish("events", b"the first one goes on")


def test_a_forked_child_is_refused(log: EmbeddedLog) -> None:
    # A record is queued, and others would be merged into its batch.
    waiting = log.commits.offer(log.pending_batch_of("events", b"waits"))
    assert log.commits.joinable
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (log.topics, lambda: log.publish("events", b"x")):
            try:
                use()
            except UnsupportedError as error:
                refused += "forked child" in str(error)
        log.close()
        os._exit(0 if refused == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert log.publish("events", b"still open in the parent").position == waiting.result().position
    assert values(log) == [b"waits", b"still open in the parent"]


def test_a_forked_child_commits_nothing_of_its_parent(log: EmbeddedLog) -> None:
    log.publish("events", b"first")
    publisher = log.publisher("events")
    # A record that is published during another change stays in flight until that is over.
    with log.changing():
        in_flight = publisher.publish(b"in flight")
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            refused = 0
            for use in (
                in_flight.result,
                publisher.flush,
                lambda: publisher.publish(b"x"),
                lambda: asyncio.run(wait(in_flight)),
            ):
                try:
                    use()
                except (UnsupportedError, WrongStateError):
                    refused += 1
            publisher.close()
            os._exit(0 if refused == 4 else 1)
        assert os.waitpid(child, 0)[1] == 0
    publisher.close()
    assert values(log) == [b"first", b"in flight"]


async def wait(delivery: Delivery) -> None:
    await delivery


def test_records_are_deleted_by_seq_and_by_tag(tmp_path: Path) -> None:
    with open_log(tmp_path / "data") as log:
        log.create_topic("events")
        log.publish("events", [Message("x", tag=tag) for tag in ("a", "b", "ab", "a")])
        with pytest.raises(InvalidInputError, match="needs a seq to delete below, a tag, or both"):
            log.delete("events")
        with pytest.raises(InvalidInputError, match="not both"):
            log.delete("events", tag="a", tag_prefix="a")
        assert log.delete("events", before_seq=3, tag="a") == 1
        assert log.delete("events", tag_prefix="a") == 2
        assert log.delete("events", tag="nobody") == 0
        assert (log.describe("events").record_count, log.describe("events").floor) == (1, 2)
        assert log.delete("events", before_seq=99) == 1
        assert log.describe("events").byte_count == 0


def test_open_applies_and_validates_its_settings(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no data directory"):
        seawall.open(tmp_path / "data", create=False)
    with seawall.open(tmp_path / "data", storage_wal_file_size=128 * KIB, disk_direct_sync="off") as log:
        log.create_topic("events")
        assert log.publish("events", "x").seqs == range(1, 2)
    (wal_file,) = (tmp_path / "data" / "wal").iterdir()
    assert wal_file.stat().st_size == 128 * KIB
    with seawall.open(tmp_path / "data", create=False) as log:
        assert values(log) == [b"x"]
    with pytest.raises(ConfigError, match="did you mean"):
        seawall.open(tmp_path / "data", storage_wal_size=1)


def test_reading_does_not_change_the_wal(tmp_path: Path) -> None:
    with open_log(tmp_path / "data", SMALL) as log:
        log.create_topic("events")
        log.publish("events", "x")
    files = {path: path.read_bytes() for path in (tmp_path / "data" / "wal").iterdir()}
    with open_log(tmp_path / "data", SMALL) as log:
        assert values(log) == [b"x"]
    assert files == {path: path.read_bytes() for path in (tmp_path / "data" / "wal").iterdir()}


@pytest.mark.parametrize("must_compile", [True, False])
def test_a_first_use_without_compiled_kernels_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, must_compile: bool
) -> None:
    monkeypatch.setattr(jit, "must_compile", lambda: must_compile)
    open_log_module._warn_of_compiling.cache_clear()
    for _ in range(2):
        with seawall.open(tmp_path):
            pass
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "Seawall compiles its kernels for this machine"
    ] * must_compile
