"""Arrow tables read straight from stored batches: the same rows as decoding batch by batch, for any content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from seawall.core.types import Seq
from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.commit.appends import Append
from seawall.engine.read import arrow_reading, run_pieces
from seawall.engine.read.read_results import Message, ReceivedBatch, to_arrow
from seawall.engine.store.settings import StoreSettings
from seawall.engine.store.topic_log import TopicLog
from seawall.errors import CorruptionError, InvalidInputError, NotFoundError
from seawall.io.disk.mapped import MappedPart
from seawall.limits import KIB
from seawall.topics.config import TopicConfig
from seawall.wire.format import gathering
from seawall.wire.format.arrow import KNOWN_COLUMNS

SMALL = StoreSettings(wal_file_size=512 * KIB, ballast_size=4 * KIB)
ALL = KNOWN_COLUMNS


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data", SMALL) as opened:
        opened.create_topic("events", segment_max_records=50)
        yield opened


def general(log: EmbeddedLog, columns: tuple[str, ...], from_seq: int = 1) -> pa.Table:
    """The table made batch by batch, with `decode_table`."""
    batches = [item for item in log.follow("events", from_seq) if isinstance(item, ReceivedBatch)]
    return pa.Table.from_batches(list(to_arrow(batches, columns)))


def same(log: EmbeddedLog, columns: tuple[str, ...] = ALL, from_seq: int = 1) -> pa.Table:
    found = log.read_arrow("events", from_seq, columns=columns)
    found.validate(full=True)
    expected = general(log, columns, from_seq)
    assert found.schema == expected.schema
    assert found.to_pylist() == expected.to_pylist()
    return found


def topic_log_of(log: EmbeddedLog) -> TopicLog:
    with log.inspecting() as store:
        (topic_log,) = store.parts.logs
    return topic_log


def pinned(log: EmbeddedLog) -> int:
    """How many files of the topic are pinned: an open one that is not can be evicted."""
    topic_log = topic_log_of(log)
    shared = [unsealed.segment.shared for unsealed in topic_log.unsealed]
    shared += [segment.open_file() for segment in topic_log.sealed]
    return sum(each.is_open and not each.try_evict() for each in shared)


def fill(log: EmbeddedLog, calls: int, size: int = 10) -> None:
    for call in range(calls):
        log.publish("events", [b"%d-%d" % (call, number) * size for number in range(9)])
        if call % 10 == 6:
            log.checkpoint()


KINDS: dict[str, Any] = {
    "raw": [b"a", b"", b"c" * 1_000],
    "json": [{"a": 1}, "text", b"bytes"],
    "envelopes": [Message(b"a", key="k", tag="t", timestamp_ns=5_000, headers={"h": "v"}), Message(b"b", node="n")],
    "mixed": [b"plain", Message(b"a", meta=b"m"), {"j": 2}],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [("value",), ALL, ("tag", "value"), ()])
def test_tables_equal_those_decoded_batch_by_batch(log: EmbeddedLog, kind: str, columns: tuple[str, ...]) -> None:
    for _ in range(3):
        log.publish("events", KINDS[kind])
    log.checkpoint()
    log.publish("events", KINDS[kind])
    same(log, columns)
    same(log, columns, from_seq=5)


def test_plain_and_other_batches_in_one_topic(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_reading, "PLAN_SIZE", 600)
    for number in range(30):
        log.publish("events", [b"%d" % number] * 5 if number % 7 else [Message(b"e", key=b"k")])
    log.checkpoint()
    assert same(log).num_rows == 25 * 5 + 5
    assert pinned(log) == 0


@pytest.mark.parametrize("plan_size", [1, 2_000, 1 << 23])
def test_many_read_plans_are_concatenated_in_order(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, plan_size: int
) -> None:
    monkeypatch.setattr(arrow_reading, "PLAN_SIZE", plan_size)
    fill(log, 60)
    for from_seq in (1, 100, 538, 540):
        table = same(log, ("value",), from_seq)
        assert table.column("seq").to_pylist() == list(range(from_seq, 541))
    assert pinned(log) == 0


def test_values_larger_than_a_piece(log: EmbeddedLog) -> None:
    log.publish("events", [bytes([number]) * 700_000 for number in range(20)])
    assert same(log, ("value",)).num_rows == 20


def test_deleted_records_have_no_row(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, 20)
    log.publish("events", Message(b"envelope"))
    with log.inspecting() as store:
        topic = store.catalog.named("events")
    for first, last in ((5, 5), (8, 40), (100, 101), (170, 180)):
        topic.deleted.add(Seq(first), Seq(last))
    for plan_size in (300, 1 << 23):
        monkeypatch.setattr(arrow_reading, "PLAN_SIZE", plan_size)
        deleted = {5, *range(8, 41), 100, 101, *range(170, 181)}
        shown = [seq for seq in range(1, 182) if seq not in deleted]
        assert same(log).column("seq").to_pylist() == shown
    topic.deleted.add(Seq(181), Seq(181))
    assert same(log, ("value",)).column("seq").to_pylist() == [seq for seq in shown if seq != 181]


def test_damaged_batches_have_no_row(log: EmbeddedLog) -> None:
    fill(log, 21)
    log.checkpoint()
    segment = topic_log_of(log).sealed[0]
    with open(segment.path, "r+b") as file:
        file.seek(int(segment.load_index().entries["at"][1]) + 100)
        file.write(b"????")
    found = same(log, ("value",)).column("seq").to_pylist()
    assert found == [*range(1, 10), *range(19, 190)]


def test_an_empty_table_has_its_columns(log: EmbeddedLog) -> None:
    empty = log.read_arrow("events", columns=ALL)
    assert (empty.num_rows, empty.schema.names) == (0, ["seq", "type", *ALL])
    log.publish("events", b"x")
    assert log.read_arrow("events", 2, columns=ALL).schema == empty.schema
    assert log.read_arrow("events", columns=ALL).schema == empty.schema
    with log.inspecting() as store:
        store.catalog.named("events").deleted.add(Seq(1), Seq(1))
    assert log.read_arrow("events", columns=ALL).num_rows == 0


def test_unknown_columns_topics_and_seqs_are_refused(log: EmbeddedLog) -> None:
    with pytest.raises(InvalidInputError, match="no column colour"):
        log.read_arrow("events", columns=("value", "colour"))
    with pytest.raises(InvalidInputError, match="begin at 1"):
        log.read_arrow("events", 0)
    with pytest.raises(NotFoundError):
        log.read_arrow("absent")


def test_a_block_that_breaks_the_format_is_reported(log: EmbeddedLog) -> None:
    """The store does not parse the blocks that it is given; both ways of reading notice a wrong record count."""
    with log.changing() as store:
        topic_id = store.create_topic("other", TopicConfig()).topic_id
        store.append([Append(topic_id, b"\1\0\0\0\0" * 3, 2)])
    with pytest.raises(CorruptionError, match="as many records as it says"):
        log.read_arrow("other", columns=("value",))
    with log.inspecting() as store:
        plan = store.queries.plan_read("other", Seq(1), size_max=100)
    with pytest.raises(CorruptionError):
        arrow_reading.gather(plan, "other", ("value",))
    assert plan.runs == []


@pytest.mark.parametrize("plan_size", [500, 1 << 23])
def test_an_error_leaves_no_pin(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, plan_size: int) -> None:
    fill(log, 40)
    monkeypatch.setattr(arrow_reading, "PLAN_SIZE", plan_size)
    calls = iter(range(10_000))
    real = gathering.gather_values

    def failing(*arguments: Any) -> int:
        if next(calls) % 3 == 2:
            raise MemoryError
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(gathering, "gather_values", failing)
        with pytest.raises(MemoryError):
            log.read_arrow("events")
    assert pinned(log) == 0
    with monkeypatch.context() as patch:
        patch.setattr(arrow_reading.ThreadPoolExecutor, "submit", lambda *_arguments: 1 / 0)
        if plan_size == 500:
            with pytest.raises(ZeroDivisionError):
                log.read_arrow("events")
    assert pinned(log) == 0


def test_a_table_keeps_its_memory(log: EmbeddedLog) -> None:
    log.publish("events", [bytes([number]) * 5_000 for number in range(250)])
    log.checkpoint()
    column = log.read_arrow("events", columns=("value",)).column("value")
    log.publish("events", [b"\xff" * 5_000] * 250)
    for _ in range(3):
        log.read_arrow("events", columns=("value",))
    assert [np.frombuffer(value.as_py(), np.uint8)[-1] for value in column] == list(range(250))


@pytest.mark.parametrize("fetched", [True, False])
def test_mapped_and_read_segments_give_the_same(
    log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    monkeypatch.setattr(run_pieces, "READ_MAPPED_SIZE_MIN", 1)
    if not fetched:
        monkeypatch.setattr(MappedPart, "fetch", lambda *_: False)
    fill(log, 40)
    log.publish("events", [bytes([number]) * 300_000 for number in range(9)])
    log.checkpoint()
    segment = topic_log_of(log).sealed[1]
    with open(segment.path, "r+b") as file:
        file.seek(int(segment.load_index().entries["at"][1]) + 100)
        file.write(b"????")
    table = same(log)
    assert table.num_rows == 40 * 9 + 9 - 9
    assert pinned(log) == 0


def test_a_truncated_segment_has_fewer_rows(log: EmbeddedLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_pieces, "READ_MAPPED_SIZE_MIN", 1)
    fill(log, 40)
    log.checkpoint()
    segment = topic_log_of(log).sealed[0]
    last = segment.load_index().entries[-1]
    with open(segment.path, "r+b") as file:
        file.truncate(int(last["at"]) + 50)
    assert same(log).num_rows == 40 * 9 - int(last["count"])
