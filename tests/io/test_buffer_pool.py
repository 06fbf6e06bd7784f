"""Memory that goes from files that are gone to those that come, and never to two at a time."""

from __future__ import annotations

import gc
import mmap
from concurrent.futures import ThreadPoolExecutor

import pytest

from seawall.io.disk.buffer_pool import BUFFER_SIZE_MAX, BufferPool
from seawall.limits import KIB, MIB


def test_a_piece_comes_back_with_the_last_view_of_it() -> None:
    spare = BufferPool()
    piece = spare.take(MIB)
    piece[:3] = 7
    view = piece[10:20][2:].data[1:]
    del piece
    assert spare.size == 0
    other = spare.take(MIB)
    assert not other[:3].any()
    del view
    assert spare.size == MIB
    again = spare.take(MIB)
    assert again[:3].tolist() == [7, 7, 7]
    assert spare.size == 0


def test_pieces_of_few_sizes_fit_files_of_any() -> None:
    spare = BufferPool()
    old = [spare.take(size) for size in (4 * MIB, 4 * MIB, 64 * KIB)]
    old.clear()
    assert spare.size == 8 * MIB + 64 * KIB
    taken = [spare.take(size) for size in (64 * KIB, 128 * KIB, BUFFER_SIZE_MAX)]
    assert spare.size == 4 * MIB
    assert [len(piece) for piece in taken] == [64 * KIB, 128 * KIB, BUFFER_SIZE_MAX]


def test_no_more_than_a_bound_is_kept_beside_half_of_what_is_used() -> None:
    spare = BufferPool()
    pieces = [spare.take(10 * MIB) for _ in range(20)]
    del pieces[:10]
    assert spare.size == 100 * MIB
    pieces.clear()
    assert spare.size == 60 * MIB
    large = [spare.take(32 * MIB) for _ in range(4)]
    large.clear()
    assert spare.size <= 64 * MIB


def test_what_goes_while_somebody_takes_is_kept_then(monkeypatch: pytest.MonkeyPatch) -> None:
    spare = BufferPool()

    class Pieces(dict[int, list[mmap.mmap]]):
        """The last view of a piece goes where nobody expects it: in the middle of a change."""

        def get(self, size: int, default: object = None) -> object:
            held.clear()
            gc.collect()
            return dict.get(self, size, default)

    held = [spare.take(MIB)]
    monkeypatch.setattr(spare, "_free", Pieces())
    taken = spare.take(MIB)
    assert (len(taken), spare.size) == (MIB, MIB)


def test_many_threads_never_have_the_same_piece() -> None:
    spare = BufferPool()

    def work(number: int) -> None:
        for _ in range(200):
            piece, other = spare.take(64 * KIB), spare.take(128 * KIB)
            piece[:], other[:] = number, number
            assert (piece == number).all()
            assert (other == number).all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(1, 9)))
    assert spare._used == 0
    assert spare.size <= 8 * 192 * KIB
