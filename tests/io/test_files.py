"""Real files beyond what the contract with the simulator covers: other systems, and kernels that refuse."""

import errno
import fcntl
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import SyncError
from seawall.io.disk import files as files_module
from seawall.io.disk.files import OsFiles, parent_directory, replace_file, write_all
from seawall.limits import COPY_BUFFER_SIZE


@pytest.fixture
def file(tmp_path):
    opened = OsFiles().open(str(tmp_path / "f"), create=True)
    yield opened
    opened.close()


def failing(code: int):
    def fail(*args: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def refused(code: int):
    return pytest.raises(OSError, match=rf"\[Errno {code}\]")


class Dribble:
    """A file that accepts at most `step` bytes at a time and records the buffers it got."""

    path = "dribble"

    def __init__(self, step: int) -> None:
        self.step = step
        self.data = bytearray()
        self.bases: set[int] = set()

    def write(self, buffers, at: int) -> int:
        assert at == len(self.data)
        taken = b"".join(buffers)[: self.step]
        self.bases.update(id(view.obj) for view in buffers)
        self.data += taken
        return len(taken)


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(1, 30))
def test_write_all_finishes_short_writes_without_copying(pieces, step):
    dribble = Dribble(step)
    assert write_all(dribble, pieces, 0) == len(dribble.data)
    assert dribble.data == b"".join(pieces)
    assert dribble.bases == {id(piece) for piece in pieces if piece}


def test_a_write_that_takes_nothing_is_an_error():
    with pytest.raises(OSError, match="took no bytes") as caught:
        write_all(Dribble(0), [b"x"], 0)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("code", [None, errno.EOPNOTSUPP], ids=["supported or not", "unsupported"])
def test_uncached_writes_fall_back_where_the_flag_is_unsupported(file, monkeypatch, code):
    real = os.pwritev

    def pwritev(descriptor, buffers, at, flags=0):
        if flags and code is not None:
            raise OSError(code, os.strerror(code))
        return real(descriptor, buffers, at, flags)

    monkeypatch.setattr(os, "pwritev", pwritev)
    assert write_all(file, [b"abc", b"", b"de"], 3, uncached=True) == 5
    assert file.read(9, 0) == bytes(3) + b"abcde"


def test_other_write_errors_are_raised_unchanged(file, monkeypatch):
    monkeypatch.setattr(os, "pwritev", failing(errno.ENOSPC))
    with refused(errno.ENOSPC):
        write_all(file, [b"abc"], 0, uncached=True)


def test_a_failed_sync_is_final(file, monkeypatch):
    file.write([b"data"], 0)
    monkeypatch.setattr(fcntl, "fcntl", failing(errno.EIO))
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO), raising=False)
    with pytest.raises(SyncError, match="Input/output error"):
        file.sync()
    monkeypatch.undo()
    for call in (
        file.sync,
        lambda: file.write([b"a"], 0),
        lambda: file.truncate(0),
        lambda: file.allocate(10),
        lambda: OsFiles().copy_range(file, 0, file, 10, 1),
    ):
        with pytest.raises(SyncError, match="an earlier sync failed"):
            call()
    assert file.read(4, 0) == b"data"


def test_sync_uses_the_full_sync_command_where_one_exists(file, monkeypatch):
    commands = []
    monkeypatch.setattr(files_module, "_FULL_SYNC_COMMAND", 51)
    monkeypatch.setattr(fcntl, "fcntl", lambda descriptor, command: commands.append((descriptor, command)))
    file.sync()
    assert commands == [(file.fileno(), 51)]


def test_a_failed_directory_sync_is_a_sync_error_and_leaks_nothing(tmp_path, monkeypatch):
    closed = []
    close = os.close
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor)))
    with pytest.raises(SyncError, match="directory sync failed"):
        OsFiles().sync_directory(str(tmp_path))
    assert len(closed) == 1


def test_allocation_backs_holes(file):
    file.truncate(1_000_000)
    assert os.fstat(file.fileno()).st_blocks == 0
    file.allocate(1_000_000)
    assert os.fstat(file.fileno()).st_blocks * 512 >= 1_000_000


def test_a_failed_allocation_restores_the_size(file, monkeypatch):
    file.write([b"abc"], 0)

    def halfway(descriptor: int, offset: int, length: int) -> None:
        os.ftruncate(descriptor, length // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", halfway, raising=False)
    with refused(errno.ENOSPC):
        file.allocate(1_000)
    assert file.read(1_000, 0) == b"abc"


def test_without_fallocate_allocation_writes_zeros(file, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    file.write([b"abc"], 0)
    size = 2 * COPY_BUFFER_SIZE + 500
    file.allocate(size)
    assert file.read(2 * size, 0) == b"abc" + bytes(size - 3)
    file.allocate(10)
    assert file.size() == size


def test_short_reads_of_the_kernel_are_continued(file, monkeypatch):
    data = bytes(range(200))
    write_all(file, [data], 0)
    whole, whole_vector = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda descriptor, length, at: whole(descriptor, min(length, 7), at))
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, at: whole_vector(descriptor, [buffers[0][:7]], at))
    assert file.read(200, 0) == data
    assert file.read(300, 10) == data[10:]
    first, second = bytearray(20), bytearray(30)
    assert file.read_into([first, second], 0) == 50
    assert first + second == data[:50]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP])
def test_copy_goes_through_memory_where_the_kernel_refuses(file, tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "copy_file_range", failing(code), raising=False)
    data = os.urandom(COPY_BUFFER_SIZE + 50)
    write_all(file, [data], 0)
    target = OsFiles().open(str(tmp_path / "t"), create=True)
    assert OsFiles().copy_range(file, 5, target, 1, COPY_BUFFER_SIZE + 30) == COPY_BUFFER_SIZE
    assert OsFiles().copy_range(file, 5, target, 1, 3) == 3
    assert OsFiles().copy_range(file, len(data), target, 1, 3) == 0
    assert target.read(2 * len(data), 0) == b"\0" + data[5 : 5 + COPY_BUFFER_SIZE]
    target.close()


def test_other_copy_errors_are_raised_unchanged(file, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "copy_file_range", failing(errno.EIO), raising=False)
    target = OsFiles().open(str(tmp_path / "t"), create=True)
    with refused(errno.EIO):
        OsFiles().copy_range(file, 0, target, 0, 1)
    target.close()


def test_copy_goes_through_memory_where_the_system_has_no_kernel_copy(file, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "copy_file_range", raising=False)
    write_all(file, [b"abc"], 0)
    target = OsFiles().open(str(tmp_path / "t"), create=True)
    assert OsFiles().copy_range(file, 0, target, 0, 10) == 3
    assert target.read(10, 0) == b"abc"
    target.close()


def test_other_lock_errors_are_raised_unchanged(file, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOLCK))
    with refused(errno.ENOLCK):
        file.try_lock()


def test_exists_raises_if_the_system_cannot_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "stat", failing(errno.EIO))
    with refused(errno.EIO):
        OsFiles().exists(str(tmp_path))


def test_a_file_may_be_replaced_in_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replace_file(OsFiles(), "manifest", b"data")
    assert (tmp_path / "manifest").read_bytes() == b"data"
    assert parent_directory("a/b") == "a"
    assert parent_directory("b") == "."
