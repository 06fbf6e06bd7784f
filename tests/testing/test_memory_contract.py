"""Contract of shared memory, tested on the real one and on the simulated one."""

import ctypes
import errno
import mmap

import pytest

from seawall.errors import InvalidInputError
from seawall.io.interfaces import SharedMemory
from seawall.io.process.shared_memory import OsSharedMemory
from seawall.testing import SimHost, SimSharedMemory


@pytest.fixture(params=[OsSharedMemory, SimSharedMemory], ids=["real", "simulated"])
def memory(request) -> SharedMemory:
    return request.param()


def test_bytes_written_to_one_mapping_are_read_from_another(memory, tmp_path):
    path = str(tmp_path / "fabric")
    first = memory.create(path, 10_000)
    second = memory.attach(path, 10_000)
    assert len(first.view) == len(second.view) == 10_000
    assert bytes(first.view) == bytes(10_000)
    first.view[5:8] = b"abc"
    assert bytes(second.view[4:9]) == b"\0abc\0"
    first.close()
    second.view[9_999] = 7
    second.close()
    third = memory.attach(path, 6)
    assert bytes(third.view) == b"\0\0\0\0\0a"
    third.close()


def test_mappings_start_on_a_page(memory, tmp_path):
    mapping = memory.create(str(tmp_path / "fabric"), 100)
    anchor = ctypes.c_char.from_buffer(mapping.view)
    assert ctypes.addressof(anchor) % mmap.PAGESIZE == 0
    with pytest.raises(BufferError):
        mapping.close()
    del anchor
    mapping.view[0] = 1
    mapping.close()
    with pytest.raises(ValueError, match="released"):
        mapping.view[0]


def test_a_name_is_created_once_and_may_be_removed(memory, tmp_path):
    path = str(tmp_path / "fabric")
    with pytest.raises(FileNotFoundError):
        memory.attach(path, 1)
    mapping = memory.create(path, 1)
    with pytest.raises(FileExistsError):
        memory.create(path, 1)
    memory.remove(path)
    memory.remove(path)
    mapping.view[0] = 9
    with pytest.raises(FileNotFoundError):
        memory.attach(path, 1)
    other = memory.create(path, 1)
    assert other.view[0] == 0
    mapping.close()
    other.close()


def test_lengths_are_checked(memory, tmp_path):
    path = str(tmp_path / "fabric")
    for call in (memory.create, memory.attach):
        with pytest.raises(InvalidInputError, match="at least one"):
            call(path, 0)
    memory.create(path, 4_096).close()
    with pytest.raises(InvalidInputError, match=r"holds 4096 bytes, 4097 are needed; .* remove it"):
        memory.attach(path, 4_097)


def test_a_lock_is_shared_by_many_or_held_by_one(memory, tmp_path):
    path = str(tmp_path / "fabric")
    first = memory.create(path, 100)
    second, third = memory.attach(path, 100), memory.attach(path, 100, read_only=True)
    assert first.try_lock(shared=False)
    assert not second.try_lock(shared=True)
    assert first.try_lock(shared=True)
    assert second.try_lock(shared=True)
    assert third.try_lock(shared=True)
    assert not first.try_lock(shared=False)
    second.close()
    third.close()
    assert first.try_lock(shared=False)
    first.close()


def test_a_lock_on_a_removed_name_excludes_no_one(memory, tmp_path):
    """INV-LOCK-NAMED."""
    path = str(tmp_path / "fabric")
    old = memory.create(path, 100)
    memory.remove(path)
    assert not old.try_lock(shared=False)
    new = memory.create(path, 100)
    assert not old.try_lock(shared=True)
    assert new.try_lock(shared=False)
    old.close()
    new.close()


def test_a_read_only_mapping_cannot_be_written(memory, tmp_path):
    path = str(tmp_path / "fabric")
    owner = memory.create(path, 100)
    looking = memory.attach(path, 100, read_only=True)
    owner.view[3] = 9
    assert looking.view[3] == 9
    with pytest.raises(TypeError, match="read-only"):
        looking.view[3] = 1
    looking.close()
    owner.close()


def test_file_size_and_free_space_are_reported(memory, tmp_path):
    path = str(tmp_path / "fabric")
    before = memory.free_bytes(path)
    mapping = memory.create(path, 5 * mmap.PAGESIZE - 1)
    assert mapping.file_size() == 5 * mmap.PAGESIZE
    assert before > 0
    mapping.close()


def test_killing_a_simulated_host_frees_its_locks():
    host = SimHost.create(seed=1)
    held = host.memory.create("/a", 100)
    assert held.try_lock(shared=False)
    host.kill()
    after = host.memory.attach("/a", 100)
    assert after.try_lock(shared=False)


def test_the_simulated_memory_is_bounded():
    memory = SimSharedMemory(capacity=8_192)
    memory.create("/a", 4_000)
    with pytest.raises(OSError, match="needs 8192 bytes and 4096 are free") as caught:
        memory.create("/b", 5_000)
    assert caught.value.errno == errno.ENOSPC
    assert memory.free_bytes("/b") == 4_096
    memory.remove("/a")
    memory.create("/b", 5_000)
