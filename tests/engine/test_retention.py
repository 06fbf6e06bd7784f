"""Deletes and retention: random histories against a model, then single cases."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retention_model import (
    NS_PER_MS,
    TOPIC,
    Both,
    append_batches,
    batch_of,
    live_seqs,
    opened,
    record_of,
    small_segments,
)

from seawall import limits
from seawall.core.types import Seq
from seawall.engine.api.verify import known_topics
from seawall.engine.commit.appends import Append
from seawall.engine.maintenance import retention
from seawall.engine.maintenance.stored_sizes import StoredSizes
from seawall.errors import DiskFullError, FullError, InvalidInputError, LimitError, NotFoundError
from seawall.storage.control.deletes import DeleteRecords, MatchKind, TagMatch
from seawall.storage.control.documents import Loss
from seawall.storage.preface import DATA_START
from seawall.storage.read_only import open_for_reading
from seawall.storage.segments.delete_sidecar import load_deletes
from seawall.storage.segments.names import deletes_name
from seawall.storage.verify import Verification
from seawall.testing import SimClock, SimCrash, SimDisk
from seawall.topics.config import Discard, TopicConfig
from seawall.topics.gaps import Gap
from seawall.wire.format.batches import batch_header, encode_batch
from seawall.wire.format.codes import BatchFlags, Codec, GapReason

A, B = TagMatch(MatchKind.EQ, "a"), TagMatch(MatchKind.EQ, "b")
TOPIC_PATH = "/data/topics/00000001"
EVERY_TAG = TagMatch(MatchKind.PREFIX, "")

# --- any history -----------------------------------------------------------------------------------------------------

tags = st.sampled_from([None, b"a", b"ab", b"b"])
groups = st.lists(st.lists(tags, min_size=1, max_size=6), min_size=1, max_size=3)
matches = st.none() | st.builds(TagMatch, st.sampled_from(MatchKind), st.sampled_from(["", "a", "ab", "b", "c"]))
events = st.one_of(
    st.tuples(st.just("append"), groups, st.sampled_from([0, 3, 40]), st.sampled_from([Codec.NONE, Codec.ZSTD])),
    st.tuples(st.just("append"), groups, st.just(30_000), st.just(Codec.NONE)),
    st.tuples(st.just("delete"), st.none() | st.integers(1, 90), matches),
    st.tuples(st.just("caps"), st.sampled_from([0, 1, 5, 20]), st.sampled_from([0, 40, 500, 100_000])),
    st.tuples(st.just("ttl"), st.sampled_from([0, 5, 50])),
    st.tuples(st.just("discard"), st.sampled_from(["old", "reject"])),
    st.tuples(st.just("wait"), st.integers(1, 30)),
    st.sampled_from([("retain",), ("checkpoint",), ("reopen",), ("crash",)]),
)


def play(both: Both, event: tuple) -> None:
    match event:
        case "append", drawn, size, codec:
            play_append(both, drawn, size, codec)
        case "delete", before_seq, match:
            if before_seq is not None or match is not None:
                removed = both.store.delete_records(TOPIC, before_seq=before_seq, match=match)
                assert removed == both.model.delete(before_seq, match)
        case "caps", records, size:
            both.configure(cap_records=records, cap_bytes=size)
        case "ttl", ttl_ms:
            both.configure(ttl_ms=ttl_ms)
        case "discard", discard:
            both.configure(discard=discard)
        case "wait", ms:
            both.clock.advance(ms * NS_PER_MS)
        case ("retain",):
            both.store.maintenance.retain()
            both.model.retain(both.clock.wall_ns())
        case ("checkpoint",):
            both.store.maintenance.checkpoint()
            both.model.retain(both.clock.wall_ns())
        case ("reopen",):
            both.reopen(crash=False)
        case ("crash",):
            both.reopen(crash=True)


def play_append(both: Both, drawn: list[list[bytes | None]], size: int, codec: Codec) -> None:
    if both.model.config.discard is Discard.REJECT:
        records = [record_of(b"000000" + bytes(size), tag) for tag in itertools.chain(*drawn)]
        emptied = both.model.copy()
        emptied.expire(both.clock.wall_ns())
        if not emptied.fits(records):
            head = both.topic.head_seq
            with pytest.raises((FullError, LimitError)):
                append_batches(both.store, batch_of(both.topic.topic_id, records))
            assert both.topic.head_seq == head
            # Expired records may have been evicted by the attempt.
            both.store.maintenance.retain()
            both.model.expire(both.clock.wall_ns())
            return
    both.append(drawn, size, codec)


@settings(max_examples=60)
@given(st.lists(events, max_size=16))
def test_any_history_matches_the_model(history: list[tuple]) -> None:
    both = Both(small_segments())
    for event in history:
        play(both, event)
        both.check()
    both.store.maintenance.checkpoint()
    both.model.retain(both.clock.wall_ns())
    both.check()
    for first, last in both.sealed():
        assert any(first <= seq <= last for seq in both.model.live), "no segment without live records is left"
    both.reopen(crash=True)
    both.check()
    both.store.close()


# --- deletes ---------------------------------------------------------------------------------------------------------


def filled(count: int, *, in_batches_of: int = 3, **config: int | str) -> Both:
    """A topic with `count` records, whose tags alternate between a, b and none."""
    both = Both(small_segments(**config))
    every = [(b"a", b"b", None)[number % 3] for number in range(count)]
    for first in range(0, count, in_batches_of):
        both.append([every[first : first + in_batches_of]], 10)
    return both


@pytest.mark.parametrize(("before_seq", "match"), [(None, None), (0, None), (-3, None), (1 << 63, None), (0, A)])
def test_an_invalid_delete_is_refused(before_seq: int | None, match: TagMatch | None) -> None:
    both = filled(6)
    with pytest.raises(InvalidInputError, match=r"delete"):
        both.store.delete_records(TOPIC, before_seq=before_seq, match=match)
    with pytest.raises(NotFoundError):
        both.store.delete_records("missing", before_seq=5)
    both.check()


def test_a_delete_of_nothing_writes_nothing() -> None:
    both = filled(6)
    at = both.store.parts.wal.at
    assert both.store.delete_records(TOPIC, before_seq=1) == 0
    assert both.store.delete_records(TOPIC, match=TagMatch(MatchKind.EQ, "unused")) == 0
    both.store.create_topic("empty", TopicConfig())
    at = both.store.parts.wal.at
    assert both.store.delete_records("empty", before_seq=100) == 0
    assert both.store.delete_records("empty", match=A) == 0
    assert both.store.parts.wal.at == at


def test_a_delete_covers_existing_records_only() -> None:
    both = filled(6)
    assert both.store.delete_records(TOPIC, before_seq=1000) == 6
    both.model.delete(1000, None)
    both.append([[b"a", b"a"]], 1)
    both.check()
    assert both.store.delete_records(TOPIC, before_seq=8, match=A) == 1
    both.model.delete(8, A)
    both.check()
    both.append([[b"a"]], 1)
    assert both.store.delete_records(TOPIC, match=A) == 2, "the tag index has caught up"
    assert both.store.delete_records(TOPIC, match=A) == 0


def test_a_delete_is_logged_with_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    both = filled(6)
    seen: list[DeleteRecords] = []
    commit = both.store.controls.commit_many
    monkeypatch.setattr(
        both.store.controls, "commit_many", lambda planned, **how: (seen.extend(planned), commit(planned, **how))
    )
    both.store.delete_records(TOPIC, before_seq=6, match=A)
    both.store.delete_records(TOPIC, before_seq=3)
    tagged, below = seen
    assert (tagged.removed.ranges.tolist(), tagged.before_seq, tagged.match) == ([[1, 2], [4, 5]], 6, A)
    assert (below.removed.ranges.tolist(), below.before_seq, below.match) == ([[2, 3]], 3, None)


def test_a_delete_of_many_ranges_is_several_controls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETE_RANGES_MAX", 4)
    both = filled(60)
    before = both.store.catalog.next_position
    assert both.store.delete_records(TOPIC, match=A) == both.model.delete(None, A) == 20
    assert both.store.catalog.next_position - before == 5
    both.check()
    both.reopen(crash=True)
    both.check()


def test_an_interrupted_delete_continues_when_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DELETE_RANGES_MAX", 2)
    both = filled(30)
    controls, left = both.store.controls, [2]
    commit = controls.commit_many

    def failing(planned: list, *, durable: bool) -> None:
        if not left[0]:
            raise FullError("no more")
        left[0] -= 1
        commit(planned, durable=durable)

    monkeypatch.setattr(controls, "commit_many", failing)
    with pytest.raises(FullError):
        both.store.delete_records(TOPIC, match=A)
    assert live_seqs(both.topic) == [seq for seq in range(1, 31) if seq not in (1, 4, 7, 10)]
    left[0] = 100
    assert both.store.delete_records(TOPIC, match=A) == 6
    both.model.delete(None, A)
    both.check()


def test_tags_are_found_in_every_kind_of_batch() -> None:
    both = Both(TopicConfig())
    both.append([[b"a", None, b"a"], [b"b", b"a"]], 20, Codec.LZ4)
    both.append([[None, None]], 5)
    both.append([[b"a"] * 3], 40_000)
    assert both.store.delete_records(TOPIC, match=EVERY_TAG) == both.model.delete(None, EVERY_TAG) == 7
    both.check()
    assert both.topic.live_records == 3


def test_no_tag_index_is_built_without_deletes_by_tag() -> None:
    both = filled(9, cap_records=5)
    both.store.delete_records(TOPIC, before_seq=7)
    both.store.maintenance.checkpoint()
    assert both.store.cleaner._tags == {}


def test_a_delete_may_span_fragments_and_whole_segments() -> None:
    both = filled(60)
    for before_seq, match in ((6, A), (58, B), (59, None)):
        assert both.store.delete_records(TOPIC, before_seq=before_seq, match=match) == both.model.delete(
            before_seq, match
        )
        both.check()


# --- retention -------------------------------------------------------------------------------------------------------


def test_caps_are_exact() -> None:
    both = filled(20, cap_records=5)
    assert live_seqs(both.topic) == [16, 17, 18, 19, 20]
    both.check()
    size = both.topic.live_bytes
    both.configure(cap_bytes=size - 1)
    both.check()
    both.store.maintenance.retain()
    both.model.retain(both.clock.wall_ns())
    assert live_seqs(both.topic) == [17, 18, 19, 20]
    both.check()
    assert both.topic.gaps(Seq(1), Seq(99)) == [Gap(Seq(1), Seq(16), GapReason.CAP)]


def test_a_cap_below_one_record_keeps_nothing() -> None:
    both = filled(4, cap_bytes=3)
    assert (both.topic.live_records, both.topic.live_bytes, both.topic.floor) == (0, 0, 5)
    both.check()


@pytest.mark.parametrize(("cap", "is_whole"), [(6_400, True), (2_048, True), (640, False)])
def test_unsynced_topics_evict_whole_batches(cap: int, is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    both = Both(small_segments(cap_bytes=cap, durability="memory"))
    floors, reads = set(), []
    real = StoredSizes._read
    monkeypatch.setattr(StoredSizes, "_read", lambda *arguments: [reads.append(arguments), real(*arguments)][1])
    for _ in range(cap // 20):
        append_batches(both.store, batch_of(both.topic.topic_id, [record_of(bytes(10), None)] * 4))
        floors.add(both.topic.floor)
        assert both.topic.live_bytes <= cap
        assert both.topic.floor == 1 or both.topic.live_bytes > cap - 2 * (cap // 64) - 2 * 60
    assert len(floors) > 2
    # A 64th of the cap is more than a batch of 60 bytes, more than half of one, or less than that.
    assert all(floor % 4 == 1 for floor in floors) == is_whole
    # Whole batches need no read of their sizes, not even the last one of a segment.
    assert bool(reads) != is_whole


def test_age_evicts_by_the_time_of_the_batch() -> None:
    both = filled(6, ttl_ms=10)
    both.clock.advance(10 * NS_PER_MS)
    both.append([[b"a", b"b"]], 5)
    assert live_seqs(both.topic) == list(range(1, 9)), "exactly as old as allowed"
    both.clock.advance(1 * NS_PER_MS)
    both.store.maintenance.retain()
    both.model.retain(both.clock.wall_ns())
    assert live_seqs(both.topic) == [7, 8]
    both.check()
    both.clock.advance(100 * NS_PER_MS)
    both.store.maintenance.checkpoint()
    both.model.retain(both.clock.wall_ns())
    assert (both.topic.live_records, both.topic.floor) == (0, 9)
    both.check()
    assert both.topic.gaps(Seq(1), Seq(99)) == [Gap(Seq(1), Seq(8), GapReason.TTL)]


def test_age_evicts_ahead_of_an_append() -> None:
    both = filled(6, ttl_ms=10, cap_records=6)
    both.clock.advance(11 * NS_PER_MS)
    both.append([[b"a", b"b"]], 5)
    assert live_seqs(both.topic) == [7, 8]
    assert both.topic.gaps(Seq(1), Seq(99)) == [Gap(Seq(1), Seq(6), GapReason.TTL)]
    both.check()


def test_age_finds_its_batch_among_many_segments() -> None:
    both = Both(small_segments(ttl_ms=1_000))
    for _ in range(30):
        both.append([[None] * 3], 1)
        both.store.maintenance.checkpoint()
        both.clock.advance(NS_PER_MS // 3)
    both.clock.advance(995 * NS_PER_MS)
    both.store.maintenance.retain()
    both.model.retain(both.clock.wall_ns())
    assert 0 < both.topic.live_records < 90
    both.check()


def test_a_rejecting_topic_refuses_and_evicts_nothing() -> None:
    both = filled(5, in_batches_of=1, cap_records=6, discard="reject")
    head = both.topic.next_seq
    with pytest.raises(FullError, match="cap_records of 6"):
        append_batches(both.store, batch_of(1, [record_of(b"x", None)] * 2))
    with pytest.raises(LimitError, match="never fit"):
        append_batches(both.store, batch_of(1, [record_of(b"x", None)] * 7))
    both.configure(cap_records=0, cap_bytes=both.topic.live_bytes + 5)
    with pytest.raises(FullError, match="cap_bytes"):
        append_batches(both.store, batch_of(1, [record_of(b"x", None)]))
    assert both.topic.next_seq == head
    both.configure(cap_records=2)
    both.store.maintenance.retain()
    assert both.topic.live_records == 5, "a lower cap refuses more, and evicts nothing"
    both.store.delete_records(TOPIC, before_seq=5)
    both.model.delete(5, None)
    both.append([[None]], 0)
    both.check()


def test_expired_records_make_space_in_a_rejecting_topic() -> None:
    both = filled(5, cap_records=6, ttl_ms=10, discard="reject")
    both.clock.advance(11 * NS_PER_MS)
    both.append([[None] * 2], 0)
    assert live_seqs(both.topic) == [6, 7]


def test_no_limit_evicts_nothing() -> None:
    both = filled(30)
    both.clock.advance(10**9 * NS_PER_MS)
    both.store.maintenance.checkpoint()
    assert both.topic.live_records == 30
    both.check()


def test_evictions_of_one_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_EVICTIONS_MAX", 2)
    both = Both(TopicConfig())
    for number in range(5):
        store, name = both.store, f"topic-{number}"
        topic = store.create_topic(name, TopicConfig())
        append_batches(store, batch_of(topic.topic_id, [record_of(b"x", None)] * 4))
        store.configure_topic(name, {"cap_records": 1})
    left = []
    for _ in range(4):
        left.append(sum(topic.live_records for topic in both.store.catalog))
        both.store.maintenance.retain()
    assert left == [20, 14, 8, 5]


# --- segments --------------------------------------------------------------------------------------------------------


def test_sealed_segments_without_live_records_are_dropped() -> None:
    both = filled(60)
    both.store.maintenance.checkpoint()
    assert both.sealed()[:2] == [(1, 9), (10, 18)]
    both.store.delete_records(TOPIC, before_seq=20)
    both.model.delete(20, None)
    assert both.sealed()[0][0] == 19
    both.store.delete_records(TOPIC, match=EVERY_TAG)
    assert both.sealed()[0][0] == 19, "records without a tag are left"
    both.store.delete_records(TOPIC, before_seq=45)
    both.model.delete(None, EVERY_TAG)
    both.model.delete(45, None)
    both.check()
    names = both.disk.list(TOPIC_PATH)
    assert min(int(name[:20]) for name in names) == both.sealed()[0][0], "its index and deletes are removed too"


def test_dead_unsealed_segments_are_dropped_by_the_checkpoint() -> None:
    both = filled(60)
    both.store.delete_records(TOPIC, before_seq=50)
    both.model.delete(50, None)
    assert both.sealed() == []
    both.store.maintenance.checkpoint()
    assert both.sealed()[0][0] == 46
    both.check()


def test_dropped_segments_of_one_call_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_DROPS_MAX", 2)
    both = filled(60)
    both.store.maintenance.checkpoint()
    count = len(both.sealed())
    both.store.delete_records(TOPIC, before_seq=60)
    assert len(both.sealed()) == count - 2
    both.store.maintenance.retain()
    assert len(both.sealed()) == count - 4


def test_a_dropped_segment_is_not_recreated() -> None:
    """Sealed by an opening and dropped by a delete, while the only snapshot lists it as unsealed."""
    both = filled(8)
    both.store.maintenance.checkpoint()
    for _ in range(4):
        both.append([[b"a"] * 3], 10)
    both.append([[b"a"] * 3], 70_000)
    both.reopen(crash=True)
    assert both.sealed()
    both.store.delete_records(TOPIC, before_seq=20)
    both.model.delete(20, None)
    assert both.sealed() == []
    both.disk.crash(keep="none")
    with open_for_reading(both.disk, "/data") as directory:
        verification = Verification(both.disk, directory, lambda snapshot: known_topics(both.disk, directory, snapshot))
        assert list(verification.run()) == []
    both.reopen(crash=True)
    assert both.sealed() == []
    both.check()
    both.store.maintenance.checkpoint()
    both.check()


def test_leftovers_of_a_crash_are_dropped_later() -> None:
    """A crash anywhere in a delete: nothing or all of it happened, and no file is left for ever."""
    for nth in itertools.count(1):
        both = filled(40)
        both.store.maintenance.checkpoint()
        both.disk.crash_after(nth, inside=False)
        try:
            both.store.delete_records(TOPIC, before_seq=30)
        except SimCrash:
            both.disk.crash(keep="random")
        else:
            break
        both.store = opened(both.disk, both.clock)
        both.model.crashed |= {*range(both.model.head + 1, both.topic.next_seq)}
        both.model.head = both.topic.head_seq
        assert both.topic.floor in (1, 30)
        both.model.delete(both.topic.floor, None)
        both.check()
        both.store.maintenance.checkpoint()
        assert all(last >= both.topic.floor for _, last in both.sealed())
        both.check()
        both.store.close()
    assert nth > 8


def test_deletes_of_sealed_segments_are_stored_beside_them() -> None:
    both = filled(30)
    both.store.maintenance.checkpoint()
    assert not any(name.endswith(".deletes") for name in both.disk.list(TOPIC_PATH))
    both.store.delete_records(TOPIC, before_seq=12)
    both.store.delete_records(TOPIC, before_seq=22, match=A)
    both.store.maintenance.checkpoint()
    home = both.store.parts.logs[both.topic.topic_id].directory
    for first, last in both.sealed():
        dead = {*range(first, last + 1)} - {*live_seqs(both.topic)}
        path = home.path(deletes_name(Seq(first)))
        stored = load_deletes(both.disk, path, home.preface(Seq(first))) if both.disk.exists(path) else None
        assert dead == ({seq for low, end in stored.ranges.tolist() for seq in range(low, end)} if stored else set())
    assert both.store.cleaner.store_deletes() == 0, "only what has changed is written"
    both.reopen(crash=False)
    assert both.store.cleaner.store_deletes() == 0
    both.disk.open(home.path(deletes_name(Seq(both.sealed()[0][0])))).write([b"\xff" * 9], 4096)
    both.reopen(crash=False)
    assert both.store.cleaner.store_deletes() == 1, "a damaged one is rewritten"


@pytest.mark.parametrize("durability", ["ephemeral", "memory"])
def test_tidying_up_runs_only_when_it_is_due(durability: str) -> None:
    store = opened(SimDisk(seed=1), SimClock(wall_ns=10**18))
    config = small_segments(cap_records=40, ttl_ms=1_000, durability=durability)
    topic = store.create_topic(TOPIC, config)
    due = []
    for number in range(80):
        if number == 40:
            store.maintenance.checkpoint()
        commit = store.begin([Append.of_batch(batch_of(topic.topic_id, [record_of(b"%d" % number, None)]))])
        commit.execute()
        due.append(store.finish(commit))
        if due[-1]:
            assert store.cleaner.has_dead()
            store.tidy_up(commit.limited)
        assert not store.is_tidy_up_due
    assert not any(due[:40]), "nothing has to be evicted yet"
    if durability == "ephemeral":
        assert not any(due), "segments in memory are dropped by the eviction itself"
        assert len(store.parts.logs[topic.topic_id].sealed) <= 7
    else:
        assert 3 <= sum(due[40:]) <= 6, "a segment of seven records becomes disposable now and then"
    assert live_seqs(topic) == list(range(41, 81))
    store.close()


def test_a_deleted_topic_is_forgotten() -> None:
    both = filled(30, ttl_ms=1_000)
    both.store.delete_records(TOPIC, match=A)
    both.store.maintenance.checkpoint()
    both.store.delete_topic(TOPIC)
    cleaner = both.store.cleaner
    assert not any((cleaner._sizes, cleaner._tags, cleaner._oldest, cleaner.unchecked, cleaner._sidecars))
    both.store.maintenance.retain()
    both.store.close()


def test_deletes_work_on_a_full_disk() -> None:
    disk = SimDisk(seed=1, capacity=(1 << 20) + 900_000)
    store = opened(disk, SimClock(wall_ns=1))
    store.create_topic(TOPIC, small_segments())
    while True:
        try:
            append_batches(store, batch_of(1, [record_of(bytes(3_000), b"a"), record_of(bytes(3_000), None)]))
        except DiskFullError:
            break
    topic = store.catalog.named(TOPIC)
    count = topic.live_records
    assert count > 20
    assert store.delete_records(TOPIC, match=A) == count // 2
    assert store.delete_records(TOPIC, before_seq=topic.head_seq) == count // 2 - 1
    assert topic.live_records == 1
    store.maintenance.checkpoint()
    append_batches(store, batch_of(1, [record_of(bytes(3_000), b"a")]))
    store.close()


# --- damage ----------------------------------------------------------------------------------------------------------


def damaged(both: Both, first_seq: int) -> None:
    """Flip a byte in the first block of a sealed segment, and open the directory again."""
    both.store.close()
    [name] = [name for name in both.disk.list(TOPIC_PATH) if name.startswith(f"{first_seq:020d}-")]
    file = both.disk.open(f"{TOPIC_PATH}/{name}")
    file.write([b"\xff"], DATA_START + limits.BATCH_HEADER_SIZE + 3)
    file.sync()
    both.store = opened(both.disk, both.clock)


def test_part_of_a_damaged_batch_can_be_deleted() -> None:
    both = filled(30)
    both.store.maintenance.checkpoint()
    damaged(both, 10)
    before = both.topic.live_bytes
    assert both.store.delete_records(TOPIC, before_seq=12) == 11
    assert 0 < both.topic.live_bytes < before
    assert both.store.delete_records(TOPIC, match=A) == 6, "an unreadable record has no tag"
    assert both.store.delete_records(TOPIC, before_seq=100) == 13
    assert (both.topic.live_records, both.topic.live_bytes) == (0, 0)


def test_a_damaged_batch_is_evicted_whole_by_its_bytes() -> None:
    both = filled(30)
    both.store.maintenance.checkpoint()
    damaged(both, 1)
    both.configure(cap_bytes=both.topic.live_bytes - 1)
    both.store.maintenance.retain()
    assert both.topic.floor == 4


def test_blocks_that_do_not_decompress_or_scan_have_no_tags_and_an_estimated_size() -> None:
    both = Both(small_segments())
    for spoiled in (
        rebuilt(bytes(40), raw_length=200, codec=Codec.ZSTD, record_count=4),
        rebuilt(b"\x01\xff\xff\xff" + bytes(36), record_count=4),
    ):
        append_batches(both.store, spoiled, batch_of(1, [record_of(b"x" * 30, b"a")] * 4, codec=Codec.ZSTD))
    assert both.store.delete_records(TOPIC, match=A) == 8
    assert both.store.delete_records(TOPIC, before_seq=3) == 2
    assert both.store.delete_records(TOPIC, before_seq=11) == 4
    assert both.topic.live_records == 2
    both.configure(cap_bytes=1)
    both.store.maintenance.retain()
    assert (both.topic.live_records, both.topic.live_bytes) == (0, 0)


def rebuilt(block: bytes, **changes: int | Codec) -> bytearray:
    header = batch_header(
        block, topic_id=1, client_id=1 << 63, client_seq=1, session_epoch=0, timestamp_ns=0, **changes
    )
    return bytearray(encode_batch(header, block))


def test_opaque_batches_are_one_record_without_a_tag() -> None:
    both = Both(small_segments())
    for _ in range(3):
        append_batches(both.store, rebuilt(b"opaque", record_count=1, flags=int(BatchFlags.OPAQUE)))
    assert both.store.delete_records(TOPIC, match=EVERY_TAG) == 0
    assert both.store.delete_records(TOPIC, before_seq=2) == 1
    assert both.topic.live_bytes == 12
    both.configure(cap_bytes=11)
    both.store.maintenance.retain()
    assert (both.topic.floor, both.topic.live_bytes) == (3, 6)


def test_a_destroyed_segment_does_not_stop_retention() -> None:
    both = filled(40)
    both.store.maintenance.checkpoint()
    both.store.close()
    [name] = [name for name in both.disk.list(TOPIC_PATH) if name.startswith(f"{10:020d}-")]
    both.disk.unlink(f"{TOPIC_PATH}/{10:020d}.index")
    file = both.disk.open(f"{TOPIC_PATH}/{name}")
    file.write([bytes(file.size() - DATA_START)], DATA_START)
    both.store = opened(both.disk, both.clock)
    assert both.store.delete_records(TOPIC, before_seq=12) == 11
    both.configure(cap_records=20, cap_bytes=600)
    both.store.maintenance.retain()
    both.topic.check_invariants()
    assert both.topic.live_records <= 20
    both.store.close()


@pytest.mark.parametrize("how", ["ttl", "records", "bytes", "delete", "tag"])
def test_records_of_lost_segments_can_be_deleted(how: str) -> None:
    both = filled(40)
    both.store.maintenance.checkpoint()
    both.store.close()
    for name in both.disk.list(TOPIC_PATH):
        if name.endswith((".sealed", ".index")) and int(name[:20]) < 20:
            both.disk.unlink(f"{TOPIC_PATH}/{name}")
    both.store = opened(both.disk, both.clock)
    both.clock.advance(100 * NS_PER_MS)
    match how:
        case "ttl":
            both.configure(ttl_ms=10)
        case "records":
            both.configure(cap_records=3)
        case "bytes":
            both.configure(cap_bytes=100)
        case "delete":
            assert both.store.delete_records(TOPIC, before_seq=38) == 37
        case "tag":
            assert both.store.delete_records(TOPIC, match=EVERY_TAG) < 20
    both.store.maintenance.retain()
    both.topic.check_invariants()
    assert both.topic.live_records <= (40 if how == "tag" else 3)
    both.store.maintenance.checkpoint()
    both.store.close()


def test_records_without_a_segment_do_not_expire() -> None:
    both = filled(3, ttl_ms=10)
    both.store.maintenance.checkpoint()
    both.reopen(crash=False)
    log = both.store.parts.logs[both.topic.topic_id]
    unsealed, log.unsealed = log.unsealed, []
    both.clock.advance(100 * NS_PER_MS)
    both.store.maintenance.retain()
    assert both.topic.live_records == 3
    log.unsealed = unsealed


def test_fragments_are_evicted_by_their_bytes() -> None:
    both = filled(45)
    both.store.delete_records(TOPIC, match=A)
    both.model.delete(None, A)
    both.configure(cap_bytes=both.topic.live_bytes // 3)
    both.store.maintenance.retain()
    both.model.retain(both.clock.wall_ns())
    both.check()


def test_a_segment_with_a_damaged_range_is_kept() -> None:
    """Records lost by damage may still be in the file, which is kept until the floor has passed it."""
    both = filled(30)
    both.store.maintenance.checkpoint()
    both.topic.apply(Loss(both.topic.topic_id, Seq(12), Seq(13), GapReason.CORRUPTION, 0))
    both.store.delete_records(TOPIC, before_seq=25)
    assert both.sealed()[0] == (10, 18)
