"""Contract of `io` files, tested on the real file system and on the simulated one."""

import errno
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from seawall.errors import CorruptionError, InvalidInputError
from seawall.io.disk.files import OsFiles, read_exactly, replace_file, write_all
from seawall.io.interfaces import Files
from seawall.testing import SimDisk


@dataclass
class Place:
    files: Files
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"


def real(tmp_path) -> Place:
    return Place(OsFiles(), str(tmp_path))


def simulated(tmp_path) -> Place:
    disk = SimDisk(seed=1)
    disk.make_directory("/data")
    return Place(disk, "/data")


@pytest.fixture(params=[real, simulated], ids=["real", "simulated"])
def place(request, tmp_path) -> Place:
    make: Callable[[object], Place] = request.param
    return make(tmp_path)


def refused(code: int):
    return pytest.raises(OSError, match=rf"\[Errno {code}\]")


def test_a_file_is_created_only_on_request(place):
    with refused(errno.ENOENT):
        place.files.open(place.path("a"))
    assert not place.files.exists(place.path("a"))
    place.files.open(place.path("a"), create=True).close()
    assert place.files.exists(place.path("a"))
    place.files.open(place.path("a"), create=True).close()
    with refused(errno.EEXIST):
        place.files.open(place.path("a"), exclusive=True)
    place.files.open(place.path("b"), exclusive=True).close()
    with pytest.raises(InvalidInputError):
        place.files.open(place.path("c"), create=True, read_only=True)


def test_operations_on_wrong_names_fail(place):
    with refused(errno.ENOENT):
        place.files.open(place.path("missing/a"), create=True)
    place.files.open(place.path("file"), create=True).close()
    with refused(errno.ENOTDIR):
        place.files.open(place.path("file/a"), create=True)
    assert not place.files.exists(place.path("file/a"))
    with refused(errno.ENOTDIR):
        place.files.list(place.path("file"))
    with refused(errno.EISDIR):
        place.files.open(place.root)
    with refused(errno.ENOENT):
        place.files.list(place.path("missing"))
    with refused(errno.EEXIST):
        place.files.make_directory(place.path("file"))
    with refused(errno.ENOENT):
        place.files.sync_directory(place.path("missing"))
    with refused(errno.ENOENT):
        place.files.free_bytes(place.path("missing"))


def test_directories_are_made_with_their_parents_and_listed_in_order(place):
    place.files.make_directory(place.path("x/y/z"))
    place.files.make_directory(place.path("x/y/z"))
    for name in ("b", "a", "c"):
        place.files.open(place.path(f"x/y/{name}"), create=True).close()
    assert place.files.list(place.path("x/y")) == ["a", "b", "c", "z"]
    assert place.files.exists(place.path("x/y/z"))
    place.files.sync_directory(place.path("x/y"))


def test_positions_are_explicit_and_gaps_read_as_zeros(place):
    file = place.files.open(place.path("a"), create=True)
    assert file.write([b"world"], 6) == 5
    assert file.write([b"he", bytearray(b"ll"), memoryview(b"o")], 0) == 5
    assert file.size() == 11
    assert file.read(100, 0) == b"hello\0world"
    assert file.read(5, 6) == b"world"
    assert file.read(5, 11) == b""
    assert file.read(0, 0) == b""
    assert file.write([], 0) == 0
    assert file.write([b""], 50) == 0
    assert file.size() == 11
    file.close()


def test_read_into_fills_buffers_in_order_until_the_end(place):
    file = place.files.open(place.path("a"), create=True)
    write_all(file, [bytes(range(10))], 0)
    first, empty, second = bytearray(4), bytearray(0), bytearray(8)
    assert file.read_into([first, empty, memoryview(second)], 1) == 9
    assert first == bytes([1, 2, 3, 4])
    assert second == bytes([5, 6, 7, 8, 9, 0, 0, 0])
    assert file.read_into([first], 10) == 0
    assert file.read_into([], 0) == 0
    file.close()


def test_more_buffers_than_one_system_call_accepts(place):
    file = place.files.open(place.path("a"), create=True)
    pieces = [bytes([index % 251]) for index in range(3_000)]
    assert write_all(file, pieces, 5) == 3_000
    buffers = [bytearray(1) for _ in pieces]
    assert file.read_into(buffers, 5) == 3_000
    assert b"".join(buffers) == b"".join(pieces)
    file.close()


def test_buffers_of_other_items_are_written_as_bytes(place):
    file = place.files.open(place.path("a"), create=True)
    words = memoryview(bytearray(16)).cast("Q")
    words[0], words[1] = 1, 2
    assert write_all(file, [words], 0) == 16
    other = memoryview(bytearray(16)).cast("Q")
    assert file.read_into([other], 0) == 16
    assert list(other) == [1, 2]
    file.close()


def test_impossible_positions_are_refused(place):
    file = place.files.open(place.path("a"), create=True)
    for call in (
        lambda: file.read(1, -1),
        lambda: file.read(-1, 0),
        lambda: file.read_into([bytearray(1)], -1),
        lambda: file.write([b"a"], -1),
        lambda: file.truncate(-1),
        lambda: file.allocate(-1),
    ):
        with refused(errno.EINVAL):
            call()
    file.close()


def test_a_read_only_handle_changes_nothing(place):
    path = place.path("a")
    place.files.open(path, create=True).close()
    file = place.files.open(path, read_only=True)
    with refused(errno.EBADF):
        file.write([b"a"], 0)
    with refused(errno.EINVAL):
        file.truncate(0)
    with refused(errno.EBADF):
        file.allocate(10)
    assert file.read(1, 0) == b""
    file.close()


def test_a_closed_handle_is_refused(place):
    file = place.files.open(place.path("a"), create=True)
    assert file.fileno() >= 0
    assert file.path == place.path("a")
    file.close()
    file.close()
    assert file.fileno() == -1
    for call in (file.size, lambda: file.read(1, 0), lambda: file.write([b"a"], 0), lambda: file.truncate(0)):
        with refused(errno.EBADF):
            call()


def test_truncate_cuts_and_extends_with_zeros(place):
    file = place.files.open(place.path("a"), create=True)
    write_all(file, [b"x" * 1_000], 0)
    file.truncate(10)
    assert file.size() == 10
    file.truncate(600)
    assert file.read(1_000, 0) == b"x" * 10 + bytes(590)
    file.sync()
    file.close()


def test_allocate_grows_with_zeros_and_never_cuts(place):
    file = place.files.open(place.path("a"), create=True)
    write_all(file, [b"abc"], 0)
    file.allocate(8_192)
    assert file.size() == 8_192
    assert file.read(8_192, 0) == b"abc" + bytes(8_189)
    file.allocate(10)
    file.allocate(0)
    assert file.size() == 8_192
    file.close()


def test_a_lock_has_one_holder(place):
    path = place.path("lock")
    first = place.files.open(path, create=True)
    second = place.files.open(path)
    assert first.try_lock()
    assert first.try_lock()
    assert not second.try_lock()
    first.close()
    assert second.try_lock()
    second.close()


def test_rename_replaces_and_open_handles_follow_the_bytes(place):
    old, new = place.path("old"), place.path("new")
    file = place.files.open(old, create=True)
    write_all(file, [b"fresh"], 0)
    other = place.files.open(new, create=True)
    write_all(other, [b"stale"], 0)
    place.files.rename(old, new)
    assert place.files.list(place.root) == ["new"]
    assert other.read(5, 0) == b"stale"
    assert file.read(5, 0) == b"fresh"
    again = place.files.open(new)
    assert again.read(5, 0) == b"fresh"
    place.files.rename(new, new)
    assert place.files.list(place.root) == ["new"]
    for handle in (file, other, again):
        handle.close()
    with refused(errno.ENOENT):
        place.files.rename(old, new)
    place.files.make_directory(place.path("directory"))
    with refused(errno.EISDIR):
        place.files.rename(new, place.path("directory"))


def test_an_unlinked_file_lives_as_long_as_its_handles(place):
    path = place.path("a")
    file = place.files.open(path, create=True)
    write_all(file, [b"still here"], 0)
    place.files.unlink(path)
    assert not place.files.exists(path)
    assert file.read(100, 0) == b"still here"
    file.close()
    with refused(errno.ENOENT):
        place.files.unlink(path)
    with refused(errno.EISDIR):
        place.files.unlink(place.root)


def test_copy_range_copies_up_to_the_end(place):
    source = place.files.open(place.path("a"), create=True)
    target = place.files.open(place.path("b"), create=True)
    write_all(source, [bytes(range(100))], 0)
    assert place.files.copy_range(source, 10, target, 3, 20) == 20
    assert target.read(100, 0) == bytes(3) + bytes(range(10, 30))
    assert place.files.copy_range(source, 90, target, 0, 50) == 10
    assert place.files.copy_range(source, 100, target, 0, 50) == 0
    assert place.files.copy_range(source, 0, source, 200, 50) == 50
    assert source.read(50, 200) == bytes(range(50))
    with refused(errno.EINVAL):
        place.files.copy_range(source, 0, source, 10, 50)
    source.close()
    target.close()


def test_replace_file_leaves_the_new_bytes_and_no_temporary_file(place):
    path = place.path("manifest")
    replace_file(place.files, path, b"one, and long")
    replace_file(place.files, path, bytearray(b"two"))
    file = place.files.open(path, read_only=True)
    assert read_exactly(file, 3, 0) == b"two"
    with pytest.raises(CorruptionError, match="wanted 4 bytes at position 0, the file ends after 3"):
        read_exactly(file, 4, 0)
    file.close()
    assert place.files.list(place.root) == ["manifest"]


def test_a_failed_replacement_leaves_the_old_bytes_and_no_temporary_file(place):
    place.files.make_directory(place.path("taken"))
    with refused(errno.EISDIR):
        replace_file(place.files, place.path("taken"), b"data")
    assert place.files.list(place.root) == ["taken"]


def test_free_space_is_reported(place):
    assert place.files.free_bytes(place.root) > 0
