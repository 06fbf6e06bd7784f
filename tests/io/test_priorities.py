"""Idle I/O priority of a thread: its reads yield to all others."""

import ctypes
import platform
import threading

import pytest

from seawall.io.disk import priorities
from seawall.io.disk.priorities import set_idle_io_priority

GET = {"x86_64": 252, "aarch64": 31, "riscv64": 31}


def io_class() -> int:
    """The I/O priority class of the calling thread."""
    return int(ctypes.CDLL(None).syscall(GET[platform.machine()], 1, 0)) >> 13


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() not in GET, reason="another system")
def test_idle_priority_applies_to_the_calling_thread_only() -> None:
    seen: list[object] = []

    def lower_priority() -> None:
        seen.extend((set_idle_io_priority(), io_class()))

    before = io_class()
    thread = threading.Thread(target=lower_priority)
    thread.start()
    thread.join()
    assert seen == [True, 3]
    assert io_class() == before


def test_unknown_machines_and_systems_have_no_idle_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priorities.platform, "machine", lambda: "abacus")
    assert set_idle_io_priority() is False
    monkeypatch.setattr(priorities.platform, "system", lambda: "Other")
    assert set_idle_io_priority() is False
