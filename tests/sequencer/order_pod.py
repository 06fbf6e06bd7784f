"""A minimal pod around one order worker: brokers, a frontier and storage, over a small fabric."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

import numpy as np

from seawall.core.types import ClientId
from seawall.fabric import records
from seawall.fabric.arrays import FabricArrays
from seawall.fabric.layout import FabricLayout, FabricSizes
from seawall.fabric.records import Words
from seawall.kernels.runtime.rings import CONSUMED, PRODUCED
from seawall.kernels.runtime.slots import publish_slot
from seawall.limits import KIB
from seawall.sequencer.collector import Collector, CollectorSettings
from seawall.sequencer.order_worker import OrderSettings, OrderWorker
from seawall.sequencer.shared import FLOOR, SequencerShared, SpscRing

SYNTHETIC = 1 << 63
TERM = 70_003
UNKNOWN = (1 << 64) - 1


def small_fabric(brokers: int = 2, goi_entries: int = 128, pbr_entries: int = 64) -> FabricArrays:
    sizes = FabricSizes(
        brokers=brokers,
        goi_entries=goi_entries,
        pbr_entries=pbr_entries,
        checkpoint_size=8 * KIB,
        blog_size=64 * KIB,
    )
    layout = FabricLayout.of(sizes)
    return FabricArrays(memoryview(mmap.mmap(-1, layout.size)), layout)


@dataclass(slots=True)
class StoredRows:
    """Rows of clients as they were saved last, and the calls: ("load" or "save", client)."""

    rows: dict[int, bytes] = field(default_factory=dict)
    log: list[tuple[str, int]] = field(default_factory=list)

    def load(self, client_id: ClientId) -> bytes | None:
        self.log.append(("load", client_id))
        return self.rows.get(client_id)

    def save(self, rows: bytes) -> None:
        for at in range(0, len(rows), 64):
            row = rows[at : at + 64]
            client_id = int.from_bytes(row[:8], "little")
            self.log.append(("save", client_id))
            self.rows[client_id] = row


def taken_from(ring: SpscRing) -> list[tuple[int, ...]]:
    """All items of a ring, as its consumer takes them."""
    items = ring.words.reshape(-1, ring.item_words)
    first, end = int(ring.counters[CONSUMED]), int(ring.counters[PRODUCED])
    ring.counters[CONSUMED] = end
    return [tuple(items[index % ring.capacity].tolist()) for index in range(first, end)]


class Pod:
    """A fabric with a collector and a worker; the test acts as brokers and frontier."""

    def __init__(
        self,
        arrays: FabricArrays | None = None,
        settings: OrderSettings | None = None,
        *,
        start: int = 0,
        stuck_after_ns: int = 1_000,
        queue_refs: int = 64,
    ) -> None:
        self.arrays = arrays or small_fabric()
        self.goi_entries = len(self.arrays.goi)
        self.pbr_entries = len(self.arrays.pbr[0])
        self.arrays.control["committed"] = start
        self.shared = SequencerShared.make(self.goi_entries, start=start, queue_refs=queue_refs, range_items=64)
        self.stored = StoredRows()
        self.collector = Collector(
            *(self.arrays, self.shared, 0, range(len(self.arrays.pbr))),
            CollectorSettings(slots_per_ring=32, stuck_after_ns=stuck_after_ns),
        )
        self.worker = OrderWorker(self.arrays, self.shared, 0, term=TERM, rows=self.stored, settings=settings)
        self.claimed = [0] * len(self.arrays.pbr)
        self.position = start
        #: Positions that the frontier refuses, with a reason.
        self.refusals: dict[int, int] = {}

    def claim(self, broker: int) -> int:
        index = self.claimed[broker]
        self.claimed[broker] += 1
        self.arrays.tail_words[broker][0] = index + 1
        return index

    def publish(self, broker: int, client: int, seq: int, *, index: int | None = None, **fields: int) -> int:
        """Publish a batch in the next slot, or in one that is claimed; its ref."""
        at = self.claim(broker) if index is None else index
        entry = np.zeros(1, records.PBR_ENTRY)
        content = {
            "blog_offset": (1 << 40) + 64 * at,
            "size": 200 + at,
            "record_count": 3,
            "topic_id": 5,
            "block_crc": 7,
            "term": 9,
            "session_epoch": 1,
            **fields,
        }
        for name, value in content.items():
            entry[name] = value
        entry["broker"], entry["client_id"], entry["client_seq"] = broker, client, seq
        publish_slot(self.arrays.pbr_words[broker], records.PBR_TOKEN, at, entry.view(np.int64))
        return broker << 48 | at

    def step(self, now_ns: int = 0) -> int:
        self.collector.step(now_ns)
        return self.worker.step(now_ns)

    def entries(self) -> list[np.void]:
        """Entries that were reported to the frontier since the last call; each is at its position, with its token."""
        found = []
        for start, end in taken_from(self.shared.ranges[0]):
            assert start == self.position
            for position in range(start, end):
                entry = self.arrays.goi[position % self.goi_entries]
                assert entry["token"] == position + 1
                found.append(entry.copy())
            self.position = end
        return found

    def commit(self, end: int) -> None:
        """Commit positions below `end`, which are written: numbers for batches, then results."""
        first = int(self.arrays.control["committed"][0])
        for position in range(first, end):
            entry = self.arrays.goi[position % self.goi_entries]
            side = self.arrays.side[position % self.goi_entries]
            reason = self.refusals.get(position, 0)
            side["topic_id"], side["status"] = entry["topic_id"], 2 if reason else 0
            side["base_seq"], side["timestamp_ns"] = position + 1_000, position + 2_000
        self.arrays.control["committed"] = end
        for position in range(first, end):
            entry = self.arrays.goi[position % self.goi_entries]
            if entry["broker"] != 0xFFFF:
                self._write_result(entry, self.refusals.get(position, 0))

    def _write_result(self, entry: np.void, reason: int) -> None:
        result = np.zeros(1, records.RESULT)
        result["status"], result["reason"] = 2 if reason else 0, reason
        words: Words = self.arrays.result_words[int(entry["broker"])]
        publish_slot(words, records.RESULT_TOKEN, int(entry["pbr_index"]), result.view(np.int64))

    def complete(self) -> None:
        """All that is committed is durable, and a checkpoint was taken."""
        self.shared.counters[FLOOR] = int(self.arrays.control["committed"][0])
