"""System calls from kernels: each primitive and its stand-in on the same files, pipes and mistakes."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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


PAIRS: dict[str, tuple[Callable[..., int], Callable[..., int]]] = {
    "write_vector": (compiled(system.write_vector, 4), system._vectored_stand_in("pwritev")),
    "read_vector": (compiled(system.read_vector, 4), system._vectored_stand_in("preadv")),
    "write_flagged": (compiled(system.write_flagged, 5), system._write_flagged),
    "sync_data": (compiled(system.sync_data, 1), system._sync_data),
    "signal_event": (compiled(system.signal_event, 1), system._signal_event),
    "take_event": (compiled(system.take_event, 1), system._take_event),
    "poll_readable": (compiled(system.poll_readable, 2), system._poll_readable),
    "either_readable": (compiled(system.either_readable, 3), system._either_readable),
    "send_some": (compiled(system.send_some, 3), system._socket_stand_in("send", system._SEND_FLAGS)),
    "receive_some": (compiled(system.receive_some, 3), system._socket_stand_in("recv", socket.MSG_DONTWAIT)),
    "yield_core": (compiled(system.yield_core, 0), system._yield_core),
    "monotonic_ns": (compiled(system.monotonic_ns, 0), time.monotonic_ns),
    "wall_ns": (compiled(system.wall_ns, 0), time.time_ns),
    **{
        name: (compiled(getattr(system, name), 1), system._mutex_stand_in(f"pthread_mutex_{call}"))
        for name, call in (("lock_mutex", "lock"), ("try_lock_mutex", "trylock"), ("unlock_mutex", "unlock"))
    },
}
both = pytest.mark.parametrize("way", [0, 1], ids=["primitive", "stand-in"])


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


@both
@pytest.mark.parametrize(("name", "flags"), [("write_vector", ()), ("write_flagged", (system.RWF_DSYNC,))])
def test_vectored_writes_and_reads(name: str, flags: tuple[int, ...], way: int, descriptor: int) -> None:
    parts = np.frombuffer(b"abc", np.uint8), np.frombuffer(b"", np.uint8), np.frombuffer(b"defgh", np.uint8)
    vector = iovec(*parts)
    assert PAIRS[name][way](descriptor, vector.ctypes.data, 3, 10, *flags) == 8
    assert os.pread(descriptor, 100, 0) == bytes(10) + b"abcdefgh"
    first, second = np.zeros(2, np.uint8), np.zeros(20, np.uint8)
    vector = iovec(first, second)
    assert PAIRS["read_vector"][way](descriptor, vector.ctypes.data, 2, 11) == 7
    assert first.tobytes() + second.tobytes() == b"bcdefgh" + bytes(15)
    assert PAIRS["read_vector"][way](descriptor, vector.ctypes.data, 2, 99) == 0
    assert PAIRS["sync_data"][way](descriptor) == 0


@both
def test_unknown_flags_write_nothing(way: int, descriptor: int) -> None:
    vector = iovec(np.zeros(4, np.uint8))
    assert PAIRS["write_flagged"][way](descriptor, vector.ctypes.data, 1, 0, 1 << 30) == -errno.EOPNOTSUPP
    assert os.fstat(descriptor).st_size == 0


@both
def test_mistakes_are_minus_errno(way: int, tmp_path: Path, pipe: tuple[int, int]) -> None:
    part = np.zeros(4, np.uint8)
    vector = iovec(part)
    address, bad = vector.ctypes.data, closed_descriptor()
    for name, flags in (("write_vector", ()), ("read_vector", ()), ("write_flagged", (system.RWF_DSYNC,))):
        assert PAIRS[name][way](bad, address, 1, 0, *flags) == -errno.EBADF
        assert PAIRS[name][way](-1, address, 1, 0, *flags) == -errno.EBADF
        assert PAIRS[name][way](pipe[1], address, 1, 0, *flags) == -errno.ESPIPE
    for name in ("sync_data", "signal_event", "take_event"):
        assert PAIRS[name][way](bad) == -errno.EBADF
    assert PAIRS["sync_data"][way](pipe[0]) == -errno.EINVAL
    read_only = os.open(tmp_path / "read only", os.O_RDONLY | os.O_CREAT)
    try:
        assert PAIRS["write_vector"][way](read_only, address, 1, 0) == -errno.EBADF
        assert PAIRS["read_vector"][way](read_only, address, 1, -1) == -errno.EINVAL
    finally:
        os.close(read_only)


@both
def test_events_over_a_pipe(way: int, pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    assert PAIRS["poll_readable"][way](read_end, 0) == 0
    assert PAIRS["poll_readable"][way](read_end, 1) == 0
    assert PAIRS["signal_event"][way](write_end) == 8
    assert PAIRS["poll_readable"][way](read_end, 10_000) == 1
    assert PAIRS["take_event"][way](read_end) == 8
    assert PAIRS["poll_readable"][way](read_end, 0) == 0
    while PAIRS["signal_event"][way](write_end) == 8:
        pass
    assert PAIRS["signal_event"][way](write_end) == -errno.EAGAIN


@both
def test_events_over_an_eventfd(way: int) -> None:
    if not hasattr(os, "eventfd"):
        pytest.skip("no eventfd on this system: pipes serve there")
    event = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert PAIRS["take_event"][way](event) == -errno.EAGAIN
        assert PAIRS["signal_event"][way](event) == 8
        assert PAIRS["signal_event"][way](event) == 8
        assert PAIRS["poll_readable"][way](event, 0) == 1
        assert PAIRS["take_event"][way](event) == 8
        assert PAIRS["poll_readable"][way](event, 0) == 0
    finally:
        os.close(event)


@both
def test_a_descriptor_that_is_not_open_counts_as_readable(way: int) -> None:
    assert PAIRS["poll_readable"][way](closed_descriptor(), 0) == 1


@both
def test_bytes_over_sockets_without_waiting(way: int) -> None:
    ours, theirs = socket.socketpair()
    other, others = socket.socketpair()
    data, found = np.arange(8, dtype=np.uint8), np.zeros(16, np.uint8)
    either, send, receive = (PAIRS[name][way] for name in ("either_readable", "send_some", "receive_some"))
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


@both
def test_a_mutex_is_held_by_one(way: int) -> None:
    words = np.zeros(16, np.int64)
    lock, try_lock, unlock = (PAIRS[f"{name}_mutex"][way] for name in ("lock", "try_lock", "unlock"))
    assert lock(words.ctypes.data) == 0
    assert try_lock(words.ctypes.data) == errno.EBUSY
    assert unlock(words.ctypes.data) == 0
    assert try_lock(words.ctypes.data) == 0


@both
def test_clock_and_core(way: int) -> None:
    before = time.monotonic_ns()
    assert PAIRS["yield_core"][way]() == 0
    assert before <= PAIRS["monotonic_ns"][way]() <= time.monotonic_ns()
    before = time.time_ns()
    assert before <= PAIRS["wall_ns"][way]() <= time.time_ns()


@pytest.mark.skipif(not system.IS_LINUX, reason="io_uring exists on Linux only")
@both
def test_entering_what_is_no_ring_fails(way: int, descriptor: int) -> None:
    enter: Any = (compiled(system.uring_enter, 4), system._uring_enter)[way]
    assert enter(closed_descriptor(), 0, 0, 0) < 0
    assert enter(descriptor, 0, 0, 0) < 0


def test_libc_by_name() -> None:
    assert system.libc_call("getpid") == os.getpid()
    assert system.libc_call("close", -1) == -errno.EBADF
