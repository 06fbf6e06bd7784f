"""Epochs and the batches in them: kernel and twin agree, and both agree with the codec of the wire."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import crc32c as wheel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.errors import CorruptionError
from seawall.kernels.log import epochs
from seawall.kernels.runtime import jit
from seawall.wire.format.batches import BatchHeader, BatchSource, iter_batches, parse_batch_header
from seawall.wire.format.codes import Codec
from twins.log import epochs as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100
SALT = 0xFEDC_BA98_7654_3210


def batch(position: int = 0, block: bytes = b"\1\2\0\0\0hi", **fields: Any) -> bytes:
    """A stored batch, with single fields overridden."""
    values = {
        "command": 0,
        "client_seq": 1,
        "timestamp_ns": 5,
        "record_count": 1,
        "payload_length": 52 + len(block),
        "block_crc": wheel.crc32c(block),
        "topic_id": 3,
        "client_id": 7,
        "position": position,
        "base_seq": 9,
        "base_offset": 11,
        "raw_length": len(block),
        "term": 1,
        "session_epoch": 1,
        "order": 255,
        "ack_level": 255,
        "codec": Codec.NONE,
        "flags": 0,
    } | fields
    return BatchHeader(**values).header_bytes() + block


def patched(data: bytes, at: int, value: bytes) -> bytes:
    """A batch with other bytes in its header and the checksum that belongs to them."""
    changed = bytearray(data)
    changed[at : at + len(value)] = value
    changed[8:12] = struct.pack("<I", wheel.crc32c(bytes(changed[12:96]), wheel.crc32c(bytes(changed[:8]))))
    return bytes(changed)


def epoch_header(body: bytes = bytes(48), salt: int = SALT) -> bytes:
    covered = struct.pack("<Q", salt) + body
    return b"EPOC" + struct.pack("<I", wheel.crc32c(covered)) + covered


def verify_both(data: bytes, first_position: int, count: int, start: int = 3) -> tuple[int, list[int]]:
    """The number of good batches, and where they begin and end; checks that rows have the fields of headers."""
    buffer = np.frombuffer(b"LAN"[:start] + data + batch(first_position), np.uint8)
    results = []
    for verify in (epochs.verify_epoch, twin.verify_epoch):
        rows = np.zeros(count + 1, epochs.WAL_ROW)
        good = int(verify(buffer, start, start + len(data), 1_000 - start, first_position, count, rows, 1))
        results.append((good, rows[1 : good + 1].tolist()))
        assert not rows[0]["size"]
    assert results[0] == results[1]
    good, listed = results[0]
    offsets = [0]
    for row in listed:
        fields = dict(zip(epochs.WAL_ROW.names, row, strict=True))
        assert fields["at"] == 1_000 + offsets[-1]
        offsets.append(offsets[-1] + fields["size"])
        header = parse_batch_header(data[offsets[-2] : offsets[-1]], source=BatchSource.STORED)
        assert fields.pop("count") == header.record_count
        assert all(getattr(header, name) == value for name, value in fields.items() if name != "at")
    return good, offsets


@dataclass(frozen=True)
class Scan:
    """The result of a scan: the bytes scanned, the positions found, the state after them, and the bytes needed."""

    reached: int
    positions: list[int]
    known: list[int]
    needed: int


def scan_both(
    data: bytes, *, epoch: int = 0, position: int = 0, shift: int = 100, space: int = 9, start: int = 3, used: int = 0
) -> Scan:
    """Scan from `start` on, with more bytes after the end."""
    buffer = np.frombuffer(bytes(start) + data + epoch_of(epoch + 9, position + 9), np.uint8)
    results = []
    for scan in (epochs.scan_epochs, twin.scan_epochs):
        rows = np.zeros(space, epochs.WAL_ROW)
        walk = np.array([shift - start, epoch, position, 0, 0, 0, used, 77], np.int64)
        reached = scan(buffer, start, start + len(data), np.uint64(SALT), walk, rows)
        assert not rows[:used]["size"].any()
        listed = rows[used : walk[epochs.WALK_ROWS]]
        results.append((int(reached), walk.tolist(), listed.tolist(), listed["position"].tolist()))
    assert results[0] == results[1]
    reached, walk, _, positions = results[0]
    return Scan(reached - start, positions, walk[1:6], walk[epochs.WALK_NEEDED])


def epoch_of(epoch: int, position: int, count: int = 1, **fields: int) -> bytes:
    """An epoch of small batches, with single fields of its header overridden."""
    batches = b"".join(batch(position + index) for index in range(count))
    values = {
        "epoch": epoch,
        "length": len(batches),
        "synced_through": 0,
        "first_position": position,
        "batch_count": count,
        "flags": 0,
        "timestamp_ns": 1_000 + epoch,
    } | fields
    return epoch_header(struct.pack("<QQQQIIQ", *values.values())) + batches


def find_both(data: bytes, start: int = 0, end: int | None = None, salt: int = SALT) -> int:
    buffer = np.frombuffer(data, np.uint8)
    stop = len(data) if end is None else end
    found = epochs.find_epoch(buffer, start, stop, np.uint64(salt))
    assert found == twin.find_epoch(buffer, start, stop, salt)
    return int(found)


def is_good(data: bytes) -> bool:
    """True if the codec accepts exactly these bytes as one stored batch."""
    try:
        return len(list(iter_batches(data))) == 1
    except CorruptionError:
        return False


GOOD = {
    "records": batch(),
    "empty block": batch(block=b"", record_count=0),
    "opaque": batch(block=b"?", flags=2),
    "keyed": batch(client_id=2**63 + 5, flags=4),
    "opaque and keyed": batch(block=b"?", client_id=2**64 - 1, client_seq=0, flags=6),
    "control": batch(command=3, record_count=0, block=b"{}"),
    "control that counts": batch(command=0xFFFF, record_count=77, block=b""),
    "lz4": batch(block=b"xx", codec=Codec.LZ4, raw_length=100, record_count=20),
    "zstd, the largest": batch(block=b"x", codec=Codec.ZSTD, raw_length=1 << 24),
    "every ack level": batch(ack_level=0),
    "ack level 2": batch(ack_level=2),
}
BAD = {
    "nothing": b"",
    "short": batch()[:95],
    "cut": batch()[:-1],
    "magic": patched(batch(), 0, b"X"),
    "version": patched(batch(), 4, b"\1"),
    "kind": patched(batch(), 5, b"\x08"),
    "header checksum": batch()[:8] + b"\0\0\0\0" + batch()[12:],
    "payload length": patched(batch(), 32, struct.pack("<I", 51)),
    "4 GiB": patched(batch(), 32, b"\xff\xff\xff\xff"),
    "reserved": patched(batch(), 44, b"\1"),
    "ack level": patched(batch(), 93, b"\3"),
    "codec": patched(batch(), 94, b"\3"),
    "flags": patched(batch(), 95, b"\1"),
    "unknown flags": patched(batch(), 95, b"\x82"),
    "block": batch()[:-1] + b"I",
    "raw length": batch(raw_length=8),
    "raw length 0": batch(block=b"x", codec=Codec.LZ4, raw_length=0, record_count=0),
    "raw length of 16 MiB": batch(block=b"x", codec=Codec.LZ4, raw_length=(1 << 24) + 1),
    "too many records": batch(record_count=2),
    "two opaque ones": batch(flags=2, record_count=2),
    "keyed by a client of a session": batch(flags=4),
    "two opaque ones, keyed": batch(client_id=2**63, flags=6, record_count=2),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_batch(name: str) -> None:
    assert is_good(GOOD[name])
    assert verify_both(GOOD[name], 0, 1) == (1, [0, len(GOOD[name])])


@pytest.mark.parametrize("name", BAD)
def test_a_bad_batch(name: str) -> None:
    assert not is_good(BAD[name])
    assert verify_both(BAD[name], 0, 1) == (0, [0])
    before = batch(0)
    assert verify_both(before + BAD[name] + batch(2), 0, 3) == (1, [0, len(before)])


@pytest.mark.skipif(jit.PYTHON_MODE, reason="64 MiB of checksum")
def test_the_block_limit_is_that_of_the_wire() -> None:
    sizes = []
    for length in (64 << 20, (64 << 20) + 1):
        data = batch(block=bytes(length), codec=Codec.LZ4, raw_length=100)
        buffer = np.frombuffer(data, np.uint8)
        sizes.append(epochs.batch_size(buffer, 0, buffer.size))
        assert is_good(data) == (sizes[-1] > 0)
    assert sizes == [96 + (64 << 20), epochs.BATCH_BAD]


def test_positions_are_dense() -> None:
    first, second = batch(41), batch(42)
    assert verify_both(first + second, 41, 2) == (2, [0, len(first), len(first + second)])
    assert verify_both(first + second, 40, 2)[0] == 0
    assert verify_both(first + first, 41, 2)[0] == 1
    assert verify_both(first + batch(43), 41, 2)[0] == 1
    assert verify_both(batch(2**63 + 41) + second, 41, 1)[0] == 0


def test_an_unpositioned_batch_uses_no_position() -> None:
    control = batch(41, command=epochs.COMMAND_UNPOSITIONED, record_count=0)
    assert verify_both(control + control + batch(41) + batch(42), 41, 4)[0] == 4
    assert verify_both(control + batch(42), 41, 2)[0] == 1
    assert verify_both(batch(41) + control, 41, 2)[0] == 1
    body = control + batch(41) + batch(42)
    header = struct.pack("<QQQQIHHQ", 6, len(body), 0, 41, 3, 0, 1, 1_006)
    data = epoch_header(header) + body + epoch_of(7, 43)
    assert scan_both(data, epoch=5, position=41).positions == [41, 41, 42, 43]
    assert scan_both(data, epoch=5, position=41).known[1] == 44
    only = epoch_header(struct.pack("<QQQQIHHQ", 6, len(control), 0, 41, 1, 0, 1, 1_006)) + control
    assert scan_both(only + epoch_of(7, 41), epoch=5, position=41).positions == [41, 41]


def test_no_more_than_count_batches_are_verified() -> None:
    data = batch(0) + batch(1)
    assert verify_both(data, 0, 1) == (1, [0, len(batch(0))])
    assert verify_both(data, 0, 0) == (0, [0])
    assert verify_both(data, 0, 3)[0] == 2


blocks = st.binary(max_size=40)
fields = st.sampled_from(
    [{"flags": 2}, {"command": 3}, {"command": 3, "raw_length": 4}, {"codec": Codec.ZSTD, "raw_length": 9, "flags": 2}]
)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(blocks, fields), max_size=4), st.data())
def test_any_bytes_are_verified_as_by_twin_and_codec(
    parts: list[tuple[bytes, dict[str, Any]]], data: st.DataObject
) -> None:
    run = bytearray(b"".join(batch(index, block, **given) for index, (block, given) in enumerate(parts)))
    for _ in range(data.draw(st.integers(0, 2))):
        if run:
            run[data.draw(st.integers(0, len(run) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    good, offsets = verify_both(bytes(run), 0, 5)
    assert all(is_good(bytes(run[first:last])) for first, last in pairwise(offsets))
    assert verify_both(bytes(run), 0, good) == (good, offsets)


CLEAN = {"length": 0, "batch_count": 0, "flags": 1}


def test_a_scan_lists_all_valid_epochs() -> None:
    data = epoch_of(6, 40, 2, synced_through=90) + epoch_of(7, 42, synced_through=50) + epoch_of(8, 50, 3)
    assert scan_both(data, epoch=5, position=40) == Scan(len(data), [40, 41, 42, 50, 51, 52], [8, 53, 90, 1_008, 0], 64)
    assert scan_both(data, epoch=5, position=40, shift=0, start=0).reached == 0
    closed = data + epoch_of(9, 53, 0, **CLEAN)
    assert scan_both(closed, epoch=5, position=40).known == [9, 53, 90, 1_009, 1]
    assert scan_both(b"") == Scan(0, [], [0, 0, 0, 0, 0], 64)


STOPS = {
    "salt": epoch_header(struct.pack("<QQQQIIQ", 2, 103, 0, 1, 1, 0, 9), salt=SALT ^ 1) + batch(1),
    "checksum": epoch_of(2, 1)[:30] + b"?" + epoch_of(2, 1)[31:],
    "the epoch before": epoch_of(1, 1),
    "an epoch skipped": epoch_of(3, 1),
    "an epoch out of range": epoch_of(2**64 - 1, 1, timestamp_ns=9),
    "a position used before": epoch_of(2, 0),
    "a position out of range": epoch_of(2, 1, first_position=2**64 - 2),
    "a position near the end": epoch_of(2, 2**62 + 1),
    "synced beyond its own address": epoch_of(2, 1, synced_through=1_000),
    "a synced address out of range": epoch_of(2, 1, synced_through=2**64 - 1),
    "a time out of range": epoch_of(2, 1, timestamp_ns=2**63),
    "no batches": epoch_of(2, 1, 0),
    "more batches than bytes": epoch_of(2, 1, batch_count=2),
    "fewer batches than bytes": epoch_of(2, 1, 2, batch_count=1),
    "other flags": epoch_of(2, 1, flags=2),
    "more unpositioned batches than batches": epoch_of(2, 1, flags=2 << 16),
    "a clean close with batches": epoch_of(2, 1, flags=1),
    "a clean close with unpositioned batches": epoch_of(2, 1, 0, **(CLEAN | {"flags": 1 | 1 << 16})),
    "a clean close with bytes": epoch_of(2, 1, 0, **(CLEAN | {"length": 96})),
    "a length out of range": epoch_of(2, 1, length=2**63 - 1),
    "a negative length": epoch_of(2, 1, length=2**64 - 96),
    "a bad batch": epoch_of(2, 1, 2)[:-1] + b"?",
}


@pytest.mark.parametrize("name", STOPS)
def test_a_scan_stops_at_an_invalid_epoch(name: str) -> None:
    first = epoch_of(1, 0)
    assert scan_both(first + STOPS[name]) == Scan(len(first), [0], [1, 1, 0, 1_001, 0], 64)


def test_a_scan_reports_how_many_bytes_it_needs() -> None:
    first, second = epoch_of(1, 0), epoch_of(2, 1, 2)
    for kept in range(len(second)):
        assert scan_both(first + second[:kept]) == Scan(
            len(first), [0], [1, 1, 0, 1_001, 0], 64 if kept < 64 else len(second)
        )


def test_a_scan_stops_when_its_rows_are_full() -> None:
    data = epoch_of(1, 0, 2) + epoch_of(2, 2, 2)
    assert scan_both(data, space=4).positions == [0, 1, 2, 3]
    assert scan_both(data, space=3) == Scan(len(epoch_of(1, 0, 2)), [0, 1], [1, 2, 0, 1_001, 0], 64)
    assert scan_both(data, space=6, used=2).positions == [0, 1, 2, 3]
    assert scan_both(data, space=5, used=2).positions == [0, 1]
    assert scan_both(data, space=1) == Scan(0, [], [0, 0, 0, 0, 0], 64)


@settings(max_examples=EXAMPLES)
@given(st.lists(st.integers(1, 3), max_size=4), st.data())
def test_a_scan_of_any_bytes_equals_its_twin(counts: list[int], data: st.DataObject) -> None:
    whole = b"".join(epoch_of(index + 1, sum(counts[:index]), count) for index, count in enumerate(counts))
    run = bytearray(whole)
    for bit in data.draw(st.lists(st.integers(0, 8 * len(run) - 1), max_size=2)) if run else []:
        run[bit // 8] ^= 1 << bit % 8
    scan = scan_both(bytes(run), space=20)
    assert scan.positions == list(range(len(scan.positions)))
    assert (scan.reached == len(run)) == (run == whole)


@pytest.mark.parametrize("before", [0, 1, 7, 8, 9, 63, 64, 100])
@pytest.mark.parametrize("filler", [b"\0", b"E", b"EPOC"])
def test_a_header_is_found_at_any_offset(before: int, filler: bytes) -> None:
    front = (filler * 100)[:before]
    data = front + epoch_header() + bytes(9)
    assert find_both(data) == before
    assert find_both(data, start=before) == before
    assert find_both(data, start=before + 1) == -1
    assert find_both(data, end=before + 63) == -1
    assert find_both(data, end=before + 64) == before


def test_bytes_that_are_no_header_are_skipped() -> None:
    assert find_both(b"") == -1
    assert find_both(bytes(200)) == -1
    assert find_both(epoch_header(salt=SALT ^ 1)) == -1
    assert find_both(epoch_header(salt=SALT ^ 1) + epoch_header()) == 64
    wrong = epoch_header()[:-1] + b"\1"
    assert find_both(wrong) == -1
    assert find_both(wrong[:20] + epoch_header()) == 20


@settings(max_examples=EXAMPLES)
@given(st.lists(st.one_of(st.just(epoch_header()), st.just(b"EPOC"), st.just(bytes(8)), blocks), max_size=6))
def test_the_search_equals_its_twin(parts: list[bytes]) -> None:
    data = b"".join(parts)
    found = find_both(data)
    assert (found == -1) == (epoch_header() not in data)
    if found >= 0:
        assert data[found : found + 64] == epoch_header()
        find_both(data, start=found + 1)


@pytest.mark.parametrize("size", [0, 1, 7, 4_095, 4_096, 4_097, 9_000])
def test_a_range_of_zeros_is_recognized(size: int) -> None:
    for start, at in itertools.product((1, 4), (None, -1, 0, size // 2, size - 1, size)):
        buffer = np.zeros(start + size + 1, np.uint8)
        if at is not None:
            buffer[start + at] = 0x10
        expected = int(at not in range(size))
        assert epochs.is_zero(buffer, start, start + size) == expected
        assert twin.is_zero(buffer, start, start + size) == expected
