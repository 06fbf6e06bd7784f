"""Appends batches to topics by one compound: what transactions and routers have in common.

    1. reserve        space in one segment of each topic, and in the log: a full disk is found here
    2. (the caller writes the batches to their segment positions, without a sync)
    3. number         all batches at one position
    4. write_headers  the new headers, over what the caller wrote; sync the segment, index the batches
    5. commit         one compound with references to the batches and the parts of the caller; it takes effect

Nothing is promised before step 3: a refusal or a full disk until then leaves bytes after the end of a segment, which
nothing reads (`roll_back`). From there on only a failing disk prevents the compound, and it ends all writing to the
store. The log refers to the batches only after all of them are durable in their segments.

The compound contains the ceilings that its batches need: no reader sees a seq above the durable ceilings before the
compound is durable as well.

One owner at a time, the owner of the store. This module must not know where the batches come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Position, Seq, TimestampNs, TopicId
from seawall.engine.commit.appends import NO_SESSION
from seawall.engine.store.control_log import HEADROOM
from seawall.engine.store.parts import StoreParts
from seawall.engine.transactions.plan import CompoundAppends, TopicWrite
from seawall.kernels.admission.frontier import Rows
from seawall.kernels.runtime.memory import Bytes
from seawall.storage.control.batches import SimpleControl
from seawall.storage.control.codec import Ceiling, Reference
from seawall.storage.control.deletes import DeleteRecords
from seawall.storage.control.documents import FloorRaise
from seawall.storage.segments.batch_index import INDEX_ENTRY, Entries
from seawall.wire.format.batches import BatchSource, parse_batch_header
from seawall.wire.format.codes import AS_TOPIC, BatchFlags

_HEADER: Final = limits.BATCH_HEADER_SIZE


class CompoundNumbers(NamedTuple):
    """The numbers of the batches of one compound, which share position and time."""

    position: Position
    timestamp_ns: TimestampNs
    #: The index entries of the batches.
    entries: Entries
    record_count: int


class CompoundWriter:
    """Writes the compounds of one store."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts
        self._writer = parts.writer
        self._ceiling_step = parts.settings.ceiling_step

    def reserve_log(self, size: int, now: int) -> None:
        """Reserve space for a compound in the log; what else it needs is reserved for the same number of bytes."""
        self._writer.reserve(size + HEADROOM, TimestampNs(now))

    def reserve(
        self, write: TopicWrite, appends: CompoundAppends, lengths: npt.NDArray[np.uint64], logged: int, now: int
    ) -> None:
        """Reserve space for the batches of one topic, in one segment; `lengths` are the bytes of those batches."""
        write.reservation = self._parts.reserver.reserve(write.topic, write.need, logged + HEADROOM, TimestampNs(now))
        write.controls_before = write.reservation.controls
        segment = write.reservation.segment.segment
        appends.pins.pin(segment.shared)
        appends.segments[write.numbers] = segment.first_seq
        appends.file_positions[write.numbers] = lengths.cumsum() - lengths + np.uint64(segment.end)

    def roll_back(self, appends: CompoundAppends) -> None:
        """Undo all reservations: the compound is not written."""
        appends.pins.unpin_all()
        for write in appends.writes.values():
            if write.reservation is not None:
                self._parts.reserver.roll_back(write.reservation)

    def controls_before(self, appends: CompoundAppends) -> list[SimpleControl]:
        """The controls to log before the batches. New ceilings apply at once; their seqs stay invisible until the
        commit."""
        controls: list[SimpleControl] = []
        for topic_id, write in appends.writes.items():
            controls += write.controls_before
            for raised in self.plan_ceiling(topic_id, write.need.records):
                self._writer.frontier.set_ceiling(topic_id, raised.ceiling)
                controls.append(raised)
        return controls

    def plan_ceiling(self, topic_id: TopicId, records: int) -> list[Ceiling]:
        """The higher ceiling that a topic needs for some more seqs, if it needs one."""
        numbers = self._writer.frontier.topic(topic_id)
        end_seq = numbers.next_seq + records
        if numbers.ceiling - end_seq >= self._ceiling_step // 4:
            return []
        return [Ceiling(topic_id, Seq(end_seq + self._ceiling_step), numbers.ceiling)]

    def number(self, appends: CompoundAppends, now: int) -> CompoundNumbers:
        """Number the batches. `commit` must follow."""
        position, timestamp_ns, rows = self._writer.number_transaction(appends.headers, now)
        records = int(rows["record_count"].sum(dtype=np.int64))
        return CompoundNumbers(position, timestamp_ns, _entries(rows, appends.file_positions), records)

    def write_headers(self, write: TopicWrite, appends: CompoundAppends, entries: Entries) -> None:
        """Write the new headers of a topic's batches over those in the segment, sync it, and index the batches."""
        segment = write.made_reservation.segment.segment
        segment.allocate(write.need.size)
        for number in write.numbers:
            segment.write_at(int(appends.file_positions[number]), [appends.header(number).data])
        segment.sync()
        segment.index.extend(entries[write.numbers])

    def references(self, appends: CompoundAppends) -> list[Reference]:
        """A reference to each batch, with its new header."""
        found = []
        for number in range(len(appends)):
            header = parse_batch_header(appends.header(number).tobytes(), source=BatchSource.STORED)
            found.append(Reference(header, Seq(int(appends.segments[number])), int(appends.file_positions[number])))
        return found

    def commit(self, parts: Sequence[SimpleControl], numbers: CompoundNumbers) -> None:
        """Log the compound durably and apply it."""
        control = self._writer.control_of(parts)
        self._writer.stage_transaction(control, numbers.position, numbers.timestamp_ns)
        self._writer.flush(durable=True)
        self._parts.catalog.apply(control, numbers.position)

    def settle(self, parts: Sequence[SimpleControl]) -> None:
        """Note the evictions and deletes of a compound: segments without live records may be dropped."""
        cleaner = self._parts.cleaner
        for part in parts:
            if isinstance(part, FloorRaise):
                cleaner.evicted(part)
            elif isinstance(part, DeleteRecords):
                cleaner.deleted(part)


def restamp(headers: Bytes, topic_ids: npt.NDArray[np.uint32]) -> None:
    """Turn headers of stored batches into headers of other topics: no session, no key, order and ack level of the
    topic."""
    rows = headers.reshape(-1, _HEADER)
    rows[:, 12:20] = 0
    rows[:, 40:44] = topic_ids.astype("<u4").view(np.uint8).reshape(-1, 4)
    rows[:, 48:56] = np.frombuffer(NO_SESSION.to_bytes(8, "little"), np.uint8)
    rows[:, 88:92] = 0
    rows[:, 92:94] = AS_TOPIC
    rows[:, 95] &= int(BatchFlags.OPAQUE)


def _entries(rows: Rows, file_positions: npt.NDArray[np.uint64]) -> Entries:
    """The index entries of numbered batches at their file positions."""
    entries: Entries = np.zeros(len(rows), INDEX_ENTRY)
    for name in ("base_seq", "timestamp_ns", "base_offset", "position"):
        entries[name] = rows[name]
    entries["count"], entries["length"] = rows["record_count"], rows["size"]
    entries["at"] = file_positions
    return entries
