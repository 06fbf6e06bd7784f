"""Headers encoded field by field, then the twins of admission."""

from __future__ import annotations

from seawall.kernels.admission.client_window import WindowArrays
from seawall.kernels.admission.frontier import FrontierArrays, Rows
from seawall.kernels.log.staging import DraftFields
from seawall.kernels.runtime.memory import Bytes
from twins.admission.client_frontier import admit_client_batch
from twins.admission.frontier import admit_batch
from twins.codec.checksum import crc32c_portable


def write_header(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    record_count: int,
    topic_id: int,
    client_id: int,
    client_seq: int,
    session_epoch: int,
    raw_length: int,
    choices: int,
) -> None:
    """Write the 96 bytes, field by field."""
    pieces = (
        (b"LANC\x02\x04\x00\x00", 8),
        (0, 4),
        (client_seq, 8),
        (0, 8),
        (record_count, 4),
        (52 + end - start, 4),
        (crc32c_portable(block, start, end, 0), 4),
        (topic_id, 4),
        (0, 4),
        (client_id, 8),
        (0, 24),
        (raw_length, 4),
        (0, 4),
        (session_epoch, 4),
        (choices, 4),
    )
    for value, size in pieces:
        data = value if isinstance(value, bytes) else (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        header[at : at + size] = memoryview(data)
        at += size


def number_batch(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    draft: DraftFields,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    rows: Rows,
) -> int:
    """Write the header, then admit."""
    write_header(header, at, block, start, end, *draft)
    return admit_batch(header, at, term, wall_ns, frontier, rows, 0)


def number_client_batch(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    draft: DraftFields,
    term: int,
    wall_ns: int,
    frontier: FrontierArrays,
    window: WindowArrays,
    answers: Rows,
    rows: Rows,
) -> int:
    """Write the header, then admit through the client window."""
    write_header(header, at, block, start, end, *draft)
    return admit_client_batch(header, at, term, wall_ns, frontier, window, answers, rows, 0)
