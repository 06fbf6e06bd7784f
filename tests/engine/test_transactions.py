"""Transactions of the embedded log: atomic, at one position, once for each epoch of their owner; and refusals."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from seawall import limits
from seawall.api.transactions import StagedCall
from seawall.config import Config, FabricConfig
from seawall.core.transactions import STAGING_TOPIC, StagedPart, StagedRange
from seawall.engine.api.aio_embedded import AsyncLog
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.api.view import open_view
from seawall.engine.read.read_results import Message, ReceivedBatch
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.topic_log import TopicLog
from seawall.engine.transactions import copying as transaction_copying
from seawall.errors import (
    ConflictError,
    DiskFullError,
    FencedError,
    FullError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    OutcomeUnknownError,
    WrongStateError,
)
from seawall.io.disk.files import OsFiles
from seawall.limits import KIB
from seawall.storage.segments.batch_index import INDEX_ENTRY
from seawall.topics.gaps import Gap
from seawall.topics.state import TopicState

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB, ceiling_step=64)
TINY = Config(fabric=FabricConfig(goi_entries=256, pbr_entries=64, checkpoint_size=64 * KIB, blog_size=512 * KIB))


def opened(path: Path, brokers: int = 0, settings: StoreSettings = SMALL) -> EmbeddedLog:
    return open_log(path / "data", settings, config=TINY, brokers=brokers)


@pytest.fixture(params=[0, 2], ids=["alone", "two brokers"])
def brokers(request: pytest.FixtureRequest) -> int:
    assert isinstance(request.param, int)
    return request.param


@pytest.fixture
def log(tmp_path: Path, brokers: int) -> Iterator[EmbeddedLog]:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        log.create_topic("b", durability="disk")
        yield log


def values(log: EmbeddedLog, topic: str) -> list[bytes]:
    return [bytes(record.value) for item in log.follow(topic) if isinstance(item, ReceivedBatch) for record in item]


def staging_of(log: EmbeddedLog) -> TopicState:
    with log.inspecting() as store:
        topic = store.catalog.reserved(STAGING_TOPIC)
    assert topic is not None
    return topic


def staged_left(log: EmbeddedLog) -> int:
    return staging_of(log).live_records


def put(log: EmbeddedLog, *records: bytes) -> list[StagedRange]:
    with log.stage() as stager:
        for record in records:
            stager.publish(record)
        return stager.ranges()


def transact(log: EmbeddedLog, **records: bytes | list[bytes]) -> None:
    """One transaction of the owner "job" into some topics."""
    with log.transaction("job") as transaction:
        for topic, each in records.items():
            transaction.publish(topic, each)


# --- atomic ---------------------------------------------------------------------------------------------------------


def test_a_transaction_is_at_one_position_in_all_topics(log: EmbeddedLog) -> None:
    log.publish("a", [b"before"])
    with log.transaction() as transaction:
        first = transaction.publish("a", [b"1", b"2"])
        large = transaction.publish("b", [b"x" * 70_000, b"y"])
        transaction.publish("a", b"3")
        transaction.commit_offset("reader", "a", 2)
        assert values(log, "a") == [b"before"]
        assert not values(log, "b")
    result = transaction.result
    assert (first.seqs, large.seqs) == (range(2, 4), range(1, 3))
    assert {span.topic: span.seqs for span in result.spans} == {"a": range(2, 5), "b": range(1, 3)}
    log.publish("a", [b"after"])
    assert values(log, "a") == [b"before", b"1", b"2", b"3", b"after"]
    assert values(log, "b") == [b"x" * 70_000, b"y"]
    assert log.committed("reader", "a") == 2
    batches = [item for topic in "ab" for item in log.follow(topic) if isinstance(item, ReceivedBatch)]
    assert {item.position for item in batches if item.position == result.position} == {result.position}
    assert len([item for item in batches if item.position == result.position]) == 3
    assert log.read_arrow("a").column("value").to_pylist() == values(log, "a")
    assert staged_left(log) == 0
    assert log.verify().findings == ()


@pytest.mark.parametrize("brokers", [0, 1, 2], indirect=True)
def test_transactions_survive_a_restart_and_appear_in_a_view(tmp_path: Path, brokers: int) -> None:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        log.create_topic("b", segment_max_records=2)
        for number in range(20):
            with log.transaction("job", number) as transaction:
                transaction.publish("a", [b"%d" % number] * 3)
                transaction.publish("b", [Message(b"%d" % number, tag="t")])
            if number in (5, 12):
                log.checkpoint()
            log.publish("b", b"between")
        before = {topic: values(log, topic) for topic in "ab"}
        last = log.transaction_state("job")
        with open_view(tmp_path / "data") as view:
            assert view.topics() == ["a", "b"]
            assert view.read_positions(0) == log.read_positions(0)
    with opened(tmp_path, brokers) as log:
        assert {topic: values(log, topic) for topic in "ab"} == before
        assert log.transaction_state("job") == last
        assert log.delete("b", tag="t") == 20
        with pytest.raises(FencedError):
            log.commit_staged("job", 18, [])
        assert log.commit_staged("job", 19, []).is_repeated
        assert log.verify().findings == ()


def test_a_transaction_may_exceed_the_ceiling(tmp_path: Path, brokers: int) -> None:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        with log.transaction() as transaction:
            transaction.publish("a", [b"r"] * 500)
        assert transaction.result.spans[0].seqs == range(1, 501)
        log.publish("a", [b"s"] * 100)
    with opened(tmp_path, brokers) as log:
        assert log.describe("a").next_seq == 601
        assert len(values(log, "a")) == 600


def test_threads_run_transactions_concurrently(log: EmbeddedLog) -> None:
    def work(name: bytes) -> None:
        for number in range(8):
            with log.transaction() as transaction:
                transaction.publish("a", [b"%s %d" % (name, number)] * 2)
                transaction.publish("b", b"%s %d" % (name, number))
            log.publish("a", b"alone")

    threads = [threading.Thread(target=work, args=(name,)) for name in (b"x", b"y", b"z")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_transactions = [value for value in values(log, "a") if value != b"alone"]
    assert in_transactions == [value for value in values(log, "b") for _ in range(2)]
    assert len(in_transactions) == 48
    positions = [item.position for item in log.read_positions(0) if item.topic == "b"]
    assert len(set(positions)) == 24


def test_an_arrow_table_is_published_in_a_transaction(log: EmbeddedLog) -> None:
    table = pa.table({"value": [b"v%d" % number for number in range(1_000)], "key": [b"k"] * 1_000})
    with log.transaction() as transaction:
        transaction.publish("a", table)
    assert log.read_arrow("a").num_rows == 1_000
    assert log.read_arrow("a").column("key").to_pylist() == [b"k"] * 1_000


def test_a_position_read_never_splits_a_transaction(log: EmbeddedLog) -> None:
    log.publish("a", b"one")
    with log.transaction() as transaction:
        for number in range(6):
            transaction.publish("ab"[number % 2], b"%d" % number * 1_000)
    log.publish("b", b"last")
    position = transaction.result.position
    for bounds in ({"max_bytes": 1}, {"limit": 1}, {"max_bytes": 2_500}, {"limit": 3}, {}):
        found: list[tuple[str, int]] = []
        at = 0
        while items := log.read_positions(at, **bounds):
            found += [(item.topic, item.position) for item in items]
            assert items[-1].position == items[-1].next_position - 1
            inside = [item for item in items if item.position == position]
            assert len(inside) in (0, 6)
            at = items[-1].next_position
        assert found == [("a", found[0][1]), *[("a", position)] * 3, *[("b", position)] * 3, ("b", found[-1][1])]


def test_an_empty_transaction_is_remembered(log: EmbeddedLog) -> None:
    first = log.commit_staged("job", 1, [], offsets=[("reader", "a", 5)])
    assert first.spans == ()
    assert log.committed("reader", "a") == 5
    assert log.commit_staged("job", 2, []).position > first.position
    assert log.commit_staged("job", 2, []).is_repeated


# --- refused --------------------------------------------------------------------------------------------------------


def test_an_exception_aborts(log: EmbeddedLog) -> None:
    transaction = log.transaction("job")

    def fail() -> None:
        with transaction:
            transaction.publish("a", [b"1"])
            transaction.commit_offset("reader", "a", 2)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert values(log, "a") == []
    assert log.committed("reader", "a") is None
    assert log.transaction_state("job") is None
    assert staged_left(log) == 0
    with pytest.raises(WrongStateError, match="not committed"):
        _ = transaction.result
    with pytest.raises(WrongStateError, match="begin another"):
        transaction.publish("a", b"late")
    with pytest.raises(WrongStateError, match=r"the seqs in .* are not known"):
        _ = transaction.published[0].seqs


def test_a_refused_transaction_changes_nothing(log: EmbeddedLog) -> None:
    with pytest.raises(NotFoundError):
        transact(log, a=b"1", missing=b"2")
    assert values(log, "a") == []
    assert staged_left(log) == 0
    log.publish("a", b"on")
    assert values(log, "a") == [b"on"]
    assert log.transaction_state("job") is None


def refused(log: EmbeddedLog, parts: list[tuple[str, StagedRange]], error: type[Exception], words: str) -> None:
    before = log.describe("a")
    staged = staged_left(log)
    with pytest.raises(error, match=words):
        log.commit_staged("job", 1, parts)
    assert log.describe("a") == before
    assert log.transaction_state("job") is None
    assert staged_left(log) == staged


def test_invalid_staged_ranges_are_refused(log: EmbeddedLog) -> None:
    with pytest.raises(NotFoundError, match="not all of the seqs 1 to 2"):
        log.commit_staged("job", 1, [("a", StagedRange(1, 2))])
    with log.stage() as stager:
        stager.publish([b"1", b"2", b"3"])
        (whole,) = stager.ranges()
    assert whole == StagedRange(1, 3)
    refused(log, [("a", StagedRange(1, 2))], InvalidInputError, "cut a batch in two: it holds 1 to 3")
    refused(log, [("a", StagedRange(2, 3))], InvalidInputError, "cut a batch in two")
    refused(log, [("a", StagedRange(1, 4))], NotFoundError, "1 to 4")
    refused(log, [("a", StagedRange(9, 9))], NotFoundError, "9 to 9")
    refused(log, [("a", StagedRange(0, 3))], InvalidInputError, "not a valid range")
    refused(log, [("a", StagedRange(3, 1))], InvalidInputError, "not a valid range")
    refused(log, [("a", whole), ("b", whole)], InvalidInputError, "in two ranges")
    refused(log, [(STAGING_TOPIC, whole)], NotFoundError, "there is no topic")
    refused(log, [("a", whole), ("missing", StagedRange(1, 3))], InvalidInputError, "in two ranges")
    assert log.commit_staged("job", 1, [("a", whole)]).spans[0].record_count == 3
    with pytest.raises(NotFoundError, match="were committed or aborted"):
        log.commit_staged("job", 2, [("a", whole)])
    with pytest.raises(InvalidInputError, match="an owner and an epoch"):
        log.commit_staged("", 1, [])


def test_aborted_ranges_are_not_published(log: EmbeddedLog) -> None:
    first, second = put(log, b"1"), put(log, b"2", b"3")
    assert log.abort_staged([*second, StagedRange(100, 200)]) == 2
    assert log.abort_staged(second) == 0
    refused(log, [("a", *second)], NotFoundError, "aborted")
    log.commit_staged("job", 1, [("a", *first)])
    assert values(log, "a") == [b"1"]
    assert log.abort_staged(first) == 0
    assert values(log, "a") == [b"1"]
    with pytest.raises(InvalidInputError, match="not a valid range"):
        log.abort_staged([StagedRange(4, 3)])


def test_a_transaction_may_end_inside_its_block(log: EmbeddedLog) -> None:
    with log.transaction("job") as transaction:
        transaction.publish("a", b"1")
        assert transaction.commit().epoch == 1
    with log.transaction("job") as transaction:
        transaction.publish("a", b"2")
        transaction.abort()
    with log.transaction("job") as transaction:
        transaction.abort()
    with log.transaction("job") as transaction:
        pass
    assert transaction.result.spans == ()
    with log.transaction("job", transaction.result.epoch) as transaction:
        pass
    assert transaction.result.is_repeated
    assert values(log, "a") == [b"1"]


def test_a_lost_staged_batch_is_refused(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = put(log, b"1")
    monkeypatch.setattr(TopicLog, "entries_between", lambda *_: np.zeros(0, INDEX_ENTRY))
    refused(log, [("a", *ranges)], NotFoundError, "were lost")


def test_aborting_unknown_ranges_does_nothing(log: EmbeddedLog) -> None:
    assert log.abort_staged([StagedRange(1, 2)]) == 0


def test_ephemeral_topics_are_refused(log: EmbeddedLog) -> None:
    log.create_topic("brief", durability="ephemeral")
    refused(log, [("brief", *put(log, b"1"))], ConflictError, "kept in memory alone")


def test_the_last_epoch_is_repeated_and_an_older_one_refused(log: EmbeddedLog) -> None:
    """INV-TRANSACTION-ONCE."""
    with log.transaction("job", 7) as transaction:
        transaction.publish("a", [b"1", b"2"])
    first = transaction.result
    with log.transaction("job", 7) as again:
        seqs = again.publish("a", [b"1", b"2"])
    assert again.result == first
    assert again.result.is_repeated
    assert seqs.seqs == range(1, 3)
    with log.transaction("job", 7) as other:
        nothing = other.publish("a", [b"another"])
    assert other.result == first
    with pytest.raises(WrongStateError, match=r"the seqs in .* are not known"):
        _ = nothing.seqs
    with pytest.raises(FencedError), log.transaction("job", 6) as late:
        late.publish("a", b"3")
    assert values(log, "a") == [b"1", b"2"]
    assert staged_left(log) == 0
    with log.transaction("job") as following:
        following.publish("a", b"3")
    assert following.result.epoch == 8
    with pytest.raises(InvalidInputError, match="name the owner"):
        log.transaction(epoch=3)


def test_transactions_are_bounded(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = put(log, *[b"r"] * 3)
    many = [("a", ranges[0])]
    three_ranges = [("a", StagedRange(number, number)) for number in range(1, 4)]
    two_topics = [("a", StagedRange(1, 1)), ("b", StagedRange(2, 3))]
    for limit, value, parts, words in (
        ("TRANSACTION_BATCHES_MAX", 2, many, "more than 2 batches"),
        ("TRANSACTION_BATCHES_MAX", 2, three_ranges, "3 ranges"),
        ("TRANSACTION_SIZE_MAX", 100, many, "bytes in a transaction"),
        ("TRANSACTION_TOPICS_MAX", 1, two_topics, "2 topics, at most 1"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, value)
            refused(log, parts, LimitError, words)
    with pytest.raises(LimitError, match="cursors in a transaction"):
        log.commit_staged("job", 1, [], offsets=[("r", "a", 1)] * (limits.TRANSACTION_CURSORS_MAX + 1))
    with pytest.raises(LimitError, match="of the log at once"):
        log.commit_staged("job", 1, [], offsets=[("r", "a", 1)] * limits.TRANSACTION_CURSORS_MAX)
    assert log.commit_staged("job", 1, many).spans[0].record_count == 3


def test_transactions_keep_caps(log: EmbeddedLog) -> None:
    log.create_topic("few", cap_records=5)
    log.create_topic("strict", cap_records=3, discard="reject", ttl_ms=3_600_000)
    for number in range(4):
        with log.transaction() as transaction:
            transaction.publish("few", [b"%d" % number] * 2)
    assert values(log, "few") == [b"1", b"2", b"2", b"3", b"3"]
    assert isinstance(log.read("few")[0], Gap)
    with log.transaction() as transaction:
        transaction.publish("strict", [b"1", b"2"])
    with pytest.raises(FullError, match="cap_records"):
        transact(log, strict=[b"3", b"4"], a=b"not alone")
    with pytest.raises(LimitError, match="can never fit"):
        transact(log, strict=[b"3"] * 4)
    assert values(log, "strict") == [b"1", b"2"]
    assert values(log, "a") == []


def test_a_full_disk_refuses_a_transaction_before_its_commit(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("late", segment_max_records=1)
    log.publish("late", b"1")
    ranges = put(log, b"x" * 300_000, b"y")
    real = OsFiles.open

    def full(self: OsFiles, path: str, **options: bool) -> object:
        if path.endswith(".active") and options.get("exclusive"):
            raise OSError(28, "no space", path)
        return real(self, path, **options)

    monkeypatch.setattr(OsFiles, "open", full)
    with pytest.raises(DiskFullError):
        log.commit_staged("job", 1, [("late", each) for each in ranges])
    monkeypatch.undo()
    log.publish("a", b"on")
    committed = log.commit_staged("job", 1, [("late", each) for each in ranges])
    assert committed.spans[0].seqs == range(2, 4)
    assert values(log, "late") == [b"1", b"x" * 300_000, b"y"]
    assert log.verify().findings == ()


def test_reservations_are_released_if_another_topic_refuses(log: EmbeddedLog) -> None:
    log.create_topic("rolled", segment_max_records=1)
    log.create_topic("strict", cap_records=1, discard="reject")
    log.publish("rolled", b"1")
    log.publish("strict", b"1")
    first, second = put(log, b"2"), put(log, b"2")
    with pytest.raises(FullError):
        log.commit_staged("job", 1, [("rolled", *first), ("strict", *second)])
    log.publish("rolled", b"3")
    log.commit_staged("job", 1, [("rolled", *first)])
    assert values(log, "rolled") == [b"1", b"3", b"2"]
    assert log.verify().findings == ()


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is a piece of its own, and all pieces are verified ahead."""
    monkeypatch.setattr(limits, "TRANSACTION_PIECE_SIZE", 64 * KIB)
    monkeypatch.setattr(transaction_copying, "_PIPELINED_SIZE", 0)


@pytest.mark.usefixtures("in_pieces")
def test_large_transactions_are_verified_ahead_and_written_in_order(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[str] = set()
    numbers: list[int] = []
    real_verify, real_write = transaction_copying._verify, transaction_copying._write

    def verify(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        return real_verify(*arguments)

    def write(plan: Any, verified: Any) -> None:
        numbers.extend(each.first for each in verified)
        real_write(plan, verified)

    monkeypatch.setattr(transaction_copying, "_verify", verify)
    monkeypatch.setattr(transaction_copying, "_write", write)
    records = [bytes([number]) * 70_000 for number in range(12)]
    ranges = put(log, *records)
    again = put(log, b"small", *records[::-1])
    log.commit_staged("job", 1, [("b", each) for each in again] + [("a", each) for each in ranges])
    assert values(log, "a") == records
    assert values(log, "b") == [b"small", *records[::-1]]
    assert threads == {"seawall-verifying_0"}
    assert numbers == sorted(numbers)
    assert len(numbers) == 25
    assert log.verify().findings == ()


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("failing", [0, 1, 3])
def test_a_disk_that_fills_up_during_copying_refuses_all(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    records = [bytes([number]) * 70_000 for number in range(4)]
    ranges = put(log, *records)
    real = transaction_copying._write
    numbers = count()

    def write(*args: Any) -> None:
        if next(numbers) == failing:
            raise OSError(28, "no space", "here")
        real(*args)

    with monkeypatch.context() as full:
        full.setattr(transaction_copying, "_write", write)
        with pytest.raises(DiskFullError):
            log.commit_staged("job", 1, [("a", each) for each in ranges])
    assert next(numbers) == failing + 1, "nothing is written after the failure"
    log.publish("a", b"on")
    log.commit_staged("job", 1, [("a", each) for each in ranges])
    assert values(log, "a") == [b"on", *records]
    assert log.verify().findings == ()


@pytest.mark.parametrize("ahead", [0, 1 << 40])
def test_damaged_staged_batches_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    monkeypatch.setattr(transaction_copying, "_PIPELINED_SIZE", ahead)
    with opened(tmp_path) as log:
        log.create_topic("a")
        ranges = put(log, b"x" * 70_000, b"y" * 70_000)
        (segment,) = (tmp_path / "data" / "topics").glob("00000002/*.active")
        data = bytearray(segment.read_bytes())
        data[data.rindex(b"y" * 100)] ^= 1
        segment.write_bytes(data)
        with pytest.raises(NotFoundError, match="damaged; stage the records again"):
            log.commit_staged("job", 1, [("a", each) for each in ranges])
        log.publish("a", b"on")
        assert values(log, "a") == [b"on"]


def test_ranges_may_be_pickled_and_committed_later(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.create_topic("a")
        text = pickle.dumps(put(log, b"1", b"2"))
    with opened(tmp_path) as log:
        parts = [StagedPart("a", each) for each in pickle.loads(text)]
        log.commit_staged("job", 1, parts)
        assert values(log, "a") == [b"1", b"2"]


def test_stagers_share_no_batch(log: EmbeddedLog) -> None:
    stagers = [log.stage() for _ in range(3)]
    for number in range(5):
        for stager in stagers:
            stager.publish([b"%d" % number] * 2)
    parts = [("a", each) for stager in stagers[1:] for each in stager.ranges()]
    assert stagers[0].abort() == 10
    assert stagers[0].abort() == 0
    log.commit_staged("job", 1, parts)
    assert values(log, "a") == [b"%d" % number for _ in range(2) for number in range(5) for _ in range(2)]


def test_staging_may_exceed_the_in_flight_bound(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seawall.api.transactions.IN_FLIGHT_SIZE", 100)
    with log.transaction() as transaction:
        for number in range(9):
            transaction.publish("a", b"%d" % number * 60)
    assert len(values(log, "a")) == 9
    with pytest.raises(InvalidInputError, match="at least one record"):
        log.stage().publish([])


def test_the_staging_topic_is_hidden(log: EmbeddedLog) -> None:
    put(log, b"1")
    assert log.topics() == ["a", "b"]
    assert log.read_positions(0) == []
    for name in (STAGING_TOPIC, "_other"):
        with pytest.raises(InvalidInputError, match="not allowed"):
            log.create_topic(name)
    for refused in (
        lambda: log.publish(STAGING_TOPIC, b"2"),
        lambda: log.configure_topic(STAGING_TOPIC, ttl_ms=1),
        lambda: log.delete(STAGING_TOPIC, before_seq=9),
        lambda: log.delete_topic(STAGING_TOPIC),
        lambda: log.describe(STAGING_TOPIC),
        lambda: log.read(STAGING_TOPIC),
        lambda: transact(log, **{STAGING_TOPIC: b"3"}),
    ):
        with pytest.raises(NotFoundError, match="there is no topic '_staging'"):
            refused()
    assert staged_left(log) == 1


def test_staged_records_expire(tmp_path: Path, brokers: int) -> None:
    with opened(tmp_path, brokers) as log:
        log.create_topic("a")
        put(log, b"1")
    with opened(tmp_path, brokers, settings=replace(SMALL, staging_ttl_ms=1)) as log:
        put(log, b"2")
        threading.Event().wait(0.01)
        put(log, b"3")
        assert staging_of(log).config.ttl_ms == 1
        assert staging_of(log).floor >= 3
        with pytest.raises(NotFoundError, match="are too old"):
            log.commit_staged("job", 1, [("a", StagedRange(1, 1))])


def test_an_unknown_staging_outcome_is_reported() -> None:
    class Lost:
        record_count = 1
        first_seq = 0

    with pytest.raises(OutcomeUnknownError, match="stage the records again"):
        StagedCall([Lost()], 0).decided()


# --- on an event loop-------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("each_event_loop")
def test_transactions_work_on_an_event_loop(tmp_path: Path, brokers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seawall.api.aio_transactions.IN_FLIGHT_SIZE", 100)
    asyncio.run(run_transactions(tmp_path, brokers))
    with opened(tmp_path) as log:
        found = values(log, "a")
        assert found[:3] == [b"1", b"2", b"3"]
        assert sorted(found[3:]) == [b"%d" % number * 60 for number in range(5)]
        assert staged_left(log) == 1


async def run_transactions(path: Path, brokers: int) -> None:
    async with AsyncLog(path / "data", SMALL, TINY, brokers=brokers) as log:
        await log.create_topic("a")
        async with log.transaction() as transaction:
            first = await transaction.publish("a", [b"1", b"2"])
            transaction.commit_offset("reader", "a", 2)
        assert first.seqs == range(1, 3)
        async with log.transaction("job") as named:
            await named.publish("a", b"3")
        async with log.transaction("job", named.result.epoch) as again:
            await again.publish("a", b"3")
        assert again.result.is_repeated
        assert await log.transaction_state("job") == named.result

        async def fail(topic: str, error: type[Exception] | None) -> None:
            async with log.transaction("job") as failing:
                await failing.publish(topic, b"4")
                if error is not None:
                    raise error

        with pytest.raises(KeyError):
            await fail("a", KeyError)
        with pytest.raises(NotFoundError):
            await fail("missing", None)

        async with log.transaction("job") as ended:
            await ended.abort()
        async with log.transaction("job") as empty:
            assert (await empty.commit()).spans == ()
        async with log.transaction("job", empty.result.epoch) as same:
            pass
        assert same.result.is_repeated

        async def transact(number: int) -> None:
            async with log.transaction() as transaction:
                await transaction.publish("a", b"%d" % number * 60)

        await asyncio.gather(*(transact(number) for number in range(5)))
        async with await log.stage() as stager:
            for _ in range(3):
                await stager.publish(b"x" * 60)
            assert sum(each.record_count for each in await stager.ranges()) == 3
            assert await stager.abort() == 3
            assert await stager.abort() == 0
            await stager.publish(b"left")
        with pytest.raises(InvalidInputError, match="name the owner"):
            log.transaction(epoch=3)


@pytest.mark.usefixtures("each_event_loop")
def test_an_unknown_outcome_aborts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise OutcomeUnknownError("the connection was lost")

    async def fail() -> None:
        async with AsyncLog(tmp_path / "other", SMALL) as log:
            await log.create_topic("a")
            async with log.transaction("job", 1) as transaction:
                await transaction.publish("a", b"1")

    monkeypatch.setattr(EmbeddedLog, "commit_staged", unknown)
    with opened(tmp_path) as log:
        log.create_topic("a")
        with pytest.raises(OutcomeUnknownError):
            transact(log, a=b"1")
        assert staged_left(log) == 1
    with pytest.raises(OutcomeUnknownError):
        asyncio.run(fail())
