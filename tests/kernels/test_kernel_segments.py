"""Batches of a segment: scanning, finding the next header, verifying index entries; kernel equals twin."""

from __future__ import annotations

import struct
from typing import Any

import crc32c as wheel
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall import limits
from seawall.kernels.log import segments
from seawall.kernels.runtime import jit
from twins.log import segments as twin

EXAMPLES = 25 if jit.PYTHON_MODE else 100
TOPIC = 5
SHIFT = 4_096

Scan = tuple[int, list[Any], list[int]]


def batch(
    seq: int = 1,
    count: int = 1,
    block: bytes = b"block",
    *,
    position: int = 0,
    offset: int = 0,
    timestamp: int = 0,
    topic: int = TOPIC,
    command: int = 0,
    kind: int = 4,
    version: int = 2,
    length: int | None = None,
) -> bytes:
    """A stored batch with single fields overridden; both checksums are right."""
    front = struct.pack("<4sBBH", b"LANC", version, kind, command)
    size = 52 + len(block) if length is None else length
    back = struct.pack("<QQIIII", 1, timestamp, count, size, wheel.crc32c(block), topic)
    back += struct.pack("<IQQQQIIIBBBB", 0, 7, position, seq, offset, len(block), 1, 1, 2, 2, 0, 0)
    return front + struct.pack("<I", wheel.crc32c(back, wheel.crc32c(front))) + back + block


def chain(counts: list[int], blocks: list[bytes]) -> bytes:
    """Batches that continue each other."""
    stored, seq, offset = b"", 1, 0
    for position, (count, block) in enumerate(zip(counts, blocks, strict=True)):
        stored += batch(seq, count, block, position=3 * position, offset=offset, timestamp=position // 2)
        seq, offset = seq + count, offset + len(block)
    return stored


def new_state(seq: int = 1, position: int = 0, offset: int = 0, timestamp: int = 0) -> Any:
    return np.array([seq, position, offset, timestamp, -1, -1, -1], np.int64)


def scan_with(module: Any, data: bytes, space: int = 16, start: int = 0, state: Any = None) -> Scan:
    buffer = np.frombuffer(b"L" * start + data + b"LANC", np.uint8)
    entries = np.zeros(space, segments.INDEX_ENTRY)
    state = new_state() if state is None else state.copy()
    code = module.scan_batches(buffer, start, start + len(data), SHIFT, TOPIC, entries, state)
    return int(code), entries[: state[segments.STATE_COUNT]].tolist(), state.tolist()


def scan(data: bytes, **given_arguments: Any) -> Scan:
    result = scan_with(segments, data, **given_arguments)
    assert result == scan_with(twin, data, **given_arguments)
    return result


def find(data: bytes, start: int = 0, state: Any = None) -> int:
    buffer = np.frombuffer(data + bytes(4), np.uint8)
    state = new_state() if state is None else state
    found = [module.find_header(buffer, start, len(data), TOPIC, state) for module in (segments, twin)]
    assert found[0] == found[1]
    return int(found[0])


def verify(data: bytes, entries: Any, end: int | None = None, shift: int = SHIFT) -> list[int]:
    buffer = np.frombuffer(data, np.uint8)
    verdicts = [np.full(len(entries), 9, np.uint8) for _ in range(2)]
    end = len(data) if end is None else end
    bad = [
        module.verify_entries(buffer, end, shift, entries, TOPIC, each)
        for module, each in zip((segments, twin), verdicts, strict=True)
    ]
    assert verdicts[0].tolist() == verdicts[1].tolist()
    assert bad == [np.count_nonzero(verdicts[0])] * 2
    return verdicts[0].tolist()


def entries_of(data: bytes) -> Any:
    return np.array(scan(data)[1], segments.INDEX_ENTRY)


blocks = st.binary(max_size=40)
chains = st.lists(st.tuples(st.integers(1, 9), blocks), max_size=6).map(
    lambda pairs: chain([count for count, _ in pairs], [block for _, block in pairs])
)


@st.composite
def damaged_chain(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(chains.filter(bool)))
    for _ in range(draw(st.integers(0, 2))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=8))


any_bytes = st.one_of(chains, damaged_chain(), st.binary(max_size=120), st.binary(max_size=120).map(b"LANC".__add__))


def test_the_block_limit_equals_that_of_limits() -> None:
    assert segments.BLOCK_SIZE_MAX == limits.PAYLOAD_SIZE_MAX


@settings(max_examples=EXAMPLES)
@given(any_bytes, st.integers(0, 8), st.integers(0, 5))
def test_scan_equals_its_twin_on_any_bytes(data: bytes, space: int, start: int) -> None:
    code, entries, state = scan(data, space=space, start=start)
    assert segments.SCAN_MORE <= code <= segments.SCAN_BLOCK
    assert sum(entry[6] for entry in entries) == state[segments.STATE_CONSUMED] - start


@settings(max_examples=EXAMPLES)
@given(any_bytes, st.integers(0, 200))
def test_find_equals_its_twin_on_any_bytes(data: bytes, start: int) -> None:
    assert find(data, min(start, len(data))) < len(data)


@settings(max_examples=EXAMPLES)
@given(any_bytes, damaged_chain(), st.integers(0, 300))
def test_verify_equals_its_twin_on_any_bytes(data: bytes, other: bytes, end: int) -> None:
    entries = entries_of(other)
    verify(data, entries, min(end, len(data)))


@given(chains)
def test_a_run_of_batches_is_listed_whole(data: bytes) -> None:
    code, entries, state = scan(data)
    assert code == segments.SCAN_MORE
    assert state[segments.STATE_CONSUMED] == len(data)
    assert state[segments.STATE_NEEDED] == 0
    at, seq = SHIFT, 1
    for base_seq, place, timestamp_ns, base_offset, position, count, length in entries:
        assert (base_seq, place) == (seq, at)
        header = data[at - SHIFT :]
        assert struct.unpack_from("<QII", header, 20) == (timestamp_ns, count, length - 44)
        assert struct.unpack_from("<QQQ", header, 56) == (position, base_seq, base_offset)
        at, seq = at + length, seq + count
    assert at == SHIFT + len(data)
    assert state[segments.STATE_SEQ] == seq
    assert not any(verify(data, np.array(entries, segments.INDEX_ENTRY)))


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": TOPIC + 1},
        {"command": 1},
        {"kind": 8},
        {"version": 1},
        {"count": 0},
        {"length": 51},
        {"length": 52 + limits.PAYLOAD_SIZE_MAX + 1},
        {"seq": 9},
        {"position": 2},
        {"offset": 99},
        {"timestamp": 6},
        {"seq": 2**63},
        {"position": 2**63},
        {"offset": 2**63},
        {"timestamp": 2**64 - 1},
    ],
)
def test_each_rule_of_a_header_is_enforced(changes: dict[str, int]) -> None:
    state = new_state(seq=10, position=3, offset=100, timestamp=7)
    good = {"seq": 10, "position": 3, "offset": 100, "timestamp": 7}
    assert scan(batch(**good), state=state)[0] == segments.SCAN_MORE
    data = batch(**{**good, **changes})
    code, entries, _ = scan(data, state=state)
    assert (code, entries) == (segments.SCAN_HEADER, [])
    assert find(data, state=state) == -1


@pytest.mark.parametrize("byte", range(96 + 5))
def test_any_flipped_byte_is_detected(byte: int) -> None:
    first, second = batch(1, 2, b"first"), batch(3, 1, b"other", position=1)
    entries = entries_of(first + second)
    damaged = bytearray(first)
    damaged[byte] ^= 0x10
    code, found, _ = scan(bytes(damaged) + second)
    assert found == []
    in_header = byte < 96
    assert code == (segments.SCAN_HEADER if in_header else segments.SCAN_BLOCK)
    verdicts = verify(bytes(damaged) + second, entries)
    assert verdicts == [segments.VERDICT_HEADER if in_header else segments.VERDICT_BLOCK, segments.VERDICT_GOOD]
    assert find(bytes(damaged) + second) == (len(first) if in_header else 0)


def test_an_incomplete_batch_needs_more_bytes() -> None:
    data = batch(block=b"x" * 30)
    for cut in range(len(data)):
        code, entries, state = scan(data[:cut])
        assert (code, entries, state[segments.STATE_CONSUMED]) == (segments.SCAN_MORE, [], 0)
        assert state[segments.STATE_NEEDED] == (0 if not cut else 96 if cut < 96 else len(data))


def test_a_full_table_stops_before_the_next_batch() -> None:
    data = chain([1, 1, 1], [b"a", b"b", b"c"])
    code, entries, state = scan(data, space=2)
    assert (code, len(entries)) == (segments.SCAN_FULL, 2)
    rest = state[segments.STATE_CONSUMED]
    assert scan(data[rest:], state=np.array(state, np.int64))[:1] == (segments.SCAN_MORE,)


@pytest.mark.parametrize(
    "change",
    [
        ("base_seq", 2),
        ("at", SHIFT + 1),
        ("at", SHIFT - 1),
        ("at", 2**63 - 1),
        ("at", 2**63),
        ("at", 2**64 - 1),
        ("timestamp_ns", 1),
        ("base_offset", 1),
        ("position", 1),
        ("count", 2),
        ("length", 100),
        ("length", 2**32 - 1),
    ],
)
def test_a_wrong_index_entry_is_detected(change: tuple[str, int]) -> None:
    data = batch()
    entries = entries_of(data)
    assert verify(data, entries) == [segments.VERDICT_GOOD]
    entries[change[0]] = change[1]
    assert verify(data, entries) == [segments.VERDICT_HEADER]
    assert verify(data, entries, 50) == [segments.VERDICT_HEADER]


def test_read_only_entries_are_accepted() -> None:
    data = batch()
    entries = entries_of(data)
    entries.flags.writeable = False
    assert verify(data, entries) == [segments.VERDICT_GOOD]
