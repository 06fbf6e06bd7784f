"""The state machine behind publishers: client seqs, window, batching, outcomes. No socket, no clock."""

from __future__ import annotations

import numpy as np
import pytest

from seawall.api.publishable import UnencodedBlock, hold
from seawall.client.publish.delivery import Batch
from seawall.client.publish.outgoing import Outgoing
from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TopicId
from seawall.errors import (
    ConflictError,
    FencedError,
    FullError,
    NotFoundError,
    OutcomeUnknownError,
    ReadOnlyError,
    RetryableError,
)
from seawall.kernels.codec.frames import FRAME_ROW, SPLIT_MORE, STATE_SIZE, SUM_FRAME_SIZE, split_frames, write_sum
from seawall.wire.format.ack_rows import ACK_ROW, Rows
from seawall.wire.format.arrow import EncodedBlock
from seawall.wire.format.batches import BatchSource, client_block_of, parse_batch_header
from seawall.wire.format.codes import AckLevel, AckStatus, Codec, ErrorCode
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import checksum
from seawall.wire.format.records import encode_raw, iter_records

LINK, OTHER_LINK = object(), object()
TOPIC = TopicId(3)


def machine(
    *, ack: int = 2, batch_size: int = 1_000, linger_ns: int = 0, codec: Codec = Codec.NONE, window: int = 256
) -> Outgoing:
    outgoing = Outgoing(ack=ack, batch_size=batch_size, linger_ns=linger_ns, codec=codec)
    outgoing.welcomed(ClientId(7), SessionEpoch(2), ClientSeq(1))
    outgoing.window_batches = window
    return outgoing


def block(value: bytes = b"value") -> EncodedBlock:
    return EncodedBlock(encode_raw(value), 1)


def add(outgoing: Outgoing, value: bytes = b"value", now_ns: int = 0, topic_id: TopicId = TOPIC) -> Batch:
    (batch,), _ = outgoing.add("events", topic_id, [block(value)], now_ns)
    return batch


def send_all(outgoing: Outgoing, now_ns: int = 0, link: object = LINK) -> list[int]:
    """Send all batches that may be sent; their client seqs."""
    numbers = []
    while (batch := outgoing.next_batch(now_ns)) is not None:
        outgoing.sent(batch, link)
        numbers.append(int(batch.client_seq))
    return numbers


def fill(outgoing: Outgoing, count: int) -> list[Batch]:
    """Add `count` sealed batches."""
    batches = []
    for _ in range(count):
        batches.append(add(outgoing))
        outgoing.seal()
    return batches


def rows(*entries: tuple[int, AckStatus, int]) -> Rows:
    """ACK entries: client seq, status, reason; seqs are ten times the client seq."""
    found = np.zeros(len(entries), ACK_ROW)
    for row, (client_seq, status, reason) in zip(found, entries, strict=True):
        row["client_seq"], row["status"], row["reason"] = client_seq, status, reason
        row["base_seq"], row["position"], row["timestamp_ns"] = client_seq * 10, client_seq + 100, 5
    return found


def ok(*numbers: int) -> Rows:
    return rows(*((number, AckStatus.OK, 0) for number in numbers))


def test_a_single_record_is_sent_at_once() -> None:
    outgoing = machine()
    batch = add(outgoing)
    assert send_all(outgoing) == [1]
    assert outgoing.acked(ok(1)) is AckStatus.OK
    assert (batch.is_done, batch.error, batch.base_seq, batch.position) == (True, None, 10, 101)
    assert outgoing.take_decided() == [batch]
    assert outgoing.take_decided() == []
    assert outgoing.is_empty


def test_records_are_batched_while_others_are_in_flight() -> None:
    outgoing = machine()
    add(outgoing)
    assert send_all(outgoing) == [1]
    gathered = [add(outgoing) for _ in range(5)]
    assert send_all(outgoing) == []
    assert len(set(gathered)) == 1
    assert gathered[0].record_count == 5
    outgoing.acked(ok(1))
    assert send_all(outgoing) == [2]


def test_a_full_batch_does_not_wait() -> None:
    outgoing = machine(batch_size=25)
    assert [add(outgoing).record_count for _ in range(6)] == [1, 2, 1, 2, 1, 2]
    # The third record did not fit, so it began the second batch and the first was sent.
    assert send_all(outgoing) == [1, 2]


def test_a_large_block_is_a_separate_batch_after_the_open_one() -> None:
    outgoing = machine(batch_size=50)
    small = add(outgoing)
    (large,), offset = outgoing.add("events", TOPIC, [block(b"x" * 60)], 0)
    assert offset == 0
    assert send_all(outgoing) == [1, 2]
    assert (small.client_seq, large.client_seq) == (1, 2)


def test_one_call_may_fill_several_batches() -> None:
    outgoing = machine()
    batches, offset = outgoing.add("events", TOPIC, [block(), block()], 0)
    assert (len(batches), offset) == (2, 0)
    assert send_all(outgoing) == [1, 2]


def test_another_topic_begins_another_batch() -> None:
    outgoing = machine()
    first, second = add(outgoing), add(outgoing, topic_id=TopicId(4))
    assert first is not second
    assert send_all(outgoing) == [1]
    outgoing.acked(ok(1))
    assert send_all(outgoing) == [2]


def test_records_linger_for_the_configured_time() -> None:
    outgoing = machine(linger_ns=100)
    add(outgoing, now_ns=50)
    assert send_all(outgoing, now_ns=149) == []
    assert outgoing.due_ns() == 150
    assert send_all(outgoing, now_ns=150) == [1]
    assert outgoing.due_ns() is None


def test_no_client_seq_is_sent_beyond_the_window() -> None:
    outgoing = machine(window=4)
    fill(outgoing, 6)
    assert send_all(outgoing) == [1, 2, 3, 4]
    outgoing.acked(ok(2, 3, 4))
    # INV-OUTGOING-WINDOW: 5 is a window above 1, which is not decided.
    assert send_all(outgoing) == []
    outgoing.acked(ok(1))
    assert send_all(outgoing) == [5, 6]


def test_no_more_bytes_are_sent_than_the_window_allows() -> None:
    outgoing = machine()
    outgoing.window_bytes = 25
    fill(outgoing, 3)
    assert send_all(outgoing) == [1, 2]
    outgoing.acked(ok(1))
    assert send_all(outgoing) == [3]


def test_a_batch_larger_than_the_window_is_sent_alone() -> None:
    outgoing = machine()
    outgoing.window_bytes = 5
    fill(outgoing, 2)
    assert send_all(outgoing) == [1]
    outgoing.acked(ok(1))
    assert send_all(outgoing) == [2]


def test_batches_of_a_lost_connection_are_sent_again_with_their_client_seqs() -> None:
    """INV-OUTGOING-WINDOW."""
    outgoing = machine()
    first, second, third = fill(outgoing, 3)
    assert send_all(outgoing) == [1, 2, 3]
    outgoing.sent(second, OTHER_LINK)
    blocks = [outgoing.frame_of(batch, 0)[1] for batch in (first, third)]
    outgoing.lost(LINK)
    assert send_all(outgoing, link=OTHER_LINK) == [1, 3]
    assert [outgoing.frame_of(batch, 0)[1] for batch in (first, third)] == blocks
    outgoing.acked(rows((1, AckStatus.DUPLICATE, 0), (2, AckStatus.DUPLICATE, 0), (3, AckStatus.OK, 0)))
    # A batch that the client repeated by itself is no duplicate to the caller.
    assert not first.is_duplicate
    assert outgoing.is_empty


def test_a_repetition_by_the_caller_is_reported() -> None:
    outgoing = machine()
    (batch,) = outgoing.add_numbered("events", TOPIC, [block()], 5, 0)
    assert send_all(outgoing) == [5]
    outgoing.acked(rows((5, AckStatus.DUPLICATE, 0)))
    assert batch.is_duplicate
    assert outgoing.next_number == 6


def test_a_returned_batch_waits_for_earlier_ones() -> None:
    outgoing = machine()
    fill(outgoing, 3)
    send_all(outgoing)
    assert outgoing.acked(rows((3, AckStatus.RETRY, 0))) is AckStatus.OK
    assert send_all(outgoing) == []
    outgoing.acked(ok(1, 2))
    assert send_all(outgoing) == [3]
    # Returned though nothing precedes it: the server needs a pause.
    assert outgoing.acked(rows((3, AckStatus.RETRY, 0))) is AckStatus.RETRY
    outgoing.refused(0, 50)
    assert send_all(outgoing, now_ns=49) == []
    assert outgoing.due_ns() == 50
    assert send_all(outgoing, now_ns=50) == [3]


def test_pressure_pauses_and_repeats_the_named_batch() -> None:
    outgoing = machine()
    fill(outgoing, 2)
    assert send_all(outgoing) == [1, 2]
    outgoing.refused(2, 1_000)
    assert send_all(outgoing, now_ns=999) == []
    assert send_all(outgoing, now_ns=1_000) == [2]


def test_an_unknown_outcome_needs_another_connection() -> None:
    outgoing = machine()
    fill(outgoing, 2)
    send_all(outgoing)
    assert outgoing.acked(rows((1, AckStatus.OK, 0), (2, AckStatus.UNKNOWN, 0))) is AckStatus.UNKNOWN
    outgoing.lost(LINK)
    assert send_all(outgoing) == [2]


@pytest.mark.parametrize(
    ("reason", "error", "is_free"),
    [
        (ErrorCode.TOPIC_NOT_FOUND, NotFoundError, True),
        (ErrorCode.READ_ONLY, FullError, True),
        (ErrorCode.CLIENT_SEQ_SKIPPED, ConflictError, False),
        (ErrorCode.OUTSIDE_SESSION_WINDOW, OutcomeUnknownError, False),
    ],
)
def test_a_refusal_is_an_error_and_may_leave_its_client_seq_unused(
    reason: ErrorCode, error: type[Exception], is_free: bool
) -> None:
    outgoing = machine()
    (batch,) = fill(outgoing, 1)
    send_all(outgoing)
    outgoing.acked(rows((1, AckStatus.REJECTED, int(reason))))
    assert isinstance(batch.error, error)
    assert outgoing.take_error() is batch.error
    assert outgoing.take_error() is None
    fill(outgoing, 1)
    assert send_all(outgoing) == [1 if is_free else 2]


def test_a_refusal_at_level_ordered_uses_its_client_seq() -> None:
    """Another batch with it would be refused forever."""
    outgoing = machine()
    (batch,) = fill(outgoing, 1)
    send_all(outgoing)
    refused = rows((1, AckStatus.REJECTED, int(ErrorCode.READ_ONLY)))
    refused["level"] = AckLevel.ORDERED
    outgoing.acked(refused)
    assert isinstance(batch.error, FullError)
    fill(outgoing, 1)
    assert send_all(outgoing) == [2]


READ_ONLY = int(ErrorCode.READ_ONLY)


def used(client_seq: int) -> Rows:
    """The answer to a batch without records, which uses its client seq."""
    refused = rows((client_seq, AckStatus.REJECTED, int(ErrorCode.INVALID_PAYLOAD)))
    refused["level"] = AckLevel.ORDERED
    return refused


def test_an_unused_client_seq_counts_for_the_window() -> None:
    outgoing = machine(window=3)
    fill(outgoing, 4)
    assert send_all(outgoing) == [1, 2, 3]
    outgoing.acked(rows((1, AckStatus.REJECTED, READ_ONLY)))
    assert outgoing.next_number == 4
    assert send_all(outgoing) == [1]
    assert outgoing.lowest_undecided == 1
    fill(outgoing, 1)
    outgoing.acked(ok(2, 3))
    assert send_all(outgoing) == []
    outgoing.acked(used(1))
    assert send_all(outgoing) == [4, 5]


def test_an_unused_client_seq_below_others_is_abandoned_by_an_empty_batch() -> None:
    """The next batch must not overtake earlier ones, nor may they wait for it."""
    outgoing = machine()
    first, second, third = fill(outgoing, 3)
    assert send_all(outgoing) == [1, 2, 3]
    outgoing.acked(rows((2, AckStatus.REJECTED, READ_ONLY)))
    outgoing.take_error()
    filler = outgoing.next_batch(0)
    assert filler is not None
    outgoing.sent(filler, LINK)
    header, block = outgoing.frame_of(filler, 0)
    assert (filler.client_seq, filler.record_count, bytes(block), len(header)) == (2, 0, b"", 96)
    assert send_all(outgoing) == []
    # Its connection is lost: it is sent again, and answered twice.
    outgoing.lost(LINK)
    assert send_all(outgoing, link=OTHER_LINK) == [1, 2, 3]
    assert outgoing.acked(used(2)) is AckStatus.OK
    outgoing.acked(used(2))
    outgoing.acked(ok(1, 3))
    assert outgoing.take_error() is None
    assert [batch.error is None for batch in (first, second, third)] == [True, False, True]
    assert outgoing.is_empty
    fill(outgoing, 1)
    assert send_all(outgoing) == [4]


def test_abandoning_a_client_seq_is_retried_after_a_pause() -> None:
    outgoing = machine()
    fill(outgoing, 3)
    send_all(outgoing)
    outgoing.acked(rows((1, AckStatus.REJECTED, READ_ONLY)))
    assert send_all(outgoing) == [1]
    assert outgoing.acked(rows((1, AckStatus.REJECTED, READ_ONLY))) is AckStatus.RETRY
    outgoing.refused(0, 100)
    assert send_all(outgoing, 99) == []
    assert outgoing.due_ns() == 100
    assert send_all(outgoing, 100) == [1]
    # No higher client seq is undecided: the next batch may use it.
    outgoing.acked(rows((1, AckStatus.REJECTED, READ_ONLY), (2, AckStatus.REJECTED, READ_ONLY)))
    outgoing.acked(rows((3, AckStatus.REJECTED, READ_ONLY)))
    assert send_all(outgoing, 100) == []
    assert outgoing.is_empty
    fill(outgoing, 4)
    assert send_all(outgoing, 100) == [1, 2, 3, 4]


def test_a_late_refusal_after_an_ack_is_reported() -> None:
    outgoing = machine(ack=1)
    fill(outgoing, 1)
    send_all(outgoing)
    outgoing.acked(ok(1))
    outgoing.acked(rows((1, AckStatus.REJECTED, int(ErrorCode.TOPIC_DELETED))))
    assert isinstance(outgoing.take_error(), NotFoundError)


def test_failing_separates_unknown_outcomes_from_unsent_batches() -> None:
    outgoing = machine()
    (sent,) = fill(outgoing, 1)
    send_all(outgoing)
    waiting = add(outgoing)
    outgoing.fail(RetryableError("no server"))
    assert isinstance(sent.error, OutcomeUnknownError)
    assert isinstance(waiting.error, RetryableError)
    assert outgoing.is_empty


def test_batches_in_flight_of_a_fenced_session_fail_as_fenced() -> None:
    outgoing = machine()
    (sent,) = fill(outgoing, 1)
    send_all(outgoing)
    outgoing.fail(FencedError("newer"))
    assert isinstance(sent.error, FencedError)


@pytest.mark.parametrize(
    ("codec", "value", "used"),
    [
        (Codec.LZ4, b"a" * 500, Codec.LZ4),
        (Codec.ZSTD, b"a" * 500, Codec.ZSTD),
        (Codec.LZ4, b"a" * 20, Codec.NONE),
        (Codec.LZ4, bytes(range(256)), Codec.NONE),
    ],
)
def test_blocks_are_compressed_if_that_is_smaller(codec: Codec, value: bytes, used: Codec) -> None:
    outgoing = machine(codec=codec, batch_size=10_000)
    batch = add(outgoing, value)
    send_all(outgoing)
    header_bytes, packed = outgoing.frame_of(batch, 9)
    header = parse_batch_header(header_bytes, source=BatchSource.CLIENT)
    assert header.codec is used
    assert (header.client_id, header.session_epoch, header.client_seq, header.topic_id) == (7, 2, 1, TOPIC)
    assert client_block_of(header, packed) == encode_raw(value)


def test_a_batch_has_the_epoch_of_the_session_it_is_sent_in() -> None:
    outgoing = machine()
    (batch,) = fill(outgoing, 1)
    send_all(outgoing)
    outgoing.lost(LINK)
    outgoing.welcomed(ClientId(7), SessionEpoch(3), ClientSeq(1))
    assert send_all(outgoing) == [1]
    header = parse_batch_header(outgoing.frame_of(batch, 0)[0], source=BatchSource.CLIENT)
    assert header.session_epoch == 3


def test_a_known_client_continues_its_client_seqs() -> None:
    outgoing = machine()
    outgoing.welcomed(ClientId(7), SessionEpoch(3), ClientSeq(41))
    fill(outgoing, 1)
    assert send_all(outgoing) == [41]


def held(count: int, size: int = 90) -> UnencodedBlock:
    (made,) = hold([b"%d" % number * size for number in range(10, 10 + count)])
    assert isinstance(made, UnencodedBlock)
    return made


def records_of(block: Buffer) -> list[bytes]:
    return [bytes(record.value) for record in iter_records(block)]


def test_values_are_encoded_when_they_are_sent_and_each_time_alike() -> None:
    outgoing = machine()
    records = held(20)
    (batch,), offset = outgoing.add("events", TOPIC, [records], 0)
    assert (offset, batch.record_count, batch.size) == (0, 20, records.size)
    assert send_all(outgoing) == [1]
    header, block = outgoing.frame_of(batch, 5)
    assert records_of(block) == records.values
    # The block is dropped when it is sent; the values are kept until the outcome is known.
    assert batch.block is None
    outgoing.lost(LINK)
    assert send_all(outgoing) == [1]
    again = outgoing.frame_of(batch, 5)
    assert (again[0], bytes(again[1])) == (header, bytes(block))
    outgoing.acked(ok(1))
    assert (batch.is_done, batch.values) == (True, [])


def test_large_values_are_encoded_by_the_connection() -> None:
    outgoing = machine()
    records = held(20, size=20_000)
    (batch,), _ = outgoing.add("events", TOPIC, [records], 0)
    assert send_all(outgoing) == [1]
    frame = outgoing.held_frame_of(batch, 5)
    assert frame is not None
    header, number, values = frame
    assert (number, values) == (1, records)
    # With a trailing checksum, or a leading one for a server without that feature.
    again, made = outgoing.frame_of(batch, 5)
    assert records_of(made) == records.values
    trailer = np.zeros(SUM_FRAME_SIZE, np.uint8)
    write_sum(trailer, 0, 1, checksum(made))
    sent = np.frombuffer(bytearray(header + made + trailer.tobytes()), np.uint8)
    rows, state = np.zeros(2, FRAME_ROW), np.zeros(STATE_SIZE, np.int64)
    assert split_frames(sent, 0, sent.size, 1 << 24, rows, state) == SPLIT_MORE
    assert sent[: len(again) + len(made)].tobytes() == again + made


@pytest.mark.parametrize(
    ("codec", "records"),
    [
        (Codec.NONE, [bytes(20_000)] * 20),
        (Codec.LZ4, [bytes(40_000)] * 20),
        (Codec.NONE, bytes(1_000_000)),
    ],
    ids=["small block", "compressed", "already encoded"],
)
def test_other_blocks_are_not_streamed(codec: Codec, records: list[bytes] | bytes) -> None:
    outgoing = machine(codec=codec)
    (batch,), _ = outgoing.add("events", TOPIC, hold(records), 0)
    assert send_all(outgoing) == [1]
    assert outgoing.held_frame_of(batch, 5) is None


def test_values_join_the_last_queued_batch() -> None:
    outgoing = machine(window=1)
    first, second, third = held(20), held(30), held(40)
    (sent,), _ = outgoing.add("events", TOPIC, [first], 0)
    assert send_all(outgoing) == [1]
    (following,), _ = outgoing.add("events", TOPIC, [second], 0)
    (waiting,), _ = outgoing.add("events", TOPIC, [third], 0)
    (joined,), offset = outgoing.add("events", TOPIC, [first], 0)
    assert len({id(batch) for batch in (sent, following, waiting)}) == 3
    assert waiting is joined
    assert (offset, joined.record_count, joined.size) == (40, 60, third.size + first.size)
    assert outgoing.size == 2 * first.size + second.size + third.size
    (other,), _ = outgoing.add("others", TopicId(9), [first], 0)
    assert other is not joined
    assert records_of(joined.held_block()) == third.values + first.values
    # The lists of the callers are unchanged.
    assert (len(first.values), len(third.values)) == (20, 40)


def test_values_too_large_for_one_batch_do_not_join() -> None:
    outgoing = machine(window=1)
    large = held(30, size=60_000)
    batches = [outgoing.add("events", TOPIC, [large], 0)[0][0] for _ in range(5)]
    # The first is sent at once; the second may be sent next, so nothing joins it.
    assert len({id(batch) for batch in batches}) == 5
    assert all(batch.size == large.size for batch in batches)


def test_values_are_compressed_if_the_server_agrees() -> None:
    outgoing = machine(codec=Codec.LZ4)
    (batch,), _ = outgoing.add("events", TOPIC, [held(100)], 0)
    assert send_all(outgoing) == [1]
    data = b"".join(bytes(part) for part in outgoing.frame_of(batch, 5))
    header = parse_batch_header(data, source=BatchSource.CLIENT)
    assert header.codec is Codec.LZ4
    assert batch.block is not None
    assert records_of(client_block_of(header, data[96:])) == held(100).values


def test_blocks_and_values_of_small_calls_share_a_batch_in_their_order() -> None:
    outgoing = machine(batch_size=100_000, linger_ns=10)
    few = held(17, 1)
    for records in (block(b"first"), few, block(b"middle"), few):
        outgoing.add("events", TOPIC, [records], 0)
    batch = outgoing.add("events", TOPIC, [block(b"last")], 0)[0][0]
    assert send_all(outgoing, 20) == [1]
    assert records_of(outgoing.frame_of(batch, 5)[1]) == [b"first", *few.values, b"middle", *few.values, b"last"]


def test_a_batch_sent_twice_and_refused_read_only_has_an_unknown_outcome() -> None:
    """A read-only server refuses it without checking for duplicates: the first copy may be stored."""
    outgoing = machine()
    (batch,) = fill(outgoing, 1)
    send_all(outgoing)
    outgoing.lost(LINK)
    assert send_all(outgoing) == [1]
    outgoing.acked(rows((1, AckStatus.REJECTED, READ_ONLY)))
    assert isinstance(batch.error, OutcomeUnknownError)


def test_a_read_only_server_still_answers_what_it_was_sent() -> None:
    outgoing = machine(window=3)
    batches = fill(outgoing, 4)
    assert send_all(outgoing) == [1, 2, 3]
    error = ReadOnlyError("the disk failed")
    outgoing.fail(error)
    assert [batch.is_done for batch in batches] == [False, False, False, True]
    unknown = (1, AckStatus.UNKNOWN, int(ErrorCode.OUTCOME_UNKNOWN))
    assert outgoing.acked(rows(unknown, (2, AckStatus.REJECTED, READ_ONLY))) is AckStatus.OK
    assert send_all(outgoing) == []
    outgoing.lost(LINK)
    outgoing.fail(error)
    kinds = [type(batch.error) for batch in batches]
    assert kinds == [OutcomeUnknownError, ReadOnlyError, OutcomeUnknownError, ReadOnlyError]
    assert outgoing.is_empty
