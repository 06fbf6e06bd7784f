"""A file that stays open as long as anybody reads it, and not longer."""

import sys
import threading
from pathlib import Path

import pytest

from seawall.errors import InvariantError
from seawall.io.files import OsFiles
from seawall.storage.shared_file import SharedFile
from seawall.testing import SimDisk


@pytest.fixture
def shared() -> SharedFile:
    disk = SimDisk(seed=1)
    disk.make_directory("/d")
    return SharedFile(disk.open("/d/file", create=True))


def test_without_pins_the_owner_closes_it(shared: SharedFile) -> None:
    shared.close()
    shared.close()
    assert shared.file.fileno() == -1


def test_the_last_pin_closes_what_the_owner_has_let_go(shared: SharedFile) -> None:
    first, second = shared.pin(), shared.pin()
    shared.close()
    first.unpin()
    assert shared.file.fileno() >= 0
    second.unpin()
    assert shared.file.fileno() == -1


def test_pins_alone_do_not_close_it(shared: SharedFile) -> None:
    shared.pin().unpin()
    assert shared.file.fileno() >= 0


def test_a_closed_file_is_not_pinned(shared: SharedFile) -> None:
    pin = shared.pin()
    shared.close()
    with pytest.raises(InvariantError, match="INV-PINNED-OPEN"):
        shared.pin()
    pin.unpin()
    with pytest.raises(InvariantError, match="INV-PINNED-OPEN"):
        pin.unpin()


def test_many_threads_give_back_and_one_closes(shared: SharedFile) -> None:
    pins = [shared.pin() for _ in range(64)]
    barrier = threading.Barrier(8)

    def give_back(number: int) -> None:
        barrier.wait()
        for pin in pins[number::8]:
            pin.unpin()

    threads = [threading.Thread(target=give_back, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    shared.close()
    for thread in threads:
        thread.join()
    assert shared.file.fileno() == -1


@pytest.mark.skipif(sys.platform != "linux", reason="nothing is mapped elsewhere")
def test_it_is_mapped_as_far_as_it_goes_and_as_long_as_it_is_open(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)
    shared = SharedFile(OsFiles().open(str(path)))
    assert shared.mapped(10_001) is None
    mapped = shared.mapped(10)
    assert mapped is not None
    assert shared.mapped(10_000) is mapped
    with path.open("ab") as growing:
        growing.write(b"y" * 10_000)
    longer = shared.mapped(10_001)
    assert longer is not None
    assert longer.fetch(0, 20_000)
    assert longer.bytes.tobytes() == path.read_bytes()
    del mapped, longer
    shared.close()
    assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")


def test_a_simulated_file_is_not_mapped(shared: SharedFile) -> None:
    shared.file.write([b"x" * 10_000], 0)
    assert shared.mapped(10) is None
