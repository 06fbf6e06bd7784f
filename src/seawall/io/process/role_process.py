"""A role in a forked process: started from a process that is warm, ended in good order, and never left behind.

The parent has compiled every kernel and made every array before it forks, so a role is there at once and shares all of
it. Whoever forks sees to it that no other thread holds anything then: in the child it would be held for ever.

A role does not outlive its parent: the system ends it (Linux), as `stop` and `close` do. Nothing of the parent's code
runs in a child behind its work: no cleanup of the parent, no exit handlers, no buffers written twice.

SIGTERM asks a role to end after its step; Ctrl-C is a matter of the parent. What a crash does: a role that dies is seen
by its parent (`wait`), and what it held in shared memory is left as it was. It must not know what a role does.
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
#: How often it is looked for the end of a child where the system has no handle for it.
_LOOK_SECONDS: Final = 0.005


class RoleProcess:
    """One role, running in a child process."""

    __slots__ = ("_exit_code", "_handle", "name", "pid")

    def __init__(self, name: str, work: Callable[[], None], *, on_terminate: Callable[[], None]) -> None:
        """Fork, and do `work` in the child; `on_terminate` is called there when somebody wants it to end."""
        self.name: Final = name
        self._exit_code: int | None = None
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        # A role that is told to end before it listens would not end in good order.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.pid: Final = os.fork()
        if self.pid == 0:
            _be_role(name, parent, work, on_terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else -1

    @property
    def exit_code(self) -> int | None:
        """How it ended: 0 in good order, negative by a signal; None while it runs."""
        return self._exit_code

    def terminate(self) -> None:
        """Ask it to end after its step."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._send(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; false if it has not come in time."""
        if self._exit_code is None and self._has_ended(seconds):
            _, status = os.waitpid(self.pid, 0)
            self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code is not None

    def close(self, seconds: float = 5.0) -> None:
        """End it: in good order if that comes in time, at once if not. Closing twice is fine."""
        self.terminate()
        if not self.wait(seconds):
            self.kill()
            self.wait(seconds)
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
            time.sleep(_LOOK_SECONDS)


def _be_role(name: str, parent: int, work: Callable[[], None], on_terminate: Callable[[], None]) -> NoReturn:
    """Everything that happens in the child."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda _number, _frame: on_terminate())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _end_with(parent)
        work()
        code = 0
    finally:
        if code:
            sys.stderr.write(f"role {name} has failed:\n{traceback.format_exc()}")
            sys.stderr.flush()
        os._exit(code)


def _end_with(parent: int) -> None:
    """Have this process ended when its parent is."""
    if sys.platform == "linux":
        c_library().prctl(ctypes.c_int(_PR_SET_PDEATHSIG), ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        # It has gone before we asked.
        os._exit(1)
