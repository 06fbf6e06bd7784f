"""The state of a topic against a model that keeps every record in a dictionary."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.core.types import Seq
from seawall.errors import CorruptionError, InvalidInputError, InvariantError
from seawall.kernels.log.epochs import WAL_ROW, WalRows
from seawall.storage.control.codec import Ceiling, Checkpoint, CursorCommit, SegmentRoll
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise, Loss, TopicConfigure
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.topics.config import TopicConfig
from seawall.topics.gaps import Gap
from seawall.topics.state import TopicState
from seawall.wire.format.batches import BatchHeader, batch_header
from seawall.wire.format.codes import GapReason

TOPIC = 3


def size_of(seq: int) -> int:
    return seq % 7 + 1


def append_header(base_seq: int, count: int, *, base_offset: int = 0, timestamp_ns: int = 0) -> BatchHeader:
    length = sum(size_of(seq) for seq in range(base_seq, base_seq + count))
    header = batch_header(
        bytes(length), topic_id=TOPIC, client_id=1, client_seq=1, session_epoch=0, record_count=count, timestamp_ns=0
    )
    return replace(header, base_seq=base_seq, base_offset=base_offset, timestamp_ns=timestamp_ns)


def new_topic() -> TopicState:
    return TopicState(TOPIC, "events", 3, TopicConfig())


def topic_with(count: int) -> TopicState:
    topic = new_topic()
    topic.append(append_header(1, count))
    return topic


def delete_of(*seqs: int, live: Iterable[int] | None = None) -> DeleteRecords:
    """A delete of these seqs, of which those in `live` count."""
    size = sum(size_of(seq) for seq in (seqs if live is None else {*seqs} & {*live}))
    return DeleteRecords(TOPIC, DeletedSeqs.of(np.array(seqs, np.int64)), size)


def live_seqs(topic: TopicState) -> list[int]:
    return [seq for first, last in topic.live_runs(1, topic.head_seq) for seq in range(first, last + 1)]


def rows_of(headers: list[BatchHeader]) -> WalRows:
    """Headers as the rows that the log reader delivers."""
    rows = np.zeros(len(headers), WAL_ROW)
    for index, header in enumerate(headers):
        for name in {*WAL_ROW.names} - {"at", "count"}:
            rows[name][index] = getattr(header, name)
        rows["count"][index] = header.record_count
    return rows


# --- one transition after the other ----------------------------------------------------------------------------------


def test_a_new_topic_is_empty() -> None:
    topic = new_topic()
    assert (topic.head_seq, topic.next_seq, topic.floor, topic.evict_floor) == (0, 1, 1, 1)
    assert topic.first_readable(1) == 1
    assert topic.gaps(1, 100) == []
    topic.check_invariants()


def test_appends_raise_head_offset_and_time() -> None:
    topic = new_topic()
    topic.append(append_header(1, 3, timestamp_ns=50))
    topic.append(append_header(4, 2, base_offset=9, timestamp_ns=40))
    assert (topic.head_seq, topic.live_records, topic.live_bytes) == (5, 5, sum(map(size_of, range(1, 6))))
    assert topic.end_offset == 9 + size_of(4) + size_of(5)
    assert topic.last_timestamp_ns == 50, "never decreases"
    assert topic.floor == 1


def everything(topic: TopicState) -> dict[str, object]:
    fields = {name: getattr(topic, name) for name in TopicState.__slots__ if name not in ("_stored", "tags", "keys")}
    lists = {"losses": list(topic.losses), "deleted": list(topic.deleted), "skips": list(topic.skips)}
    return fields | lists | {"durable_leases": topic.lease_rows().tolist()}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 9)), min_size=1, max_size=8),
    st.integers(0, 5),
    st.sampled_from([None, 1, 3, 99]),
)
def test_a_run_equals_its_appends_one_by_one(
    parts: list[tuple[int, int, int]], before: int, deleted: int | None
) -> None:
    one_by_one, at_once = new_topic(), new_topic()
    for topic in (one_by_one, at_once):
        if before:
            topic.append(append_header(1, before))
        if deleted is not None:
            last = min(deleted, before)
            if last:
                topic.apply(DeleteRecords(TOPIC, DeletedSeqs.between(1, last), 0))
    headers = []
    seq = before + 1
    for hole, count, time in parts:
        headers.append(append_header(seq + hole, count, base_offset=10 * seq, timestamp_ns=time))
        seq += hole + count
    for header in headers:
        one_by_one.append(header)
    at_once.append_run(rows_of(headers))
    assert everything(at_once) == everything(one_by_one)
    at_once.check_invariants()


@pytest.mark.parametrize("seqs", [(3,), (3, 6), (4, 5), (4, 6, 5), (9, 4), (2**64 - 1,), (4, 2**64 - 1)])
def test_a_run_with_non_increasing_seqs_is_refused(seqs: tuple[int, ...]) -> None:
    topic = topic_with(3)
    headers = [replace(append_header(4, 2), base_seq=seq) for seq in seqs]
    with pytest.raises(InvariantError, match="INV-SEQ-ONCE"):
        topic.append_run(rows_of(headers))
    with pytest.raises(InvariantError, match="INV-APPLY-ONCE"):
        topic.append_run(rows_of([append_header(4, 1), replace(append_header(5, 1), topic_id=TOPIC + 1)]))
    assert everything(topic) == everything(topic_with(3))


def test_a_seq_is_used_once_and_in_its_topic() -> None:
    topic = topic_with(5)
    for base_seq in (1, 5):
        with pytest.raises(InvariantError, match="INV-SEQ-ONCE"):
            topic.append(append_header(base_seq, 3))
    with pytest.raises(InvariantError, match="INV-APPLY-ONCE"):
        topic.append(replace(append_header(6, 1), topic_id=4))
    with pytest.raises(InvariantError, match="INV-APPLY-ONCE"):
        topic.apply(Ceiling(4, 10, 1))
    with pytest.raises(InvariantError, match="INV-APPLY-ONCE"):
        topic.apply(Checkpoint(1, 1, 0))


def test_skipped_seqs_without_a_reason_are_a_loss() -> None:
    topic = new_topic()
    topic.append(append_header(4, 2))
    assert topic.gaps(1, 9) == [Gap(1, 3, GapReason.CORRUPTION)]
    assert (topic.floor, topic.live_records) == (4, 2)
    topic.check_invariants()


def test_a_delete_reports_no_gap() -> None:
    topic = topic_with(10)
    topic.apply(delete_of(1, 2, 3))
    assert (topic.floor, topic.evict_floor) == (4, 1)
    assert topic.gaps(1, 10) == []
    assert live_seqs(topic) == [4, 5, 6, 7, 8, 9, 10]
    assert topic.live_bytes == sum(map(size_of, range(4, 11)))
    assert list(topic.deleted) == [], "ranges below the floor are dropped"
    topic.apply(DeleteRecords(TOPIC, DeletedSeqs.between(1, 2), 0))
    assert (topic.floor, topic.live_records) == (4, 7), "deleted records stay deleted"


def test_a_delete_in_the_middle_does_not_move_the_floor() -> None:
    topic = topic_with(6)
    topic.apply(delete_of(2, 4, 5))
    assert (topic.floor, live_seqs(topic), list(topic.deleted)) == (1, [1, 3, 6], [(2, 2), (4, 5)])
    assert topic.live_bytes == sum(map(size_of, (1, 3, 6)))
    topic.apply(delete_of(1))
    assert (topic.floor, list(topic.deleted)) == (3, [(4, 5)])
    topic.apply(delete_of(3, 4, 5, 6, live=(3, 6)))
    assert (topic.floor, topic.live_records, topic.live_bytes) == (7, 0, 0)
    topic.append(append_header(7, 1))
    assert live_seqs(topic) == [7]


def test_a_delete_of_lost_records_is_applied() -> None:
    topic = topic_with(3)
    topic.apply(delete_of(2, 3, 4, 9))
    assert (live_seqs(topic), topic.live_records) == ([1], 1)
    topic.append(append_header(12, 1))
    assert live_seqs(topic) == [1, 12]
    assert topic.gaps(1, 12) == [Gap(4, 11, GapReason.CORRUPTION)]
    topic.check_invariants()


def test_dead_seqs_are_deleted_and_lost_ones() -> None:
    topic = topic_with(20)
    topic.apply(delete_of(1, 2, 8, 9))
    topic.apply(Loss(TOPIC, 12, 13, GapReason.CORRUPTION, 0))
    assert topic.dead(1, 20).ranges.tolist() == [[1, 3], [8, 10], [12, 14]]
    assert topic.dead(9, 12).ranges.tolist() == [[8, 10], [12, 13]]
    assert topic.dead(3, 7).ranges.tolist() == []


def test_damaged_seqs_are_not_disposable() -> None:
    topic = topic_with(20)
    topic.apply(delete_of(1, 2, 8, 9))
    topic.apply(Loss(TOPIC, 12, 13, GapReason.CORRUPTION, 0))
    topic.apply(Loss(TOPIC, 15, 16, GapReason.CRASH, 0))
    assert all(topic.is_disposable(*pair) for pair in ((1, 2), (8, 9), (15, 16)))
    assert not any(topic.is_disposable(*pair) for pair in ((2, 3), (7, 9), (10, 12), (12, 13)))
    assert not topic.is_disposable(21, 30), "seqs beyond the head"
    topic.apply(FloorRaise(TOPIC, GapReason.CAP, 15, 1, 0))
    assert topic.is_disposable(1, 14), "evicted seqs are not read any more"


def test_evictions_are_reported_with_their_reason() -> None:
    topic = topic_with(20)
    topic.apply(FloorRaise(TOPIC, GapReason.CAP, 5, 1, sum(map(size_of, range(1, 5)))))
    topic.apply(FloorRaise(TOPIC, GapReason.TTL, 8, 5, sum(map(size_of, range(5, 8)))))
    assert (topic.evict_floor, topic.floor, topic.live_records) == (8, 8, 13)
    assert topic.live_bytes == sum(map(size_of, range(8, 21)))
    assert topic.gaps(1, 20) == [Gap(1, 4, GapReason.CAP), Gap(5, 7, GapReason.TTL)]
    assert topic.gaps(3, 6) == [Gap(3, 4, GapReason.CAP), Gap(5, 6, GapReason.TTL)]
    assert topic.gaps(8, 20) == []
    topic.apply(FloorRaise(TOPIC, GapReason.CAP, 6, 1, 1000))
    assert (topic.evict_floor, topic.live_records) == (8, 13), "a floor never goes back"
    assert topic.live_bytes == sum(map(size_of, range(8, 21)))


def test_an_eviction_stops_at_the_head() -> None:
    topic = topic_with(3)
    topic.apply(FloorRaise(TOPIC, GapReason.TTL, 100, 1, 1000))
    assert (topic.evict_floor, topic.floor, topic.live_records, topic.live_bytes) == (4, 4, 0, 0)


def test_the_floor_skips_deleted_records_after_an_eviction() -> None:
    topic = topic_with(6)
    topic.apply(delete_of(3, 4))
    assert topic.floor == 1
    topic.apply(FloorRaise(TOPIC, GapReason.CAP, 3, 1, size_of(1) + size_of(2)))
    assert (topic.evict_floor, topic.floor) == (3, 5)
    assert topic.gaps(1, 6) == [Gap(1, 2, GapReason.CAP)]
    assert list(topic.deleted) == [], "ranges below the floor are dropped"


def test_losses_in_the_middle_and_beyond_the_head_are_reported() -> None:
    topic = topic_with(10)
    topic.apply(Loss(TOPIC, 4, 5, GapReason.CORRUPTION, size_of(4) + size_of(5)))
    topic.apply(Loss(TOPIC, 11, 20, GapReason.CRASH))
    assert (topic.head_seq, topic.next_seq, topic.live_records) == (20, 21, 8)
    assert topic.gaps(1, 100) == [Gap(4, 5, GapReason.CORRUPTION), Gap(11, 20, GapReason.CRASH)]
    assert topic.gaps(5, 12) == [Gap(5, 5, GapReason.CORRUPTION), Gap(11, 12, GapReason.CRASH)]
    assert [topic.first_readable(seq) for seq in (1, 4, 6, 10, 11, 21, 30)] == [1, 6, 6, 10, 21, 21, 21]
    topic.append(append_header(21, 1))
    assert topic.first_readable(11) == 21
    topic.apply(FloorRaise(TOPIC, GapReason.CAP, 5, 1, 0))
    assert topic.gaps(1, 9) == [Gap(1, 4, GapReason.CAP), Gap(5, 5, GapReason.CORRUPTION)]
    assert topic.floor == 6


def test_a_loss_below_the_floor_is_still_reported() -> None:
    topic = topic_with(5)
    topic.apply(Loss(TOPIC, 1, 2, GapReason.CORRUPTION, 0))
    assert topic.floor == 3
    assert topic.gaps(1, 5) == [Gap(1, 2, GapReason.CORRUPTION)]


def test_a_cursor_of_an_earlier_epoch_is_reported_as_recreated() -> None:
    topic = topic_with(5)
    assert topic.recreated(3) is None
    assert topic.recreated(2) == Gap(1, 5, GapReason.RECREATED)
    assert new_topic().recreated(2) == Gap(1, 0, GapReason.RECREATED)


def test_controls_set_ceiling_segment_and_config() -> None:
    topic = new_topic()
    topic.apply(Ceiling(TOPIC, 1000, 1))
    topic.apply(Ceiling(TOPIC, 500, 1))
    topic.apply(SegmentRoll(TOPIC, 100, 1))
    topic.apply(TopicConfigure(TOPIC, {}, TopicConfig(ttl_ms=5).to_json()))
    assert (topic.ceiling, topic.segment_first_seq, topic.config.ttl_ms) == (1000, 100, 5)
    with pytest.raises(CorruptionError, match="stored configuration"):
        topic.apply(TopicConfigure(TOPIC, {}, {"unknown": 1}))


def test_seqs_reserved_before_a_crash_are_not_reused() -> None:
    topic = topic_with(5)
    assert topic.crash_loss() is None, "nothing was reserved"
    topic.apply(Ceiling(TOPIC, 1000, 1))
    loss = topic.crash_loss()
    assert loss == Loss(TOPIC, 6, 999, GapReason.CRASH)
    topic.apply(loss)
    assert (topic.next_seq, topic.ceiling, topic.crash_loss()) == (1000, 1000, None)
    assert topic.gaps(1, 2000) == [Gap(6, 999, GapReason.CRASH)]


def test_a_control_of_no_topic_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="CURSOR"):
        new_topic().apply(CursorCommit("a", TOPIC, 3, 1, 0))


def test_a_wrong_count_violates_an_invariant() -> None:
    topic = topic_with(5)
    topic.live_records = 4
    with pytest.raises(InvariantError, match="INV-LIVE-EXACT"):
        topic.check_invariants()
    topic = topic_with(5)
    topic.floor = Seq(9)
    with pytest.raises(InvariantError, match="INV-LIVE-EXACT"):
        topic.check_invariants()
    topic = topic_with(5)
    topic.deleted.add(1, 2)
    topic.live_records = 3
    with pytest.raises(InvariantError, match="floor 1 is not live"):
        topic.check_invariants()


# --- any history -----------------------------------------------------------------------------------------------------

events = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 8)),
    st.tuples(st.just("delete"), st.lists(st.integers(1, 60), min_size=1, max_size=8)),
    st.tuples(st.just("evict"), st.sampled_from([GapReason.CAP, GapReason.TTL]), st.integers(1, 12)),
    st.tuples(st.just("lose"), st.integers(1, 60), st.integers(0, 8)),
    st.tuples(st.just("crash"), st.integers(1, 8)),
)


class Model:
    """Every live seq, and the reason of every lost one."""

    def __init__(self) -> None:
        self.live: set[int] = set()
        self.lost: dict[int, GapReason] = {}
        self.head = 0
        self.evict_floor = 1

    @property
    def floor(self) -> int:
        return min(self.live, default=self.head + 1)

    def bytes_below(self, seq: int) -> int:
        return sum(size_of(each) for each in self.live if each < seq)

    def remove(self, seqs: set[int]) -> None:
        self.live -= seqs


def play(topic: TopicState, model: Model, event: tuple) -> None:
    match event:
        case "append", count:
            topic.append(append_header(model.head + 1, count))
            model.live |= {*range(model.head + 1, model.head + count + 1)}
            model.head += count
        case "delete", seqs:
            known = [seq for seq in seqs if seq <= model.head]
            if known:
                topic.apply(delete_of(*known, live=model.live))
                model.remove({*known})
        case "evict", reason, count:
            doomed = sorted(model.live)[:count]
            if doomed:
                floor = doomed[-1] + 1
                topic.apply(FloorRaise(TOPIC, reason, floor, model.evict_floor, model.bytes_below(floor)))
                model.remove(set(doomed))
                model.evict_floor = floor
        case "lose", first, length:
            lost = range(first, min(first + length, model.head) + 1)
            if lost:
                size = sum(size_of(seq) for seq in lost if seq in model.live)
                topic.apply(Loss(TOPIC, lost[0], lost[-1], GapReason.CORRUPTION, size))
                model.remove(set(lost))
                model.lost |= {seq: GapReason.CORRUPTION for seq in lost if seq not in model.lost}
        case "crash", length:
            topic.apply(Loss(TOPIC, model.head + 1, model.head + length, GapReason.CRASH))
            model.lost |= dict.fromkeys(range(model.head + 1, model.head + length + 1), GapReason.CRASH)
            model.head += length


@settings(max_examples=200)
@given(st.lists(events, max_size=15))
def test_any_history_equals_the_model(history: list[tuple]) -> None:
    topic, model = new_topic(), Model()
    floors = (0, 0, 0)
    for event in history:
        play(topic, model, event)
        topic.check_invariants()
        after = (topic.evict_floor, topic.floor, topic.head_seq)
        assert all(map(int.__le__, floors, after)), "INV-LIVE-EXACT"
        floors = after
    assert live_seqs(topic) == sorted(model.live)
    assert (topic.head_seq, topic.floor, topic.evict_floor) == (model.head, model.floor, model.evict_floor)
    assert topic.live_records == len(model.live)
    assert topic.live_bytes == sum(map(size_of, model.live))
    gaps = topic.gaps(Seq(1), Seq(model.head + 5))
    reported = {seq: gap.reason for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1)}
    assert {seq for seq in reported if seq < model.evict_floor} == set(range(1, model.evict_floor))
    assert {seq: reason for seq, reason in reported.items() if seq >= model.evict_floor} == {
        seq: reason for seq, reason in model.lost.items() if seq >= model.evict_floor
    }
    assert not reported.keys() & model.live
    for seq in range(1, model.head + 2):
        assert topic.first_readable(Seq(seq)) == min(
            (each for each in model.live if each >= seq), default=model.head + 1
        )
