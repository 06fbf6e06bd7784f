"""Job options, found by parsing each envelope of the columns' twin into a list of headers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seawall.kernels.codec.blocks import Offsets
from seawall.kernels.codec.columns import COLUMN_HEADERS, Spans
from seawall.kernels.runtime.memory import Bytes
from twins.codec.columns import locate_envelopes


def read_job_options(
    block: Bytes,
    offsets: Offsets,
    count: int,
    names: Bytes,
    name_ends: npt.NDArray[np.int64],
    starts: Spans,
    lengths: Spans,
    timestamps: npt.NDArray[np.int64],
    options: Spans,
) -> int:
    """Write the options of each record. Returns how many records have one."""
    ends = name_ends.tolist()
    wanted = [names[start:end].tobytes() for start, end in zip([0, *ends], ends, strict=False)]
    found = 0
    for index in range(count):
        locate_envelopes(block, offsets[index : index + 2], 1, starts, lengths, timestamps)
        if lengths[COLUMN_HEADERS, 0] >= 0:
            found += _read(block.tobytes(), int(starts[COLUMN_HEADERS, 0]), wanted, options[:, index])
    return found


def _read(data: bytes, at: int, wanted: list[bytes], options: npt.NDArray[np.int64]) -> bool:
    """Write the options of a header list; true if it has one."""
    first: dict[bytes, tuple[int, bytes]] = {}
    count = int.from_bytes(data[at : at + 2], "little")
    at += 2
    for _ in range(count):
        length = int.from_bytes(data[at : at + 2], "little")
        name = data[at + 2 : at + 2 + length]
        at += 2 + length
        length = int.from_bytes(data[at : at + 4], "little")
        first.setdefault(name, (at + 4, data[at + 4 : at + 4 + length]))
        at += 4 + length
    is_found = False
    for row, (name, digits_max) in enumerate(zip(wanted[:2], (18, 1), strict=True)):
        _, value = first.get(name, (0, b""))
        if value.isdigit() and len(value) <= digits_max:
            options[row], is_found = int(value), True
    start, value = first.get(wanted[2], (0, b""))
    if 1 <= len(value) <= 255:
        options[2:], is_found = (start, len(value)), True
    return is_found
