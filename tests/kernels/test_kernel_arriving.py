"""Validation of received batches against its twin: why a batch is refused, and what enters the ring."""

from __future__ import annotations

import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.admission import arriving
from seawall.kernels.codec import frames
from seawall.kernels.ordering import broker_ring
from seawall.kernels.runtime import jit
from twins.admission import arriving as twin

EXAMPLES = 20 if jit.PYTHON_MODE else 100
HEADER = struct.Struct("<4sBBHIqQIIIIIqQQQIIIBBBB")
NAMES = (
    *("magic", "version", "kind", "command", "crc", "client_seq", "time", "count", "length", "block_crc", "topic"),
    *("reserved", "client", "position", "base_seq", "base_offset", "raw", "term", "epoch", "order", "level", "codec"),
    "flags",
)
RECORD = b"\x01\x05\0\0\0hello"
#: Topic 1 has order 2, topic 2 order 5; there is no topic 0.
ORDERS = np.array([arriving.NO_TOPIC, 2, 5], np.uint8)
LEVELS = np.array([0, 2, 1], np.uint8)
NO_OFFSETS = np.zeros(0, np.int64)


def batch(block: bytes = RECORD, **changed: Any) -> bytes:
    fields = dict.fromkeys(NAMES, 0) | {"magic": b"LANC", "version": 2, "kind": 4, "client_seq": 1, "count": 1}
    fields |= {"length": 52 + len(block), "topic": 1, "client": 7, "raw": len(block), "epoch": 3, "order": 0xFF}
    return HEADER.pack(*(fields | {"level": 0xFF} | changed).values()) + block


def rows_of(batches: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    rows = np.zeros(len(batches), frames.FRAME_ROW)
    at = 3
    for row, each in zip(rows, batches, strict=True):
        row["at"], row["size"] = at, len(each)
        row["topic_id"] = struct.unpack_from("<I", each, 40)[0]
        at += len(each)
    return np.frombuffer(b"xyz" + b"".join(batches), np.uint8), rows


def validate(module: ModuleType, *batches: bytes, codecs: int = 0) -> list[int]:
    buffer, rows = rows_of(list(batches))
    verdicts = np.full(len(batches), 77, np.int64)
    others = module.validate_batches(buffer, rows, 7, 3, codecs, ORDERS, NO_OFFSETS, verdicts)
    assert others == np.count_nonzero(verdicts)
    return verdicts.tolist()


USED = arriving.NUMBER_USED
INVALID = arriving.REASON_INVALID | USED
CASES: list[tuple[bytes, int]] = [
    (batch(), arriving.ACCEPTED),
    (batch(RECORD * 3, count=3), arriving.ACCEPTED),
    (batch(RECORD * 3, count=2), INVALID),
    (batch(b"anything", flags=2), arriving.ACCEPTED),
    (batch(b"anything", flags=2, count=2), INVALID),
    (batch(b"anything"), INVALID),
    (batch(b"\x7e\0\0\0\0"), INVALID),
    (batch(b"", count=0), INVALID),
    (batch(count=0), INVALID),
    (batch(count=65_537), INVALID),
    (batch(flags=4), INVALID),
    (batch(level=3), INVALID),
    (batch(level=0), arriving.ACCEPTED),
    (batch(raw=9), INVALID),
    (batch(command=1), arriving.MALFORMED),
    (batch(client_seq=0), arriving.MALFORMED),
    (batch(client_seq=-1), arriving.MALFORMED),
    (batch(client=8), arriving.REASON_INVALID),
    (batch(epoch=2), arriving.REASON_FENCED),
    (batch(reserved=1), INVALID),
    (batch(position=1), INVALID),
    (batch(base_seq=1), INVALID),
    (batch(base_offset=1), INVALID),
    (batch(term=1), INVALID),
    (batch(topic=0), arriving.REASON_TOPIC_NOT_FOUND | USED),
    (batch(topic=3), arriving.REASON_TOPIC_NOT_FOUND | USED),
    (batch(order=2), arriving.ACCEPTED),
    (batch(order=5), arriving.REASON_NOT_ALLOWED | USED),
    (batch(order=5, topic=2), arriving.ACCEPTED),
    (batch(order=0xFE, topic=0), arriving.REASON_TOPIC_NOT_FOUND | USED),
    (batch(codec=1), arriving.INSPECT),
    (batch(codec=2), INVALID),
    (batch(codec=9), INVALID),
    (batch(codec=1, raw=17 << 20), INVALID),
]


@pytest.mark.parametrize("module", [arriving, twin], ids=["kernel", "twin"])
def test_each_fault_has_its_reason(module: ModuleType) -> None:
    assert validate(module, *(each for each, _ in CASES), codecs=0b010) == [verdict for _, verdict in CASES]


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.integers(0, 95 + len(RECORD)), st.integers(0, 255)), max_size=4), st.integers(0, 7))
def test_changed_bytes_are_validated_as_by_the_twin(changes: list[tuple[int, int]], codecs: int) -> None:
    damaged = bytearray(batch())
    for at, value in changes:
        damaged[at] = value
    assert validate(arriving, bytes(damaged), codecs=codecs) == validate(twin, bytes(damaged), codecs=codecs)


class Ring:
    """A ring of four slots and a kilobyte."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.state = np.zeros(broker_ring.STATE_SIZE, np.int64)
        self.tails = np.zeros(8, np.int64)
        self.completion = np.zeros(16, np.int64)
        self.pending = np.zeros(4, broker_ring.PENDING_ROW)
        self.slots = np.zeros(32, np.int64)
        self.blog = np.zeros(1024, np.uint8)
        self.progress = np.zeros(arriving.PROGRESS_SIZE, np.int64)

    def publish(self, batches: list[bytes], verdicts: list[int]) -> tuple[int, list[int], list[int]]:
        buffer, rows = rows_of(batches)
        results = np.array(verdicts, np.int64)
        code = self.module.publish_validated(
            *(buffer, rows, results, 5, ORDERS, LEVELS, 9, self.state, self.tails, self.completion, self.pending),
            *(self.slots.view(np.uint8), self.slots, self.blog, self.progress),
        )
        return code, results.tolist(), self.progress.tolist()

    def contents(self) -> tuple[Any, ...]:
        return (self.state.tolist(), self.pending.tolist(), self.slots.tobytes(), self.blog.tobytes())


def test_only_accepted_batches_enter_the_ring() -> None:
    """INV-ARRIVAL-JUDGED."""
    ring = Ring(arriving)
    batches = [batch(), batch(client_seq=2), batch(client_seq=3, topic=2)]
    code, _, progress = ring.publish(batches, [0, 4, 0])
    assert (code, progress) == (broker_ring.RUN_DONE, [2, 2 * len(batches[0]), 0, 3])
    assert ring.pending["client_seq"][:2].tolist() == [1, 3]
    assert ring.pending["owner"][:2].tolist() == [5, 5]
    assert list(zip(ring.pending["order"][:2].tolist(), ring.pending["ack_level"][:2].tolist(), strict=True)) == [
        (2, 2),
        (5, 1),
    ]


def test_a_refusal_that_uses_a_client_seq_gets_a_slot_without_bytes() -> None:
    ring = Ring(arriving)
    refused = batch(b"x" * 300, client_seq=8, block_crc=77, topic=9)
    code, _, progress = ring.publish([batch(), refused, batch(client_seq=9)], [0, 0x10 | USED, 0])
    assert (code, progress) == (broker_ring.RUN_DONE, [3, 2 * len(batch()), 0, 3])
    pending = ring.pending[:3]
    assert pending["client_seq"].tolist() == [1, 8, 9]
    assert pending["blog_offset"].tolist() == [0, 128, 128]
    assert (int(pending["stage"][1]), int(pending["ack_level"][1])) == (broker_ring.STAGE_WAITING, 1)
    entry = struct.unpack("<QIIIIHHIQQIIQ", ring.slots.view(np.uint8)[64:128].tobytes())
    flags = broker_ring.FLAG_REFUSED | 0x10 << broker_ring.REFUSED_REASON_SHIFT
    assert entry == (128, 0, 0, 9, 77, 0, 9, flags, 7, 8, 3, 0, 2)


def test_a_full_ring_stops_before_the_first_batch_without_space() -> None:
    ring = Ring(arriving)
    code, _, progress = ring.publish([batch(client_seq=seq) for seq in range(1, 7)], [0, 4, 0, 0, 0, 0])
    assert (code, progress[arriving.PROGRESS_COUNT], progress[arriving.PROGRESS_ROWS]) == (broker_ring.RUN_FULL, 4, 5)


def test_a_batch_that_can_never_fit_is_refused_and_the_rest_continues() -> None:
    ring = Ring(arriving)
    code, verdicts, progress = ring.publish([batch(b"x" * 1000, flags=2), batch()], [0, 0])
    assert (code, verdicts, progress[arriving.PROGRESS_COUNT]) == (broker_ring.RUN_DONE, [3 | USED, 0], 2)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(st.integers(1, 1100), st.sampled_from([0, 0, 0, 4, 16, 4 | USED]), st.integers(1, 2)), max_size=8
    )
)
def test_publishing_equals_its_twin(given_batches: list[tuple[int, int, int]]) -> None:
    batches = [batch(b"x" * size, flags=2, topic=topic) for size, _, topic in given_batches]
    ring, model = Ring(arriving), Ring(twin)
    verdicts = [verdict for _, verdict, _ in given_batches]
    assert ring.publish(batches, verdicts) == model.publish(batches, verdicts)
    assert ring.contents() == model.contents()


@settings(max_examples=EXAMPLES)
@given(st.lists(st.tuples(st.integers(1, 700), st.booleans()), max_size=8), st.integers(1, 1_200))
def test_free_space_is_where_the_next_batch_is_written(given_batches: list[tuple[int, bool]], wanted: int) -> None:
    ring, model = Ring(arriving), Ring(twin)
    for size, is_done in given_batches:
        for each in (ring, model):
            each.publish([batch(b"x" * size, flags=2)], [0])
            if is_done:
                each.state[broker_ring.ANSWERED] = each.completion[0] = each.state[broker_ring.CLAIMED]
    space_at = arriving.free_space_for(ring.state, ring.completion, ring.pending, 1024, wanted)
    assert space_at == twin.free_space_for(model.state, model.completion, model.pending, 1024, wanted)
    assert ring.contents() == model.contents()
    if wanted <= 1024:
        arriving.want_space(ring.state, ring.tails, 1024, wanted)
        twin.want_space(model.state, model.tails, 1024, wanted)
        assert ring.contents() == model.contents()
    waits_for = int(ring.tails[broker_ring.TAIL_BLOG_WANTED])
    slot = broker_ring.claim_slot(ring.state, ring.tails, ring.completion, ring.pending, 1024, wanted)
    assert (slot < 0) == (space_at < 0)
    if slot == broker_ring.NO_SPACE and ring.state[broker_ring.CLAIMED] - ring.state[broker_ring.FREED] < 4:
        assert int(ring.tails[broker_ring.TAIL_BLOG_WANTED]) == waits_for
    if slot >= 0:
        assert int(ring.pending[slot % 4]["blog_offset"]) % 1024 == space_at


@pytest.mark.parametrize("lent_size", [len(batch()), 500])
def test_a_batch_received_in_the_blog_is_not_copied(lent_size: int) -> None:
    ring = Ring(arriving)
    ring.publish([batch()], [0])
    space_at = arriving.free_space_for(ring.state, ring.completion, ring.pending, 1024, lent_size)
    received = ring.blog[space_at : space_at + lent_size]
    received[: len(batch())] = np.frombuffer(batch(client_seq=2), np.uint8)
    rows = np.zeros(1, frames.FRAME_ROW)
    rows["size"], rows["topic_id"] = len(batch()), 1
    code = arriving.publish_validated(
        *(received, rows, np.zeros(1, np.int64), 5, ORDERS, LEVELS, 9, ring.state, ring.tails, ring.completion),
        *(ring.pending, ring.slots.view(np.uint8), ring.slots, ring.blog, ring.progress),
    )
    assert (code, int(ring.pending[1]["blog_offset"]), int(ring.pending[1]["client_seq"])) == (0, space_at, 2)
    assert ring.blog[space_at : space_at + len(batch())].tobytes() == batch(client_seq=2)


def test_a_batch_received_in_a_larger_space_than_needed_may_be_moved() -> None:
    ring = Ring(arriving)
    for seq in (1, 2):
        ring.publish([batch(b"x" * 300, flags=2, client_seq=seq)], [0])
    ring.state[broker_ring.ANSWERED] = ring.completion[0] = 2
    # 400 bytes do not fit before the end of the BLog, but the batch itself does.
    space_at = arriving.free_space_for(ring.state, ring.completion, ring.pending, 1024, 400)
    assert space_at == 0
    ring.blog[: len(batch())] = np.frombuffer(batch(client_seq=3), np.uint8)
    rows = np.zeros(1, frames.FRAME_ROW)
    rows["size"], rows["topic_id"] = len(batch()), 1
    arriving.publish_validated(
        *(ring.blog[:400], rows, np.zeros(1, np.int64), 5, ORDERS, LEVELS, 9, ring.state, ring.tails, ring.completion),
        *(ring.pending, ring.slots.view(np.uint8), ring.slots, ring.blog, ring.progress),
    )
    at = int(ring.pending[2]["blog_offset"])
    assert at == 896
    assert ring.blog[at : at + len(batch())].tobytes() == batch(client_seq=3)
