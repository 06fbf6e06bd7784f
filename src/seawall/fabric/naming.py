"""Where the fabric of a data directory lies: under a name that nobody can guess, which the directory records.

    DIR/FABRIC    the path of the fabric, as text; there while a process has the directory open with brokers

Folders of shared memory are open to every user of the machine: whoever knows a name beforehand can take it. So each
fabric gets a random name, and only who may read the data directory learns it.

The name is recorded, durably, before the file is made. So a fabric that a killed process left is found by the next one,
which has the lock of the directory, and removed.

This module must not know what is in a fabric.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from seawall.config import FabricConfig
from seawall.io.disk.files import write_all
from seawall.io.interfaces import Files, SharedMemory

#: The file of a data directory that records where its fabric is.
RECORD_NAME: Final = "FABRIC"
#: Where memory that several processes share lives on Linux.
SHARED_MEMORY_DIRECTORY: Final = "/dev/shm"
#: Random bytes in a name.
TOKEN_SIZE: Final = 16

_NAME: Final = re.compile(r"seawall-[0-9a-f]{32}\.fabric")
#: Bytes of a recorded path that are read: more than any path may have.
_PATH_SIZE_MAX: Final = 8_192


def fabric_path(files: Files, config: FabricConfig, data_directory: str, token: bytes) -> str:
    """The path of a new fabric: in memory, where the system has a folder for that."""
    shared = SHARED_MEMORY_DIRECTORY if files.exists(SHARED_MEMORY_DIRECTORY) else data_directory
    return str(Path(config.directory or shared, f"seawall-{token.hex()}.fabric").absolute())


def record_fabric(files: Files, data_directory: str, path: str) -> None:
    """Record the path of a fabric that is about to be made."""
    file = files.open(f"{data_directory}/{RECORD_NAME}", create=True)
    try:
        file.truncate(0)
        write_all(file, [path.encode(errors="surrogateescape")], 0)
        file.sync()
    finally:
        file.close()
    files.sync_directory(data_directory)


def recorded_fabric(files: Files, data_directory: str) -> str | None:
    """The recorded path; None if there is none, or none that this module could have written."""
    try:
        file = files.open(f"{data_directory}/{RECORD_NAME}", read_only=True)
    except FileNotFoundError:
        return None
    try:
        path = file.read(_PATH_SIZE_MAX, 0).decode(errors="surrogateescape")
    finally:
        file.close()
    return path if _NAME.fullmatch(Path(path).name) else None


def remove_left_fabric(files: Files, memory: SharedMemory, data_directory: str) -> None:
    """Remove the fabric that a killed process left; for who has the lock of the directory."""
    path = recorded_fabric(files, data_directory)
    if path is not None:
        memory.remove(path)


def forget_fabric(files: Files, data_directory: str) -> None:
    """Remove the record of a fabric that is gone. Where that fails, the next start does it."""
    with suppress(OSError):
        files.unlink(f"{data_directory}/{RECORD_NAME}")
