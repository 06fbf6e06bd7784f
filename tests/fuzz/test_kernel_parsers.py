"""Arbitrary bytes into every kernel that parses untrusted bytes: a known code, valid offsets, the result of the twin.

`TARGETS` maps a kernel to a function that takes any bytes and raises only if an invariant does not hold. One input in
sixteen (chosen by its bytes, so that a failing one fails again) is also given to the twin.
"""

import random
import struct
import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from crc32c import crc32c
from fuzz_mutation import mutate

from seawall.kernels.codec import blocks, columns, frames
from seawall.kernels.log import epochs
from seawall.kernels.runtime import jit
from seawall.storage.wal.epochs import EpochHeader
from seawall.wire.format.batches import BatchHeader
from seawall.wire.format.codes import Codec
from twins.codec import blocks as blocks_twin
from twins.codec import columns as columns_twin
from twins.codec import frames as frames_twin
from twins.log import epochs as epochs_twin

Target = Callable[[bytes], None]

RECORDS_MAX = 64
PAYLOAD_MAX = 4_096
LARGEST_FRAME = 44 + 144 + PAYLOAD_MAX + frames.SUM_FRAME_SIZE
SALT = 0x1122_3344_5566_7788
MUTATIONS = 100 if jit.PYTHON_MODE else 400
#: Bytes around the input: reading them by mistake changes the result.
BEFORE, AFTER = b"LANC\2\xff\1\0", b"\0\0\0\0LANC"


def check(condition: bool, what: str, data: bytes) -> None:
    if not condition:
        raise AssertionError(f"{what}: {data.hex()}")


def asks_twin(data: bytes) -> bool:
    return zlib.crc32(data) % 16 == 0


def surrounded(data: bytes) -> tuple[npt.NDArray[np.uint8], int, int]:
    return np.frombuffer(bytearray(BEFORE + data + AFTER), np.uint8), len(BEFORE), len(BEFORE) + len(data)


def check_offsets(code: int, offsets: npt.NDArray[np.int64], start: int, end: int, data: bytes) -> None:
    """INV-SCAN-BOUNDS: records begin where the one before ends, the first at the start, the last ends at the end."""
    check(blocks.SCAN_CHECKSUM <= code <= RECORDS_MAX, "result of a scan", data)
    if code >= 0:
        found = offsets[: code + 1]
        check(found[-1] == end and (code == 0 or found[0] == start), "ends of the block", data)
        check(bool((np.diff(found) >= 5).all()), "size of a record", data)


def scanning(rules: int) -> Target:
    def scan(data: bytes) -> None:
        block, start, end = surrounded(data)
        offsets = np.full(RECORDS_MAX + 1, -1, np.int64)
        code = blocks.scan_block(block, start, end, rules, RECORDS_MAX, offsets)
        check_offsets(code, offsets, start, end, data)
        if asks_twin(data):
            expected = np.full(RECORDS_MAX + 1, -1, np.int64)
            twin_code = blocks_twin.scan_block(block, start, end, rules, RECORDS_MAX, expected)
            check(code == twin_code and bool((offsets == expected).all()), "the twin says otherwise", data)

    return scan


def checking(data: bytes) -> None:
    block, start, end = surrounded(data)
    offsets = np.full(RECORDS_MAX + 1, -1, np.int64)
    good = crc32c(data)
    scanned = blocks.scan_block(block, start, end, 0, RECORDS_MAX, offsets)
    check(blocks.check_block(block, start, end, good, 0, RECORDS_MAX, offsets) == scanned, "right checksum", data)
    wrong = blocks.check_block(block, start, end, good ^ 1, 0, RECORDS_MAX, offsets)
    check(wrong == blocks.SCAN_CHECKSUM, "wrong checksum", data)
    if asks_twin(data):
        expected = blocks_twin.check_block(block, start, end, good, 0, RECORDS_MAX, offsets)
        check(expected == scanned, "the twin says otherwise", data)


def locating(data: bytes) -> None:
    """The bytes as one envelope after a plain record, and as a block if they are one."""
    value = data[:2_000]
    locate_in(b"\1\0\0\0\0\xff\1\0" + struct.pack("<I", len(value)) + value)
    locate_in(data)


def locate_in(data: bytes) -> None:
    block, start, end = surrounded(data)
    offsets = np.zeros(RECORDS_MAX + 1, np.int64)
    count = blocks.scan_block(block, start, end, 0, RECORDS_MAX, offsets)
    if count <= 0:
        return
    spans = np.full((2, columns.COLUMN_COUNT, count), -9, np.int64)
    moments = np.full(count, -9, np.int64)
    code = columns.locate_envelopes(block, offsets, count, *spans, moments)
    check(0 <= code <= count, "result of locating", data)
    starts, lengths = spans
    check(bool((lengths >= -1).all()), "length of a field", data)
    # INV-SCAN-BOUNDS
    inside = (starts >= offsets[:count]) & (starts + np.maximum(lengths, 0) <= offsets[1 : count + 1])
    check(bool(inside.all()), "a field outside its record", data)
    if asks_twin(data):
        expected, expected_moments = np.full_like(spans, -9), np.full_like(moments, -9)
        twin_code = columns_twin.locate_envelopes(block, offsets, count, *expected, expected_moments)
        same = bool((spans == expected).all()) and bool((moments == expected_moments).all())
        check(code == twin_code and same, "the twin says otherwise", data)


def behind_sums(buffer: npt.NDArray[np.uint8], at: int, end: int) -> int:
    """The ends of frames without a row: trailing checksums of batches between two other frames."""
    while at < end and buffer[at : at + 8].tobytes() == b"LANC\2\x40\x6d\0":
        at += 44 + int(buffer[at + 32 : at + 36].view("<u4")[0])
    return at


def split(data: bytes) -> None:
    buffer, start, end = surrounded(data)
    rows, state = np.zeros(8, frames.FRAME_ROW), np.zeros(frames.STATE_SIZE, np.int64)
    code = frames.split_frames(buffer, start, end, PAYLOAD_MAX, rows, state)
    count, consumed, needed = (int(value) for value in state[frames.STATE_FRAMES : frames.STATE_NEEDED + 1])
    check(0 <= code <= frames.SPLIT_NO_SUM, "result of a split", data)
    check(0 <= count <= rows.size and start <= consumed <= end, "state of a split", data)
    # INV-DECODER-BOUND
    check(needed <= LARGEST_FRAME, "a frame above its bound", data)
    check(code != frames.SPLIT_MORE or needed == 0 or needed > end - consumed, "a whole frame left over", data)
    at = start
    for begin, size in [*rows[["at", "size"]][:count].tolist(), (consumed, 0)]:
        check(behind_sums(buffer, at, begin) == begin, "frames side by side", data)
        at = begin + size
    if asks_twin(data):
        expected_rows, expected = np.zeros(8, frames.FRAME_ROW), np.zeros(frames.STATE_SIZE, np.int64)
        again, _, _ = surrounded(data)
        twin_code = frames_twin.split_frames(again, start, end, PAYLOAD_MAX, expected_rows, expected)
        same = bool((state == expected).all()) and bool((rows == expected_rows).all()) and bool((again == buffer).all())
        check(code == twin_code and same, "the twin says otherwise", data)


def split_behind_the_checksum(data: bytes) -> None:
    """The same with a correct header checksum, so that mutations reach the checks after it."""
    if len(data) >= 44:
        batch = data[4] == 2 and data[5] == frames.KIND_BATCH
        covered = data[:8] if data[4] == 1 else data[:8] + data[12 : 96 if batch else 44]
        crc = zlib.crc32(covered) if data[4] == 1 else crc32c(covered)
        data = data[:8] + struct.pack("<I", crc) + data[12:]
    split(data)


def scanned_epochs(data: bytes) -> None:
    """INV-SCAN-BOUNDS: listed batches are adjacent in epochs inside the bytes, at rising positions."""
    buffer, start, end = surrounded(data)
    rows = np.zeros(RECORDS_MAX, epochs.WAL_ROW)
    walk = np.zeros(epochs.WALK_SIZE, np.int64)
    reached = epochs.scan_epochs(buffer, start, end, np.uint64(SALT), walk, rows)
    check(start <= reached <= end, "end of the scan", data)
    listed = rows[: walk[epochs.WALK_ROWS]]
    ends = listed["at"] + listed["size"]
    check(bool((listed["at"][1:] >= ends[:-1]).all() and (ends <= reached).all()), "places of batches", data)
    check(bool((np.diff(listed["position"].astype(np.int64)) > 0).all()), "positions", data)
    if asks_twin(data):
        expected, expected_walk = np.zeros_like(rows), np.zeros_like(walk)
        twin_reached = epochs_twin.scan_epochs(buffer, start, end, SALT, expected_walk, expected)
        same = reached == twin_reached and bool((walk == expected_walk).all())
        check(same and listed.tolist() == expected[: len(listed)].tolist(), "the twin says otherwise", data)


def scanned_behind_the_checksum(data: bytes) -> None:
    """The same with a correct checksum of the first epoch header, so that mutations reach its fields."""
    fixed = bytearray(data)
    if len(data) >= epochs.EPOCH_HEADER:
        fixed[:4], fixed[8:16] = b"EPOC", struct.pack("<Q", SALT)
        fixed[4:8] = struct.pack("<I", crc32c(bytes(fixed[8:64])))
    scanned_epochs(bytes(fixed))


TARGETS: dict[str, Target] = {
    "scan_block_stored": scanning(blocks.RECORDS_STORED),
    "scan_block_version_1": scanning(blocks.RECORDS_VERSION_1),
    "scan_block_version_2": scanning(blocks.RECORDS_VERSION_2),
    "check_block": checking,
    "locate_envelopes": locating,
    "split_frames": split,
    "split_frames_behind_the_checksum": split_behind_the_checksum,
    "epochs": scanned_epochs,
    "epochs_behind_the_checksum": scanned_behind_the_checksum,
}


def _frame(version: int, kind: int, command: int, payload: bytes) -> bytes:
    checksum = zlib.crc32 if version == 1 else crc32c
    batch = version == 2 and kind == frames.KIND_BATCH
    front = b"LANC" + struct.pack("<BBH", version, kind, command)
    back = struct.pack("<QQIIII", 7, 8, 1, len(payload), checksum(payload[52:] if batch else payload), 1)
    covered = front if version == 1 else front + back + (payload[:52] if batch else b"")
    return front + struct.pack("<I", checksum(covered)) + back + payload


_ENVELOPE = (
    struct.pack("<HQ", 0x3F, 1_700_000_000_000_000_000)
    + b"".join(struct.pack("<I", len(field)) + field for field in (b"key", b"node", b"", b"meta"))
    + struct.pack("<H", 2)
    + b"".join(struct.pack("<H", 1) + b"n" + struct.pack("<I", 5) + b"value" for _ in range(2))
    + b"data"
)
_BLOCK = b"\1\5\0\0\0hello" + b"\xff\0\0\0\0" + b"\xff\1\0" + struct.pack("<I", len(_ENVELOPE)) + _ENVELOPE
_BLOCKS = [_BLOCK, b"\2\0\0\0\0" * 20, b"\xff\2\0\3\0\0\0abc\x7e\1\0\0\0x", b"\x80\1\0\0\0y\x7f\0\0\0\0"]


def _with_sum_behind() -> bytes:
    batch = _frame(2, 4, 0, bytes(51) + bytes([frames.FLAG_TRAILING_CHECKSUM]) + _BLOCK)
    batch = batch[:36] + bytes(4) + batch[40:]
    behind = np.zeros(frames.SUM_FRAME_SIZE, np.uint8)
    frames.write_sum(behind, 0, int.from_bytes(batch[12:20], "little"), crc32c(_BLOCK))
    return batch[:8] + struct.pack("<I", crc32c(batch[:8] + batch[12:96])) + batch[12:] + behind.tobytes()


_STREAMS = [
    _with_sum_behind() * 2,
    b"".join(_frame(1, kind, 0, payload) for kind, payload in ((0x20, b""), (0x40, b"events"), (0x04, _BLOCK))),
    b"".join(_frame(2, kind, 1, payload) for kind, payload in ((0x20, b""), (8, bytes(64)), (4, bytes(52) + _BLOCK))),
    _frame(2, 0x40, 0x51, bytes(48) + _frame(2, 4, 0, bytes(52) + _BLOCK)) * 2,
]


def _epoch(number: int, position: int, count: int) -> bytes:
    batches = b"".join(
        BatchHeader(
            *(0, 1, 5, 1, 52 + 7, crc32c(_RECORD), 3, 7, position + index, 9, 11, 7, 1, 1, 255, 255, Codec.NONE, 0)
        ).header_bytes()
        + _RECORD
        for index in range(count)
    )
    clean = not count
    return EpochHeader(SALT, number, len(batches), 0, position, count, clean, 9).encode() + batches


_RECORD = b"\1\2\0\0\0hi"
_EPOCHS = [
    _epoch(1, 0, 1),
    _epoch(1, 0, 3) + _epoch(2, 3, 1) + _epoch(3, 4, 0),
    _epoch(1, 5, 2) + _epoch(2, 7, 1)[:-3],
    _epoch(1, 0, 0) + bytes(70),
]

_CORPORA = {"split": _STREAMS, "locate": [*_BLOCKS, _ENVELOPE], "epochs": _EPOCHS}

CORPUS: dict[str, list[bytes]] = {name: _CORPORA.get(name.partition("_")[0], _BLOCKS) for name in TARGETS}


def test_every_target_has_a_corpus() -> None:
    assert TARGETS.keys() == CORPUS.keys()


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_keep_the_invariants(name: str) -> None:
    random_source = random.Random(f"seawall {name}")
    target = TARGETS[name]
    for data in CORPUS[name]:
        target(data)
        target(b"")
    for _ in range(MUTATIONS):
        target(mutate(random_source, random_source.choice(CORPUS[name])))
        target(random_source.randbytes(random_source.randrange(120)))


def test_a_kernel_that_disagrees_with_its_twin_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks_twin, "scan_block", lambda *_: 3)
    data = next(bytes([number]) for number in range(256) if asks_twin(bytes([number])))
    with pytest.raises(AssertionError, match="twin"):
        TARGETS["scan_block_stored"](data)
