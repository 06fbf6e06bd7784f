"""Headers written in place: kernels, twins and the codec's own header agree."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.core.types import ClientId, ClientSeq, Position, Seq, Term, TimestampNs, TopicId
from seawall.kernels.admission import client_window
from seawall.kernels.admission.frontier import ADMISSION_ROW, STATUS_OK
from seawall.kernels.log import staging
from seawall.kernels.runtime import jit
from seawall.sequencer.client_window import ClientWindow
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers
from seawall.wire.format.batches import BatchSource, batch_header, parse_batch_header, verify_block
from twins.log import staging as twin

EXAMPLES = 12 if jit.PYTHON_MODE else 100
AS_TOPIC = 0xFFFF

u63 = st.integers(1, (1 << 63) - 1)


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


@settings(max_examples=EXAMPLES)
@given(
    block=st.binary(max_size=200),
    before=st.integers(0, 9),
    count=st.integers(1, 65_536),
    topic=st.integers(1, (1 << 32) - 1),
    client=st.integers(1, (1 << 64) - 1),
    seq=st.integers(0, (1 << 64) - 1),
    epoch=st.integers(0, (1 << 32) - 1),
    flags=st.sampled_from([0, 2]),
)
def test_a_header_equals_that_of_the_codec(
    block: bytes, before: int, count: int, topic: int, client: int, seq: int, epoch: int, flags: int
) -> None:
    data = np.frombuffer(bytes(before) + block, np.uint8)
    fields = (count, topic, signed(client), signed(seq), epoch, len(block), AS_TOPIC | flags << 24)
    made = np.full(before + 120, 7, np.uint8)
    staging.write_header(made, before, data, before, data.size, *fields)
    other = np.full(before + 120, 7, np.uint8)
    twin.write_header(other, before, data, before, data.size, *fields)
    assert made.tobytes() == other.tobytes()
    expected = batch_header(
        block,
        topic_id=TopicId(topic),
        client_id=ClientId(client),
        client_seq=ClientSeq(seq),
        session_epoch=epoch,
        record_count=count,
        timestamp_ns=TimestampNs(0),
        flags=flags,
    ).header_bytes()
    # Stamping writes the checksum of the header.
    assert made[before : before + 96].tobytes() == expected[:8] + bytes(4) + expected[12:]
    assert made[:before].tobytes() == bytes([7]) * before
    assert made[before + 96 :].tobytes() == bytes([7]) * 24


def frontier_of(ceiling: int = 1_000) -> CommitFrontier:
    return CommitFrontier(next_position=Position(7), topics=[TopicNumbers(TopicId(3), ceiling=Seq(ceiling))])


def test_numbering_stamps_a_batch() -> None:
    block = np.frombuffer(b"\x01\x02\x00\x00\x00hi" * 4, np.uint8)
    fields = (4, 3, signed(1 << 63), 0, 0, block.size, AS_TOPIC)
    seen = []
    for kernels in (staging, twin):
        frontier, header, rows = frontier_of(), np.zeros(96, np.uint8), np.zeros(1, ADMISSION_ROW)
        for _ in range(2):
            code = kernels.number_batch(header, 0, block, 0, block.size, fields, 5, 10**18, frontier.state, rows)
            assert code == 0
        assert rows[0]["status"] == STATUS_OK
        parsed = parse_batch_header(header.tobytes(), source=BatchSource.STORED)
        assert (parsed.position, parsed.base_seq, parsed.record_count, parsed.term) == (8, 5, 4, Term(5))
        verify_block(parsed, block.tobytes())
        seen.append((header.tobytes(), [array.tobytes() for array in frontier.state]))
    assert seen[0] == seen[1]


def test_a_ceiling_stops_a_batch() -> None:
    block = np.zeros(10, np.uint8)
    frontier, header, rows = frontier_of(ceiling=4), np.zeros(96, np.uint8), np.zeros(1, ADMISSION_ROW)
    fields = (4, 3, signed(1 << 63), 0, 0, block.size, AS_TOPIC)
    code = staging.number_batch(header, 0, block, 0, 10, fields, 1, 1, frontier.state, rows)
    assert code != 0
    assert frontier.next_position == 7


def test_a_duplicate_gets_its_first_numbers() -> None:
    block = np.frombuffer(b"\x01\x02\x00\x00\x00hi", np.uint8)
    for kernels in (staging, twin):
        frontier, window, header = frontier_of(), ClientWindow(clients_max=4, remembered_max=4), np.zeros(96, np.uint8)
        window.open(ClientId(9), 1, ClientSeq(1))
        fields = (1, 3, 9, 1, 1, block.size, AS_TOPIC)
        row, outcomes = np.zeros(1, ADMISSION_ROW), []
        for _ in range(2):
            through = (frontier.state, *window.admission_arrays, row)
            assert kernels.number_client_batch(header, 0, block, 0, block.size, fields, 1, 10**18, *through) == 0
            outcomes.append((int(row[0]["status"]), int(row[0]["base_seq"])))
        assert outcomes == [(STATUS_OK, 1), (client_window.CHECK_DUPLICATE, 1)]
        assert frontier.topic(TopicId(3)).next_seq == 2
