"""Formats and parses the names of the files in a topic's directory.

| name                                                   | what it is                                             |
|--------------------------------------------------------|--------------------------------------------------------|
| `<first_seq>.active`                                   | an active segment                                      |
| `<first_seq>-<last_seq>-<first_ms>-<last_ms>.sealed`   | a sealed segment, which never changes again            |
| `<first_seq>.index`                                    | the index of the sealed segment that starts there      |
| `<first_seq>.deletes`                                  | the deleted records of the segment                     |
| one of the two above, and `.replacing`                 | debris of an interrupted replacement                   |
| `<first_seq>.adopting`, the same and `.replacing`      | note of an interrupted adoption (`adoption.py`)        |

Seqs have 20 digits, milliseconds since the Unix epoch 13 or, from the year 2286 on, 14. So names sort by seq, and
retention by seq or by time needs only a directory listing.

A name is valid only if formatting its parsed parts gives the same name again. Every other name is unknown: it is
reported, and never deleted.

This module must not open files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.errors import InvalidInputError
from seawall.io.disk.files import REPLACEMENT_SUFFIX

__all__ = [
    "FileRole",
    "SealedName",
    "TopicFiles",
    "active_name",
    "adopting_name",
    "adopting_seq",
    "deletes_name",
    "index_name",
    "parse_name",
    "sort_names",
    "topic_directory_name",
]

_SEQ_LIMIT: Final = 1 << 64
_NS_PER_MS: Final = 1_000_000
_MS_LIMIT: Final = 10**14

_SINGLE: Final = re.compile(r"([0-9]{20})\.(active|index|deletes)", re.ASCII)
_ADOPTING: Final = re.compile(r"([0-9]{20})\.adopting", re.ASCII)
_SEALED: Final = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9]{13,14})-([0-9]{13,14})\.sealed", re.ASCII)


class FileRole(Enum):
    """The role of a file that is named by its first seq alone; the value is the suffix of its name."""

    ACTIVE = "active"
    INDEX = "index"
    DELETES = "deletes"


@dataclass(frozen=True, slots=True, order=True)
class SealedName:
    """The parts of the name of a sealed segment; sorts by seq."""

    first_seq: Seq
    last_seq: Seq
    first_ms: int
    last_ms: int

    def __post_init__(self) -> None:
        seqs_rise = 0 <= self.first_seq <= self.last_seq < _SEQ_LIMIT
        if not seqs_rise or not 0 <= self.first_ms <= self.last_ms < _MS_LIMIT:
            raise InvalidInputError(
                f"no segment covers seqs {self.first_seq} to {self.last_seq} and ms {self.first_ms} to {self.last_ms}"
            )

    @classmethod
    def covering(cls, first_seq: Seq, last_seq: Seq, first_ns: TimestampNs, last_ns: TimestampNs) -> SealedName:
        """The name of a segment whose first and last batch have these times."""
        return cls(first_seq, last_seq, first_ns // _NS_PER_MS, last_ns // _NS_PER_MS)

    def __str__(self) -> str:
        return f"{self.first_seq:020d}-{self.last_seq:020d}-{self.first_ms:013d}-{self.last_ms:013d}.sealed"


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """The names in a topic's directory by role; each in the order of first seq."""

    active: tuple[Seq, ...]
    sealed: tuple[SealedName, ...]
    indexes: tuple[Seq, ...]
    deletes: tuple[Seq, ...]
    debris: tuple[str, ...]
    unknown: tuple[str, ...]


def active_name(first_seq: Seq) -> str:
    """Name of an active segment."""
    return _single(first_seq, FileRole.ACTIVE)


def index_name(first_seq: Seq) -> str:
    """Name of the index of a sealed segment."""
    return _single(first_seq, FileRole.INDEX)


def adopting_name(first_seq: Seq) -> str:
    """Name of the note about a segment that is being adopted."""
    return f"{first_seq:020d}.adopting"


def adopting_seq(name: str) -> Seq | None:
    """The first seq in the name of an adoption note; None for any other name."""
    found = _ADOPTING.fullmatch(name)
    return None if found is None else Seq(int(found[1]))


def deletes_name(first_seq: Seq) -> str:
    """Name of the delete sidecar of a segment."""
    return _single(first_seq, FileRole.DELETES)


def topic_directory_name(topic_id: TopicId) -> str:
    """Name of a topic's directory below `topics`."""
    return f"{topic_id:08x}"


def parse_name(name: str) -> SealedName | tuple[FileRole, Seq] | None:
    """Parse a name; None if it is not valid."""
    single = _SINGLE.fullmatch(name)
    if single is not None:
        first_seq = int(single[1])
        return (FileRole(single[2]), Seq(first_seq)) if first_seq < _SEQ_LIMIT else None
    sealed = _SEALED.fullmatch(name)
    if sealed is None:
        return None
    first_seq, last_seq, first_ms, last_ms = (int(part) for part in sealed.groups())
    try:
        parsed = SealedName(Seq(first_seq), Seq(last_seq), first_ms, last_ms)
    except InvalidInputError:
        return None
    return parsed if str(parsed) == name else None


def sort_names(names: Iterable[str]) -> TopicFiles:
    """Sort the names of a listing by role."""
    single: dict[FileRole, list[Seq]] = {role: [] for role in FileRole}
    sealed: list[SealedName] = []
    debris: list[str] = []
    unknown: list[str] = []
    for name in sorted(names):
        parsed = parse_name(name)
        if isinstance(parsed, SealedName):
            sealed.append(parsed)
        elif parsed is not None:
            single[parsed[0]].append(parsed[1])
        else:
            (debris if _is_debris(name) else unknown).append(name)
    return TopicFiles(
        tuple(single[FileRole.ACTIVE]),
        tuple(sealed),
        tuple(single[FileRole.INDEX]),
        tuple(single[FileRole.DELETES]),
        tuple(debris),
        tuple(unknown),
    )


def _single(first_seq: Seq, role: FileRole) -> str:
    if not 0 <= first_seq < _SEQ_LIMIT:
        raise InvalidInputError(f"{first_seq} is no seq; a segment cannot start there")
    return f"{first_seq:020d}.{role.value}"


def _is_debris(name: str) -> bool:
    """True for a temporary name of `replace_file` for a sidecar, and for an adoption note.

    Data files are never replaced.
    """
    if _ADOPTING.fullmatch(name.removesuffix(REPLACEMENT_SUFFIX)) is not None:
        return True
    target = parse_name(name.removesuffix(REPLACEMENT_SUFFIX)) if name.endswith(REPLACEMENT_SUFFIX) else None
    return isinstance(target, tuple) and target[0] is not FileRole.ACTIVE
