"""Chooses and records the path of the fabric of a data directory.

    DIR/FABRIC    the path of the fabric, as text; exists while a process has the directory open with brokers

Shared memory directories are writable by every user of the machine, so another user could create a predictable name
first. Each fabric therefore gets a random name, which only users with access to the data directory can read.

The path is recorded durably before the file is created. If a process is killed, the next one, which holds the lock of
the directory, finds the leftover fabric and removes it.

This module must not know the content of a fabric.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from seawall.config import FabricConfig
from seawall.io.disk.files import write_all
from seawall.io.interfaces import Files, SharedMemory

#: The file of a data directory with the path of its fabric.
RECORD_NAME: Final = "FABRIC"
#: The shared memory directory of Linux.
SHARED_MEMORY_DIRECTORY: Final = "/dev/shm"
#: The number of random bytes in a name.
TOKEN_SIZE: Final = 16

_NAME: Final = re.compile(r"seawall-[0-9a-f]{32}\.fabric")
#: How many bytes of a recorded path are read: more than any path can have.
_PATH_SIZE_MAX: Final = 8_192


def fabric_path(files: Files, config: FabricConfig, data_directory: str, token: bytes) -> str:
    """The path of a new fabric: in the shared memory directory if the system has one."""
    shared = SHARED_MEMORY_DIRECTORY if files.exists(SHARED_MEMORY_DIRECTORY) else data_directory
    return str(Path(config.directory or shared, f"seawall-{token.hex()}.fabric").absolute())


def record_fabric(files: Files, data_directory: str, path: str) -> None:
    """Record the path of a fabric before it is created."""
    file = files.open(f"{data_directory}/{RECORD_NAME}", create=True)
    try:
        file.truncate(0)
        write_all(file, [path.encode(errors="surrogateescape")], 0)
        file.sync()
    finally:
        file.close()
    files.sync_directory(data_directory)


def recorded_fabric(files: Files, data_directory: str) -> str | None:
    """The recorded path; None if there is none, or if this module could not have written it."""
    try:
        file = files.open(f"{data_directory}/{RECORD_NAME}", read_only=True)
    except FileNotFoundError:
        return None
    try:
        path = file.read(_PATH_SIZE_MAX, 0).decode(errors="surrogateescape")
    finally:
        file.close()
    return path if _NAME.fullmatch(Path(path).name) else None


def remove_leftover_fabric(files: Files, memory: SharedMemory, data_directory: str) -> None:
    """Remove the fabric that a killed process left; the caller holds the lock of the directory."""
    path = recorded_fabric(files, data_directory)
    if path is not None:
        memory.remove(path)


def forget_fabric(files: Files, data_directory: str) -> None:
    """Remove the record of a removed fabric. If that fails, the next start does it."""
    with suppress(OSError):
        files.unlink(f"{data_directory}/{RECORD_NAME}")
