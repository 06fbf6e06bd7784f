"""Arrow tables with many chunks are stored in few batches, complete and in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from seawall.engine.api.embedded import EmbeddedLog
from seawall.engine.api.open_log import open_log
from seawall.engine.read.read_results import encode
from seawall.limits import BATCH_RECORDS_MAX, BLOCK_SIZE_MAX, LARGE_BATCH_SIZE
from seawall.wire.format.records import decode_block


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with open_log(tmp_path / "data") as opened:
        opened.create_topic("events")
        yield opened


def table(chunks: Sequence[Sequence[bytes]]) -> pa.Table:
    return pa.table({"value": pa.chunked_array([pa.array(chunk, pa.binary()) for chunk in chunks])})


def stored(log: EmbeddedLog) -> list[bytes]:
    found: list[bytes] = log.read_arrow("events", columns=("value",)).column("value").to_pylist()
    return found


def chunk(number: int, size: int) -> list[bytes]:
    """Distinct values, about `size` bytes together."""
    return [b"%6d/%2d" % (number, each) + bytes(size // 20 - 9) for each in range(20)]


def test_a_table_of_many_chunks_is_stored_in_order(log: EmbeddedLog) -> None:
    """More bytes than the lane of the log holds, in chunks each of which would be a small batch."""
    chunks = [chunk(number, 20_000) for number in range(300)]
    delivery = log.publish("events", table(chunks))
    expected = [value for each in chunks for value in each]
    assert delivery.seqs == range(1, len(expected) + 1)
    assert log.publish("events", b"continues").first_seq == len(expected) + 1
    assert stored(log) == [*expected, b"continues"]


def test_tiny_and_large_chunks_keep_their_order(log: EmbeddedLog) -> None:
    sizes = [200, 90_000, 200, 200, 30_000, 50_000, 90_000, 90_000, 200]
    chunks = [chunk(number, size) for number, size in enumerate(sizes)]
    log.publish("events", table(chunks))
    assert stored(log) == [value for each in chunks for value in each]


def test_small_chunks_are_joined_up_to_the_bounds_of_a_batch() -> None:
    blocks = encode(table([chunk(number, 20_000) for number in range(300)]))
    # All but the last are large enough to be written straight to their segment.
    assert all(len(block) >= LARGE_BATCH_SIZE for block, *_ in blocks[:-1])
    assert len(blocks) == 75
    nearly = [[bytes(BLOCK_SIZE_MAX // 300)] * 200 for _ in range(2)]
    assert [count for _, count, _ in encode(table([[b"x"], *nearly]))] == [201, 200]
    many = [[b""] * (BATCH_RECORDS_MAX - 1), [b"x"], [b"y"]]
    assert sum(count for _, count, _ in encode(table(many))) == BATCH_RECORDS_MAX + 1
    full = encode(table([[b"first"], [bytes(BLOCK_SIZE_MAX - 5)], [b"last"]]))
    assert [[record.value[:5] for record in decode_block(*block[:2])] for block in full] == [
        [b"first"],
        [bytes(5)],
        [b"last"],
    ]
