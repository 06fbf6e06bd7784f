"""Roles in forked processes: how they end, what their parent observes, and that none survives it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from seawall.io.process.role_process import RoleProcess
from seawall.io.process.wakeups import WakeUpEvent, keep_stepping

LONG = 30.0

#: Forks a role that never returns, prints its process id, and waits to be killed.
PARENT = """
import signal
from seawall.io.process.role_process import RoleProcess
role = RoleProcess("endless", signal.pause, on_terminate=lambda: None)
print(role.pid, flush=True)
signal.pause()
"""


@contextmanager
def idle_role() -> Iterator[tuple[RoleProcess, WakeUpEvent]]:
    wakeup = WakeUpEvent()
    role = RoleProcess("idle", lambda: keep_stepping(lambda: 0, wakeup), on_terminate=wakeup.stop)
    try:
        yield role, wakeup
    finally:
        role.close()
        wakeup.close()


def test_a_role_that_returns_exits_with_zero() -> None:
    role = RoleProcess("short", lambda: None, on_terminate=lambda: None)
    assert role.wait(LONG)
    assert role.exit_code == 0
    role.close()
    role.close()


def test_a_failing_role_exits_with_one_and_prints_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("no such thing")

    role = RoleProcess("broken", fail, on_terminate=lambda: None)
    assert role.wait(LONG)
    assert role.exit_code == 1
    assert "role broken has failed" in (printed := capfd.readouterr().err)
    assert "ValueError: no such thing" in printed
    role.close()


def test_a_stop_request_ends_a_sleeping_role() -> None:
    with idle_role() as (role, wakeup):
        assert not role.wait(0)
        assert role.exit_code is None
        wakeup.stop()
        assert role.wait(LONG)
        assert role.exit_code == 0


def test_terminate_ends_a_role_cleanly_and_kill_ends_it_at_once() -> None:
    with idle_role() as (role, _):
        role.terminate()
        assert role.wait(LONG)
        assert role.exit_code == 0
        role.kill()
    with idle_role() as (role, _):
        role.kill()
        assert role.wait(LONG)
        assert role.exit_code == -signal.SIGKILL


def test_close_kills_a_role_that_ignores_its_stop_request() -> None:
    role = RoleProcess("ignoring", lambda: keep_stepping(lambda: 0, WakeUpEvent()), on_terminate=lambda: None)
    role.close(seconds=0.05)
    assert role.exit_code == -signal.SIGKILL


def test_wait_works_without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with idle_role() as (role, wakeup):
        assert not role.wait(0.02)
        wakeup.stop()
        assert role.wait(LONG)


@pytest.mark.skipif(sys.platform != "linux", reason="the system ends children of a dead parent on Linux only")
def test_a_role_ends_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    role = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.kill()
        parent.wait()
        poller = select.poll()
        poller.register(role, select.POLLIN)
        assert poller.poll(int(LONG * 1_000))
    finally:
        os.close(role)
        parent.stdout.close()
