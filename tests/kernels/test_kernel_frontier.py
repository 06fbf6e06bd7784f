"""Admission kernels and their twins on the same bytes, and a stamped batch against the codec's own stamp.

Also of batches that take effect together, at one position (INV-TRANSACTION-WHOLE).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.core.clock import HybridClock
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, Term, TimestampNs, TopicId
from seawall.kernels.admission import client_frontier, client_index, client_window, frontier
from seawall.kernels.log import transactions
from seawall.kernels.runtime import jit, tables
from seawall.wire.format.batches import BatchSource, batch_header, encode_batch, iter_batches, parse_batch_header, stamp
from seawall.wire.format.codes import AckStatus, ErrorCode
from twins.admission import client_frontier as client_twin
from twins.admission import frontier as twin
from twins.log import transactions as together_twin

EXAMPLES = 12 if jit.PYTHON_MODE else 100
WALL_NS = 1_700_000_000_123_456_789
SYNTHETIC = (1 << 63) | 7


def batch(
    topic: int = 1, count: int = 1, *, client: int = SYNTHETIC, seq: int = 1, command: int = 0, text: bytes = b"hello"
) -> bytes:
    block = (b"\x01" + len(text).to_bytes(4, "little") + text) * count
    header = batch_header(
        block,
        topic_id=TopicId(topic),
        client_id=ClientId(client),
        client_seq=ClientSeq(seq),
        session_epoch=1,
        record_count=0 if command else count,
        timestamp_ns=TimestampNs(5),
        command=command,
    )
    return encode_batch(header, block)


class Arrays:
    """Topics 1 (free), 2 (deleted), 3 (full), 4 (deleted and full), 5 (late timestamp); clients 1 and 2 known."""

    def __init__(self, data: bytes, *, ceiling: int = 1000, rows: int = 64) -> None:
        self.buffer = np.frombuffer(bytearray(data), np.uint8)
        self.keys, self.values = np.zeros(16, np.uint64), np.zeros(16, np.int64)
        self.used, self.counts = np.zeros(16, np.uint8), np.zeros(1, np.int64)
        self.topics = np.zeros(5, frontier.TOPIC_ROW)
        late = WALL_NS + 10**12
        for row, (flags, last) in enumerate([(1, 0), (3, 0), (5, 0), (7, 0), (1, late)]):
            tables.table_put(self.keys, self.values, self.used, self.counts, np.uint64(row + 1), row)
            self.topics[row] = (row + 1, flags, 10 * row + 1, 100 * row, ceiling, last, 7, 8, 0)
        self.numbers = np.array([40, WALL_NS - 5], np.int64)
        self.rows = np.ones(rows, frontier.ADMISSION_ROW)
        self.progress = np.full(2, -1, np.int64)
        self.table = np.zeros(8, np.uint32)
        self.clients, self.sides = np.zeros((2, 2, 8), np.uint64)
        self.slots = np.zeros((client_window.slot_rows(1), 8), np.uint64)
        self.slots[-1, client_window.SLOT_COUNT] = 1
        self.results = np.zeros(256, client_window.WINDOW_RESULT)
        self.answers = np.zeros(1, client_window.WINDOW_RESULT)
        for row in range(2):
            client_index.add_row(self.table, np.uint64(row + 1), row)
            self.clients[row, :4] = (row + 1, 1, 1, 0)

    def state(self) -> tuple[Any, ...]:
        return (self.keys, self.values, self.used, self.topics, self.numbers)

    def window_state(self) -> tuple[Any, ...]:
        return (self.table, self.clients, self.sides, self.slots, self.results)

    def content(self) -> list[Any]:
        arrays = (self.buffer, *self.state(), *self.window_state(), self.answers, self.rows, self.progress)
        return [array.tolist() for array in arrays]


def admit(data: bytes, *, start: int = 0, end: int | None = None, windowed: bool = False, **options: int) -> Any:
    """Admit with kernel and twin; the same code and the same bytes everywhere."""
    ours, theirs = Arrays(data, **options), Arrays(data, **options)
    codes = []
    for arrays, plain, through in (
        (ours, frontier.admit_run, client_frontier.admit_client_run),
        (theirs, twin.admit_run, client_twin.admit_client_run),
    ):
        given_arguments = (arrays.buffer, start, len(data) if end is None else end, 3, WALL_NS, arrays.state())
        if windowed:
            code = through(*given_arguments, arrays.window_state(), arrays.answers, arrays.rows, arrays.progress)
        else:
            code = plain(*given_arguments, arrays.rows, arrays.progress)
        codes.append(code)
    assert codes[0] == codes[1]
    assert ours.content() == theirs.content()
    ours.code = codes[0]
    ours.done = ours.rows[: ours.progress[0]]
    return ours


some_batches = st.builds(
    batch,
    st.integers(0, 6),
    st.integers(1, 4),
    client=st.sampled_from([SYNTHETIC, 1, 1, 1, 2, 3]),
    seq=st.one_of(st.integers(1, 4), st.sampled_from([300, 2**64 - 1])),
    command=st.sampled_from([0, 0, 0, 9]),
    text=st.sampled_from([b"", b"a", b"bcd"]),
)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(some_batches, max_size=12),
    st.booleans(),
    st.sampled_from([5, 20, 1000]),
    st.sampled_from([1, 3, 64]),
    st.sampled_from([b"", b"", b"LANC", bytes(96), b"\xff" * 96]),
)
def test_a_run_equals_its_twin(run: list[bytes], windowed: bool, ceiling: int, rows: int, tail: bytes) -> None:
    done = admit(b"".join(run) + tail, windowed=windowed, ceiling=max(ceiling, 41), rows=rows)
    assert done.progress[0] <= rows
    blocks = [block for _, block in iter_batches(done.buffer.tobytes()[: done.progress[1]])]
    assert [bytes(block) for block in blocks] == [each[96:] for each in run[: len(blocks)]], "INV-BLOCK-UNTOUCHED"


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_timestamps_are_those_of_the_hybrid_clock(last_ns: int, wall_ns: int) -> None:
    stamped = frontier.next_timestamp(last_ns, wall_ns)
    assert stamped == twin.next_timestamp(last_ns, wall_ns) == HybridClock(last_ns).now(wall_ns)


@pytest.mark.parametrize("windowed", [False, True])
def test_a_stamped_batch_equals_that_of_the_codec(windowed: bool) -> None:
    data = batch(count=3, client=1)
    expected = bytearray(data)
    timestamp = HybridClock(WALL_NS - 5).now(WALL_NS)
    stamp(
        expected,
        position=Position(40),
        base_seq=Seq(1),
        base_offset=Offset(0),
        timestamp_ns=timestamp,
        term=Term(3),
    )
    done = admit(data, windowed=windowed)
    assert done.buffer.tobytes() == bytes(expected)
    assert done.done.tolist() == [(0, 40, 1, 0, timestamp, len(data), 1, 3, 0, 0, 0)]
    assert parse_batch_header(expected, source=BatchSource.STORED).position == 40
    assert done.topics[0].tolist() == (1, 1, 4, 30, 1000, timestamp, 10, 8 + len(data), 0)
    assert done.numbers.tolist() == [41, timestamp]


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (9, ErrorCode.TOPIC_NOT_FOUND),
        (2, ErrorCode.TOPIC_DELETED),
        (3, ErrorCode.READ_ONLY),
        (4, ErrorCode.TOPIC_DELETED),
    ],
)
def test_a_refused_batch_changes_no_numbers(topic: int, reason: ErrorCode) -> None:
    data = batch(topic)
    before = Arrays(data)
    done = admit(data)
    assert done.code == frontier.RUN_DONE
    [row] = done.done
    assert (row["status"], row["reason"], row["topic_id"]) == (AckStatus.REJECTED, reason, topic)
    assert (row["position"], row["base_seq"]) == (2**64 - 1, 0)
    assert done.buffer.tobytes() == data
    assert (done.topics.tolist(), done.numbers.tolist()) == (before.topics.tolist(), before.numbers.tolist())


def test_a_run_stops_at_the_ceiling_and_nothing_overtakes() -> None:
    """INV-FRONTIER-CEILING: seqs 1 to 5 are free; 3 fit, 3 more do not, and the next, which fits, waits."""
    run = batch(count=3) + batch(count=3) + batch(count=1)
    done = admit(run, ceiling=6)
    assert (done.code, done.progress.tolist()) == (frontier.RUN_NEEDS_CEILING, [1, len(batch(count=3))])
    assert (done.topics[0]["next_seq"], done.topics[0]["wanted"], done.numbers[0]) == (4, 7, 41)
    assert done.buffer.tobytes()[done.progress[1] :] == run[done.progress[1] :]
    assert admit(run[: done.progress[1]], ceiling=4).code == frontier.RUN_DONE, "the last seq below the ceiling is free"


def test_control_batches_take_a_position_and_no_seq() -> None:
    for windowed in (False, True):
        done = admit(batch(2, command=9, client=0) + batch(1), windowed=windowed)
        assert done.done["position"].tolist() == [40, 41]
        assert done.done["base_seq"].tolist() == [0, 1]
        assert done.done["status"].tolist() == [AckStatus.OK, AckStatus.OK]
        assert done.topics[0]["next_seq"] == 2


def test_timestamps_never_decrease_within_a_topic() -> None:
    """Topic 5 was stamped by a clock far ahead."""
    done = admit(batch(1) + batch(5) + batch(1) + batch(5))
    first, late, second, again = done.done["timestamp_ns"].tolist()
    assert first < second
    assert late == again == WALL_NS + 10**12
    assert done.numbers[1] == first + 3, "the clock of all topics does not jump for one of them"


@pytest.mark.parametrize("windowed", [False, True])
def test_the_reasons_why_a_run_stops(windowed: bool) -> None:
    one = batch()
    assert admit(b"", windowed=windowed).progress.tolist() == [0, 0]
    full = admit(one * 3, windowed=windowed, rows=2)
    assert (full.code, full.progress.tolist()) == (frontier.RUN_FULL, [2, 2 * len(one)])
    for missing in (1, len(one) - 1, len(one) - 96):
        cut = admit(one + one[: len(one) - missing], windowed=windowed)
        assert (cut.code, cut.progress.tolist()) == (frontier.RUN_CUT, [1, len(one)])
    middle = admit(one * 3, windowed=windowed, start=len(one), end=2 * len(one))
    assert (middle.code, middle.progress.tolist()) == (frontier.RUN_DONE, [1, 2 * len(one)])
    assert middle.buffer.tobytes()[: len(one)] == one


def test_the_row_has_the_result_of_the_client_window() -> None:
    def reasons(*run: bytes) -> list[tuple[int, int]]:
        rows = admit(b"".join(run), windowed=True).done
        return list(zip(rows["status"].tolist(), rows["reason"].tolist(), strict=True))

    good = batch(client=1, seq=1)
    rejected = int(AckStatus.REJECTED)
    assert reasons(good, good) == [(AckStatus.OK, 0), (AckStatus.DUPLICATE, 0)]
    assert reasons(good, batch(client=1, seq=1, text=b"other"))[1] == (rejected, ErrorCode.PAYLOAD_MISMATCH)
    assert reasons(batch(client=1, seq=257)) == [(rejected, ErrorCode.OUTSIDE_SESSION_WINDOW)]
    refused = batch(2, client=1, seq=1)
    assert reasons(refused, refused) == [(rejected, ErrorCode.TOPIC_DELETED)] * 2
    again = admit(good + good, windowed=True).done
    assert again["position"].tolist() == [40, 40]
    assert again["base_seq"].tolist() == [1, 1]
    assert again["timestamp_ns"][0] == again["timestamp_ns"][1]


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [("fence", ErrorCode.FENCED), ("skip", ErrorCode.CLIENT_SEQ_SKIPPED), ("forget", ErrorCode.CLIENT_SEQ_SKIPPED)],
)
def test_a_batch_before_the_window_is_refused(prepare: str, reason: ErrorCode) -> None:
    arrays = Arrays(batch(2 if prepare == "forget" else 1, client=1, seq=1))
    state = (arrays.state(), arrays.window_state(), arrays.answers, arrays.rows, arrays.progress)
    if prepare == "fence":
        arrays.clients[0, client_window.SESSION_EPOCH] = 2
    elif prepare == "skip":
        client_window.skip_to(np.uint64(1), 5, arrays.table, arrays.clients, arrays.sides, arrays.slots)
    else:  # decided as refused, then another client gets its memory
        client_frontier.admit_client_run(arrays.buffer, 0, arrays.buffer.size, 3, WALL_NS, *state)
        other = np.frombuffer(bytearray(batch(client=2)), np.uint8)
        client_frontier.admit_client_run(other, 0, other.size, 3, WALL_NS, *state)
    client_frontier.admit_client_run(arrays.buffer, 0, arrays.buffer.size, 3, WALL_NS, *state)
    assert (arrays.rows[0]["status"], arrays.rows[0]["reason"]) == (AckStatus.REJECTED, reason)


def test_an_unknown_client_stops_the_run() -> None:
    run = batch(client=1) + batch(client=3) + batch(client=2)
    done = admit(run, windowed=True)
    assert (done.code, done.progress.tolist()) == (frontier.RUN_UNKNOWN_CLIENT, [1, len(batch())])
    assert done.numbers[0] == 41


def test_a_batch_that_waits_for_a_ceiling_is_not_decided() -> None:
    done = admit(batch(count=3, client=1), windowed=True, ceiling=2)
    assert done.code == frontier.RUN_NEEDS_CEILING
    assert done.clients[0, client_window.NEXT_EXPECTED] == 1
    assert not done.sides.any()


def test_codes_equal_those_of_the_wire() -> None:
    assert tuple(AckStatus)[:3] == (frontier.STATUS_OK, client_frontier.STATUS_DUPLICATE, frontier.STATUS_REJECTED)
    named = {
        frontier.REASON_TOPIC_NOT_FOUND: ErrorCode.TOPIC_NOT_FOUND,
        frontier.REASON_TOPIC_DELETED: ErrorCode.TOPIC_DELETED,
        frontier.REASON_READ_ONLY: ErrorCode.READ_ONLY,
        client_frontier.REASON_FENCED: ErrorCode.FENCED,
        client_frontier.REASON_OUTSIDE_WINDOW: ErrorCode.OUTSIDE_SESSION_WINDOW,
        client_frontier.REASON_SKIPPED: ErrorCode.CLIENT_SEQ_SKIPPED,
        client_frontier.REASON_MISMATCH: ErrorCode.PAYLOAD_MISMATCH,
    }
    assert all(number == code for number, code in named.items())


@settings(max_examples=EXAMPLES)
@given(st.binary(max_size=110), st.integers(0, 10), st.integers(-5, 0))
def test_the_end_of_a_batch_is_within_bounds(data: bytes, at: int, shorter: int) -> None:
    buffer = np.frombuffer(bytearray(data + batch()[:50]), np.uint8)
    end = buffer.size + shorter
    found = frontier.batch_end(buffer, at, end)
    assert found == twin.batch_end(buffer, at, end)
    assert found == -1 or at + 96 <= found <= end
    whole = np.frombuffer(bytearray(data + batch()), np.uint8)
    assert frontier.batch_end(whole, len(data), whole.size) == whole.size


# --- together -------------------------------------------------------------------------------------------------------


def headers_of(batches: list[bytes]) -> bytes:
    return b"".join(each[:96] for each in batches)


def together(batches: list[bytes], *, ceiling: int = 1000) -> tuple[int, Arrays]:
    """Admit with kernel and twin; the same code and the same bytes everywhere."""
    found = []
    for admit in (transactions.admit_transaction, together_twin.admit_transaction):
        arrays = Arrays(headers_of(batches), ceiling=ceiling, rows=len(batches))
        found.append((admit(arrays.buffer, 3, WALL_NS, arrays.state(), arrays.rows), arrays))
    (code, ours), (other, theirs) = found
    assert code == other
    assert ours.content() == theirs.content()
    return code, ours


@settings(max_examples=EXAMPLES)
@given(st.lists(st.builds(batch, st.integers(0, 6), st.integers(1, 4)), max_size=8), st.sampled_from([41, 1000]))
def test_batches_of_a_transaction_equal_their_twin_and_use_one_position(batches: list[bytes], ceiling: int) -> None:
    code, arrays = together(batches, ceiling=ceiling)
    assert arrays.numbers[frontier.NEXT_POSITION] == 41
    if code == frontier.RUN_DONE:
        assert set(arrays.rows["position"].tolist()) <= {40}


def test_batches_of_one_topic_in_a_transaction_share_one_timestamp() -> None:
    code, arrays = together([batch(1, 2), batch(5, 1), batch(1, 3)])
    assert code == frontier.RUN_DONE
    assert arrays.rows["base_seq"].tolist() == [1, 41, 3]
    assert arrays.rows["timestamp_ns"][0] == arrays.rows["timestamp_ns"][2] == arrays.numbers[frontier.LAST_TIMESTAMP]
    assert arrays.rows["timestamp_ns"][1] > arrays.rows["timestamp_ns"][0], "no time goes back within a topic"


def test_a_refused_batch_ends_the_run() -> None:
    assert together([batch(1), batch(2), batch(1)])[0] == transactions.TOGETHER_REFUSED
    code, arrays = together([batch(1, 4), batch(1, 4)], ceiling=7)
    assert code == frontier.RUN_NEEDS_CEILING
    assert np.count_nonzero(arrays.rows["position"] == 40) == 1
