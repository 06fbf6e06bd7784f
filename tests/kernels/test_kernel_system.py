"""System calls from kernels: every primitive on real files, pipes, sockets and invalid arguments."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt
import pytest

from seawall.kernels.runtime import jit, system

int64 = jit.int64


def compiled(primitive: Callable[..., int], arguments: int) -> Callable[..., int]:
    """A kernel that does nothing but call one primitive."""
    names = ", ".join(["a", "b", "c", "d", "e"][:arguments])
    function = eval(f"lambda {names}: primitive({names})", {"primitive": primitive})
    made: Callable[..., int] = numba.njit([int64(*[int64] * arguments)], nogil=True)(function)
    return made


#: In python mode (NUMBA_DISABLE_JIT=1) a primitive is its stand-in, so the same tests check that.
CALLS: dict[str, Callable[..., int]] = {
    name: compiled(getattr(system, name), arguments)
    for name, arguments in {
        "write_vector": 4,
        "read_vector": 4,
        "write_flagged": 5,
        "sync_data": 1,
        "signal_event": 1,
        "take_event": 1,
        "poll_readable": 2,
        "either_readable": 3,
        "send_some": 3,
        "receive_some": 3,
        "yield_core": 0,
        "monotonic_ns": 0,
        "wall_ns": 0,
        "lock_mutex": 1,
        "try_lock_mutex": 1,
        "unlock_mutex": 1,
    }.items()
}


def iovec(*parts: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    return np.array([(part.ctypes.data, part.size) for part in parts], np.int64)


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    yield ends
    for fd in ends:
        os.close(fd)


def closed_descriptor() -> int:
    """The number of a descriptor that is not open: the highest allowed, which nothing has reached."""
    return os.sysconf("SC_OPEN_MAX") - 1


@pytest.mark.parametrize(("name", "flags"), [("write_vector", ()), ("write_flagged", (system.RWF_DSYNC,))])
def test_vectored_writes_and_reads(name: str, flags: tuple[int, ...], descriptor: int) -> None:
    parts = np.frombuffer(b"abc", np.uint8), np.frombuffer(b"", np.uint8), np.frombuffer(b"defgh", np.uint8)
    vector = iovec(*parts)
    assert CALLS[name](descriptor, vector.ctypes.data, 3, 10, *flags) == 8
    assert os.pread(descriptor, 100, 0) == bytes(10) + b"abcdefgh"
    first, second = np.zeros(2, np.uint8), np.zeros(20, np.uint8)
    vector = iovec(first, second)
    assert CALLS["read_vector"](descriptor, vector.ctypes.data, 2, 11) == 7
    assert first.tobytes() + second.tobytes() == b"bcdefgh" + bytes(15)
    assert CALLS["read_vector"](descriptor, vector.ctypes.data, 2, 99) == 0
    assert CALLS["sync_data"](descriptor) == 0


def test_unknown_flags_write_nothing(descriptor: int) -> None:
    vector = iovec(np.zeros(4, np.uint8))
    assert CALLS["write_flagged"](descriptor, vector.ctypes.data, 1, 0, 1 << 30) == -errno.EOPNOTSUPP
    assert os.fstat(descriptor).st_size == 0


def test_errors_are_returned_as_minus_errno(tmp_path: Path, pipe: tuple[int, int]) -> None:
    part = np.zeros(4, np.uint8)
    vector = iovec(part)
    address, bad = vector.ctypes.data, closed_descriptor()
    for name, flags in (("write_vector", ()), ("read_vector", ()), ("write_flagged", (system.RWF_DSYNC,))):
        assert CALLS[name](bad, address, 1, 0, *flags) == -errno.EBADF
        assert CALLS[name](-1, address, 1, 0, *flags) == -errno.EBADF
        assert CALLS[name](pipe[1], address, 1, 0, *flags) == -errno.ESPIPE
    for name in ("sync_data", "signal_event", "take_event"):
        assert CALLS[name](bad) == -errno.EBADF
    assert CALLS["sync_data"](pipe[0]) == -errno.EINVAL
    read_only = os.open(tmp_path / "read only", os.O_RDONLY | os.O_CREAT)
    try:
        assert CALLS["write_vector"](read_only, address, 1, 0) == -errno.EBADF
        assert CALLS["read_vector"](read_only, address, 1, -1) == -errno.EINVAL
    finally:
        os.close(read_only)


def test_events_over_a_pipe(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    assert CALLS["poll_readable"](read_end, 0) == 0
    assert CALLS["poll_readable"](read_end, 1) == 0
    assert CALLS["signal_event"](write_end) == 8
    assert CALLS["poll_readable"](read_end, 10_000) == 1
    assert CALLS["take_event"](read_end) == 8
    assert CALLS["poll_readable"](read_end, 0) == 0
    while CALLS["signal_event"](write_end) == 8:
        pass
    assert CALLS["signal_event"](write_end) == -errno.EAGAIN


def test_events_over_an_eventfd() -> None:
    if not hasattr(os, "eventfd"):
        pytest.skip("no eventfd on this system: it uses pipes")
    event = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert CALLS["take_event"](event) == -errno.EAGAIN
        assert CALLS["signal_event"](event) == 8
        assert CALLS["signal_event"](event) == 8
        assert CALLS["poll_readable"](event, 0) == 1
        assert CALLS["take_event"](event) == 8
        assert CALLS["poll_readable"](event, 0) == 0
    finally:
        os.close(event)


def test_a_descriptor_that_is_not_open_counts_as_readable() -> None:
    assert CALLS["poll_readable"](closed_descriptor(), 0) == 1


def test_bytes_over_sockets_without_waiting() -> None:
    ours, theirs = socket.socketpair()
    other, others = socket.socketpair()
    data, found = np.arange(8, dtype=np.uint8), np.zeros(16, np.uint8)
    either, send, receive = (CALLS[name] for name in ("either_readable", "send_some", "receive_some"))
    with theirs, other, others:
        with ours:
            descriptors = theirs.fileno(), others.fileno()
            assert either(*descriptors, 0) == 0
            assert receive(theirs.fileno(), found.ctypes.data, 16) == -errno.EAGAIN
            assert send(ours.fileno(), data.ctypes.data, 8) == 8
            assert either(*descriptors, 10_000) == 1
            other.send(b"x")
            assert either(*descriptors, 10_000) == 3
            assert receive(theirs.fileno(), found.ctypes.data, 16) == 8
            assert found[:8].tolist() == data.tolist()
            assert either(*descriptors, 10_000) == 2
            while send(ours.fileno(), data.ctypes.data, 8) == 8:
                pass
            assert send(ours.fileno(), data.ctypes.data, 8) == -errno.EAGAIN
        assert send(theirs.fileno(), data.ctypes.data, 8) == -errno.EPIPE


def test_a_held_mutex_cannot_be_locked_again() -> None:
    words = np.zeros(16, np.int64)
    lock, try_lock, unlock = (CALLS[f"{name}_mutex"] for name in ("lock", "try_lock", "unlock"))
    assert lock(words.ctypes.data) == 0
    assert try_lock(words.ctypes.data) == errno.EBUSY
    assert unlock(words.ctypes.data) == 0
    assert try_lock(words.ctypes.data) == 0


def test_clocks_and_yielding_the_core() -> None:
    before = time.monotonic_ns()
    assert CALLS["yield_core"]() == 0
    assert before <= CALLS["monotonic_ns"]() <= time.monotonic_ns()
    before = time.time_ns()
    assert before <= CALLS["wall_ns"]() <= time.time_ns()


@pytest.mark.skipif(not system.IS_LINUX, reason="io_uring exists on Linux only")
def test_entering_a_descriptor_that_is_no_ring_fails(descriptor: int) -> None:
    enter = compiled(system.uring_enter, 4)
    assert enter(closed_descriptor(), 0, 0, 0) < 0
    assert enter(descriptor, 0, 0, 0) < 0


def test_a_libc_function_is_called_by_name() -> None:
    assert system.libc_call("getpid") == os.getpid()
    assert system.libc_call("close", -1) == -errno.EBADF
