"""Copies of a batch with successive client seqs: kernel and twin, and the header parser."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.types import ClientId, ClientSeq, TimestampNs, TopicId
from seawall.kernels.codec import renumbering
from seawall.wire.format.batches import BatchSource, batch_header, encode_batch, parse_batch_header, verify_block
from twins.codec import renumbering as twin


@given(block=st.binary(min_size=5, max_size=40), count=st.integers(0, 4), first_seq=st.integers(1, 1 << 61))
def test_each_batch_has_its_seq_and_is_valid(block: bytes, count: int, first_seq: int) -> None:
    header = batch_header(
        block,
        topic_id=TopicId(4),
        client_id=ClientId(9),
        client_seq=ClientSeq(7),
        session_epoch=6,
        record_count=1,
        timestamp_ns=TimestampNs(0),
    )
    batch = encode_batch(header, block)
    found = []
    for kernels in (renumbering, twin):
        buffer = np.frombuffer(batch * 5, np.uint8).copy()
        kernels.renumber_batches(buffer, len(batch), count, first_seq)
        found.append(buffer.tobytes())
    assert found[0] == found[1]
    assert found[0][count * len(batch) :] == batch * (5 - count)
    for index in range(count):
        one = found[0][index * len(batch) :][: len(batch)]
        parsed = parse_batch_header(one[:96], source=BatchSource.CLIENT)
        verify_block(parsed, one[96:])
        assert parsed.client_seq == first_seq + index
