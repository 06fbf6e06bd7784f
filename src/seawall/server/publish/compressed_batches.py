"""Compressed batches of connections: whether their records are what they say, found out without holding up the loop.

Only the records tell whether a batch may be taken, so a compressed one is decompressed once on arrival. 64 KiB may
become 16 MiB, tens of milliseconds each. So little of that is done on the loop, and the rest on threads that hold no
lock of the interpreter. The connection waits meanwhile: its frames stay where they are, and come again with the
verdicts at hand.

A verdict is about the bytes that come again: nothing else is received on the connection until then.

A crash takes nothing that was answered. This module must not know rings or sockets.
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
    """What is found out about the compressed batches of all connections of a loop."""

    def __init__(self, log: ServedLog, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()

    def judge(self, publishing: ProducerSession, buffer: Bytes, rows: Rows, verdicts: npt.NDArray[np.int64]) -> int:
        """Replace the verdicts LOOK by those that are known now; how many rows that are, from the first on.

        If that is not all, the others are looked at on a thread, and the connection goes on after that.
        """
        looks = np.flatnonzero(verdicts == arriving.LOOK)
        known = publishing.checked[: looks.size]
        verdicts[looks[: len(known)]] = known
        left = looks[len(known) :].tolist()
        here = limits.CHECK_HERE_SIZE
        for number, index in enumerate(left):
            at, size = rows[["at", "size"]][index].tolist()
            here -= _raw_length(buffer, at)
            if here < 0:
                self._begin(publishing, buffer, rows[left[number:]])
                return int(index)
            verdicts[index] = _verdict(buffer[at : at + size].tobytes())
        return int(rows.size)

    def _begin(self, publishing: ProducerSession, buffer: Bytes, rows: Rows) -> None:
        """Look at some of these batches on a thread, at least at the first."""
        batches: list[bytes] = []
        raw_size = raw_most = 0
        for at, size in rows[["at", "size"]].tolist():
            raw_length = _raw_length(buffer, at)
            if batches and raw_size + raw_length > limits.CHECK_SIZE:
                break
            batches.append(buffer[at : at + size].tobytes())
            raw_size += raw_length
            raw_most = max(raw_most, raw_length)
        publishing.is_checking = True
        task = self._loop.create_task(self._check(publishing, batches, sum(map(len, batches)) + raw_most))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _check(self, publishing: ProducerSession, batches: Sequence[bytes], size: int) -> None:
        account = publishing.memory
        try:
            with nullcontext() if account is None else account.lease() as lease:
                if lease is not None:
                    await lease.acquire(size)
                publishing.checked = await self._log.run_check(partial(_verdicts, batches))
        finally:
            publishing.is_checking = False
        publishing.publisher.go_on()


def _raw_length(buffer: Bytes, at: int) -> int:
    return int.from_bytes(buffer[at + RAW_LENGTH_AT : at + RAW_LENGTH_AT + 4].tobytes(), "little")


def _verdicts(batches: Sequence[bytes]) -> list[int]:
    return [_verdict(whole) for whole in batches]


def _verdict(whole: bytes) -> int:
    """What is to become of a compressed batch, judged by what is in it."""
    try:
        header = parse_batch_header(whole, source=BatchSource.STORED)
        block = np.frombuffer(decompress(header.codec, memoryview(whole)[_HEADER:], header.raw_length), np.uint8)
        count = 1
        if not header.flags & BatchFlags.OPAQUE:
            scan = (block, 0, block.size, RECORDS_VERSION_2, limits.BATCH_RECORDS_MAX)
            count = scan_block(*scan, _NO_OFFSETS)
        is_sound = count == header.record_count
    except CorruptionError:
        is_sound = False
    return arriving.TAKEN if is_sound else int(ErrorCode.INVALID_PAYLOAD) | arriving.NUMBER_USED
