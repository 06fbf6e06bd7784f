"""Where large batches are received that may stay there: no two have the same bytes, and what is left over goes."""

from __future__ import annotations

import numpy as np
import pytest

from seawall.engine import landing as landings
from seawall.engine.landing import Landing
from seawall.io.memory_files import MemoryFile, MemoryFiles
from seawall.io.spare_pieces import SLAB_SIZE, SparePieces
from seawall.kernels.memory import Bytes
from seawall.limits import MIB


@pytest.fixture
def spare() -> SparePieces:
    return SparePieces()


@pytest.fixture
def landing(spare: SparePieces) -> Landing:
    return Landing(spare)


@pytest.fixture
def file(spare: SparePieces) -> MemoryFile:
    return MemoryFiles(spare).open("/file", create=True)


def nobody() -> None:
    """Whoever receives has left already."""


def bytes_of(text: bytes) -> Bytes:
    return np.frombuffer(text, np.uint8)


def test_what_stays_is_followed_by_the_next_and_what_does_not_leaves_its_place(
    landing: Landing, file: MemoryFile
) -> None:
    first = landing.lend(3, nobody)
    first[:] = bytes_of(b"one")
    assert landing.land(first, 3) is first
    second = landing.lend(5, nobody)
    second[:] = bytes_of(b"TWO..")
    assert landing.offset == 0
    assert landing.land(second, 5) is second
    landing.keep(file, 0, 5, 1)
    landing.lend(3, nobody)[:] = bytes_of(b"six")
    assert (landing.offset, landing.slab[:8].tobytes()) == (5, b"TWO..six")
    assert file.read(9, 0) == b"TWO.."


def test_what_was_received_elsewhere_is_copied_to_its_place(landing: Landing, file: MemoryFile) -> None:
    elsewhere = bytes_of(b"elsewhere and more")
    landed = landing.land(elsewhere, 9)
    landed[:4] = bytes_of(b"here")
    landing.keep(file, 0, 9, 1)
    assert landing.slab[:10].tobytes() == b"herewhere\0"
    assert elsewhere.tobytes() == b"elsewhere and more"


def test_who_has_begun_leaves_when_another_begins_or_lands(landing: Landing, file: MemoryFile) -> None:
    left: list[str] = []
    landing.lend(3, lambda: left.append("first"))
    second = landing.lend(4, lambda: left.append("second"))
    assert left == ["first"]
    landing.land(second, 4)
    landing.keep(file, 0, 4, 1)
    third = landing.lend(5, lambda: left.append("third"))
    assert left == ["first"]
    landing.land(bytes_of(b"other"), 5)
    assert left == ["first", "third"]
    landing.keep(file, 4, 5, 1)
    landing.lend(5, lambda: left.append("last"))
    landing.let_go()
    landing.let_go()
    assert left == ["first", "third", "last"]
    assert landing.land(third, 5) is not third


def test_a_full_slab_is_left_to_the_files_that_have_bytes_of_it(landing: Landing, spare: SparePieces) -> None:
    files = MemoryFiles(spare)
    file, at = files.open("/a", create=True), 0
    for number in range(1, 8):
        lent = landing.lend(9 * MIB, nobody)
        lent[:] = number
        landing.keep(file, at, 9 * MIB, 1)
        at += 9 * MIB
    del lent
    assert landing.offset == 9 * MIB
    assert [file.read(1, number * 9 * MIB)[0] for number in range(7)] == [1, 2, 3, 4, 5, 6, 7]
    landing.let_go()
    assert spare.size == 0
    files.unlink("/a")
    del file
    assert (spare.size, spare._used) == (2 * SLAB_SIZE, 0)


def test_a_slab_has_batches_of_one_topic(landing: Landing, spare: SparePieces) -> None:
    files = MemoryFiles(spare)
    one, other = files.open("/one", create=True), files.open("/other", create=True)
    for number in range(3):
        for file, topic_id in ((one, 1), (other, 2)):
            lent = landing.lend(MIB, nobody)
            lent[:] = 10 * topic_id + number
            landing.keep(file, number * MIB, MIB, topic_id)
    assert landing.offset == 3 * MIB
    assert [one.read(1, number * MIB)[0] for number in range(3)] == [10, 11, 12]
    assert [other.read(1, number * MIB)[0] for number in range(3)] == [20, 21, 22]
    # So it goes with the one, whatever becomes of the other.
    files.unlink("/one")
    del one, file, lent
    landing.let_go()
    assert spare.size == SLAB_SIZE
    # The next slab is whose batch comes first.
    landing.lend(MIB, nobody)
    landing.keep(other, 3 * MIB, MIB, 2)
    assert landing.offset == MIB


def test_pages_of_what_is_left_over_go_back_to_the_system(
    landing: Landing, file: MemoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    monkeypatch.setattr(landings, "give_back_pages", lambda _, start: given.append(start))
    for size in (10 * MIB, 20 * MIB, 16 * MIB, 17 * MIB):
        landing.land(landing.lend(size, nobody), size)
        landing.keep(file, file.size(), size, 1)
    # 2 MiB were left over of the first, 16 of the second.
    assert given == [16 * MIB]
    landing.let_go()
    assert given == [16 * MIB, 17 * MIB]
