"""Who else on this machine can reach files: how they are made, groups by their names, and what a mode allows others.

INV-FILES-PRIVATE: files and directories are created for this user alone, or readable by one configured group, whatever
the umask. That is 0600 and 0700, or 0640 and 0750. What is there already keeps its permissions: it may be somebody
else's.

This module must not know what is in a file.
"""

from __future__ import annotations

import grp
import os
import stat
from contextlib import suppress
from typing import Final

from seawall.errors import ConfigError

#: Permissions of what is made: for its user alone, or for one group, too.
_PRIVATE_FILE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700
_GROUP_FILE: Final = 0o640
_GROUP_DIRECTORY: Final = 0o750


def open_or_make(path: str, flags: int, group: int | None, *, exclusive: bool = False) -> int:
    """Open a file, made where it is missing (INV-FILES-PRIVATE); with `exclusive`, fail where it is there."""
    if not exclusive:
        with suppress(FileNotFoundError):
            return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    except FileExistsError:
        if exclusive:
            raise
        return os.open(path, flags)  # somebody else made it meanwhile
    try:
        _grant(descriptor, group, _PRIVATE_FILE, _GROUP_FILE)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_directories(path: str, group: int | None) -> None:
    """Make a directory and its missing parents (INV-FILES-PRIVATE); fine if it is there."""
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


def _grant(made: int | str, group: int | None, private: int, shared: int) -> None:
    """Set the permissions of what was made just now, and its group."""
    if group is None:
        os.chmod(made, private)
    else:
        os.chown(made, -1, group)
        os.chmod(made, shared)


def group_id(name: str) -> int | None:
    """The id of the group of a setting, by its name or number; None if it is empty.

    `ConfigError` if there is no such group, or if this process may not give files to it.
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
    """How users other than this one and root can reach a file or directory, in words; empty if they cannot.

    With `is_for_group` its group may read it. Nothing is said of what is not there.
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
