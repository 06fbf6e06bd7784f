"""The page cache of a real file system: which ranges are cached, and loading them."""

import os
from pathlib import Path

import pytest

from seawall.io.disk import page_cache
from seawall.io.disk.page_cache import is_cached, load_into_cache
from seawall.limits import MIB


@pytest.fixture
def file(tmp_path: Path):
    with open(tmp_path / "file", "wb+", buffering=0) as made:
        made.write(os.urandom(4 * MIB))
        os.fsync(made.fileno())
        yield made.fileno()


def test_an_evicted_range_is_loaded_again(file: int) -> None:
    assert is_cached(file, 0, 4 * MIB)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    if is_cached(file, 0, 4 * MIB):
        pytest.skip("this file system keeps files in memory, or does not report it")
    load_into_cache(file, 0, 4 * MIB)
    assert is_cached(file, 0, 4 * MIB)


def test_loading_ignores_the_end_of_the_file_and_read_errors(file: int) -> None:
    load_into_cache(file, 3 * MIB, 4 * MIB)
    load_into_cache(-1, 0, 10)
    assert is_cached(-1, 0, 10)


def test_every_range_counts_as_cached_where_the_system_cannot_tell(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_NO_WAIT", None)
    assert is_cached(file, 0, 4 * MIB)


def test_a_range_whose_read_would_block_is_not_cached(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def preadv(_file: int, _buffers: object, at: int, _flags: int) -> int:
        if at > 3 * MIB:
            raise BlockingIOError
        return 1

    monkeypatch.setattr(page_cache.os, "preadv", preadv)
    assert is_cached(file, 0, 3 * MIB)
    assert not is_cached(file, 0, 4 * MIB)
