"""Runs a role in a forked process: forked from a warm parent, stopped gracefully, and never orphaned.

The parent compiles every kernel and creates every array before it forks, so a role starts at once and shares all of
them. The caller must make sure that no other thread holds a lock at the fork: the child would never see it released.

A role does not outlive its parent: the system kills it (Linux), and `terminate` and `close` end it. After the role's
work, the child runs none of the parent's code: no cleanup, no exit handlers, no second flush of buffers.

SIGTERM asks a role to end after its current step; the parent handles Ctrl-C. What a crash does: the parent notices a
dead role (`wait`), and the role's state in shared memory stays as it was. This module must not know what a role does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from seawall.io.process.shared_memory import c_library

__all__ = ["RoleProcess"]

_PR_SET_PDEATHSIG: Final = 1
#: Interval between checks for the end of a child, where the system has no pidfd.
_CHECK_SECONDS: Final = 0.005
#: How long a killed role may take to disappear: its memory is freed first, and the machine may be busy.
_KILLED_SECONDS: Final = 30.0


class RoleProcess:
    """One role, running in a child process."""

    __slots__ = ("_exit_code", "_handle", "name", "pid")

    def __init__(self, name: str, work: Callable[[], None], *, on_terminate: Callable[[], None]) -> None:
        """Fork, and run `work` in the child; SIGTERM calls `on_terminate` there."""
        self.name: Final = name
        self._exit_code: int | None = None
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # A SIGTERM before the child has its handler would kill it instead of stopping it gracefully.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.pid: Final = os.fork()
        if self.pid == 0:
            _run_role(name, parent, work, on_terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1

    @property
    def exit_code(self) -> int | None:
        """0 after a graceful end, negative after a signal; None while it runs."""
        return self._exit_code

    def terminate(self) -> None:
        """Ask it to end after its current step."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._send(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; false if it still runs after `seconds`."""
        if self._exit_code is None and self._has_ended(seconds):
            _, status = os.waitpid(self.pid, 0)
            self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code is not None

    def close(self, seconds: float = 5.0) -> None:
        """Terminate it, and kill it if it still runs after `seconds`. Closing twice is fine."""
        self.terminate()
        if not self.wait(seconds):
            self.kill()
            self.wait(_KILLED_SECONDS)
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _send(self, number: signal.Signals) -> None:
        if self._exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _has_ended(self, seconds: float) -> bool:
        if self._handle >= 0:
            poller = select.poll()
            poller.register(self._handle, select.POLLIN)
            return bool(poller.poll(int(seconds * 1_000)))
        deadline = time.monotonic() + seconds
        while True:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None or time.monotonic() >= deadline:
                return ended is not None
            time.sleep(_CHECK_SECONDS)


def _run_role(name: str, parent: int, work: Callable[[], None], on_terminate: Callable[[], None]) -> NoReturn:
    """Everything that happens in the child."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda _number, _frame: on_terminate())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _die_with(parent)
        work()
        code = 0
    finally:
        if code:
            sys.stderr.write(f"role {name} has failed:\n{traceback.format_exc()}")
            sys.stderr.flush()
        os._exit(code)


def _die_with(parent: int) -> None:
    """Make the system kill this process when its parent ends."""
    if sys.platform == "linux":
        c_library().prctl(ctypes.c_int(_PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        # The parent ended before the call above.
        os._exit(1)
