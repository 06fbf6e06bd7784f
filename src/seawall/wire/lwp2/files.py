"""Version 2 payloads that name the files of a topic, for readers with access to the data directory.

| code | frame       | bytes | payload                                                              |
|------|-------------|-------|----------------------------------------------------------------------|
| 5E   | FILES       | 24    | topic u32, 0 u32, first_seq u64, end_seq u64, which is not included  |
| 5F   | FILES_REPLY | …     | a JSON object, below                                                 |

    directory      path of the data directory on the server's machine
    directory_id   32 hex digits: the id of the directory that all its files contain
    end            all records below this seq are in sealed segments; at most the requested end_seq, and the requested
                   first_seq if no record is in sealed segments
    segments       names of these segments, ascending
    live           pairs of the first and the last seq of live records between first_seq and end, ascending
    gaps           [first, last, reason] of the gaps to report there, ascending

Sealed segments never change, but they may be deleted at any time. Deleted records are in no `live` range and in no gap.
A reply holds at most `FILES_RUNS_MAX` pairs and `FILES_SEGMENTS_MAX` names; for later seqs the client asks again.

A payload is valid if it has this form with numbers of 64 bits and no empty range.
Other payloads are refused with error 04. This module must not know files.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final

from seawall.core.identifiers import UNIQUE_ID_SIZE
from seawall.core.types import Seq, TopicId
from seawall.wire.format.codes import Command, GapReason
from seawall.wire.format.fields import (
    Buffer,
    JsonValue,
    json_text,
    json_unsigned,
    malformed,
    pack,
    read_enum,
    read_json_object,
    require_exact,
    require_zero,
    write_json,
)
from seawall.wire.format.gaps import Gap

_FILES: Final = Struct("<IIQQ")
_WHAT: Final = "FILES_REPLY"

assert _FILES.size == 24


@dataclass(frozen=True, slots=True)
class FilesRequest:
    """Ask for the files that hold a range of seqs of a topic."""

    COMMAND: ClassVar[Command] = Command.FILES
    topic_id: TopicId
    first_seq: Seq
    end_seq: Seq

    def encode(self) -> bytes:
        """The payload."""
        return pack(_FILES, "FILES", self.topic_id, 0, self.first_seq, self.end_seq)


@dataclass(frozen=True, slots=True)
class FilesReply:
    """The sealed segments of the range, its live seqs and its gaps."""

    COMMAND: ClassVar[Command] = Command.FILES_REPLY
    directory: str
    directory_id: bytes
    end: Seq
    segments: tuple[str, ...]
    live: tuple[tuple[Seq, Seq], ...]
    gaps: tuple[Gap, ...]

    def encode(self) -> bytes:
        """The payload."""
        return write_json(
            {
                "directory": self.directory,
                "directory_id": self.directory_id.hex(),
                "end": self.end,
                "segments": list(self.segments),
                "live": [[first, last] for first, last in self.live],
                "gaps": [[gap.first_seq, gap.last_seq, int(gap.reason)] for gap in self.gaps],
            }
        )


def parse_files_request(payload: Buffer) -> FilesRequest:
    """Parse a client's FILES."""
    require_exact(_FILES, "FILES", payload)
    topic_id, reserved, first_seq, end_seq = _FILES.unpack(payload)
    require_zero("FILES", reserved)
    if not 1 <= first_seq <= end_seq:
        raise malformed(
            f"FILES: from seq {first_seq} to {end_seq}; seqs start at 1, and the end is not below the start"
        )
    return FilesRequest(topic_id, first_seq, end_seq)


def parse_files_reply(payload: Buffer) -> FilesReply:
    """Parse a server's FILES_REPLY."""
    document = read_json_object(payload, _WHAT)
    try:
        directory_id = bytes.fromhex(json_text(document, "directory_id", _WHAT))
    except ValueError as error:
        raise malformed(f"{_WHAT}: directory_id is not hex") from error
    segments = document.get("segments")
    if len(directory_id) != UNIQUE_ID_SIZE:
        raise malformed(f"{_WHAT}: directory_id has {len(directory_id)} bytes, not {UNIQUE_ID_SIZE}")
    if not isinstance(segments, list) or not all(isinstance(name, str) for name in segments):
        raise malformed(f"{_WHAT}: segments are {segments!r}, not a list of names")
    gaps = (Gap(Seq(row[0]), Seq(row[1]), read_enum(GapReason, row[2], _WHAT)) for row in _rows(document, "gaps", 3))
    return FilesReply(
        json_text(document, "directory", _WHAT),
        directory_id,
        Seq(json_unsigned(document, "end", _WHAT)),
        tuple(map(str, segments)),
        tuple((Seq(row[0]), Seq(row[1])) for row in _rows(document, "live", 2)),
        tuple(gaps),
    )


def _rows(document: dict[str, JsonValue], key: str, width: int) -> list[list[int]]:
    """Rows of `width` numbers, the first two of which are ascending ranges."""
    rows = document.get(key)
    found: list[list[int]] = []
    low = 0
    for row in rows if isinstance(rows, list) else [rows]:
        numbers = [each for each in row if type(each) is int and 0 <= each < 1 << 63] if isinstance(row, list) else []
        if len(numbers) != width or row != numbers or not low <= numbers[0] <= numbers[1]:
            raise malformed(f"{_WHAT}: {key} has {row!r}, which is not a range after the previous one")
        low = numbers[1] + 1
        found.append(numbers)
    return found
