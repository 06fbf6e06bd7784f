"""The catalog of topics: names, ids, epochs, cursors, and a snapshot that restores all of it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import (
    ConfigError,
    ConflictError,
    CorruptionError,
    FullError,
    InvalidInputError,
    InvariantError,
    NotFoundError,
)
from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.storage.control.batches import Compound, Control
from seawall.storage.control.codec import Ceiling, Checkpoint, ClientRow, CursorCommit, Reference, SegmentRoll
from seawall.storage.control.deletes import DeleteRecords, MatchKind, TagMatch
from seawall.storage.control.documents import FloorRaise, Loss, TermStart
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.topics.catalog import Cursor, TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.keys import KeyedAppend
from seawall.topics.persistence import catalog_sections, load_catalog
from seawall.wire.format.batches import BatchHeader, batch_header
from seawall.wire.format.codes import GapReason


def append_header(topic_id: int, base_seq: int, count: int, position: int) -> BatchHeader:
    header = batch_header(
        bytes(10 * count),
        topic_id=topic_id,
        client_id=1,
        client_seq=1,
        session_epoch=0,
        record_count=count,
        timestamp_ns=5,
    )
    return replace(header, base_seq=base_seq, position=position)


def rows_of(headers: list[BatchHeader]) -> WalRows:
    """Headers as the rows that the log reader delivers."""
    rows = np.zeros(len(headers), WAL_ROW)
    for index, header in enumerate(headers):
        for name in {*WAL_ROW.names} - {"at", "count"}:
            rows[name][index] = getattr(header, name)
        rows["count"][index] = header.record_count
    return rows


class Log:
    """A catalog and the position of the next batch."""

    def __init__(self) -> None:
        self.catalog = TopicCatalog()
        self.position = 0

    def apply(self, control: Control) -> bool:
        self.position += 1
        return self.catalog.apply(control, self.position - 1)

    def append(self, name: str, count: int) -> None:
        topic = self.catalog.named(name)
        self.position += 1
        assert self.catalog.apply_append(append_header(topic.topic_id, topic.next_seq, count, self.position - 1))

    def create(self, name: str, **settings) -> None:
        assert self.apply(self.catalog.create(name, TopicConfig(**settings)))


# --- names, ids, epochs ----------------------------------------------------------------------------------------------


def test_topics_are_found_by_name_and_id() -> None:
    log = Log()
    log.create("b")
    log.create("a", ttl_ms=5)
    catalog = log.catalog
    assert (len(catalog), catalog.names(), [topic.name for topic in catalog]) == (2, ["a", "b"], ["b", "a"])
    assert catalog.named("a") is catalog.find(2)
    assert (catalog.named("a").config.ttl_ms, catalog.find(3)) == (5, None)
    with pytest.raises(NotFoundError, match="no topic 'c'"):
        catalog.named("c")


def test_planning_changes_nothing() -> None:
    log = Log()
    log.create("a")
    for _ in range(2):
        assert log.catalog.create("b", TopicConfig()).topic_id == 2
    log.catalog.delete("a")
    log.catalog.configure(log.catalog.named("a"), {"ttl_ms": 9})
    log.catalog.commit("reader", "a", 5)
    assert log.catalog.names() == ["a"]
    assert log.catalog.named("a").config == TopicConfig()
    assert log.catalog.cursor("reader", 1) is None


def test_a_recreated_name_is_a_new_topic() -> None:
    log = Log()
    log.create("a")
    log.append("a", 5)
    first = log.catalog.named("a")
    assert log.apply(log.catalog.commit("reader", "a", 3))
    first.keys.remember(bytes(16), KeyedAppend(1, 5, 0))
    assert log.apply(log.catalog.delete("a"))
    assert (len(log.catalog), log.catalog.cursor("reader", 1), log.catalog.find(1)) == (0, None, None)
    log.create("a")
    second = log.catalog.named("a")
    assert (second.topic_id, second.head_seq, len(second.keys)) == (2, 0, 0)
    assert second.epoch > first.epoch
    assert second.recreated(first.epoch).reason is GapReason.RECREATED


def test_invalid_or_taken_names_and_ids_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.create("a")
    with pytest.raises(ConflictError, match="already"):
        log.catalog.create("a", TopicConfig())
    with pytest.raises(InvalidInputError):
        log.catalog.create("a/b", TopicConfig())
    with pytest.raises(ConfigError, match="the topic itself"):
        log.catalog.create("b", TopicConfig(dead_letter="b"))
    with pytest.raises(ConfigError, match="the topic itself"):
        log.catalog.configure(log.catalog.named("a"), {"dead_letter": "a"})
    with pytest.raises(NotFoundError):
        log.catalog.delete("b")
    with pytest.raises(InvariantError, match="INV-TOPIC-ID-ONCE"):
        log.apply(replace(log.catalog.create("b", TopicConfig()), topic_id=1))
    log.catalog.next_topic_id = 0xFFFF_FFFF
    with pytest.raises(FullError):
        log.catalog.create("b", TopicConfig())
    log.catalog.next_topic_id = 2
    monkeypatch.setattr(limits, "TOPICS_MAX", 1)
    with pytest.raises(FullError, match="at most 1"):
        log.catalog.create("b", TopicConfig())


def test_applying_a_create_of_a_taken_name_ends_the_older_topic() -> None:
    log = Log()
    log.create("a")
    created = log.catalog.create("b", TopicConfig())
    assert not log.apply(replace(created, name="a"))
    assert log.catalog.named("a").topic_id == 2
    assert log.catalog.find(1) is None


def test_a_control_changes_the_settings() -> None:
    log = Log()
    log.create("a")
    control = log.catalog.configure(log.catalog.named("a"), {"ttl_ms": 9})
    assert (control.before["ttl_ms"], control.after["ttl_ms"]) == (0, 9)
    assert log.apply(control)
    assert log.catalog.named("a").config.ttl_ms == 9
    assert log.catalog.configure(log.catalog.named("a"), {"ttl_ms": 9}) is None


# --- what the log says -----------------------------------------------------------------------------------------------


def test_a_batch_takes_effect_once() -> None:
    """INV-APPLY-ONCE."""
    log = Log()
    log.create("a")
    header = append_header(1, 1, 5, 1)
    assert log.catalog.apply_append(header)
    assert not log.catalog.apply_append(header)
    assert not log.catalog.apply(Ceiling(1, 50, 1), 1)
    assert (log.catalog.named("a").head_seq, log.catalog.named("a").ceiling) == (5, 1)
    assert log.catalog.next_position == 2
    assert log.catalog.apply(Ceiling(1, 50, 1), 9), "positions may be skipped"
    assert log.catalog.next_position == 10


def test_a_run_is_applied_by_topic() -> None:
    one_by_one, at_once = Log(), Log()
    for log in (one_by_one, at_once):
        log.create("a")
        log.create("b")
    headers = [
        append_header(topic_id, base_seq, count, position)
        for position, (topic_id, base_seq, count) in enumerate(
            [(1, 1, 2), (2, 1, 1), (7, 1, 1), (1, 3, 1), (2, 5, 1)], 2
        )
    ]
    for header in headers:
        one_by_one.catalog.apply_append(header)
    rows = rows_of(headers)
    assert at_once.catalog.not_applied(rows) is rows
    applied = at_once.catalog.apply_run(rows)
    assert [(topic.name, run["base_seq"].tolist()) for topic, run in applied] == [("a", [1, 3]), ("b", [1, 5])]
    assert catalog_sections(at_once.catalog) == catalog_sections(one_by_one.catalog)
    assert at_once.catalog.next_position == one_by_one.catalog.next_position == 7
    assert not len(at_once.catalog.not_applied(rows))
    more = rows_of([headers[-1], append_header(2, 6, 1, 9)])
    assert at_once.catalog.not_applied(more)["position"].tolist() == [9]
    [(topic, _)] = at_once.catalog.apply_run(at_once.catalog.not_applied(more))
    assert (topic.head_seq, at_once.catalog.next_position) == (6, 10)


def test_batches_of_unknown_topics_are_ignored() -> None:
    log = Log()
    for control in (Ceiling(1, 50, 1), CursorCommit("a", 1, 1, 1, 0), DeleteRecords(1, DeletedSeqs.between(1, 4), 40)):
        assert not log.apply(control)
    log.create("a")
    assert not log.catalog.apply_append(append_header(7, 1, 1, log.position))
    log.position += 1
    assert log.apply(Compound((ClientRow(1, bytes(64)), Checkpoint(5, 1, 0), TermStart(4, 0, 0))))
    assert log.catalog.term == 4
    assert log.apply(TermStart(3, 0, 0))
    assert log.catalog.term == 4


def test_a_compound_applies_every_part_it_can() -> None:
    log = Log()
    log.create("a")
    header = append_header(1, 1, 2, log.position)
    parts = (
        Ceiling(9, 50, 1),
        Reference(header, 1, 4096),
        CursorCommit("router", 1, 1, 3, 0),
        SegmentRoll(1, 3, 1),
    )
    assert not log.catalog.apply(Compound(parts), log.position)
    topic = log.catalog.named("a")
    assert (topic.head_seq, topic.segment_first_seq) == (2, 3)
    assert log.catalog.cursor("router", 1) == Cursor(1, 3)
    assert topic.live_records == 2


def test_a_cursor_is_what_was_committed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    log.create("a")
    assert log.apply(log.catalog.commit("reader", "a", 5))
    again = log.catalog.commit("reader", "a", 3, 90)
    assert again.previous == 5
    assert log.apply(again)
    assert dict(log.catalog.cursors(1)) == {"reader": Cursor(1, 3, 90)}
    assert dict(log.catalog.cursors(9)) == {}
    monkeypatch.setattr(limits, "CURSORS_MAX", 1)
    log.catalog.commit("reader", "a", 6)
    with pytest.raises(FullError, match="no cursor"):
        log.catalog.commit("other", "a", 6)
    assert log.apply(log.catalog.delete("a"))
    log.create("a")
    log.catalog.commit("other", "a", 6)


# --- snapshots -------------------------------------------------------------------------------------------------------


EVERY_SECOND = DeletedSeqs.of(np.arange(1, 20, 2, dtype=np.int64))


def busy_log() -> Log:
    log = Log()
    for name in ("gone", "a", "b", "empty"):
        log.create(name, ttl_ms=5)
    log.append("a", 20)
    log.append("b", 3)
    for control in (
        TermStart(2, 1, 0),
        Ceiling(2, 1000, 1),
        SegmentRoll(2, 11, 1),
        DeleteRecords(2, EVERY_SECOND, 100, None, TagMatch(MatchKind.EQ, "x")),
        FloorRaise(2, GapReason.CAP, 4, 1, 10),
        FloorRaise(2, GapReason.TTL, 6, 4, 10),
        Loss(2, 8, 9, GapReason.CORRUPTION, 10),
        Loss(2, 21, 30, GapReason.CRASH),
        log.catalog.commit("réader", "a", 7),
        log.catalog.commit("v1", "b", 2, 10),
        log.catalog.delete("gone"),
    ):
        assert log.apply(control)
    log.catalog.named("b").keys.remember(bytes(16), KeyedAppend(1, 2, 700))
    log.catalog.named("b").keys.remember(b"k" * 16, KeyedAppend(3, 3, 701))
    return log


def snapshot_of(log: Log) -> Snapshot:
    return Snapshot(log.catalog.next_position, 0, 0, catalog_sections(log.catalog))


def test_a_snapshot_restores_the_whole_catalog() -> None:
    log = busy_log()
    snapshot = snapshot_of(log)
    loaded = load_catalog(snapshot)
    assert catalog_sections(loaded) == snapshot.sections
    assert (loaded.next_position, loaded.next_topic_id, loaded.term) == (log.position, 5, 2)
    topic = loaded.named("a")
    assert topic.gaps(1, 40) == log.catalog.named("a").gaps(1, 40)
    assert list(topic.deleted) == list(log.catalog.named("a").deleted) != []
    assert loaded.cursor("réader", 2) == Cursor(2, 7)
    assert loaded.named("b").keys.find(b"k" * 16, 701, 5) == KeyedAppend(3, 3, 701)
    assert loaded.create("c", TopicConfig()).topic_id == 5, "ids are not given again"


def tail(log: Log) -> list[Control]:
    return [
        DeleteRecords(2, DeletedSeqs.between(6, 14), 20, 15),
        FloorRaise(2, GapReason.CAP, 20, 6, 30),
        CursorCommit("réader", 2, 2, 31, 7),
        log.catalog.create("late", TopicConfig()),
    ]


@settings(max_examples=20)
@given(st.integers(0, 4))
def test_replay_over_a_snapshot_equals_an_uninterrupted_run(taken_after: int) -> None:
    log = busy_log()
    controls = tail(log)
    start = log.position
    for control in controls[:taken_after]:
        assert log.apply(control)
    loaded = load_catalog(snapshot_of(log))
    for control in controls[taken_after:]:
        assert log.apply(control)
    for position, control in enumerate(controls, start):
        assert loaded.apply(control, position) == (position >= start + taken_after)
    assert catalog_sections(loaded) == catalog_sections(log.catalog)


def test_an_empty_catalog_round_trips() -> None:
    log = Log()
    assert len(load_catalog(snapshot_of(log))) == 0


def edited(sections: dict[SectionKind, bytes], kind: SectionKind, edit) -> dict[SectionKind, bytes]:
    document = json.loads(sections[kind])
    edit(document)
    return {**sections, kind: json.dumps(document).encode()}


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        (SectionKind.CATALOG, lambda it: it.pop("term")),
        (SectionKind.CATALOG, lambda it: it.update(next_topic_id=4)),
        (SectionKind.CATALOG, lambda it: it.update(next_topic_id=-1)),
        (SectionKind.TOPICS, lambda it: it.update(topics={})),
        (SectionKind.TOPICS, lambda it: it["topics"].append(5)),
        (SectionKind.TOPICS, lambda it: it["topics"].append(it["topics"][0])),
        (SectionKind.TOPICS, lambda it: it["topics"].append({**it["topics"][0], "name": "twin"})),
        (SectionKind.TOPICS, lambda it: it["topics"].pop(0)),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(name="a/b")),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(floor=2000)),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(live_records=1)),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(head_seq="x")),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(config={"x": 1})),
        (SectionKind.TOPICS, lambda it: it["topics"][0].pop("losses")),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(losses=[[1, 2]])),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(losses=[[1, 2, 99]])),
        (SectionKind.TOPICS, lambda it: it["topics"][0].update(losses=[[2, 1, 3]])),
        (SectionKind.CURSORS, lambda it: it["cursors"].append([99, "a", 1, 1, None])),
        (SectionKind.CURSORS, lambda it: it["cursors"].append([2, "a", 1, 1])),
        (SectionKind.CURSORS, lambda it: it["cursors"].append([2, "a", 1, -1, None])),
        (SectionKind.CURSORS, lambda it: it.clear()),
        (SectionKind.KEYS, lambda it: it["keys"].append([3, "zz", 9, 9, 1])),
        (SectionKind.KEYS, lambda it: it["keys"].append([3, "aa", 9, 9, 1])),
        (SectionKind.KEYS, lambda it: it["keys"].append([3, "aa", 9])),
        (SectionKind.KEYS, lambda it: it["keys"].append([3, "00" * 15 + "01", 1, 1, 1])),
        (SectionKind.KEYS, lambda it: it["keys"].append([3, "00" * 15 + "01", 2**64, 2**64, 1])),
    ],
)
def test_a_contradictory_snapshot_is_corruption(kind: SectionKind, edit) -> None:
    sections = edited(catalog_sections(busy_log().catalog), kind, edit)
    with pytest.raises(CorruptionError):
        load_catalog(Snapshot(9, 0, 0, sections))


@pytest.mark.parametrize(
    "deleted",
    [
        b"\2\0\0\0\1\0\0\0\1\0\0\0\0\0\0\0" + b"\0" * 7 + b"\x80",
        b"\0",
        b"\2\0\0\0\2\0\0\0" + bytes(16),
        b"\2\0\0\0\1\0\0\0" + bytes(16),
        b"\x63\0\0\0\0\0\0\0",
    ],
)
def test_invalid_ranges_of_deleted_records_are_corruption(deleted: bytes) -> None:
    sections = catalog_sections(busy_log().catalog)
    with pytest.raises(CorruptionError):
        load_catalog(Snapshot(9, 0, 0, {**sections, SectionKind.DELETED: deleted}))


def test_deleted_records_of_one_topic_are_stored_once() -> None:
    sections = catalog_sections(busy_log().catalog)
    deleted = sections[SectionKind.DELETED]
    with pytest.raises(CorruptionError, match="DELETED"):
        load_catalog(Snapshot(9, 0, 0, {**sections, SectionKind.DELETED: deleted * 2}))
