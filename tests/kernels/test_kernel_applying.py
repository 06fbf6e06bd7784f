"""Applying entries of the order as stored batches: kernel, twin and codec agree, byte for byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.core.types import ClientId, ClientSeq, TimestampNs, TopicId
from seawall.fabric import records
from seawall.fabric.records import GOI_ENTRY, SIDE_ENTRY
from seawall.kernels.log.epochs import WAL_ROW
from seawall.kernels.ordering import applying
from seawall.kernels.runtime import jit
from seawall.limits import BATCH_HEADER_SIZE
from seawall.storage.control.batches import control_batch, read_control
from seawall.storage.control.codec import ControlCommand, Reference
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.wire.format.batches import BatchSource, batch_header, encode_batch, parse_batch_header, verify_block
from seawall.wire.format.codes import AckStatus
from twins.ordering import applying as twin

EXAMPLES = 12 if jit.PYTHON_MODE else 100
ENTRIES = 8
BLOG = 4_096
TERM = 0x3_0002
U64 = 2**64 - 1


def test_constants_equal_those_of_their_owners() -> None:
    assert (applying.FLAG_SKIP, applying.FLAG_NOP) == (records.FLAG_SKIP, records.FLAG_NOP)
    assert (applying.COMMAND_NOP, applying.COMMAND_SKIP) == (ControlCommand.ORDER_NOP, ControlCommand.ORDER_SKIP)
    assert applying.COMMAND_REFERENCE == ControlCommand.REFERENCE


class Order:
    """Rings of a small order and two BLogs."""

    def __init__(self, first: int) -> None:
        self.goi = np.zeros(ENTRIES, GOI_ENTRY)
        self.side = np.zeros(ENTRIES, SIDE_ENTRY)
        self.blogs = np.zeros(2 * BLOG, np.uint8)
        self.first = first
        self.count = 0
        self.tails = [0, 0]

    def entry(self, flags: int, status: int = 0, reason: int = 0, **fields: int) -> tuple[np.void, np.void]:
        position = self.first + self.count
        self.count += 1
        entry, side = self.goi[position % ENTRIES], self.side[position % ENTRIES]
        entry["token"], entry["flags"], entry["term"] = position + 1, flags, TERM & 0xFFFF
        for name, value in fields.items():
            entry[name] = value
        side["status"], side["reason"], side["topic_id"] = status, reason, fields["topic_id"]
        return entry, side

    def batch(self, value: bytes, broker: int = 0, status: int = 0, reason: int = 0, term: int = TERM) -> None:
        block = b"\1" + len(value).to_bytes(4, "little") + value
        header = batch_header(
            block,
            topic_id=TopicId(3),
            client_id=ClientId(7),
            client_seq=ClientSeq(self.count + 1),
            session_epoch=1,
            record_count=1,
            timestamp_ns=TimestampNs(5),
        )
        data = encode_batch(header, block)
        at = self.tails[broker]
        self.tails[broker] += len(data)
        self.blogs[broker * BLOG + at :][: len(data)] = np.frombuffer(data, np.uint8)
        seq = self.count + 1
        fields = {"topic_id": 3, "block_crc": header.block_crc, "broker": broker, "blog_offset": at + 5 * BLOG}
        fields |= {"size": len(data), "record_count": 1, "client_id": 7, "client_seq": seq}
        entry, side = self.entry(0, status, reason, **fields)
        entry["term"] = term & 0xFFFF
        side["base_seq"], side["base_offset"], side["timestamp_ns"] = seq, 10 * seq, 1_000 + seq

    def follow_both(
        self, apart: list[int] | None = None, count: int | None = None
    ) -> tuple[int, list[int], list[bytes], list[int]]:
        """Code, progress, batches and commands of rows."""
        wanted = self.count if count is None else count
        marks = np.array(apart or [0] * wanted, np.uint8)
        results = []
        for run in (applying.apply_run, twin.apply_run):
            lane, rows = np.full(3 * BLOG, 7, np.uint8), np.zeros(ENTRIES, WAL_ROW)
            progress = np.array([9, 9, 9, 40], np.int64)
            rings = (self.goi.view(np.uint8), self.side.view(np.uint8), ENTRIES - 1, self.first, wanted, marks)
            code = run(*rings, self.blogs, BLOG, lane, 3, 1_000, TERM, rows, progress)
            results.append((int(code), progress.tolist(), lane.tobytes(), rows.tolist()))
        assert results[0] == results[1]
        code, progress, lane_bytes, _ = results[0]
        assert set(lane_bytes[:3] + lane_bytes[3 + progress[1] :]) == {7}
        listed = np.array(results[0][3], WAL_ROW)[: progress[2]]
        return code, progress, split(lane_bytes[3 : 3 + progress[1]], listed), listed["command"].tolist()

    def apart_both(self, count: int, first_seq: int, place: int) -> tuple[int, list[int], list[bytes], list[bytes]]:
        """Code, progress, stamped headers and references."""
        results = []
        for run in (applying.apply_direct, twin.apply_direct):
            lane, rows = np.full(BLOG, 7, np.uint8), np.zeros(ENTRIES, WAL_ROW)
            headers, sources = np.full(count * BATCH_HEADER_SIZE, 7, np.uint8), np.full(count, -7, np.int64)
            progress = np.array([9, 9, 9, 40], np.int64)
            rings = (self.goi.view(np.uint8), self.side.view(np.uint8), ENTRIES - 1, self.first, count)
            target = (headers, sources, lane, 3, first_seq, place)
            code = run(*rings, self.blogs, BLOG, *target, TERM, TERM - 1, rows, progress)
            found = (headers.tobytes(), lane.tobytes(), rows.tolist(), sources.tolist())
            results.append((int(code), progress.tolist(), *found))
        assert results[0] == results[1]
        code, progress, header_bytes, lane_bytes, rows, sources = results[0]
        end = 3 + progress[1]
        assert set(lane_bytes[:3] + lane_bytes[end:]) == {7}
        for row, source in zip(np.array(rows, WAL_ROW)[: progress[0]], sources, strict=False):
            assert (row["at"], row["command"]) == (0, 0)
            assert self.blogs[source : source + 4].tobytes() == b"LANC"
            assert int.from_bytes(self.blogs[source + 32 : source + 36].tobytes(), "little") + 44 == row["size"]
        taken = range(0, progress[0] * BATCH_HEADER_SIZE, BATCH_HEADER_SIZE)
        stamped = [header_bytes[at : at + BATCH_HEADER_SIZE] for at in taken]
        return code, progress, stamped, split(lane_bytes[3:end], np.zeros(0, WAL_ROW))


def split(data: bytes, rows: np.ndarray) -> list[bytes]:
    """The batches back to back, each good; rows describe them."""
    batches, at = [], 0
    by_address = {int(row["at"]): row for row in rows}
    while at < len(data):
        header = parse_batch_header(data[at:], source=BatchSource.STORED)
        verify_block(header, data[at + BATCH_HEADER_SIZE : at + header.size])
        row = by_address.get(1_000 + at)
        if row is not None:
            assert (row["position"], row["base_seq"], row["size"]) == (header.position, header.base_seq, header.size)
        batches.append(data[at : at + header.size])
        at += header.size
    return batches


def control_of(batch: bytes) -> object:
    return read_control(parse_batch_header(batch, source=BatchSource.STORED), batch[BATCH_HEADER_SIZE:])


def test_each_kind_of_entry_becomes_its_batch() -> None:
    order = Order(first=6)
    order.batch(b"a", broker=1)
    order.entry(32, 1, topic_id=3, block_crc=9, client_id=7, client_seq=1, blog_offset=2)
    order.entry(8 | 16, topic_id=3, client_id=7, client_seq=5, record_count=4)
    order.batch(b"refused", status=2, reason=0x63)
    order.batch(b"of an older term", term=TERM - 5)
    order.entry(32, 4, topic_id=0, client_id=U64, blog_offset=U64)
    code, progress, batches, commands = order.follow_both()
    assert (code, progress[0], progress[3]) == (applying.APPLY_DONE, 6, 1_005)
    headers = [parse_batch_header(batch, source=BatchSource.STORED) for batch in batches]
    assert [header.position for header in headers] == list(range(6, 12))
    assert [header.term for header in headers] == [*[TERM] * 4, TERM - 5, TERM]
    assert (headers[0].base_seq, headers[0].base_offset, headers[0].timestamp_ns) == (1, 10, 1_001)
    assert commands == [0, 16, 15, 0]
    assert control_of(batches[1]) == OrderNop(3, AckStatus.DUPLICATE, 0, 7, 1, 9, 2)
    assert control_of(batches[2]) == OrderSkip(3, 7, 5, 4)
    crc = int(order.goi[9 % ENTRIES]["block_crc"])
    assert control_of(batches[3]) == OrderNop(3, AckStatus.REJECTED, 0x63, 7, 4, crc, decides=True)
    assert control_of(batches[5]) == OrderNop(0, AckStatus.RETRY, 0, U64, 0, 0)
    assert order.blogs[:BLOG].tobytes().count(b"LANC") == 2, "the BLog is as it was"


def test_a_run_stops_before_a_direct_batch_and_before_a_control() -> None:
    order = Order(first=0)
    order.batch(b"a")
    order.batch(b"b")
    code, progress, _, _ = order.follow_both(apart=[0, 1])
    assert (code, progress[0], progress[2]) == (applying.APPLY_DIRECT, 1, 1)
    order.entry(applying.FLAG_CONTROL, topic_id=0)
    code, progress, _, _ = order.follow_both()
    assert (code, progress[0]) == (applying.APPLY_BAD, 2)


@pytest.mark.parametrize(("first_seq", "place"), [(0, 0), (1, 4_096)])
def test_direct_batches_are_stamped_and_referenced(first_seq: int, place: int) -> None:
    order = Order(first=6)
    order.batch(b"a", broker=1)
    order.batch(b"of an older term", term=TERM - 5)
    order.batch(b"c")
    code, progress, stamped, references = order.apart_both(3, first_seq, place)
    assert (code, progress[0], progress[2], progress[3]) == (applying.APPLY_DONE, 3, 3, 1_003)
    headers = [parse_batch_header(header, source=BatchSource.STORED) for header in stamped]
    assert [(header.position, header.base_seq, header.term) for header in headers] == [
        (6, 1, TERM),
        (7, 2, TERM - 5),
        (8, 3, TERM),
    ]
    for header, batch in zip(headers, references, strict=True):
        control = Reference(header, first_seq, place)
        numbers = {"position": header.position, "timestamp_ns": header.timestamp_ns, "term": TERM - 1}
        assert control_of(batch) == control
        assert batch == control_batch(control, **numbers)
        place += header.size if first_seq else 0


@pytest.mark.parametrize(("field", "value"), [("token", 3), ("block_crc", 1), ("size", 95)])
def test_direct_batches_stop_before_an_entry_that_does_not_match(field: str, value: int) -> None:
    order = Order(first=0)
    order.batch(b"a")
    order.batch(b"b")
    order.goi[1][field] = value
    code, progress, stamped, references = order.apart_both(2, 0, 0)
    assert (code, progress[0], len(stamped), len(references)) == (applying.APPLY_BAD, 1, 1, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token", 3),
        ("size", 95),
        ("size", 300),
        ("size", BLOG * 2),
        ("block_crc", 1),
        ("topic_id", 4),
        ("record_count", 2),
        ("broker", 2),
        ("broker", 1),
        ("blog_offset", 1 << 63),
        ("blog_offset", 1),
    ],
)
def test_an_entry_that_does_not_match_its_batch_is_bad(field: str, value: int) -> None:
    order = Order(first=0)
    order.batch(b"a")
    order.goi[0][field] = value
    code, progress, batches, _ = order.follow_both()
    assert (code, progress[:3], batches) == (applying.APPLY_BAD, [0, 0, 0], [])


@pytest.mark.parametrize(
    ("flags", "status", "fields"),
    [
        (8, 0, {"client_id": 0, "client_seq": 1, "record_count": 1}),
        (8, 0, {"client_id": 1 << 63, "client_seq": 1, "record_count": 1}),
        (8, 0, {"client_id": 1, "client_seq": 0, "record_count": 1}),
        (8, 0, {"client_id": 1, "client_seq": 1, "record_count": 0}),
        (8, 0, {"client_id": 1, "client_seq": 1 << 62, "record_count": 2}),
        (32, 0, {}),
        (32, 3, {}),
        (0, 1, {}),
        (0, 4, {}),
    ],
)
def test_a_control_that_cannot_be_decoded_is_bad(flags: int, status: int, fields: dict[str, int]) -> None:
    order = Order(first=0)
    order.entry(flags, status, topic_id=3, **fields)
    assert order.follow_both()[0] == applying.APPLY_BAD


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 1 << 40), st.lists(st.sampled_from(["batch", "other", "nop", "skip", "refused"]), max_size=8))
def test_any_run_equals_its_twin(first: int, kinds: list[str]) -> None:
    order = Order(first)
    for number, kind in enumerate(kinds):
        if kind == "nop":
            order.entry(32, 2, 5, topic_id=number, client_id=number, blog_offset=U64)
        elif kind == "skip":
            order.entry(8, topic_id=0, client_id=number + 1, client_seq=4, record_count=1)
        else:
            is_refused = kind == "refused"
            order.batch(bytes(number), int(kind == "other"), 2 * is_refused, 16 * is_refused)
    code, progress, batches, _ = order.follow_both()
    assert (code, progress[0], len(batches)) == (applying.APPLY_DONE, len(kinds), len(kinds))


@given(st.integers(0, (1 << 32) - 1), st.integers(0, 0xFFFF))
@settings(max_examples=20)
def test_a_term_is_reconstructed_from_its_low_half(term: int, low: int) -> None:
    assert applying.full_term(term, low) == twin.full_term(term, low)


def test_the_low_half_means_the_newest_term() -> None:
    assert applying.full_term(0x1_0001, 0xFFFF) == 0xFFFF
    assert applying.full_term(0x1_0001, 1) == 0x1_0001
