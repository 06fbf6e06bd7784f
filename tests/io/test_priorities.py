"""A thread whose reads wait for all others."""

import ctypes
import platform
import threading

import pytest

from seawall.io.disk import priorities
from seawall.io.disk.priorities import set_idle_io_priority

GET = {"x86_64": 252, "aarch64": 31, "riscv64": 31}


def io_class() -> int:
    """The class of this thread, as the system has it."""
    return int(ctypes.CDLL(None).syscall(GET[platform.machine()], 1, 0)) >> 13


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() not in GET, reason="another system")
def test_only_the_thread_that_asks_is_idle() -> None:
    seen: list[object] = []

    def ask() -> None:
        seen.extend((set_idle_io_priority(), io_class()))

    before = io_class()
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen == [True, 3]
    assert io_class() == before


def test_on_another_machine_nothing_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priorities.platform, "machine", lambda: "abacus")
    assert set_idle_io_priority() is False
    monkeypatch.setattr(priorities.platform, "system", lambda: "Other")
    assert set_idle_io_priority() is False
