"""Validates the records of compressed batches without blocking the event loop.

Only the records show whether a batch is valid, so the server decompresses each compressed batch once on arrival. 64 KiB
may decompress to 16 MiB, which takes tens of milliseconds. So the loop itself checks only a little, and threads without
the interpreter lock check the rest. Meanwhile the connection waits: it keeps its frames, and feeds them again when the
verdicts are known.

A verdict applies to the bytes that are fed again: nothing else is received on the connection until then.

A crash loses nothing that was answered. This module must not know rings or sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.engine.serving.served_log import ServedLog
from seawall.errors import CorruptionError
from seawall.kernels.admission import arriving
from seawall.kernels.codec.batch_header import RAW_LENGTH_AT
from seawall.kernels.codec.blocks import RECORDS_VERSION_2, scan_block
from seawall.kernels.codec.frames import Rows
from seawall.server.connection.session import Bytes
from seawall.server.publish.producer_session import ProducerSession
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.codes import BatchFlags, ErrorCode
from seawall.wire.format.compression import decompress

_HEADER: Final = limits.BATCH_HEADER_SIZE
_NO_OFFSETS: Final = np.zeros(0, np.int64)


class CompressedBatches:
    """Checks the compressed batches of all connections of a loop."""

    def __init__(self, log: ServedLog, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def resolve(self, producer: ProducerSession, buffer: Bytes, rows: Rows, verdicts: npt.NDArray[np.int64]) -> int:
        """Replace the INSPECT verdicts as far as known; returns the number of leading rows with a final verdict.

        If that is not all rows, a thread checks the others, and the connection resumes after that.
        """
        unchecked = np.flatnonzero(verdicts == arriving.INSPECT)
        known = producer.checked[: unchecked.size]
        verdicts[unchecked[: len(known)]] = known
        left = unchecked[len(known) :].tolist()
        budget = limits.CHECK_INLINE_SIZE
        for number, index in enumerate(left):
            at, size = rows[["at", "size"]][index].tolist()
            budget -= _raw_length(buffer, at)
            if budget < 0:
                self._begin(producer, buffer, rows[left[number:]])
                return int(index)
            verdicts[index] = _verdict(buffer[at : at + size].tobytes())
        return int(rows.size)

    def _begin(self, producer: ProducerSession, buffer: Bytes, rows: Rows) -> None:
        """Check some of these batches on a thread, at least the first."""
        batches: list[bytes] = []
        raw_size = raw_max = 0
        for at, size in rows[["at", "size"]].tolist():
            raw_length = _raw_length(buffer, at)
            if batches and raw_size + raw_length > limits.CHECK_SIZE:
                break
            batches.append(buffer[at : at + size].tobytes())
            raw_size += raw_length
            raw_max = max(raw_max, raw_length)
        producer.is_checking = True
        task = self._loop.create_task(self._check(producer, batches, sum(map(len, batches)) + raw_max))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, producer: ProducerSession, batches: Sequence[bytes], size: int) -> None:
        account = producer.memory
        try:
            with nullcontext() if account is None else account.lease() as lease:
                if lease is not None:
                    await lease.acquire(size)
                producer.checked = await self._log.run_check(partial(_verdicts, batches))
        finally:
            producer.is_checking = False
        producer.session.resume()


def _raw_length(buffer: Bytes, at: int) -> int:
    return int.from_bytes(buffer[at + RAW_LENGTH_AT : at + RAW_LENGTH_AT + 4].tobytes(), "little")


def _verdicts(batches: Sequence[bytes]) -> list[int]:
    return [_verdict(batch) for batch in batches]


def _verdict(batch: bytes) -> int:
    """The verdict on a compressed batch by its content."""
    try:
        header = parse_batch_header(batch, source=BatchSource.STORED)
        block = np.frombuffer(decompress(header.codec, memoryview(batch)[_HEADER:], header.raw_length), np.uint8)
        count = 1
        if not header.flags & BatchFlags.OPAQUE:
            scan = (block, 0, block.size, RECORDS_VERSION_2, limits.BATCH_RECORDS_MAX)
            count = scan_block(*scan, _NO_OFFSETS)
        is_sound = count == header.record_count
    except CorruptionError:
        is_sound = False
    return arriving.ACCEPTED if is_sound else int(ErrorCode.INVALID_PAYLOAD) | arriving.NUMBER_USED
