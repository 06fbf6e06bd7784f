"""Checkpoints of the sequencer in the fabric: two slots, written alternately, so that one is always complete.

A slot is a header of 64 bytes and rows of 64 bytes, those of clients first, then those of topics; the owners of the
rows define their format.

| at | size | field        | notes                                                                        |
|----|------|--------------|------------------------------------------------------------------------------|
| 0  | 8    | generation   | from 1, rises by one; its parity is the slot; 0 while rows are written        |
| 8  | 8    | position     | the rows include all batches below it: replay begins here                     |
| 16 | 8    | term         | of the leader that wrote it                                                  |
| 24 | 8    | timestamp_ns | the last assigned timestamp: the clock continues after it                    |
| 32 | 4    | client_rows  |                                                                              |
| 36 | 4    | topic_rows   |                                                                              |
| 40 | 4    | rows_crc     | CRC-32C of the rows                                                          |
| 44 | 4    | header_crc   | CRC-32C of bytes 0–43                                                        |
| 48 | 16   | zero         |                                                                              |

Valid: a generation of this slot, rows that fit, both checksums. The newest is the valid one with the higher generation.

INV-CHECKPOINT-OTHER: writing a checkpoint never touches the slot of the newest one. A crash during the write leaves an
invalid slot, and the previous checkpoint.

The commit frontier is the only writer; readers work on a copy, since the writer may overwrite the slot meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seawall.errors import InvalidInputError, LimitError
from seawall.fabric.arrays import Bytes, FabricArrays
from seawall.fabric.layout import CHECKPOINT_ROW_SIZE, CHECKPOINT_SLOTS
from seawall.fabric.records import CHECKPOINT_HEADER
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.wire.format.frames import checksum

_HEADER_CRC_AT = 44


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The content of one slot; rows are bytes, 64 each."""

    generation: int
    position: int
    term: int
    timestamp_ns: int
    clients: Bytes
    topics: Bytes


def write_checkpoint(arrays: FabricArrays, checkpoint: Checkpoint) -> None:
    """Overwrite the older checkpoint; the generation must be that of the newest + 1."""
    expected = _newest_generation(arrays) + 1
    if checkpoint.generation != expected:
        raise InvalidInputError(f"a checkpoint of generation {checkpoint.generation}; the next one is {expected}")
    clients, topics = _rows(checkpoint.clients), _rows(checkpoint.topics)
    size = clients.size + topics.size
    slot = arrays.checkpoints[checkpoint.generation % CHECKPOINT_SLOTS]
    capacity = slot.size - CHECKPOINT_ROW_SIZE
    if size > capacity:
        raise LimitError(
            f"a checkpoint of {size} bytes, a slot holds {capacity}; enlarge fabric.checkpoint_size to "
            f"{CHECKPOINT_SLOTS * (size + CHECKPOINT_ROW_SIZE)}"
        )
    header = np.zeros(1, CHECKPOINT_HEADER)
    fields = header[0]
    for name in ("generation", "position", "term", "timestamp_ns"):
        fields[name] = getattr(checkpoint, name)
    fields["client_rows"] = checkpoint.clients.size // CHECKPOINT_ROW_SIZE
    fields["topic_rows"] = checkpoint.topics.size // CHECKPOINT_ROW_SIZE
    fields["rows_crc"] = checksum(topics.data, checksum(clients.data))
    fields["header_crc"] = checksum(header.view(np.uint8)[:_HEADER_CRC_AT].data)
    generation = slot[:8].view(np.uint64)
    store_release_u64(generation, 0, 0)
    topics_at = CHECKPOINT_ROW_SIZE + clients.size
    slot[CHECKPOINT_ROW_SIZE:topics_at] = clients
    slot[topics_at : topics_at + topics.size] = topics
    slot[8:CHECKPOINT_ROW_SIZE] = header.view(np.uint8)[8:]
    store_release_u64(generation, 0, checkpoint.generation)


def read_checkpoint(arrays: FabricArrays, slot: int) -> Checkpoint | None:
    """A copy of the checkpoint in a slot; None if it is not valid."""
    memory = arrays.checkpoints[slot]
    header = _valid_header(memory, slot)
    if header is None:
        return None
    rows = _rows_of(memory, header).copy()
    if int(header["rows_crc"]) != checksum(rows.data):
        return None
    middle = CHECKPOINT_ROW_SIZE * int(header["client_rows"])
    return Checkpoint(
        generation=int(header["generation"]),
        position=int(header["position"]),
        term=int(header["term"]),
        timestamp_ns=int(header["timestamp_ns"]),
        clients=rows[:middle],
        topics=rows[middle:],
    )


def newest_checkpoint(arrays: FabricArrays) -> Checkpoint | None:
    """The checkpoint to recover from; None if no slot is valid."""
    found = [read_checkpoint(arrays, slot) for slot in range(CHECKPOINT_SLOTS)]
    return max((each for each in found if each), key=lambda each: each.generation, default=None)


def _newest_generation(arrays: FabricArrays) -> int:
    """The generation of the newest checkpoint, 0 if there is none. Only for the writer: needs no copy."""
    headers = [(memory, _valid_header(memory, slot)) for slot, memory in enumerate(arrays.checkpoints)]
    found = [(int(header["generation"]), memory, header) for memory, header in headers if header is not None]
    for generation, memory, header in sorted(found, key=lambda each: -each[0]):
        # Checking rows is slow, and the newest ones are nearly always valid: mostly one check is enough.
        if int(header["rows_crc"]) == checksum(_rows_of(memory, header).data):
            return generation
    return 0


def _valid_header(memory: Bytes, slot: int) -> np.void | None:
    """A copy of a slot's header; None if it is not valid or its rows do not fit."""
    head = memory[:CHECKPOINT_ROW_SIZE].copy()
    header: np.void = head.view(CHECKPOINT_HEADER)[0]
    generation = int(header["generation"])
    if generation == 0 or generation % CHECKPOINT_SLOTS != slot:
        return None
    if int(header["header_crc"]) != checksum(head[:_HEADER_CRC_AT].data):
        return None
    rows = int(header["client_rows"]) + int(header["topic_rows"])
    return header if CHECKPOINT_ROW_SIZE * (1 + rows) <= memory.size else None


def _rows_of(memory: Bytes, header: np.void) -> Bytes:
    """A view of the rows of a slot."""
    rows = int(header["client_rows"]) + int(header["topic_rows"])
    return memory[CHECKPOINT_ROW_SIZE : CHECKPOINT_ROW_SIZE * (1 + rows)]


def _rows(rows: Bytes) -> Bytes:
    if rows.ndim != 1 or rows.size % CHECKPOINT_ROW_SIZE:
        raise InvalidInputError(f"rows of shape {rows.shape}: they are bytes, {CHECKPOINT_ROW_SIZE} for each row")
    return rows
