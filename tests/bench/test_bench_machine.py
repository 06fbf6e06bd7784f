"""The description of the machine in a report."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from seawall.bench import machine


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nmodel name\t: A 9000\n\nprocessor\t: 1\nmodel name\t: B 1\n", "A 9000"),
        ("processor : 0\nHardware : Board\nModel : Board Rev 2\n", "Board Rev 2"),
        ("cpu : POWER9\nModel :\n", "POWER9"),
        ("nothing to see\n", ""),
    ],
)
def test_the_processor_is_read_from_the_kernels_list(tmp_path: Path, text: str, model: str) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text(text, encoding="utf-8")
    assert machine.cpu_model(listed) == (model or platform.processor() or platform.machine())


def test_without_a_list_python_names_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert machine.cpu_model(tmp_path / "absent") == "riscv64"


def test_unknown_memory_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (machine.memory_bytes() or 0) > 0

    def refuse(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", refuse)
    assert machine.memory_bytes() is None


def test_libraries_are_those_that_are_installed() -> None:
    versions = machine.library_versions(("numpy", "no-such-library-of-ours"))
    assert list(versions) == ["numpy"]


def test_the_description_is_complete_and_has_no_host_name() -> None:
    described = machine.describe()
    assert described.cores >= 1
    assert described.cpu
    assert {"seawall", "numpy", "numba"} <= set(described.libraries)
    assert platform.node() not in described.kernel.split()
