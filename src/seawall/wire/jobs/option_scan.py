"""The options of all jobs of a block as arrays, read by a kernel: the way to read many.

They agree with `job_options`, record for record. This module must not know queues.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall.errors import CorruptionError
from seawall.kernels.codec import blocks, columns
from seawall.kernels.codec import job_options as kernels
from seawall.wire.format.fields import Buffer

Integers = npt.NDArray[np.int64]

_NAMES: Final = np.frombuffer(b"".join(kernels.OPTION_NAMES), np.uint8)
_NAME_ENDS: Final = np.cumsum([len(name) for name in kernels.OPTION_NAMES], dtype=np.int64)


class JobFields(NamedTuple):
    """One element for each record of a block, also for deleted ones."""

    #: When the job may be claimed first; 0 at once.
    not_before_ms: Integers
    priorities: Integers
    #: Where in the block the unique keys are; length −1 for none.
    unique_starts: Integers
    unique_lengths: Integers
    #: The start of each record in the block, and the end of the last one.
    offsets: Integers


#: The options of one record that has none, shared by all such blocks.
_DEFAULT: Final = np.array([[0], [0], [0], [-1]], np.int64)
_DEFAULT.flags.writeable = False


def scan_job_options(block: Buffer, record_count: int) -> JobFields:
    """The job options of a block of stored, uncompressed records; `CorruptionError` if it has another count of them."""
    if record_count == 1 and len(block) > 0 and block[0] != blocks.TYPE_EXTENDED:
        return _fields(_DEFAULT, np.array([0, len(block)], np.int64))
    source = np.frombuffer(block, np.uint8)
    offsets = np.empty(record_count + 1, np.int64)
    count = blocks.scan_block(source, 0, source.size, blocks.RECORDS_STORED, record_count, offsets)
    if count != record_count:
        raise CorruptionError(
            f"a block of {source.size} bytes is not a run of records, or has not {record_count} of them (code {count})"
        )
    options = np.zeros((4, count), np.int64)
    options[3] = -1
    starts, lengths = np.empty((2, columns.COLUMN_COUNT, 1), np.int64)
    timestamps = np.empty(1, np.int64)
    kernels.read_job_options(source, offsets, count, _NAMES, _NAME_ENDS, starts, lengths, timestamps, options)
    return _fields(options, offsets)


def _fields(options: Integers, offsets: Integers) -> JobFields:
    not_before_ms, priorities, unique_starts, unique_lengths = options
    return JobFields(not_before_ms, priorities, unique_starts, unique_lengths, offsets)
