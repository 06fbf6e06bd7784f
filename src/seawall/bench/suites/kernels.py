"""Suite `kernels`: compare the compiled kernels with a memory copy, and disk rings with bare system calls.

A working set has 64 blocks of about 1 MiB, the size that publishers make: together too large for any cache. Every step
processes all blocks of a working set and counts each byte or record once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import crc32c as crc32c_wheel
import numpy as np
import numpy.typing as npt

from seawall.bench.figures import ring_figures, split_figures
from seawall.bench.harness import MEMORY_COPY, Baseline, BenchContext, Measurement, Run, Subject, rate
from seawall.bench.results import Better, Goal
from seawall.core.types import Offset, Position, Seq, Term, TimestampNs
from seawall.kernels.codec import blocks, checksum
from seawall.limits import MIB
from seawall.wire.format import batches
from seawall.wire.format.arrow import decode_table

Bytes = npt.NDArray[np.uint8]

BLOCK_SIZE = MIB
BLOCK_COUNT = 64
RAW = 1


def suite(context: BenchContext) -> Iterator[Measurement]:
    """List the figures of this suite."""
    yield from _block_figures()
    yield from _checksum_figures()
    yield from split_figures.figures()
    yield from _column_figures()
    yield from _stored_batch_figures()
    yield from ring_figures.figures(context)


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Blocks of equal records, the values they were encoded from, and an output array for the offsets of one block."""

    values: Bytes
    value_offsets: npt.NDArray[np.int64]
    blocks: list[Bytes]
    checksums: list[int]
    offsets: npt.NDArray[np.int64]

    @property
    def records(self) -> int:
        """Records in all blocks."""
        return (len(self.value_offsets) - 1) * len(self.blocks)

    @property
    def size(self) -> int:
        """Bytes in all blocks."""
        return sum(block.nbytes for block in self.blocks)


def working_set(value_size: int) -> WorkingSet:
    """Make 64 blocks of about 1 MiB with records of one size; all pages are mapped."""
    count = BLOCK_SIZE // (value_size + 5)
    values = np.random.default_rng(7).integers(0, 256, count * value_size, dtype=np.uint8)
    value_offsets = np.arange(count + 1, dtype=np.int64) * value_size
    made = []
    for _ in range(BLOCK_COUNT):
        block = np.zeros(blocks.encoded_size(value_offsets, count, RAW), np.uint8)
        blocks.encode_block(values, value_offsets, count, RAW, block, 0)
        made.append(block)
    checksums = [checksum.crc32c(block, 0, block.nbytes, 0) for block in made]
    return WorkingSet(values, value_offsets, made, checksums, np.zeros(count + 1, np.int64))


def over_blocks(value_size: int, work: Callable[[WorkingSet], object], *, records: bool = False) -> Subject:
    """A subject that processes one working set per step; reports bytes or records per second."""

    @contextmanager
    def opened() -> Iterator[Run]:
        data = working_set(value_size)
        yield rate(lambda: work(data), data.records if records else data.size)

    return opened


def _block_figures() -> Iterator[Measurement]:
    yield Measurement(
        "scan + block CRC, 1 KiB records",
        "B/s",
        Better.HIGHER,
        over_blocks(1024, _check),
        baseline=MEMORY_COPY,
        goal=Goal.ratio_at_least(0.7),
        note="validates every record boundary and writes the offsets",
    )
    yield Measurement(
        "scan, 64 B records",
        "records/s",
        Better.HIGHER,
        over_blocks(64, _scan, records=True),
        goal=Goal.value_at_least(50e6),
        note="writes the offsets; no checksum",
    )
    yield Measurement(
        "encode, 1 KiB records",
        "B/s",
        Better.HIGHER,
        over_blocks(1024, _encode),
        baseline=MEMORY_COPY,
        goal=Goal.ratio_at_least(0.5),
        note="from a buffer of values and their offsets",
    )
    yield Measurement(
        "encode + block CRC, 1 KiB records",
        "B/s",
        Better.HIGHER,
        over_blocks(1024, _encode_with_checksum),
        baseline=MEMORY_COPY,
        note="the work of a writer per batch",
    )


def _check(data: WorkingSet) -> None:
    for block, crc in zip(data.blocks, data.checksums, strict=True):
        count = blocks.check_block(
            block, 0, block.nbytes, crc, blocks.RECORDS_VERSION_2, data.offsets.size, data.offsets
        )
        assert count == data.offsets.size - 1


def _scan(data: WorkingSet) -> None:
    for block in data.blocks:
        count = blocks.scan_block(block, 0, block.nbytes, blocks.RECORDS_VERSION_2, data.offsets.size, data.offsets)
        assert count == data.offsets.size - 1


def _encode(data: WorkingSet) -> None:
    count = data.offsets.size - 1
    for block in data.blocks:
        blocks.encode_block(data.values, data.value_offsets, count, RAW, block, 0)


def _encode_with_checksum(data: WorkingSet) -> None:
    count = data.offsets.size - 1
    for block in data.blocks:
        end = blocks.encode_block(data.values, data.value_offsets, count, RAW, block, 0)
        checksum.crc32c(block, 0, end, 0)


def _checksum_figures() -> Iterator[Measurement]:
    wheel = Baseline("crc32c wheel", over_blocks(1024, _checksums_by_wheel))
    for name, kernel in (("chosen here", checksum.crc32c), ("portable", checksum.crc32c_portable)):
        yield Measurement(
            f"CRC-32C of 1 MiB, {name}", "B/s", Better.HIGHER, over_blocks(1024, _checksums_by(kernel)), baseline=wheel
        )
    yield Measurement(
        "CRC-32 (version 1) of 1 MiB", "B/s", Better.HIGHER, over_blocks(1024, _checksums_by(checksum.crc32))
    )


def _checksums_by(kernel: Callable[[Bytes, int, int, int], int]) -> Callable[[WorkingSet], object]:
    def work(data: WorkingSet) -> None:
        for block in data.blocks:
            kernel(block, 0, block.nbytes, 0)

    return work


def _checksums_by_wheel(data: WorkingSet) -> None:
    for block in data.blocks:
        crc32c_wheel.crc32c(block.data)


def _column_figures() -> Iterator[Measurement]:
    yield Measurement(
        "gather into Arrow, 100 B records",
        "records/s",
        Better.HIGHER,
        over_blocks(100, _gather_all, records=True),
        goal=Goal.value_at_least(5e6),
        note="from a block to an Arrow record batch with seq, type and value, in newly allocated memory",
    )
    yield Measurement(
        "gather into Arrow, 1 KiB records",
        "B/s",
        Better.HIGHER,
        over_blocks(1024, _gather_all),
        baseline=MEMORY_COPY,
        note="the same in bytes",
    )


def _gather_all(data: WorkingSet) -> None:
    for block in data.blocks:
        table = decode_table(block.data, base_seq=1, wanted=("value",))
        assert table.num_rows == data.offsets.size - 1


def _stored_batch_figures() -> Iterator[Measurement]:
    yield Measurement(
        "stamp a 1 MiB batch",
        "s",
        Better.LOWER,
        _stamping,
        baseline=Baseline("encode it again", _encoding_again),
        note="the wire frame is the stored batch, so the server writes 96 bytes instead of encoding the block",
    )


@contextmanager
def _stamping() -> Iterator[Run]:
    block = working_set(1024).blocks[0]
    batch = bytearray(split_figures.batch_of(block.tobytes(), 1))

    def stamp() -> None:
        batches.stamp(
            batch,
            position=Position(1),
            base_seq=Seq(1),
            base_offset=Offset(0),
            timestamp_ns=TimestampNs(1),
            term=Term(1),
        )

    steps = rate(stamp, 1.0)
    yield lambda seconds: 1 / steps(seconds)


@contextmanager
def _encoding_again() -> Iterator[Run]:
    data = working_set(1024)
    block = data.blocks[0]
    count = data.offsets.size - 1

    def again() -> None:
        end = blocks.encode_block(data.values, data.value_offsets, count, RAW, block, 0)
        checksum.crc32c(block, 0, end, 0)

    steps = rate(again, 1.0)
    yield lambda seconds: 1 / steps(seconds)
