"""Some records of a block to another block: kernel equals twin, for any records, live ranges and conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.kernels.codec import blocks, columns, routing
from seawall.kernels.runtime import jit
from seawall.wire.format.envelope import Envelope
from seawall.wire.format.records import Record, RecordType, decode_block, encode_record
from twins.codec import routing as twin

EXAMPLES = 40 if jit.PYTHON_MODE else 200
ALL = [(1, 1_000_000)]
BOTH = columns.FLAG_NODE | columns.FLAG_TAG

Live = list[tuple[int, int]]
Condition = tuple[bytes, int]
ANY: Condition = (b"", routing.MATCH_ANY)


def route_with(
    module: Any, block: bytes, live: Live, tag: Condition, node: Condition, cut: int, base_seq: int
) -> tuple[int, bytes, int]:
    source = np.frombuffer(block, np.uint8)
    count_max = len(block) // 5
    offsets: npt.NDArray[np.int64] = np.zeros(count_max + 1, np.int64)
    count = blocks.scan_block(source, 0, source.size, blocks.RECORDS_STORED, count_max, offsets)
    assert count >= 0
    starts, lengths = np.zeros((2, columns.COLUMN_COUNT, count_max), np.int64)
    columns.locate_envelopes(source, offsets, count, starts, lengths, np.zeros(count_max, np.int64))
    firsts, lasts = np.array(live, np.int64).reshape(-1, 2).T.copy()
    out = np.full(source.size + 8, 0xEE, np.uint8)
    state = np.zeros(routing.ROUTED_STATE, np.int64)
    texts = [part for text, how in (tag, node) for part in (np.frombuffer(text, np.uint8), how)]
    copied = module.route_records(
        source, offsets, count, starts, lengths, base_seq, firsts, lasts, *texts, cut, out[: source.size], state
    )
    size = int(state[routing.ROUTED_SIZE])
    assert (out[size:] == 0xEE).all()
    return int(copied), out[:size].tobytes(), int(state[routing.ROUTED_CHANGED])


def routed(
    block: bytes, live: Live = ALL, tag: Condition = ANY, node: Condition = ANY, cut: int = 0, base_seq: int = 1
) -> tuple[int, bytes, int]:
    result = route_with(routing, block, live, tag, node, cut, base_seq)
    assert result == route_with(twin, block, live, tag, node, cut, base_seq)
    return result


def block_of(*envelopes: Envelope) -> bytes:
    return b"".join(encode_record(each.to_record()) for each in envelopes)


short = st.sampled_from([b"", b"a", b"ab", b"abc", b"b"])
optional = st.none() | short
envelopes = st.builds(
    Envelope,
    short,
    st.none() | st.just(7),
    optional,
    optional,
    optional,
    optional,
    st.none() | st.just(((b"name", b"value"),)),
)
records = st.one_of(
    envelopes.map(Envelope.to_record),
    st.builds(Record, st.integers(0, 0xFE), st.binary(max_size=9)),
    st.builds(Record, st.just(int(RecordType.ENVELOPE)), st.binary(max_size=9)),
    st.just(Record(RecordType.NULL, b"")),
)
ranges = st.lists(st.integers(4, 15), max_size=6, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)
conditions = st.tuples(short, st.sampled_from([routing.MATCH_ANY, routing.MATCH_EQUAL, routing.MATCH_PREFIX]))


@settings(max_examples=EXAMPLES)
@given(st.lists(records, max_size=8), ranges | st.just(ALL), conditions, conditions, st.sampled_from([0, 4, 8, 12]))
def test_routing_equals_its_twin(many: list[Record], live: Live, tag: Condition, node: Condition, cut: int) -> None:
    block = b"".join(map(encode_record, many))
    copied, made, changed = routed(block, live, tag, node, cut, base_seq=5)
    assert len(decode_block(made)) == copied
    assert len(made) <= len(block)
    if live is ALL and not (tag[1] or node[1] or changed):
        assert made == block


def test_conditions_choose_records() -> None:
    block = block_of(
        Envelope(b"1", tag=b"red", node=b"n1"),
        Envelope(b"2", tag=b"redder", node=b"n2"),
        Envelope(b"3", node=b"n1"),
        Envelope(b"4", tag=b"re"),
    ) + encode_record(Record(RecordType.RAW, b"5"))

    def chosen(**how: Any) -> list[bytes]:
        return [each.value[-1:] for each in decode_block(routed(block, **how)[1])]

    assert chosen() == [b"1", b"2", b"3", b"4", b"5"]
    assert chosen(tag=(b"red", routing.MATCH_EQUAL)) == [b"1"]
    assert chosen(tag=(b"red", routing.MATCH_PREFIX)) == [b"1", b"2"]
    assert chosen(tag=(b"", routing.MATCH_PREFIX)) == [b"1", b"2", b"4"]
    assert chosen(node=(b"n1", routing.MATCH_EQUAL)) == [b"1", b"3"]
    assert chosen(tag=(b"red", routing.MATCH_PREFIX), node=(b"n2", routing.MATCH_EQUAL)) == [b"2"]
    assert chosen(live=[(2, 2), (4, 5)]) == [b"2", b"4", b"5"]
    assert chosen(live=[]) == []


@pytest.mark.parametrize("cut", [columns.FLAG_NODE, columns.FLAG_TAG, BOTH])
def test_fields_are_cut_and_everything_else_stays(cut: int) -> None:
    whole = Envelope(b"data", 7, b"key", b"node", b"tag", b"meta", ((b"name", b"value"),))
    copied, made, changed = routed(block_of(whole, Envelope(b"none")), cut=cut)
    assert (copied, changed) == (2, 1)
    node = None if cut & columns.FLAG_NODE else b"node"
    tag = None if cut & columns.FLAG_TAG else b"tag"
    assert made == block_of(Envelope(b"data", 7, b"key", node, tag, b"meta", ((b"name", b"value"),)), Envelope(b"none"))
