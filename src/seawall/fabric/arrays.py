"""Views of a fabric's regions as numpy arrays, without copies.

Structured arrays are for reading and filling entries; arrays of words are for concurrent access by several processes,
through `kernels.runtime.atomics` (u64: control block, tails, vectors) and `kernels.runtime.slots` (i64: slots with
tokens).

Every array of words starts on a cache line, so that no atomic access straddles one: mappings start on a page, and
regions and entries on a line.

Each broker has its own rings: `pbr[i]`, `results[i]` and `blogs[i]` are those of broker i. Code that works for all
brokers uses the entire region, one ring after the other: `…_all_words`, `blog_all_bytes`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seawall.fabric import records
from seawall.fabric.layout import FabricLayout, Region
from seawall.fabric.records import Records, Words

Bytes = npt.NDArray[np.uint8]
Counters = npt.NDArray[np.uint64]


class FabricArrays:
    """All regions of one fabric; read-only if the memory is."""

    __slots__ = (
        *("blog_all_bytes", "blogs", "broker_tails", "checkpoints", "completion_all_words", "completion_vector"),
        *("completion_words", "control", "control_words", "replica_all_words"),
        *("goi", "goi_words", "header", "pbr", "pbr_all_words", "pbr_words", "replica_vector", "replica_words"),
        *("result_all_words", "result_words", "results", "side", "side_words", "tail_all_words", "tail_words"),
    )

    def __init__(self, memory: memoryview, layout: FabricLayout) -> None:
        brokers = layout.sizes.brokers

        def entries(region: Region, dtype: np.dtype[Any]) -> Records:
            return np.frombuffer(memory, dtype, region.count, region.at)

        def counters(region: Region) -> tuple[Counters, ...]:
            words = region.entry_size // 8
            return tuple(
                np.frombuffer(memory, np.uint64, words, region.at + at * region.entry_size)
                for at in range(region.count)
            )

        def rings(region: Region, dtype: np.dtype[Any]) -> tuple[Records, ...]:
            return tuple(np.split(entries(region, dtype), brokers))

        def byte_ranges(region: Region) -> tuple[Bytes, ...]:
            return tuple(
                np.frombuffer(memory, np.uint8, region.entry_size, region.at + at * region.entry_size)
                for at in range(region.count)
            )

        self.header: Bytes = byte_ranges(layout.header)[0]
        self.control = entries(layout.control, records.CONTROL)
        self.control_words: Counters = counters(layout.control)[0]
        self.broker_tails = entries(layout.broker_tails, records.TAIL)
        self.tail_words = counters(layout.broker_tails)
        self.tail_all_words: Words = _words(self.broker_tails)
        self.replica_vector = entries(layout.replica_vector, records.REPLICA)
        self.replica_words = counters(layout.replica_vector)
        self.replica_all_words: Words = _words(self.replica_vector)
        self.completion_vector = entries(layout.completion_vector, records.COMPLETION)
        self.completion_words = counters(layout.completion_vector)
        self.completion_all_words: Words = _words(self.completion_vector)
        self.goi = entries(layout.goi, records.GOI_ENTRY)
        self.goi_words: Words = _words(self.goi)
        self.side = entries(layout.side, records.SIDE_ENTRY)
        self.side_words: Words = _words(self.side)
        self.pbr_all_words: Words = _words(entries(layout.pbr, records.PBR_ENTRY))
        self.pbr = rings(layout.pbr, records.PBR_ENTRY)
        self.pbr_words: tuple[Words, ...] = tuple(map(_words, self.pbr))
        self.result_all_words: Words = _words(entries(layout.results, records.RESULT))
        self.results = rings(layout.results, records.RESULT)
        self.result_words: tuple[Words, ...] = tuple(map(_words, self.results))
        self.checkpoints = byte_ranges(layout.checkpoint)
        self.blogs = byte_ranges(layout.blogs)
        self.blog_all_bytes: Bytes = np.frombuffer(memory, np.uint8, layout.blogs.size, layout.blogs.at)


def _words(entries: Records) -> Words:
    return entries.view(np.int64)
