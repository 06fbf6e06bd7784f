"""The cache of indexes: bounded in bytes, evicts the least recently used, and an evicted index is read again."""

from __future__ import annotations

from weakref import ref

import numpy as np
import pytest

from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.io.disk.files import OsFiles
from seawall.kernels.log.segments import INDEX_ENTRY
from seawall.storage.segments import segment as segments
from seawall.storage.segments.batch_index import BatchIndex
from seawall.storage.segments.index_cache import IndexCache
from seawall.storage.segments.segment import SegmentWriter
from seawall.storage.segments.topic_directory import TopicDirectory


class Owner:
    """An owner of an index."""


A, B, C, D = (Owner() for _ in range(4))


def index_of(entries: int) -> BatchIndex:
    return BatchIndex.over(np.ones(entries, INDEX_ENTRY))


def test_the_least_recently_used_index_is_dropped_first() -> None:
    cache = IndexCache(30 * 48)
    for owner in (A, B, C):
        cache.put(owner, index_of(10))
    assert (len(cache), cache.size) == (3, 30 * 48)
    assert cache.get(A) is not None
    assert cache.peek(B) is not None
    cache.put(D, index_of(5))
    assert [owner for owner in (A, B, C, D) if cache.get(owner) is not None] == [A, C, D]
    assert cache.size == 25 * 48


def test_an_index_larger_than_the_bound_is_held_alone() -> None:
    cache = IndexCache(30 * 48)
    cache.put(A, index_of(10))
    large = index_of(100)
    cache.put(B, large)
    assert cache.get(B) is large
    assert (len(cache), cache.size) == (1, 100 * 48)
    cache.put(C, index_of(1))
    assert (cache.get(B), cache.size) == (None, 48)


def test_an_owner_has_at_most_one_index() -> None:
    cache = IndexCache(30 * 48)
    cache.put(A, index_of(10))
    cache.put(A, index_of(20))
    assert (len(cache), cache.size) == (1, 20 * 48)
    cache.discard(A)
    cache.discard(A)
    assert (len(cache), cache.size) == (0, 0)
    cache.put(A, index_of(20))
    cache.clear()
    assert (len(cache), cache.size, cache.get(A)) == (0, 0, None)


def test_a_dropped_index_is_read_again(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = IndexCache(1)
    monkeypatch.setattr(segments, "INDEXES", cache)
    home = TopicDirectory(OsFiles(), str(tmp_path), bytes(16), TopicId(1))
    made = []
    for first_seq in (1, 101):
        segment = SegmentWriter.create(home, Seq(first_seq), TimestampNs(1))
        at = segment.allocate(96)
        segment.index.append(
            base_seq=Seq(first_seq), at=at, timestamp_ns=TimestampNs(1), base_offset=0, position=9, count=100, length=96
        )
        made.append(segment.seal())
    kept = made[0].load_index()
    assert made[0].load_index() is kept
    assert made[0].index_size == 48
    assert made[1].load_index().first_seq == 101
    assert (len(cache), made[0].index_size) == (1, 0)
    assert made[0].load_index() is not kept
    assert np.array_equal(made[0].load_index().entries, kept.entries)
    assert made[0].load_ends() == (0, 9)
    made[0].close()
    assert len(cache) == 0


def test_a_garbage_collected_owner_is_removed() -> None:
    cache = IndexCache(1 << 20)
    owner, other = Owner(), Owner()
    cache.put(owner, BatchIndex())
    seen = ref(owner)
    del owner
    assert seen() is None, "the cache keeps no owner alive"
    cache.put(other, BatchIndex())
    assert len(cache) == 1
    assert cache.size == BatchIndex().memory_size
