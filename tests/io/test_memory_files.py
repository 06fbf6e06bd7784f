"""Files in memory: what code written against the seam expects of them."""

from __future__ import annotations

import pytest

from seawall.errors import InvalidInputError
from seawall.io.files import replace_file, write_all
from seawall.io.interfaces import Files
from seawall.io.memory_files import MemoryFiles, SparePieces
from seawall.limits import MIB


def test_bytes_are_where_they_were_written() -> None:
    files: Files = MemoryFiles()
    file = files.open("/a/b", create=True)
    assert write_all(file, [b"abc", memoryview(b"def")], 4, durable=True) == 6
    assert file.read(100, 0) == bytes(4) + b"abcdef"
    assert file.read(2, 5) == b"bc"
    assert file.read(2, 50) == b""
    first, second = bytearray(3), bytearray(9)
    assert file.read_into([first, second], 4) == 6
    assert bytes(first) + bytes(second[:3]) == b"abcdef"
    file.truncate(5)
    file.allocate(7)
    file.allocate(2)
    file.sync()
    assert (file.size(), file.read(9, 0)) == (7, bytes(4) + b"a" + bytes(2))
    assert (file.path, file.fileno()) == ("/a/b", -1)
    file.close()
    assert files.open("/a/b", read_only=True).read(5, 0) == bytes(4) + b"a"


def test_names() -> None:
    files: Files = MemoryFiles()
    files.make_directory("/a")
    assert not files.exists("/a")
    files.open("/a/x", exclusive=True)
    with pytest.raises(FileExistsError):
        files.open("/a/x", exclusive=True)
    with pytest.raises(FileNotFoundError):
        files.open("/a/y")
    with pytest.raises(InvalidInputError, match="read-only"):
        files.open("/a/y", create=True, read_only=True)
    files.open("/a/sub/z", create=True)
    assert files.list("/a") == ["sub", "x"]
    files.rename("/a/x", "/a/y")
    files.sync_directory("/a")
    assert (files.exists("/a/x"), files.exists("/a/y"), files.exists("/a")) == (False, True, True)
    held = files.open("/a/y")
    held.write([b"kept by its handle"], 0)
    files.unlink("/a/y")
    with pytest.raises(FileNotFoundError):
        files.unlink("/a/y")
    assert held.read(4, 0) == b"kept"
    replace_file(files, "/a/r", b"whole")
    assert files.list("/a") == ["r", "sub"]


def test_locks_copies_and_room() -> None:
    files: Files = MemoryFiles()
    one, other = files.open("/f", create=True), files.open("/f")
    assert one.try_lock()
    assert not other.try_lock()
    one.close()
    assert other.try_lock()
    one.write([b"0123456789"], 0)
    target = files.open("/t", create=True)
    assert files.copy_range(one, 2, target, 1, 5) == 5
    assert target.read(9, 0) == b"\x0023456"
    assert files.free_bytes("/t") - files.free_bytes("/") == 10


def test_large_files_lie_in_pieces() -> None:
    files = MemoryFiles()
    file = files.open("/f", create=True)
    whole = bytes(range(256)) * 1_024 * 20
    for at in range(0, len(whole), 300_000):
        file.write([whole[at : at + 300_000]], at)
        file.allocate(at + 450_000)
    assert file.read(len(whole), 0) == whole
    assert file.read(1_000_000, 123_457) == whole[123_457:1_123_457]
    file.truncate(200_000)
    file.write([b"end"], 5_000_000)
    assert file.read(5_000_100, 0) == whole[:200_000] + bytes(4_800_000) + b"end"
    file.allocate(6_000_000)
    assert file.read(10, 5_000_001) == b"nd" + bytes(8)
    assert file.read(10, 5_500_000) == bytes(10)


def test_memory_of_files_that_are_gone_is_used_again_and_never_seen() -> None:
    spare = SparePieces()
    files = MemoryFiles(spare)
    files.open("/old", create=True).write([b"secret" * MIB], 0)
    held = files.open("/old")
    files.unlink("/old")
    assert spare.size == 0
    assert held.read(6, 6) == b"secret"
    del held
    assert spare.size == 6 * MIB
    fresh = MemoryFiles(spare).open("/new", create=True)
    fresh.allocate(5 * MIB + 1)
    assert spare.size == 0
    fresh.write([b"here"], MIB)
    assert fresh.read(2 * MIB, 0) == bytes(MIB) + b"here" + bytes(MIB - 4)
    assert fresh.read(9, 5 * MIB - 9) == bytes(9)


def test_pieces_of_few_sizes_fit_files_of_any() -> None:
    spare = SparePieces()
    files = MemoryFiles(spare)
    files.open("/old", create=True).allocate(31 * MIB)
    files.unlink("/old")
    assert spare.size == 32 * MIB
    grown = files.open("/new", create=True)
    for size in (100, 5 * MIB, 6 * MIB, 13 * MIB, 29 * MIB):
        grown.allocate(size)
    # A first small one and three that fill up are of sizes that there were none of.
    assert spare.size == 4 * MIB


def test_no_more_than_a_bound_is_kept_beside_half_of_what_is_used() -> None:
    spare = SparePieces()
    files = MemoryFiles(spare)
    for number in range(20):
        files.open(f"/{number}", create=True).allocate(10 * MIB)
    for number in range(10):
        files.unlink(f"/{number}")
    assert spare.size == 100 * MIB
    for number in range(10, 20):
        files.unlink(f"/{number}")
    assert spare.size == 64 * MIB


def test_what_is_cut_off_is_there_for_others() -> None:
    spare = SparePieces()
    file = MemoryFiles(spare).open("/a", create=True)
    write_all(file, [b"abc"], 0)
    file.allocate(20 * MIB)
    file.truncate(3)
    assert spare.size > 15 * MIB
    assert file.read(5, 0) == b"abc"
    file.allocate(5)
    assert file.read(5, 0) == b"abc" + bytes(2)
    file.truncate(0)
    assert (file.size(), file.read(5, 0)) == (0, b"")


def test_memory_that_is_lent_is_that_of_the_file() -> None:
    file = MemoryFiles().open("/a", create=True)
    write_all(file, [b"abc"], 0)
    spans = file.lend(8, 9 * MIB)
    assert sum(len(span) for span in spans) == 9 * MIB
    assert len(spans) > 1
    for number, span in enumerate(spans, 1):
        span[:] = number
    assert file.read(10, 0) == b"abc" + bytes(5) + b"\1\1"
    assert file.read(2, 8 + 9 * MIB - 2) == bytes([len(spans)] * 2)
    assert file.size() == 8 + 9 * MIB
