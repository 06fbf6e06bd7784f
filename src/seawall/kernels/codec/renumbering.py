"""Renumber equal batches of one publisher in place, many in one call.

A batch is a 96-byte header (`wire.format.batches` has its byte table) and a block; the batches have one size and are
back to back. Only the client seq and the checksum of the header are written, never the block.
"""

from __future__ import annotations

from seawall.kernels.codec.batch_header import CLIENT_SEQ_AT, seal_header
from seawall.kernels.runtime.jit import bytes_out, int64, kernel, void
from seawall.kernels.runtime.memory import Bytes, store_u64


@kernel(void(bytes_out, int64, int64, int64))
def renumber_batches(buffer: Bytes, size: int, count: int, first_seq: int) -> None:
    """Number the first `count` batches of `size` bytes from client seq `first_seq` on."""
    for index in range(count):
        at = index * size
        store_u64(buffer, at + CLIENT_SEQ_AT, first_seq + index)
        seal_header(buffer, at)
