"""System calls from inside kernels, so a resident kernel can write, sync, sleep and wake without the GIL.

Each primitive calls the C library by symbol (cached code contains no addresses) and returns the result of the call, or
minus errno. They are as low-level as the calls themselves: memory addresses must stay valid until the call returns.

On macOS `sync_data` uses F_FULLFSYNC, because plain `fsync` does not reach the disk there, and writes take no flags.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from seawall.kernels.runtime.jit import primitive

IS_LINUX = sys.platform.startswith("linux")
IS_MACOS = sys.platform == "darwin"

#: Flags of a write. RWF_DSYNC: return when the bytes are durable. RWF_DONTCACHE: write the bytes to disk immediately,
#: then drop them from the page cache.
RWF_DSYNC = 0x2
RWF_DONTCACHE = 0x80
_UNSUPPORTED = -errno.EOPNOTSUPP
_F_FULLFSYNC = 51
_CLOCK_MONOTONIC = 6 if IS_MACOS else 1
_CLOCK_REALTIME = 0
_ERRNO_SYMBOL = "__error" if IS_MACOS else "__errno_location"
_POLLIN = 0x1
SYS_IO_URING_SETUP = 425
SYS_IO_URING_ENTER = 426
SYS_IO_URING_REGISTER = 427

_int32 = ir.IntType(32)
_int64 = ir.IntType(64)

_libc = ctypes.CDLL(None, use_errno=True)

#: Functions that return a `long` or `ssize_t`. All others return an `int`, whose −1 is not −1 when read as a long.
_RETURN_LONG = ("pwritev", "pwritev2", "preadv", "recv", "send", "syscall")

#: A send must not block, and must not raise SIGPIPE when the peer is gone.
_SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


def libc_call(name: str, *arguments: int) -> int:
    """Call a C library function with integer arguments; returns its result, or minus errno."""
    function = getattr(_libc, name)
    function.restype = ctypes.c_long if name in _RETURN_LONG else ctypes.c_int
    result = function(*(ctypes.c_long(argument) for argument in arguments))
    return int(result) if result != -1 else -ctypes.get_errno()


def _result(builder: Any, value: Any) -> Any:
    """The value as i64, or minus errno if it is −1."""
    wide = value if value.type == _int64 else builder.sext(value, _int64)
    out = cgutils.alloca_once_value(builder, wide)
    failed = builder.icmp_signed("==", wide, ir.Constant(_int64, -1))
    with builder.if_then(failed, likely=False):
        location_type = ir.FunctionType(_int32.as_pointer(), [])
        location = cgutils.get_or_insert_function(builder.module, location_type, _ERRNO_SYMBOL)
        code = builder.load(builder.call(location, []))
        builder.store(builder.neg(builder.sext(code, _int64)), out)
    return builder.load(out)


def _call(builder: Any, name: str, returns: Any, *arguments: Any, fixed: int | None = None) -> Any:
    """Call a C function; `fixed` is the number of named parameters of a variadic one."""
    parameters = [argument.type for argument in arguments]
    function_type = ir.FunctionType(returns, parameters if fixed is None else parameters[:fixed], fixed is not None)
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def _build_vectored(name: str) -> Callable[..., Any]:
    def build(typing_context: Any, fd: Any, iovec: Any, count: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            fd, iovec, count, at = arguments
            narrow = [builder.trunc(fd, _int32), iovec, builder.trunc(count, _int32), at]
            return _result(builder, _call(builder, name, _int64, *narrow))

        return types.int64(types.int64, types.int64, types.int64, types.int64), generate

    return build


def _vectored_stand_in(name: str) -> Callable[[int, int, int, int], int]:
    def call(fd: int, iovec: int, count: int, at: int) -> int:
        return libc_call(name, fd, iovec, count, at)

    return call


#: `pwritev(fd, iovec, count, at)` and `preadv(fd, iovec, count, at)`.
write_vector = primitive(_vectored_stand_in("pwritev"))(_build_vectored("pwritev"))
read_vector = primitive(_vectored_stand_in("preadv"))(_build_vectored("preadv"))


def _sync_data(fd: int) -> int:
    return libc_call("fcntl", fd, _F_FULLFSYNC, 0) if IS_MACOS else libc_call("fdatasync", fd)


@primitive(_sync_data)
def sync_data(typing_context: Any, fd: Any) -> Any:
    """Make the data of a file durable."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        fd = builder.trunc(arguments[0], _int32)
        if IS_MACOS:
            command, zero = ir.Constant(_int32, _F_FULLFSYNC), ir.Constant(_int32, 0)
            return _result(builder, _call(builder, "fcntl", _int32, fd, command, zero, fixed=2))
        return _result(builder, _call(builder, "fdatasync", _int32, fd))

    return types.int64(types.int64), generate


def _write_flagged(fd: int, iovec: int, count: int, at: int, flags: int) -> int:
    return libc_call("pwritev2", fd, iovec, count, at, flags) if IS_LINUX else _UNSUPPORTED


@primitive(_write_flagged)
def write_flagged(typing_context: Any, fd: Any, iovec: Any, count: Any, at: Any, flags: Any) -> Any:
    """Write with flags (RWF_DSYNC, RWF_DONTCACHE). If one is not supported, write nothing and return −EOPNOTSUPP."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        fd, iovec, count, at, flags = arguments
        if not IS_LINUX:
            return ir.Constant(_int64, _UNSUPPORTED)
        narrow = [builder.trunc(fd, _int32), iovec, builder.trunc(count, _int32), at, builder.trunc(flags, _int32)]
        return _result(builder, _call(builder, "pwritev2", _int64, *narrow))

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), generate


def _signal_event(fd: int) -> int:
    try:
        return os.write(fd, (1).to_bytes(8, "little"))
    except OSError as error:
        return -(error.errno or 0)


@primitive(_signal_event)
def signal_event(typing_context: Any, fd: Any) -> Any:
    """Add one to an eventfd (or write eight bytes to a pipe), which wakes its waiters."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = cgutils.alloca_once_value(builder, ir.Constant(_int64, 1))
        size = ir.Constant(_int64, 8)
        return _result(builder, _call(builder, "write", _int64, builder.trunc(arguments[0], _int32), word, size))

    return types.int64(types.int64), generate


def _take_event(fd: int) -> int:
    try:
        return len(os.read(fd, 8))
    except OSError as error:
        return -(error.errno or 0)


@primitive(_take_event)
def take_event(typing_context: Any, fd: Any) -> Any:
    """Block until an eventfd is signalled, and reset it. Returns 8, or minus errno."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = cgutils.alloca_once(builder, _int64)
        size = ir.Constant(_int64, 8)
        return _result(builder, _call(builder, "read", _int64, builder.trunc(arguments[0], _int32), word, size))

    return types.int64(types.int64), generate


def _poll_readable(fd: int, timeout_ms: int) -> int:
    poll = select.poll()
    poll.register(int(fd), select.POLLIN)
    return len(poll.poll(int(timeout_ms)))


@primitive(_poll_readable)
def poll_readable(typing_context: Any, fd: Any, timeout_ms: Any) -> Any:
    """Block until a descriptor is readable. Returns 1, 0 after `timeout_ms`, or minus errno."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        poll = cgutils.alloca_once(builder, ir.LiteralStructType([_int32, ir.IntType(16), ir.IntType(16)]))
        builder.store(builder.trunc(arguments[0], _int32), cgutils.gep_inbounds(builder, poll, 0, 0))
        builder.store(ir.Constant(ir.IntType(16), _POLLIN), cgutils.gep_inbounds(builder, poll, 0, 1))
        count = ir.Constant(_int32 if IS_MACOS else _int64, 1)
        timeout = builder.trunc(arguments[1], _int32)
        return _result(builder, _call(builder, "poll", _int32, poll, count, timeout))

    return types.int64(types.int64, types.int64), generate


def _either_readable(first: int, second: int, timeout_ms: int) -> int:
    poll = select.poll()
    poll.register(int(first), select.POLLIN)
    poll.register(int(second), select.POLLIN)
    ready = dict(poll.poll(int(timeout_ms)))
    return (1 if ready.get(int(first)) else 0) | (2 if ready.get(int(second)) else 0)


@primitive(_either_readable)
def either_readable(typing_context: Any, first: Any, second: Any, timeout_ms: Any) -> Any:
    """Block until one of two descriptors is readable. Returns a bit for each, 0 after `timeout_ms`, or minus errno."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        half = ir.IntType(16)
        poll_struct = ir.LiteralStructType([_int32, half, half])
        polls = cgutils.alloca_once(builder, ir.ArrayType(poll_struct, 2))
        for index in range(2):
            poll = cgutils.gep_inbounds(builder, polls, 0, index)
            builder.store(builder.trunc(arguments[index], _int32), cgutils.gep_inbounds(builder, poll, 0, 0))
            builder.store(ir.Constant(half, _POLLIN), cgutils.gep_inbounds(builder, poll, 0, 1))
            builder.store(ir.Constant(half, 0), cgutils.gep_inbounds(builder, poll, 0, 2))
        count = ir.Constant(_int32 if IS_MACOS else _int64, 2)
        first = cgutils.gep_inbounds(builder, polls, 0, 0)
        result = _result(builder, _call(builder, "poll", _int32, first, count, builder.trunc(arguments[2], _int32)))
        out = cgutils.alloca_once_value(builder, result)
        with builder.if_then(builder.icmp_signed(">", result, ir.Constant(_int64, 0))):
            bits = []
            for index in range(2):
                revents = builder.load(cgutils.gep_inbounds(builder, polls, 0, index, 2))
                is_ready = builder.icmp_unsigned("!=", revents, ir.Constant(half, 0))
                bits.append(builder.shl(builder.zext(is_ready, _int64), ir.Constant(_int64, index)))
            builder.store(builder.or_(*bits), out)
        return builder.load(out)

    return types.int64(types.int64, types.int64, types.int64), generate


def _epoll_ready(epoll: int, address: int, count: int, timeout_ms: int) -> int:
    return libc_call("epoll_wait", epoll, address, count, timeout_ms) if IS_LINUX else _UNSUPPORTED


@primitive(_epoll_ready)
def epoll_ready(typing_context: Any, epoll: Any, address: Any, count: Any, timeout_ms: Any) -> Any:
    """`epoll_wait`: store up to `count` events at an address. Returns how many, 0 after `timeout_ms`. Linux only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not IS_LINUX:
            return ir.Constant(_int64, _UNSUPPORTED)
        epoll, address, count, timeout = arguments
        narrow = [builder.trunc(epoll, _int32), address, builder.trunc(count, _int32), builder.trunc(timeout, _int32)]
        return _result(builder, _call(builder, "epoll_wait", _int32, *narrow))

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


def _build_socket_call(name: str, flags: int) -> Callable[..., Any]:
    def build(typing_context: Any, fd: Any, address: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            fd, address, size = arguments
            narrow = [builder.trunc(fd, _int32), address, size, ir.Constant(_int32, flags)]
            return _result(builder, _call(builder, name, _int64, *narrow))

        return types.int64(types.int64, types.int64, types.int64), generate

    return build


def _socket_stand_in(name: str, flags: int) -> Callable[[int, int, int], int]:
    def call(fd: int, address: int, size: int) -> int:
        return libc_call(name, fd, address, size, flags)

    return call


#: `send_some(fd, address, size)` and `receive_some(fd, address, size)`: as many bytes as possible without blocking.
send_some = primitive(_socket_stand_in("send", _SEND_FLAGS))(_build_socket_call("send", _SEND_FLAGS))
receive_some = primitive(_socket_stand_in("recv", socket.MSG_DONTWAIT))(_build_socket_call("recv", socket.MSG_DONTWAIT))
#: `receive_whole(fd, address, size)`: all `size` bytes, or those that arrived before the timeout of the socket.
receive_whole = primitive(_socket_stand_in("recv", socket.MSG_WAITALL))(_build_socket_call("recv", socket.MSG_WAITALL))


def _yield_core() -> int:
    return libc_call("sched_yield")


@primitive(_yield_core)
def yield_core(typing_context: Any) -> Any:
    """Yield the core to another thread."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _result(builder, _call(builder, "sched_yield", _int32))

    return types.int64(), generate


def _build_clock(number: int) -> Callable[..., Any]:
    def build(typing_context: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            spec = cgutils.alloca_once(builder, ir.LiteralStructType([_int64, _int64]))
            _call(builder, "clock_gettime", _int32, ir.Constant(_int32, number), spec)
            seconds = builder.load(cgutils.gep_inbounds(builder, spec, 0, 0))
            nanoseconds = builder.load(cgutils.gep_inbounds(builder, spec, 0, 1))
            return builder.add(builder.mul(seconds, ir.Constant(_int64, 1_000_000_000)), nanoseconds)

        return types.int64(), generate

    return build


#: Monotonic time and wall time in nanoseconds.
monotonic_ns = primitive(time.monotonic_ns)(_build_clock(_CLOCK_MONOTONIC))
wall_ns = primitive(time.time_ns)(_build_clock(_CLOCK_REALTIME))


def _build_mutex_call(name: str) -> Callable[..., Any]:
    def build(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.sext(_call(builder, name, _int32, arguments[0]), _int64)

        return types.int64(types.int64), generate

    return build


def _mutex_stand_in(name: str) -> Callable[[int], int]:
    def call(address: int) -> int:
        return libc_call(name, address)

    return call


#: Operations on a C library mutex at an address, for threads of this process. They return 0, or an error number (EBUSY
#: if the mutex is held).
lock_mutex = primitive(_mutex_stand_in("pthread_mutex_lock"))(_build_mutex_call("pthread_mutex_lock"))
try_lock_mutex = primitive(_mutex_stand_in("pthread_mutex_trylock"))(_build_mutex_call("pthread_mutex_trylock"))
unlock_mutex = primitive(_mutex_stand_in("pthread_mutex_unlock"))(_build_mutex_call("pthread_mutex_unlock"))

#: A C library without this function does not wait.
_HAS_CLOCK_LOCK = hasattr(_libc, "pthread_mutex_clocklock")


def _lock_mutex_until(address: int, deadline_ns: int) -> int:
    if not _HAS_CLOCK_LOCK:
        return try_lock_mutex(address)
    spec = (ctypes.c_int64 * 2)(*divmod(deadline_ns, 1_000_000_000))
    return libc_call("pthread_mutex_clocklock", address, _CLOCK_MONOTONIC, ctypes.addressof(spec))


@primitive(_lock_mutex_until)
def lock_mutex_until(typing_context: Any, address: Any, deadline_ns: Any) -> Any:
    """Lock a mutex, waiting until a time of the monotonic clock. Returns 0 or an error number (ETIMEDOUT, EBUSY)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mutex, deadline = arguments
        if not _HAS_CLOCK_LOCK:
            return builder.sext(_call(builder, "pthread_mutex_trylock", _int32, mutex), _int64)
        spec = cgutils.alloca_once(builder, ir.LiteralStructType([_int64, _int64]))
        billion = ir.Constant(_int64, 1_000_000_000)
        builder.store(builder.sdiv(deadline, billion), cgutils.gep_inbounds(builder, spec, 0, 0))
        builder.store(builder.srem(deadline, billion), cgutils.gep_inbounds(builder, spec, 0, 1))
        clock = ir.Constant(_int32, _CLOCK_MONOTONIC)
        return builder.sext(_call(builder, "pthread_mutex_clocklock", _int32, mutex, clock, spec), _int64)

    return types.int64(types.int64, types.int64), generate


def _uring_enter(fd: int, submit: int, complete: int, flags: int) -> int:
    return libc_call("syscall", SYS_IO_URING_ENTER, fd, submit, complete, flags, 0, 0)


@primitive(_uring_enter)
def uring_enter(typing_context: Any, fd: Any, submit: Any, complete: Any, flags: Any) -> Any:
    """`io_uring_enter`: submit `submit` entries and wait for `complete` completions. Linux only."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = ir.Constant(_int64, SYS_IO_URING_ENTER)
        zero = ir.Constant(_int64, 0)
        return _result(builder, _call(builder, "syscall", _int64, number, *arguments, zero, zero, fixed=1))

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate
