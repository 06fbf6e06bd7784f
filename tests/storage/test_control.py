"""Control batches: one stable encoding each, rules checked by writer and reader, damage reported as corruption."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.kernels.log import epochs as epoch_kernels
from seawall.storage.control import documents as control_documents
from seawall.storage.control.batches import (
    Compound,
    Control,
    SimpleControl,
    UnpositionedControl,
    control_batch,
    parse_control,
    parts_of,
    read_control,
    references_of,
)
from seawall.storage.control.codec import (
    Ceiling,
    Checkpoint,
    ClientRow,
    ControlCommand,
    CursorCommit,
    Reference,
    RouterStep,
    SegmentRoll,
)
from seawall.storage.control.deletes import DeleteRecords, MatchKind, TagMatch
from seawall.storage.control.documents import (
    FloorRaise,
    Loss,
    RouterChange,
    TermStart,
    TopicConfigure,
    TopicCreate,
    TopicDelete,
)
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.control.queues import LEASE_ROW, LEASED, RETURNED, DeadLettered, Leases
from seawall.storage.control.sessions import SessionsRetired
from seawall.storage.control.transactions import TransactionMark
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.wire.format.batches import BatchHeader, BatchSource, batch_header, parse_batch_header, verify_block
from seawall.wire.format.codes import AckStatus, Codec, GapReason

U32 = 2**32 - 1
U64 = 2**64 - 1


def append_header(*, position: int = 7, base_seq: int = 10, topic_id: int = 3, record_count: int = 2) -> BatchHeader:
    """The header of a stamped append."""
    header = batch_header(
        b"x" * 100,
        topic_id=topic_id,
        client_id=5,
        client_seq=1,
        session_epoch=2,
        record_count=record_count,
        timestamp_ns=1_700_000_000_000_000_000,
    )
    return replace(header, position=position, base_seq=base_seq, base_offset=90, term=1)


def seqs_of(*seqs: int) -> DeletedSeqs:
    return DeletedSeqs.of(np.array(seqs, np.int64))


def leases_of(*rows: tuple[int, ...], topic_id: int = 3) -> Leases:
    """Leases from rows of seq, lease_id, at_ms, worker, deliveries, state and priority."""
    return Leases(topic_id, np.array([(*row, 0) for row in rows], LEASE_ROW))


REFERENCE = Reference(append_header(), segment_first_seq=4, file_position=4096)

#: One of each, with its block in the stable encoding.
EXAMPLES: list[tuple[SimpleControl, bytes]] = [
    (REFERENCE, append_header().header_bytes() + struct.pack("<QQ", 4, 4096)),
    (
        TopicCreate(3, "events", 3, {"ttl_ms": 5, "dead_letter": None}, 1_700_000_000_123),
        b'{"topic_id":3,"name":"events","epoch":3,"config":{"ttl_ms":5,"dead_letter":null},"created_ms":1700000000123}',
    ),
    (
        TopicDelete(3, "events", 3, {"ttl_ms": 5}),
        b'{"topic_id":3,"name":"events","epoch":3,"before":{"ttl_ms":5}}',
    ),
    (TopicConfigure(3, {"ttl_ms": 5}, {"ttl_ms": 6}), b'{"topic_id":3,"before":{"ttl_ms":5},"after":{"ttl_ms":6}}'),
    (Ceiling(3, 2000, 1000), bytes.fromhex("0300000000000000d007000000000000e803000000000000")),
    (
        DeleteRecords(3, seqs_of(1, 2, 300), 77, 400, TagMatch(MatchKind.PREFIX, "user-é")),
        struct.pack("<IBBHQQIIQHHH", 3, 2, 2, 7, 400, 77, 2, 0, 1, 2, 297, 1) + "user-é".encode(),
    ),
    (
        DeleteRecords(3, seqs_of(9), 5, None, TagMatch(MatchKind.EQ, "a")),
        struct.pack("<IBBHQQIIQB", 3, 1, 1, 1, U64, 5, 1, 0, 9, 1) + b"a",
    ),
    (
        DeleteRecords(3, seqs_of(1, 2**40), 5),
        struct.pack("<IBBHQQIIQQQQ", 3, 0, 8, 0, U64, 5, 2, 0, 1, 1, 2**40 - 2, 1),
    ),
    (
        FloorRaise(3, GapReason.CAP, 20, 1, 4096),
        b'{"topic_id":3,"reason":"cap","evict_floor":20,"previous":1,"removed_bytes":4096}',
    ),
    (
        Loss(3, 5, 9, GapReason.CRASH, 77),
        b'{"topic_id":3,"first_seq":5,"last_seq":9,"reason":"crash","lost_bytes":77}',
    ),
    (
        CursorCommit("worker", 3, 3, 12, 8),
        bytes.fromhex("030000000600000003000000000000000c000000000000000800000000000000ffffffffffffffff") + b"worker",
    ),
    (
        CursorCommit("v1", 3, 3, 12, 0, 90),
        bytes.fromhex("030000000200000003000000000000000c0000000000000000000000000000005a00000000000000") + b"v1",
    ),
    (SegmentRoll(3, 101, 1), bytes.fromhex("030000000000000065000000000000000100000000000000")),
    (ClientRow(9, b"r" * 64), b"\x09" + bytes(7) + b"r" * 64),
    (ClientRow(9, b"r" * 64, b"p" * 64), b"\x09" + bytes(7) + b"r" * 64 + b"p" * 64),
    (TermStart(4, 2, 1000), b'{"term":4,"previous":2,"start_position":1000}'),
    (Checkpoint(9000, 70, 8000), struct.pack("<QQQ", 9000, 70, 8000)),
    (SessionsRetired((4, 9), 3, 700), struct.pack("<QQQQ", 3, 700, 4, 9)),
    (TransactionMark("jöb", 7, 2, 9), struct.pack("<QQIHH", 7, 9, 2, 4, 0) + "jöb".encode()),
    (
        OrderNop(3, AckStatus.DUPLICATE, 0, 9, 4, 0xABCD, 77),
        struct.pack("<BBHIQQQII", 1, 0, 0, 3, 9, 4, 77, 0xABCD, 0),
    ),
    (
        OrderNop(U32, AckStatus.REJECTED, 0x10, U64, U64, 1, decides=True),
        struct.pack("<BBHIQQQII", 2, 1, 0x10, U32, U64, U64, U64, 1, 0),
    ),
    (OrderSkip(3, 9, 4, 2), struct.pack("<IIQQ", 3, 2, 9, 4)),
    (OrderSkip(0, 9, 2**62, 1), struct.pack("<IIQQ", 0, 1, 9, 2**62)),
    (
        RouterChange("a->b", 3, 4, 7, None, {"tag": "x"}),
        b'{"name":"a->b","source_id":3,"dest_id":4,"next_seq":7,"before":null,"after":{"tag":"x"}}',
    ),
    (
        RouterChange("r", 3, 4, 7, {"tag": "x"}, None),
        b'{"name":"r","source_id":3,"dest_id":4,"next_seq":7,"before":{"tag":"x"},"after":null}',
    ),
    (RouterStep("a->b", 9, 7, 12), struct.pack("<HHIQQQ", 4, 0, 0, 9, 7, 12) + b"a->b"),
    (DeadLettered(3, 1_000), struct.pack("<II", 3, 1_000)),
    (
        leases_of((5, 77, 1_700, 9, 2, LEASED, 4), (8, 0, 1_800, 0, 1, RETURNED, 0)),
        struct.pack("<II", 3, 2)
        + struct.pack("<QQQQIBBH", 5, 77, 1_700, 9, 2, 1, 4, 0)
        + struct.pack("<QQQQIBBH", 8, 0, 1_800, 0, 1, 2, 0, 0),
    ),
]


@pytest.mark.parametrize(("control", "block"), EXAMPLES, ids=lambda each: getattr(each, "COMMAND", None))
def test_the_encoding_of_every_control_is_stable(control: SimpleControl, block: bytes) -> None:
    assert control.encode() == block
    assert parse_control(control.COMMAND, block) == control
    assert parse_control(control.COMMAND, memoryview(block)) == control


def test_every_command_has_an_example_and_keeps_its_number() -> None:
    seen = {control.COMMAND for control, _ in EXAMPLES} | {ControlCommand.COMPOUND, ControlCommand.ASIDE}
    assert seen == set(ControlCommand)
    assert {command.name: command.value for command in ControlCommand} == {
        "REFERENCE": 1,
        "TOPIC_CREATE": 2,
        "TOPIC_DELETE": 3,
        "TOPIC_CONFIG": 4,
        "CEILING": 5,
        "DELETE_RECORDS": 6,
        "FLOOR": 7,
        "LOSS": 8,
        "CURSOR": 9,
        "SEGMENT_ROLL": 10,
        "CLIENT": 11,
        "TERM": 12,
        "CHECKPOINT": 13,
        "COMPOUND": 14,
        "ORDER_NOP": 15,
        "ORDER_SKIP": 16,
        "ASIDE": 17,
        "TRANSACTION": 18,
        "SESSIONS_RETIRED": 19,
        "ROUTER": 20,
        "ROUTER_STEP": 21,
        "DEAD_LETTERED": 22,
        "LEASES": 23,
    }
    assert ControlCommand.ASIDE == epoch_kernels.COMMAND_UNPOSITIONED


# --- any control ---------------------------------------------------------------------------------------------------

numbers = st.integers(0, U64)
priorities = st.integers(0, 9)
seqs = st.integers(1, U64)
topic_ids = st.integers(1, 2**32 - 2)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8"), max_size=40)
configs = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=5)
reasons = st.sampled_from([reason for reason in GapReason if reason not in (GapReason.CAP, GapReason.TTL)])

simple_controls = st.one_of(
    st.builds(TopicCreate, topic_ids, names, numbers, configs),
    st.builds(TopicDelete, topic_ids, names, numbers, configs),
    st.builds(TopicConfigure, topic_ids, configs, configs),
    st.builds(Ceiling, topic_ids, numbers, numbers),
    st.builds(
        DeleteRecords,
        topic_ids,
        st.lists(st.integers(1, 2**63 - 3), min_size=1, max_size=40).map(lambda each: seqs_of(*each)),
        numbers,
        st.none() | st.integers(0, U64 - 1),
        st.none() | st.builds(TagMatch, st.sampled_from(MatchKind), texts),
    ),
    st.tuples(seqs, seqs)
    .filter(lambda pair: pair[0] != pair[1])
    .flatmap(
        lambda pair: st.builds(
            FloorRaise,
            topic_ids,
            st.sampled_from([GapReason.CAP, GapReason.TTL]),
            st.just(max(pair)),
            st.just(min(pair)),
            numbers,
        )
    ),
    st.tuples(seqs, seqs).flatmap(
        lambda pair: st.builds(Loss, topic_ids, st.just(min(pair)), st.just(max(pair)), reasons, numbers)
    ),
    st.builds(CursorCommit, texts.filter(bool), topic_ids, numbers, seqs, numbers, st.none() | st.integers(0, U64 - 1)),
    st.tuples(topic_ids, st.sets(numbers, min_size=2, max_size=2)).map(
        lambda drawn: SegmentRoll(drawn[0], max(drawn[1]), min(drawn[1]))
    ),
    st.builds(ClientRow, seqs, st.binary(min_size=64, max_size=64), st.none() | st.binary(min_size=64, max_size=64)),
    st.builds(
        SessionsRetired,
        st.sets(st.integers(1, 2**63 - 1), min_size=1, max_size=9).map(lambda ids: tuple(sorted(ids))),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**63 - 1),
    ),
    st.tuples(numbers, numbers, numbers).map(lambda drawn: Checkpoint(max(drawn[:2]), drawn[2], min(drawn[:2]))),
    st.builds(TermStart, st.integers(2**31, 2**32 - 1), st.integers(0, 2**31 - 1), numbers),
    st.builds(Reference, st.builds(append_header, topic_id=topic_ids), st.integers(1, 10), st.integers(4096, U64)),
    st.builds(
        OrderNop,
        st.integers(0, U32),
        st.sampled_from([AckStatus.DUPLICATE, AckStatus.REJECTED, AckStatus.RETRY]),
        st.integers(0, 0xFFFF),
        numbers,
        numbers,
        st.integers(0, U32),
        st.none() | st.integers(0, U64 - 1),
    ),
    st.tuples(st.sets(topic_ids, min_size=2, max_size=2).map(tuple), configs, st.none() | configs, seqs, names).map(
        lambda drawn: RouterChange(drawn[4] + ">", *drawn[0], drawn[3], drawn[2], drawn[1])
    ),
    st.tuples(st.sets(numbers, min_size=2, max_size=2), numbers, names).map(
        lambda drawn: RouterStep(drawn[2], max(drawn[0]), min(drawn[0]), drawn[1])
    ),
    st.builds(OrderSkip, st.integers(0, U32), st.integers(1, 2**63 - 1), st.integers(1, 2**61), st.integers(1, U32)),
    st.builds(DeadLettered, topic_ids, st.integers(1, U32)),
    st.dictionaries(
        st.integers(1, 2**63 - 1),
        st.tuples(
            *[st.integers(0, 2**63 - 1)] * 3, st.integers(0, U32), st.sampled_from([LEASED, RETURNED]), priorities
        ),
        min_size=1,
        max_size=9,
    ).map(lambda rows: leases_of(*((seq, *rows[seq]) for seq in sorted(rows)))),
)
marks = st.builds(TransactionMark, texts.filter(bool), st.integers(0, 2**63 - 1), st.just(0), st.just(0))
entries = (Reference, OrderNop, OrderSkip)
controls = (
    simple_controls
    | marks
    | st.builds(lambda parts: Compound(tuple(parts)), st.lists(simple_controls, min_size=1))
    | st.builds(lambda mark, parts: Compound(completed(mark, parts)), marks, st.lists(simple_controls))
    | st.builds(
        lambda parts: UnpositionedControl(tuple(parts)),
        st.lists(simple_controls.filter(lambda part: not isinstance(part, entries)), min_size=1),
    )
)


def completed(mark: TransactionMark, parts: list[SimpleControl]) -> tuple[SimpleControl, ...]:
    """A mark that counts the references after it, followed by the parts."""
    counts = [part.header.record_count for part in parts if isinstance(part, Reference)]
    return (replace(mark, batch_count=len(counts), record_count=sum(counts)), *parts)


@given(controls)
def test_every_control_round_trips(control: Control) -> None:
    block = control.encode()
    assert parse_control(control.COMMAND, block) == control


@given(controls, numbers, numbers, st.integers(0, 2**32 - 1))
def test_every_control_batch_round_trips(control: Control, position: int, timestamp_ns: int, term: int) -> None:
    references = list(references_of(control))
    if references:
        position = references[0].header.position
    batch = control_batch(control, position=position, timestamp_ns=timestamp_ns, term=term)
    header = parse_batch_header(batch, source=BatchSource.STORED)
    block = batch[limits.BATCH_HEADER_SIZE :]
    verify_block(header, block)
    assert read_control(header, block) == control
    assert (header.command, header.position, header.timestamp_ns, header.term) == (
        *(control.COMMAND, position, timestamp_ns, term),
    )
    assert (header.topic_id, header.base_seq, header.record_count, header.raw_length) == (
        *(control.topic_id, 0, 0, len(block)),
    )


@given(controls, st.data())
def test_a_changed_byte_is_another_control_or_corruption(control: Control, data: st.DataObject) -> None:
    block = bytearray(control.encode())
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    try:
        changed = parse_control(control.COMMAND, block)
    except CorruptionError:
        return
    assert changed.encode() == block
    assert changed != control


# --- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Ceiling(0, 1, 1),
        lambda: Ceiling(0xFFFF_FFFF, 1, 1),
        lambda: Ceiling(1, U64 + 1, 1),
        lambda: Ceiling(1, 1, -1),
        lambda: SegmentRoll(1, 5, 5),
        lambda: Reference(append_header(topic_id=0), 1, 4096),
        lambda: Reference(replace(append_header(), command=5), 1, 4096),
        lambda: Reference(append_header(record_count=0), 1, 4096),
        lambda: Reference(append_header(), 11, 4096),
        lambda: Reference(append_header(), 0, 4096),
        lambda: Reference(append_header(), 1, 4095),
        lambda: CursorCommit("", 1, 1, 1, 0),
        lambda: CursorCommit("a", 1, 1, 0, 0),
        lambda: CursorCommit("a" * 256, 1, 1, 1, 0),
        lambda: CursorCommit("\ud800", 1, 1, 1, 0),
        lambda: CursorCommit("a", 1, 1, 1, 0, U64),
        lambda: ClientRow(0, bytes(64)),
        lambda: ClientRow(1, bytes(63)),
        lambda: ClientRow(1, bytes(64), bytes(65)),
        lambda: SessionsRetired((), 1, 1),
        lambda: SessionsRetired((2, 2), 1, 1),
        lambda: SessionsRetired((0,), 1, 1),
        lambda: SessionsRetired((1 << 63,), 1, 1),
        lambda: SessionsRetired((1,), -1, 1),
        lambda: SessionsRetired(tuple(range(1, limits.SESSIONS_RETIRED_MAX + 2)), 1, 1),
        lambda: Checkpoint(5, 1, 6),
        lambda: TopicCreate(1, "a/b", 1, {}),
        lambda: TopicDelete(0, "a", 1, {}),
        lambda: TopicConfigure(0, {}, {}),
        lambda: DeleteRecords(1, DeletedSeqs(), 0),
        lambda: DeleteRecords(1, seqs_of(0), 0),
        lambda: DeleteRecords(1, seqs_of(*range(1, 2 * limits.DELETE_RANGES_MAX + 2, 2)), 0),
        lambda: DeleteRecords(1, seqs_of(1), -1),
        lambda: DeleteRecords(1, seqs_of(1), 0, -1),
        lambda: DeleteRecords(1, seqs_of(1), 0, U64),
        lambda: TagMatch(MatchKind.EQ, "é" * 129),
        lambda: FloorRaise(1, GapReason.CRASH, 5, 1, 0),
        lambda: FloorRaise(1, GapReason.CAP, 5, 5, 0),
        lambda: FloorRaise(1, GapReason.CAP, 5, 0, 0),
        lambda: Loss(1, 5, 4, GapReason.CRASH),
        lambda: Loss(1, 0, 4, GapReason.CRASH),
        lambda: Loss(1, 1, 4, GapReason.TTL),
        lambda: TermStart(1, 1, 0),
        lambda: TermStart(2**32, 1, 0),
        lambda: OrderNop(1, AckStatus.OK, 0, 1, 1, 0),
        lambda: OrderNop(1, AckStatus.UNKNOWN, 0, 1, 1, 0),
        lambda: OrderNop(1, AckStatus.RETRY, 0, 1, 1, 0, decides=True),
        lambda: OrderNop(1, AckStatus.RETRY, 0, U64 + 1, 1, 0),
        lambda: OrderNop(1, AckStatus.DUPLICATE, 0, 1, 1, 0, U64),
        lambda: OrderSkip(1, 0, 1, 1),
        lambda: OrderSkip(1, 1 << 63, 1, 1),
        lambda: OrderSkip(1, 1, 0, 1),
        lambda: OrderSkip(1, 1, 1, 0),
        lambda: OrderSkip(1, 1, 2**62, 2),
        lambda: UnpositionedControl(()),
        lambda: UnpositionedControl((Checkpoint(1, 1, 1), OrderSkip(1, 1, 1, 1))),
        lambda: TransactionMark("", 1, 0, 0),
        lambda: TransactionMark("a" * 256, 1, 0, 0),
        lambda: TransactionMark("a", -1, 0, 0),
        lambda: TransactionMark("a", 1 << 63, 0, 0),
        lambda: TransactionMark("a", 1, 2, 1),
        lambda: TransactionMark("a", 1, limits.TRANSACTION_BATCHES_MAX + 1, 1 << 20),
        lambda: UnpositionedControl((TransactionMark("a", 1, 0, 0),)),
        lambda: DeadLettered(0, 1),
        lambda: DeadLettered(1, 0),
        lambda: DeadLettered(1, U32 + 1),
        lambda: Leases(1, np.zeros(0, LEASE_ROW)),
        lambda: leases_of((5, 1, 1, 1, 1, LEASED, 0), topic_id=0),
        lambda: leases_of((0, 1, 1, 1, 1, LEASED, 0)),
        lambda: leases_of((1 << 63, 1, 1, 1, 1, LEASED, 0)),
        lambda: leases_of((5, 1, 1, 1, 1, LEASED, 0), (5, 1, 1, 1, 1, LEASED, 0)),
        lambda: leases_of((5, 1, 1, 1, 1, LEASED, 0), (4, 1, 1, 1, 1, LEASED, 0)),
        lambda: leases_of((5, 1 << 63, 1, 1, 1, LEASED, 0)),
        lambda: leases_of((5, 1, 1 << 63, 1, 1, LEASED, 0)),
        lambda: leases_of((5, 1, 1, 1 << 63, 1, LEASED, 0)),
        lambda: leases_of((5, 1, 1, 1, 1, 0, 0)),
        lambda: leases_of((5, 1, 1, 1, 1, 3, 0)),
        lambda: leases_of((5, 1, 1, 1, 1, LEASED, 10)),
        lambda: leases_of(*((seq, 1, 1, 1, 1, LEASED, 0) for seq in range(1, limits.JOBS_MAX + 2))),
        lambda: RouterChange("r", 3, 3, 1, None, {}),
        lambda: RouterChange("r", 3, 4, 0, None, {}),
        lambda: RouterChange("r", 3, 4, 1, None, None),
        lambda: RouterChange("_r", 3, 4, 1, None, {}),
        lambda: RouterChange("r" * 256, 3, 4, 1, None, {}),
        lambda: RouterChange("r", 0, 4, 1, None, {}),
        lambda: RouterStep("r", 7, 7, 1),
        lambda: RouterStep("r>>", 7, -1, 1),
        lambda: RouterStep("", 7, 1, 1),
        lambda: Compound(()),
        lambda: Compound((Checkpoint(1, 1, 1),) * (limits.COMPOUND_PARTS_MAX + 1)),
    ],
)
def test_a_control_that_breaks_a_rule_cannot_be_made(make) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_a_document_is_bounded_on_both_sides() -> None:
    large = TopicCreate(1, "a", 1, {"x": "y" * limits.CONTROL_DOCUMENT_SIZE_MAX})
    with pytest.raises(LimitError, match="bytes of JSON"):
        large.encode()
    with pytest.raises(CorruptionError, match="at most"):
        parse_control(ControlCommand.TOPIC_CREATE, b" " * (limits.CONTROL_DOCUMENT_SIZE_MAX + 1))


def test_nesting_too_deep_to_encode_is_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(document: object) -> bytes:
        raise RecursionError

    block = TopicConfigure(3, {}, {}).encode()
    monkeypatch.setattr(control_documents, "write_json", too_deep)
    with pytest.raises(CorruptionError, match="nested too deep"):
        parse_control(ControlCommand.TOPIC_CONFIG, block)


COMPOUND = Compound((Ceiling(3, 2000, 1000), CursorCommit("a", 3, 3, 12, 8)))


@pytest.mark.parametrize(
    ("command", "block"),
    [
        (0, b""),
        (15, b"{}"),
        (15, struct.pack("<BBHIQQQII", 0, 0, 0, 3, 9, 4, 77, 1, 0)),
        (15, struct.pack("<BBHIQQQII", 2, 2, 0, 3, 9, 4, 77, 1, 0)),
        (15, struct.pack("<BBHIQQQII", 2, 1, 0, 3, 9, 4, 77, 1, 1)),
        (16, struct.pack("<IIQQ", 3, 0, 9, 4)),
        (16, b""),
        (17, Compound((OrderSkip(3, 9, 4, 2),)).encode()),
        (18, b"{}"),
        (99, b""),
        (1, REFERENCE.encode()[:-1]),
        (1, REFERENCE.encode()[:20] + b"\xff" + REFERENCE.encode()[21:]),
        (2, b'{"topic_id":3, "name":"events","epoch":3,"config":{},"created_ms":0}'),
        (2, b'{"topic_id":3,"name":"events","epoch":3,"config":{},"created_ms":0,"more":1}'),
        (2, b'{"name":"events","topic_id":3,"epoch":3,"config":{},"created_ms":0}'),
        (2, b'{"topic_id":3,"topic_id":3,"name":"events","epoch":3,"config":{},"created_ms":0}'),
        (2, b'{"topic_id":3,"name":"../events","epoch":3,"config":{},"created_ms":0}'),
        (2, b'{"topic_id":3,"name":"events","epoch":3,"config":{"x":NaN},"created_ms":0}'),
        (2, b'{"topic_id":3,"name":"events","epoch":3,"config":{"x":"\\ud800"},"created_ms":0}'),
        (2, b'{"topic_id":true,"name":"events","epoch":3,"config":{},"created_ms":0}'),
        (
            2,
            b'{"topic_id":3,"name":"events","epoch":3,"config":'
            + b'{"a":' * 5000
            + b"1"
            + b"}" * 5000
            + b',"created_ms":0}',
        ),
        (4, b'{"topic_id":3,"before":[],"after":{}}'),
        (5, Ceiling(3, 2000, 1000).encode() + b"\0"),
        (5, b"\x03\0\0\0\1\0\0\0" + bytes(16)),
        (6, struct.pack("<IBBHQQIIQ", 3, 0, 1, 0, U64, 5, 0, 0, 9)),
        (6, struct.pack("<IBBHQQIIQB", 3, 0, 1, 0, U64, 5, 1, 0, 0, 1)),
        (6, struct.pack("<IBBHQQIIQB", 3, 0, 1, 0, U64, 5, 1, 1, 9, 1)),
        (6, struct.pack("<IBBHQQIIQB", 3, 0, 1, 0, U64, 5, 1, 0, 9, 0)),
        (6, struct.pack("<IBBHQQIIQH", 3, 0, 2, 0, U64, 5, 1, 0, 9, 1)),
        (6, struct.pack("<IBBHQQIIQB", 3, 0, 3, 0, U64, 5, 1, 0, 9, 1)),
        (6, struct.pack("<IBBHQQIIQB", 3, 3, 1, 0, U64, 5, 1, 0, 9, 1)),
        (6, struct.pack("<IBBHQQIIQB", 3, 0, 1, 1, U64, 5, 1, 0, 9, 1) + b"a"),
        (6, struct.pack("<IBBHQQIIQB", 3, 1, 1, 2, U64, 5, 1, 0, 9, 1) + b"a"),
        (6, struct.pack("<IBBHQQIIQB", 3, 1, 1, 1, U64, 5, 1, 0, 9, 1) + b"\xff"),
        (6, struct.pack("<IBBHQQIIQQ", 3, 0, 8, 0, U64, 5, 1, 0, 9, 2**63 - 9)),
        (6, struct.pack("<IBBHQQIIQQQQ", 3, 0, 8, 0, U64, 5, 2, 0, 9, U64, U64, U64)),
        (6, b'{"topic_id":3,"before_seq":-1,"match":null}'),
        (7, b'{"topic_id":3,"reason":"crash","evict_floor":20,"previous":1,"removed_bytes":4096}'),
        (8, b'{"topic_id":3,"first_seq":5,"last_seq":9,"reason":"whim","lost_bytes":0}'),
        (9, CursorCommit("a", 3, 3, 12, 8).encode()[:-2]),
        (9, CursorCommit("a", 3, 3, 12, 8).encode() + b"b"),
        (9, CursorCommit("a", 3, 3, 12, 8).encode()[:-1] + b"\xff"),
        (9, CursorCommit("a", 3, 3, 12, 8).encode()[:6] + b"\1" + CursorCommit("a", 3, 3, 12, 8).encode()[7:]),
        (10, b"\x03\0\0\0\0\0\1\0" + bytes(16)),
        (11, b"\x09" + bytes(70)),
        (11, b"\x09" + bytes(73)),
        (12, b'{"term":4,"previous":4,"start_position":1000}'),
        (12, b"[]"),
        (12, b"\xff"),
        (13, bytes(23)),
        (14, b""),
        (14, struct.pack("<II", 0, 0)),
        (14, struct.pack("<II", limits.COMPOUND_PARTS_MAX + 1, 0)),
        (14, struct.pack("<II", 1, 1) + COMPOUND.encode()[8:]),
        (14, COMPOUND.encode() + b"\0"),
        (14, COMPOUND.encode()[:-1]),
        (14, COMPOUND.encode()[:12]),
        (14, COMPOUND.encode()[:10] + b"\1" + COMPOUND.encode()[11:]),
        (14, struct.pack("<IIHHI", 1, 0, 14, 0, len(COMPOUND.encode())) + COMPOUND.encode()),
    ],
)
def test_a_block_that_no_writer_produces_is_corruption(command: int, block: bytes) -> None:
    with pytest.raises(CorruptionError):
        parse_control(command, block)


# --- batches -------------------------------------------------------------------------------------------------------


def stored(control: Control, position: int = 7) -> tuple[BatchHeader, bytes]:
    batch = control_batch(control, position=position, timestamp_ns=5, term=1)
    return parse_batch_header(batch, source=BatchSource.STORED), batch[limits.BATCH_HEADER_SIZE :]


@pytest.mark.parametrize(
    "change",
    [
        {"topic_id": 4},
        {"client_id": 1},
        {"client_seq": 1},
        {"record_count": 1},
        {"base_seq": 1},
        {"base_offset": 1},
        {"codec": Codec.LZ4},
        {"order": 2},
        {"ack_level": 2},
    ],
)
def test_a_header_that_contradicts_its_block_is_corruption(change: dict[str, int]) -> None:
    header, block = stored(Ceiling(3, 2000, 1000))
    read_control(header, block)
    with pytest.raises(CorruptionError, match="position 7"):
        read_control(replace(header, **change), block)


def test_a_reference_has_the_position_of_its_batch() -> None:
    for control in (REFERENCE, Compound((Checkpoint(1, 1, 1), REFERENCE))):
        header, block = stored(control)
        assert list(references_of(read_control(header, block))) == [REFERENCE]
        with pytest.raises(CorruptionError, match="another position"):
            read_control(replace(header, position=8), block)
        with pytest.raises(InvalidInputError, match="another position"):
            control_batch(control, position=8, timestamp_ns=5, term=1)


def test_parts_keep_their_order() -> None:
    assert parts_of(COMPOUND) == COMPOUND.parts
    assert parts_of(REFERENCE) == (REFERENCE,)
    assert stored(ClientRow(9, bytes(64)))[0].client_id == 9


def test_a_control_batch_is_bounded() -> None:
    wide = TopicCreate(1, "a", 1, {"x": "y" * 60_000})
    with pytest.raises(LimitError, match="split it"):
        control_batch(Compound((wide,) * 300), position=1, timestamp_ns=1, term=1)


MARK = TransactionMark("job", 7, 1, 2)


@pytest.mark.parametrize(
    "parts",
    [
        (REFERENCE, MARK),
        (MARK, MARK, REFERENCE),
        (MARK,),
        (MARK, REFERENCE, REFERENCE),
        (replace(MARK, record_count=3), REFERENCE),
    ],
)
def test_an_incomplete_transaction_is_neither_written_nor_read(parts: tuple[SimpleControl, ...]) -> None:
    numbers = {"position": 7, "timestamp_ns": 1, "term": 1}
    with pytest.raises(InvalidInputError, match="not what its"):
        control_batch(Compound(parts), **numbers)
    good = control_batch(Compound((MARK, REFERENCE)), **numbers)
    header = parse_batch_header(good, source=BatchSource.STORED)
    with pytest.raises(CorruptionError, match="not what its"):
        read_control(header, Compound(parts).encode())


def test_a_mark_of_the_wrong_length_is_refused() -> None:
    block = MARK.encode()
    for bad in (block[:-1], block + b"x", block[:23]):
        with pytest.raises(CorruptionError):
            parse_control(ControlCommand.TRANSACTION, bad)
