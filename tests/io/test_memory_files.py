"""In-memory files: what code written against the `Files` interface expects of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seawall.errors import InvalidInputError
from seawall.io.disk.buffer_pool import BUFFER_SIZE_MIN, BufferPool
from seawall.io.disk.files import replace_file, write_all
from seawall.io.disk.memory_files import MemoryFiles
from seawall.io.interfaces import Files
from seawall.limits import MIB


def test_written_bytes_are_read_back() -> None:
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


def test_names_are_created_renamed_listed_and_removed() -> None:
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


def test_locks_copies_and_free_space() -> None:
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


def test_large_files_span_several_buffers() -> None:
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


def test_allocated_space_takes_no_buffers() -> None:
    pool = BufferPool()
    file = MemoryFiles(pool).open("/a", create=True)
    file.allocate(20 * MIB)
    file.truncate(3)
    assert (file.size(), file.read(5, 0), pool.size) == (3, bytes(3), 0)


def test_buffers_of_deleted_files_are_reused_and_their_old_bytes_stay_invisible() -> None:
    pool = BufferPool()
    files = MemoryFiles(pool)
    files.open("/old", create=True).write([b"secret" * MIB], 0)
    held = files.open("/old")
    files.unlink("/old")
    assert pool.size == 0
    assert held.read(6, 6) == b"secret"
    del held
    assert pool.size == 6 * MIB
    fresh = MemoryFiles(pool).open("/new", create=True)
    fresh.allocate(5 * MIB + 1)
    fresh.write([b"here"], MIB)
    assert pool.size == 2 * MIB
    assert fresh.read(2 * MIB, 0) == bytes(MIB) + b"here" + bytes(MIB - 4)
    assert fresh.read(9, 5 * MIB - 9) == bytes(9)


def test_truncating_returns_buffers_to_the_pool() -> None:
    pool = BufferPool()
    file = MemoryFiles(pool).open("/a", create=True)
    write_all(file, [b"abc" * 6 * MIB], 0)
    file.truncate(3)
    # The first buffer is still in use.
    assert pool.size == 14 * MIB
    assert file.read(5, 0) == b"abc"
    file.allocate(5)
    assert file.read(5, 0) == b"abc" + bytes(2)
    file.write([b"de"], 5)
    assert (file.read(9, 0), pool.size) == (b"abc\0\0de", 14 * MIB)
    file.truncate(0)
    assert (file.size(), file.read(5, 0), pool.size) == (0, b"", 18 * MIB + BUFFER_SIZE_MIN)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["write", "write", "truncate", "allocate", "drop"]),
            st.integers(0, 2),
            st.integers(0, 300_000),
            st.integers(0, 150_000),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_files_that_share_a_pool_behave_like_independent_files(steps: list[tuple[str, int, int, int]]) -> None:
    pool = BufferPool()
    files = MemoryFiles(pool)
    opened = [files.open(f"/{number}", create=True) for number in range(3)]
    models = [bytearray() for _ in opened]
    for number, (step, which, at, size) in enumerate(steps, 1):
        file, model = opened[which], models[which]
        if step == "write":
            model.extend(bytes(max(0, at + size - len(model))))
            model[at : at + size] = bytes([number]) * size
            assert file.write([bytes([number]) * (size // 2), bytes([number]) * (size - size // 2)], at) == size
        elif step == "truncate":
            file.truncate(at)
            model[at:] = bytes(max(0, at - len(model)))
        elif step == "allocate":
            file.allocate(at)
            model.extend(bytes(max(0, at - len(model))))
        else:
            files.unlink(f"/{which}")
            file = opened[which] = files.open(f"/{which}", create=True)
            models[which] = bytearray()
        for each, expected in zip(opened, models, strict=True):
            assert each.size() == len(expected)
            assert each.read(len(expected) + 9, 0) == expected
            assert each.read(size, at) == expected[at : at + size]
    del each, file, files, opened
    assert pool._used == 0
