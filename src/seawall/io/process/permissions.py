"""File permissions: creates private files and directories, looks up groups, and describes what others may access.

INV-FILES-PRIVATE: files and directories are created for this user alone, or readable by one configured group, whatever
the umask. That is 0600 and 0700, or 0640 and 0750. Existing files keep their permissions: they may belong to another
user.

This module must not know what is in a file.
"""

from __future__ import annotations

import grp
import os
import stat
from contextlib import suppress
from typing import Final

from seawall.errors import ConfigError

#: Permissions of new files and directories: for the user alone, or readable by one group.
_PRIVATE_FILE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700
_GROUP_FILE: Final = 0o640
_GROUP_DIRECTORY: Final = 0o750


def open_or_make(path: str, flags: int, group: int | None, *, exclusive: bool = False) -> int:
    """Open a file, creating it if it is missing (INV-FILES-PRIVATE); with `exclusive`, fail if it exists."""
    if not exclusive:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    except FileExistsError:
        if exclusive:
            raise
        return os.open(path, flags)  # another process created it meanwhile
    try:
        _grant(descriptor, group, _PRIVATE_FILE, _GROUP_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_directories(path: str, group: int | None) -> None:
    """Create a directory and its missing parents (INV-FILES-PRIVATE); fine if it exists."""
    try:
        os.mkdir(path, _PRIVATE_DIRECTORY)
    except FileNotFoundError:
        make_directories(os.path.dirname(path) or ".", group)
        make_directories(path, group)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    else:
        _grant(path, group, _PRIVATE_DIRECTORY, _GROUP_DIRECTORY)


def _grant(created: int | str, group: int | None, private: int, shared: int) -> None:
    """Set the permissions and the group of a new file or directory."""
    if group is None:
        os.chmod(created, private)
    else:
        os.chown(created, -1, group)
        os.chmod(created, shared)


def group_id(name: str) -> int | None:
    """The id of a configured group, given by name or number; None if the setting is empty.

    `ConfigError` if the group does not exist, or if this process may not assign files to it.
    """
    if not name:
        return None
    try:
        found = int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
    except KeyError as error:
        raise ConfigError(f"storage.group: there is no group {name!r}; create it, or name another") from error
    if os.geteuid() != 0 and found not in (os.getegid(), *os.getgroups()):
        raise ConfigError(
            f"storage.group: user {os.geteuid()} is not a member of group {name!r} and cannot give files to it; add "
            "the user to the group, or name another"
        )
    return found


def exposure(path: str, *, is_for_group: bool = False) -> str:
    """Describe how users other than this one and root can access a file or directory; empty if they cannot.

    With `is_for_group` its group may read it. Empty also if the path does not exist.
    """
    try:
        status = os.stat(path)
    except OSError:
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"{path} belongs to user {status.st_uid}, who can change it"
    mode = stat.S_IMODE(status.st_mode)
    allowed = mode & (0o027 if is_for_group else 0o077)
    if not allowed:
        return ""
    who = "every user" if allowed & 0o007 else "its group"
    may = "change" if allowed & 0o022 else "read"
    return f"{path} has mode {mode:04o}: {who} can {may} it"
