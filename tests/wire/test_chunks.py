"""Batches of a DATA frame, verified in one pass: the valid ones, and the error for damage."""

from __future__ import annotations

import numpy as np
import pytest

from seawall.core.types import ClientId, ClientSeq, Position, Seq, TimestampNs, TopicId
from seawall.errors import ChecksumError, CorruptionError, ProtocolError
from seawall.wire.format.arriving_chunks import ArrivingChunks
from seawall.wire.format.batches import batch_header, encode_batch, stamp
from seawall.wire.format.chunks import Chunk, checked_rows
from seawall.wire.format.chunks import checked_chunks as chunks_of_frame
from seawall.wire.format.codes import Command, DataFlags, Kind
from seawall.wire.format.decoder import Frame
from seawall.wire.format.frames import FrameHeader
from seawall.wire.format.records import Record, RecordType, encode_block
from seawall.wire.lwp2.reading import DataPrefix, iter_chunks


def batch(number: int, count: int = 1) -> bytes:
    block = encode_block([Record(RecordType.RAW, b"value")])
    header = batch_header(
        block,
        topic_id=TopicId(3),
        client_id=ClientId(1),
        client_seq=ClientSeq(1),
        session_epoch=1,
        record_count=count,
        timestamp_ns=TimestampNs(1),
    )
    stored = bytearray(encode_batch(header, block))
    stamp(
        stored,
        position=Position(number),
        base_seq=Seq(number + 1),
        base_offset=0,
        timestamp_ns=TimestampNs(number + 50),
        term=1,
    )
    return bytes(stored)


def prefix_of(count: int) -> DataPrefix:
    return DataPrefix(TopicId(3), DataFlags.MORE, count, Seq(1), Seq(count + 1), Position(count), Seq(9), Seq(1))


def checked_chunks(
    payload: memoryview, prefix: DataPrefix, records: int, *, pieces: tuple[int, ...] | None = None
) -> tuple[list[Chunk], CorruptionError | None]:
    """The chunks of a frame that arrives at once, or in pieces that end at the given offsets."""
    header = FrameHeader(2, Kind.CONTROL, Command.DATA, 1, TimestampNs(0), records, len(payload), 0, TopicId(0))
    arriving = None
    if pieces is not None:
        arriving = ArrivingChunks(np.frombuffer(payload, np.uint8))
        for arrived in pieces:
            arriving.verify_up_to(arrived)
    frame = Frame(header, payload, payload, arriving)
    assert len(checked_rows(frame, prefix)[0]) == len(chunks_of_frame(frame, prefix)[0]), "twice is fine"
    return chunks_of_frame(frame, prefix)


def payload_of(*batches: bytes) -> memoryview:
    return memoryview(prefix_of(len(batches)).encode() + b"".join(batches))


def test_a_frame_may_have_more_batches_than_one_kernel_call_lists() -> None:
    batches = [batch(number) for number in range(2_500)]
    payload = payload_of(*batches)
    found, damage = checked_chunks(payload, prefix_of(2_500), 2_500)
    assert damage is None
    size = len(batches[0])
    assert found[7] == Chunk(8, 7, 57, 48 + 7 * size + 96, 48 + 8 * size, 1, 3, 0, 1)
    expected = [(header.base_seq, header.position, bytes(block)) for header, block in iter_chunks(payload, 2_500)]
    assert [(chunk.base_seq, chunk.position, bytes(payload[chunk.at : chunk.end])) for chunk in found] == expected
    assert checked_chunks(payload_of(), prefix_of(0), 0) == ([], None)
    pieces = (30, 48 + 1_500 * size + 5, 48 + 1_500 * size + 5, 100)
    assert checked_chunks(payload, prefix_of(2_500), 2_500, pieces=pieces) == (found, None)


def test_batches_before_damage_are_returned_with_the_error() -> None:
    damaged = batch(1)[:-1] + b"X"
    payload = payload_of(batch(0), damaged, batch(2))
    for pieces in (None, (), (300,), (len(payload) - 1,)):
        found, damage = checked_chunks(payload, prefix_of(3), 3, pieces=pieces)
        assert [chunk.base_seq for chunk in found] == [1]
        assert isinstance(damage, ChecksumError)
    found, damage = checked_chunks(payload_of(batch(0), batch(1))[:-1], prefix_of(2), 2)
    assert (len(found), type(damage)) == (1, CorruptionError)
    found, damage = checked_chunks(payload_of(batch(0), batch(1, count=2)), prefix_of(2), 3)
    assert (len(found), str(damage)) == (1, "the records of the batch at position 1 do not match its header")


@pytest.mark.parametrize(("count", "records"), [(2, 3), (3, 2), (1, 2)])
def test_counts_that_contradict_the_frame_are_refused(count: int, records: int) -> None:
    with pytest.raises(ProtocolError, match="2 chunks with 2 records, the frame says"):
        checked_chunks(payload_of(batch(0), batch(1)), prefix_of(count), records)
