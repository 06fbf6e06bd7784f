"""The boot id: it identifies one start of the machine."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from seawall.io.process.boot import boot_id, read_boot_id


def test_a_boot_id_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "boot_id"
    path.write_text("00112233-4455-6677-8899-aabbccddeeff\n", encoding="ascii")
    assert read_boot_id(str(path)) == bytes.fromhex("00112233445566778899aabbccddeeff")


@pytest.mark.parametrize("content", [None, b"", b"no number", b"\xff\xfe"])
def test_without_a_valid_file_every_call_returns_a_new_id(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "boot_id"
    if content is not None:
        path.write_bytes(content)
    first, second = read_boot_id(str(path)), read_boot_id(str(path))
    assert len(first) == len(second) == 16
    assert first != second


def test_the_boot_id_is_constant_within_a_process() -> None:
    assert boot_id() == boot_id()
    assert len(boot_id()) == 16


@pytest.mark.skipif(platform.system() != "Linux", reason="only Linux has the boot id in a file")
def test_every_process_sees_the_same_boot_id() -> None:
    code = "import sys; from seawall.io.process.boot import boot_id; sys.stdout.write(boot_id().hex())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == boot_id().hex()
