"""The commit frontier against a model in plain Python: numbers, ceilings, refusals, created and deleted topics."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from seawall.core.clock import HybridClock
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, SessionEpoch, Term, TimestampNs, TopicId
from seawall.errors import ConflictError, FullError, InvalidInputError, InvariantError, LimitError, NotFoundError
from seawall.sequencer.client_window import ClientWindow
from seawall.sequencer.frontier import (
    CEILING_STEPS_MAX,
    NUMBER_MAX,
    Admission,
    CeilingNeed,
    CommitFrontier,
    RunStop,
    TopicNumbers,
    at_ceiling,
)
from seawall.wire.format.batches import BatchHeader, batch_header, encode_batch, iter_batches
from seawall.wire.format.codes import AckStatus, ErrorCode

WALL_NS = 1_700_000_000_000_000_000
STEP = 16
SYNTHETIC = ClientId(1 << 63 | 1)


def batch(topic: int, count: int = 1, *, client: ClientId = SYNTHETIC, seq: int = 1, text: bytes = b"x") -> bytes:
    block = (b"\x01" + len(text).to_bytes(4, "little") + text) * count
    header = batch_header(
        block,
        topic_id=TopicId(topic),
        client_id=client,
        client_seq=ClientSeq(seq),
        session_epoch=1,
        record_count=count,
        timestamp_ns=TimestampNs(0),
    )
    return encode_batch(header, block)


def topic(number: int, *, next_seq: int = 1, ceiling: int = 100, **more: int | bool) -> TopicNumbers:
    return TopicNumbers(TopicId(number), next_seq=Seq(next_seq), ceiling=Seq(ceiling), **more)


def frontier_of(*topics: TopicNumbers, topics_max: int = 8, rows_max: int = 64) -> CommitFrontier:
    return CommitFrontier(topics=topics, ceiling_step=STEP, topics_max=topics_max, rows_max=rows_max)


def admit(frontier: CommitFrontier, data: bytes, *, window: ClientWindow | None = None) -> tuple[Admission, bytearray]:
    buffer = bytearray(data)
    return frontier.admit(buffer, term=Term(2), wall_ns=WALL_NS, window=window), buffer


def headers(buffer: bytearray, end: int | None = None) -> list[BatchHeader]:
    return [header for header, _ in iter_batches(bytes(buffer[:end]))]


class FrontierMachine(RuleBasedStateMachine):
    """Topics, ceilings and runs of batches; every seq and position that is given is written down."""

    @initialize(wall=st.sampled_from([0, WALL_NS, WALL_NS + 999_999]))
    def make(self, wall: int) -> None:
        self.frontier = frontier_of(topics_max=4, rows_max=5)
        self.clock = HybridClock()
        self.wall = wall
        self.topics: dict[int, TopicNumbers] = {}
        self.wanted: dict[int, int] = {}
        self.began: dict[int, int] = {}
        self.position = 0

    ids = st.integers(0, 5)

    @rule(number=ids, next_seq=st.sampled_from([1, 50]), space=st.integers(0, 20), late=st.booleans())
    def add(self, number: int, next_seq: int, space: int, late: bool) -> None:
        made = topic(
            number,
            next_seq=next_seq,
            ceiling=next_seq + space,
            next_offset=number,
            last_timestamp_ns=TimestampNs(WALL_NS + 10**9 if late else 0),
        )
        deleted = sorted(key for key, each in self.topics.items() if each.is_deleted)
        if number in self.topics:
            with pytest.raises(ConflictError):
                self.frontier.add_topic(made)
        elif len(self.topics) == 4 and not deleted:
            with pytest.raises(FullError):
                self.frontier.add_topic(made)
        else:
            if len(self.topics) == 4:
                del self.topics[deleted[0]]
            self.frontier.add_topic(made)
            self.topics[number] = made
            self.began[number] = made.next_seq
            self.wanted[number] = 0

    def is_live(self, number: int) -> bool:
        return number in self.topics and not self.topics[number].is_deleted

    @rule(number=ids)
    def remove(self, number: int) -> None:
        if not self.is_live(number):
            with pytest.raises(NotFoundError):
                self.frontier.remove_topic(TopicId(number))
            return
        self.frontier.remove_topic(TopicId(number))
        self.topics[number] = replace(self.topics[number], is_deleted=True)

    @rule(number=ids, is_full=st.booleans())
    def fill(self, number: int, is_full: bool) -> None:
        if not self.is_live(number):
            with pytest.raises(NotFoundError):
                self.frontier.set_full(TopicId(number), is_full)
            return
        self.frontier.set_full(TopicId(number), is_full)
        self.topics[number] = replace(self.topics[number], is_full=is_full)

    @rule(number=ids, raised=st.sampled_from([-1, 0, 1, 4, 30]))
    def raise_ceiling(self, number: int, raised: int) -> None:
        if not self.is_live(number):
            with pytest.raises(NotFoundError):
                self.frontier.set_ceiling(TopicId(number), Seq(5))
            return
        ceiling = Seq(self.topics[number].ceiling + raised)
        if raised < 0:
            with pytest.raises(ConflictError):
                self.frontier.set_ceiling(TopicId(number), ceiling)
            return
        self.frontier.set_ceiling(TopicId(number), ceiling)
        self.topics[number] = replace(self.topics[number], ceiling=ceiling)
        self.wanted[number] = 0

    @rule(
        run=st.lists(st.tuples(ids, st.integers(1, 6)), max_size=8),
        passed=st.sampled_from([-(10**9), 0, 1, 10**6, 10**9]),
    )
    def admit(self, run: list[tuple[int, int]], passed: int) -> None:
        self.wall = max(0, self.wall + passed)
        buffer = bytearray(b"".join(batch(number, count) for number, count in run))
        before = bytes(buffer)
        done = self.frontier.admit(buffer, term=Term(4), wall_ns=self.wall)
        at = 0
        stop = RunStop.DONE
        for index, (number, count) in enumerate(run):
            size = 96 + 6 * count
            known = self.topics.get(number)
            if index == 5:
                stop = RunStop.ROWS_FULL
                break
            reason = self.reason(known)
            if known is not None and not reason and known.next_seq + count > known.ceiling:
                stop = RunStop.NEEDS_CEILING
                self.wanted[number] = known.next_seq + count
                break
            self.check_row(done.rows[index], at, size, reason, known, count)
            if reason:
                assert buffer[at : at + size] == before[at : at + size]
            at += size
        assert (done.stop, done.consumed) == (stop, at)
        assert buffer[at:] == before[at:]

    def reason(self, known: TopicNumbers | None) -> int:
        if known is None:
            return ErrorCode.TOPIC_NOT_FOUND
        if known.is_deleted:
            return ErrorCode.TOPIC_DELETED
        return ErrorCode.READ_ONLY if known.is_full else 0

    def check_row(self, row: np.void, at: int, size: int, reason: int, known: TopicNumbers | None, count: int) -> None:
        assert (row["at"], row["size"], row["record_count"], row["reason"]) == (at, size, count, reason)
        if known is None or reason:
            assert row["status"] == AckStatus.REJECTED
            return
        timestamp = max(self.clock.now(self.wall), known.last_timestamp_ns)
        expected = (self.position, known.next_seq, known.next_offset, timestamp)
        given = (row["position"], row["base_seq"], row["base_offset"], row["timestamp_ns"])
        assert given == expected, "INV-FRONTIER-DENSE"
        self.position += 1
        self.topics[known.topic_id] = replace(
            known,
            next_seq=Seq(known.next_seq + count),
            next_offset=Offset(known.next_offset + 6 * count),
            last_timestamp_ns=TimestampNs(timestamp),
            record_total=known.record_total + count,
            byte_total=known.byte_total + size,
        )

    def step(self, number: int) -> int:
        """How far ahead of it the ceiling of a topic is to lie."""
        come = self.topics[number].next_seq - self.began[number]
        return max(STEP, min(come, STEP * CEILING_STEPS_MAX))

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "frontier"):
            return
        snapshot = self.frontier.snapshot()
        assert snapshot.topics == tuple(self.topics[number] for number in sorted(self.topics))
        assert (snapshot.next_position, snapshot.last_timestamp_ns) == (self.position, self.clock.last_ns)
        assert all(each.next_seq <= each.ceiling for each in snapshot.topics), "INV-FRONTIER-CEILING"
        assert self.frontier.needs_ceiling() == [
            CeilingNeed(each.topic_id, each.ceiling, Seq(max(each.next_seq, self.wanted[number]) + self.step(number)))
            for number, each in sorted(self.topics.items())
            if not each.is_deleted and (each.ceiling - each.next_seq < STEP // 4 or self.wanted[number])
        ]
        again = CommitFrontier(**asdict(snapshot) | {"topics": snapshot.topics}, topics_max=4)
        assert again.snapshot() == snapshot


FrontierMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestFrontier = FrontierMachine.TestCase


def test_numbers_are_dense_over_topics_and_calls() -> None:
    """INV-FRONTIER-DENSE: positions over all topics, seqs within each."""
    frontier = frontier_of(topic(1), topic(2, next_seq=5, next_offset=77))
    _, first = admit(frontier, batch(1, 2) + batch(2, 3) + batch(9) + batch(1))
    _, second = admit(frontier, batch(2) + batch(1))
    stamped = [header for header in headers(first) + headers(second) if header.topic_id != 9]
    assert [header.position for header in stamped] == [0, 1, 2, 3, 4]
    assert [header.base_seq for header in stamped if header.topic_id == 1] == [1, 3, 4]
    assert [header.base_seq for header in stamped if header.topic_id == 2] == [5, 8]
    assert [header.base_offset for header in stamped if header.topic_id == 2] == [77, 77 + 18]
    assert {header.term for header in stamped} == {2}
    assert frontier.next_position == 5
    assert frontier.last_timestamp_ns == stamped[-1].timestamp_ns
    assert frontier.topic(TopicId(1)) == topic(
        1,
        next_seq=5,
        next_offset=24,
        last_timestamp_ns=stamped[-1].timestamp_ns,
        record_total=4,
        byte_total=3 * 96 + 24,
    )


def test_a_batch_waits_for_its_ceiling_and_then_gets_the_seq_it_would_have_had() -> None:
    frontier = frontier_of(topic(1, ceiling=3))
    buffer = bytearray(batch(1, 2) + batch(1, 40) + batch(1))
    done = frontier.admit(buffer, term=Term(1), wall_ns=WALL_NS)
    assert (done.stop, len(done.rows)) == (RunStop.NEEDS_CEILING, 1)
    assert frontier.needs_ceiling() == [CeilingNeed(TopicId(1), Seq(3), Seq(3 + 40 + STEP))]
    frontier.set_ceiling(TopicId(1), frontier.needs_ceiling()[0].wanted)
    assert frontier.needs_ceiling() == []
    done = frontier.admit(buffer, term=Term(1), wall_ns=WALL_NS, start=done.consumed)
    assert (done.stop, done.rows["base_seq"].tolist()) == (RunStop.DONE, [3, 43])


def test_a_ceiling_is_requested_at_a_quarter_of_a_step() -> None:
    frontier = frontier_of(topic(1, ceiling=1 + STEP))
    admit(frontier, batch(1, 3 * STEP // 4))
    assert frontier.needs_ceiling() == []
    admit(frontier, batch(1))
    assert frontier.needs_ceiling() == [CeilingNeed(TopicId(1), Seq(1 + STEP), Seq(14 + STEP))]


def test_a_large_topic_gets_a_proportional_ceiling() -> None:
    frontier = frontier_of(topic(1, next_seq=1_000, ceiling=1_000 + STEP))
    granted = []
    for _ in range(12):
        admit(frontier, batch(1, frontier.seqs_left(TopicId(1))))
        (need,) = frontier.needs_ceiling()
        granted.append(need.wanted - need.ceiling)
        frontier.set_ceiling(TopicId(1), need.wanted)
    most = STEP * CEILING_STEPS_MAX
    assert granted == [min(STEP << doubled, most) for doubled in range(12)]
    # Another process has not seen it come: it begins anew.
    again = frontier_of(replace(frontier.topic(TopicId(1)), ceiling=frontier.topic(TopicId(1)).next_seq))
    (need,) = again.needs_ceiling()
    assert need.wanted - need.ceiling == STEP


def test_a_ceiling_never_goes_down() -> None:
    frontier = frontier_of(topic(1, ceiling=9))
    with pytest.raises(ConflictError, match="ceiling 8 of topic 1 is below its current one, 9"):
        frontier.set_ceiling(TopicId(1), Seq(8))
    frontier.set_ceiling(TopicId(1), Seq(9))
    assert frontier.topic(TopicId(1)).ceiling == 9


def test_what_is_left_below_a_ceiling() -> None:
    frontier = frontier_of(topic(1, ceiling=9))
    assert frontier.seqs_left(TopicId(1)) == 8
    admit(frontier, batch(1, 8))
    assert frontier.seqs_left(TopicId(1)) == 0
    frontier.remove_topic(TopicId(1))
    for number in (1, 2):
        with pytest.raises(NotFoundError):
            frontier.seqs_left(TopicId(number))


def test_control_batches_share_the_same_order() -> None:
    frontier = frontier_of(topic(1))
    admit(frontier, batch(1))
    position, timestamp_ns = frontier.number_control(WALL_NS)
    assert (position, timestamp_ns) == (1, WALL_NS + 1), "the clock rises though the wall clock stands still"
    done, _ = admit(frontier, batch(1))
    assert done.rows["position"].tolist() == [2]
    assert done.rows["base_seq"].tolist() == [2], "a control batch takes no seq"
    assert done.rows["timestamp_ns"].tolist() == [WALL_NS + 2]
    assert frontier.number_control(WALL_NS + 10**6) == (3, WALL_NS + 10**6)
    with pytest.raises(LimitError, match="wall clock"):
        frontier.number_control(-1)
    assert frontier.next_position == 4


def test_after_a_crash_seqs_begin_at_the_ceiling() -> None:
    frontier = frontier_of(topic(1, ceiling=50))
    admit(frontier, batch(1, 7))
    restarted = [at_ceiling(each) for each in frontier.snapshot().topics]
    again = frontier_of(*restarted)
    assert admit(again, batch(1))[0].stop is RunStop.NEEDS_CEILING
    again.set_ceiling(TopicId(1), Seq(90))
    done, _ = admit(again, batch(1))
    assert done.rows["base_seq"].tolist() == [50]
    with pytest.raises(InvariantError, match="INV-FRONTIER-CEILING"):
        at_ceiling(topic(1, next_seq=9, ceiling=8))


def test_more_batches_than_rows_take_more_calls() -> None:
    frontier = frontier_of(topic(1), rows_max=2)
    buffer = memoryview(bytearray(batch(1) * 5))
    at, stops = 0, []
    while at < len(buffer):
        done = frontier.admit(buffer, term=Term(1), wall_ns=WALL_NS, start=at)
        at = done.consumed
        stops.append((done.stop, len(done.rows)))
    assert stops == [(RunStop.ROWS_FULL, 2), (RunStop.ROWS_FULL, 2), (RunStop.DONE, 1)]
    assert [header.base_seq for header in headers(bytearray(buffer))] == [1, 2, 3, 4, 5]


def test_batches_of_a_session_go_through_its_window() -> None:
    frontier = frontier_of(topic(1), topic(2, is_full=True))
    window = ClientWindow(clients_max=4)
    client = ClientId(7)
    run = batch(1, client=client, seq=1) + batch(2, client=client, seq=2) + batch(1, client=client, seq=1)
    stopped, _ = admit(frontier, run, window=window)
    assert (stopped.stop, stopped.consumed) == (RunStop.UNKNOWN_CLIENT, 0)
    window.open(client, SessionEpoch(1), ClientSeq(1))
    done, buffer = admit(frontier, run + batch(1), window=window)
    statuses = [AckStatus.OK, AckStatus.REJECTED, AckStatus.DUPLICATE, AckStatus.OK]
    assert done.rows["status"].tolist() == statuses
    assert done.rows["position"].tolist() == [0, 2**64 - 1, 0, 1]
    assert done.rows["base_seq"].tolist() == [1, 0, 1, 2]
    assert window.state(client).next_expected == 3
    assert [header.position for header in headers(buffer)] == [0, 0, 0, 1], "only what is admitted is stamped"
    plain, _ = admit(frontier, batch(1, client=client, seq=1))
    assert plain.rows["status"].tolist() == [AckStatus.OK], "without a window nothing is compared"


def test_a_deleted_topic_is_distinguished_until_its_row_is_reused() -> None:
    frontier = frontier_of(topic(5), topic(3), topics_max=2)
    frontier.remove_topic(TopicId(5))
    frontier.remove_topic(TopicId(3))
    done, _ = admit(frontier, batch(5) + batch(3) + batch(4))
    deleted, unknown = ErrorCode.TOPIC_DELETED, ErrorCode.TOPIC_NOT_FOUND
    assert done.rows["reason"].tolist() == [deleted, deleted, unknown]
    frontier.add_topic(topic(6))
    done, _ = admit(frontier, batch(5) + batch(3) + batch(6))
    assert done.rows["reason"].tolist() == [deleted, unknown, 0]
    with pytest.raises(NotFoundError):
        frontier.topic(TopicId(3))
    assert frontier.topic(TopicId(5)).is_deleted


@pytest.mark.parametrize(
    ("buffer", "start", "end", "term"),
    [
        (bytes(200), 0, None, 1),
        (bytearray(200), -1, None, 1),
        (bytearray(200), 0, 201, 1),
        (bytearray(200), 3, 2, 1),
        (bytearray(200), 0, None, -1),
        (bytearray(200), 0, None, 2**32),
    ],
)
def test_bad_arguments_reach_no_kernel(buffer: bytearray, start: int, end: int | None, term: int) -> None:
    with pytest.raises(InvalidInputError):
        frontier_of().admit(buffer, term=Term(term), wall_ns=0, start=start, end=end)


def test_an_array_is_a_buffer_too() -> None:
    frontier = frontier_of(topic(1))
    buffer = np.frombuffer(bytearray(batch(1)), np.uint8)
    assert frontier.admit(buffer, term=Term(1), wall_ns=WALL_NS).stop is RunStop.DONE
    assert headers(bytearray(buffer.tobytes()))[0].base_seq == 1


@pytest.mark.parametrize(
    "made",
    [
        topic(-1),
        topic(2**32),
        topic(1, next_seq=0),
        topic(1, next_seq=101),
        topic(1, ceiling=NUMBER_MAX + 1),
        topic(1, next_offset=-1),
        topic(1, last_timestamp_ns=NUMBER_MAX + 1),
        topic(1, byte_total=-1),
    ],
)
def test_a_topic_outside_its_bounds_is_refused(made: TopicNumbers) -> None:
    frontier = frontier_of()
    with pytest.raises(InvalidInputError):
        frontier.add_topic(made)
    assert frontier.snapshot().topics == ()


def test_numbers_have_a_bound() -> None:
    with pytest.raises(LimitError, match="next position"):
        CommitFrontier(next_position=Position(NUMBER_MAX + 1))
    with pytest.raises(LimitError, match="last timestamp"):
        CommitFrontier(last_timestamp_ns=TimestampNs(-1))
    with pytest.raises(LimitError, match="wall clock"):
        frontier_of().admit(bytearray(), term=Term(1), wall_ns=-1)
    with pytest.raises(LimitError, match="ceiling"):
        frontier_of(topic(1)).set_ceiling(TopicId(1), Seq(NUMBER_MAX + 1))


@pytest.mark.parametrize("wrong", [{"ceiling_step": 3}, {"topics_max": 0}, {"rows_max": 0}])
def test_a_frontier_without_space_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError, match="at least"):
        CommitFrontier(**wrong)


def test_skipped_seqs_are_never_assigned() -> None:
    frontier = frontier_of(topic(1, ceiling=50))
    admit(frontier, batch(1, 7))
    frontier.skip_to(TopicId(1), Seq(20))
    frontier.skip_to(TopicId(1), Seq(9))
    done, _ = admit(frontier, batch(1, 2))
    assert done.rows["base_seq"].tolist() == [20]
    with pytest.raises(InvariantError, match="INV-FRONTIER-CEILING"):
        frontier.skip_to(TopicId(1), Seq(51))
    with pytest.raises(NotFoundError):
        frontier.skip_to(TopicId(9), Seq(5))
