"""The control batch that deletes records: the request, and the seqs that it removes.

| at | size | field         | notes                                                                               |
|----|------|---------------|-------------------------------------------------------------------------------------|
| 0  | 4    | topic_id      |                                                                                     |
| 4  | 1    | match         | 0 no tag, 1 tags equal to the text, 2 tags that begin with it                       |
| 5  | 1    | width         | bytes of a distance: 1, 2, 4 or 8, the smallest that all of them fit                |
| 6  | 2    | text length   | bytes of the text; 0 where match is 0                                               |
| 8  | 8    | before_seq    | only seqs below it were meant; 2^64 − 1 where no bound was given                    |
| 16 | 8    | removed_bytes | plain bytes of those records that were live                                         |
| 24 | 4    | count         | of ranges, 1 to 2,048                                                               |
| 28 | 4    | reserved      | 0                                                                                   |
| 32 | 8    | first seq     | where the first range begins                                                        |
| 40 | …    | distances     | 2 × count − 1 of them: length of a range, distance to the next one, its length, …   |
| …  | …    | text          | UTF-8, at most 256 bytes                                                            |

Valid: the ranges are not empty, rise and never touch (no distance is 0), all seqs are below 2^63, and the block ends
with the text.

INV-DELETE-RESOLVED: a delete in the log lists the seqs that it removes, so its replay removes the same records. The
engine resolves a delete before it commits it: it looks up the matching records and their bytes. Only the seqs take
effect; `before_seq` and `match` document the request for people. So a delete covers exactly the records that precede it
in the log, its replay needs neither tags nor segments, and the segments may be removed as soon as it is durable.

The ranges may include seqs that are already deleted. A delete of more ranges than fit is several controls.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from struct import Struct
from typing import ClassVar, Final, Self

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.errors import CorruptionError, InvalidInputError
from seawall.storage.control.codec import ControlCommand, require_topic, require_unsigned
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.wire.format.codes import U64_MAX
from seawall.wire.format.fields import Buffer, pack, read_text, require_at_least, require_zero, write_text

_FIXED: Final = Struct("<IBBHQQIIQ")
_WIDTHS: Final = (1, 2, 4, 8)
_SEQ_LIMIT: Final = 1 << 63


class MatchKind(StrEnum):
    """How a tag is compared, byte by byte."""

    EQ = "eq"
    PREFIX = "prefix"


_KINDS: Final = (None, MatchKind.EQ, MatchKind.PREFIX)


@dataclass(frozen=True, slots=True)
class TagMatch:
    """The tags that a delete matches: the one equal to `text`, or all that begin with it."""

    kind: MatchKind
    text: str

    def __post_init__(self) -> None:
        write_text(self.text, limits.TAG_SIZE_MAX, "tag")


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """A requested delete: the seqs in `removed`, whose live records had `removed_bytes`."""

    COMMAND: ClassVar = ControlCommand.DELETE_RECORDS
    topic_id: TopicId
    removed: DeletedSeqs
    removed_bytes: int
    before_seq: Seq | None = None
    match: TagMatch | None = None

    def __post_init__(self) -> None:
        require_topic(self.topic_id)
        require_unsigned(self.removed_bytes)
        if self.before_seq is not None and not 0 <= self.before_seq < U64_MAX:
            raise InvalidInputError(f"delete below seq {self.before_seq}: it must be from 0 to 2^64 - 2")
        ranges = self.removed.ranges
        if not 1 <= len(ranges) <= limits.DELETE_RANGES_MAX or int(ranges[0, 0]) < 1:
            raise InvalidInputError(
                f"a delete of {len(ranges)} ranges: it needs 1 to {limits.DELETE_RANGES_MAX} of them, from seq 1 on"
            )

    def encode(self) -> bytes:
        """The block."""
        bounds = self.removed.ranges.reshape(-1)
        distances = bounds[1:] - bounds[:-1]
        width = _width_of(int(distances.max()))
        text = b"" if self.match is None else self.match.text.encode()
        before_seq = U64_MAX if self.before_seq is None else self.before_seq
        kind = _KINDS.index(None if self.match is None else self.match.kind)
        numbers = (kind, width, len(text), before_seq, self.removed_bytes, len(bounds) // 2, 0, int(bounds[0]))
        fixed = pack(_FIXED, "DELETE_RECORDS", self.topic_id, *numbers)
        return b"".join((fixed, distances.astype(f"<u{width}").tobytes(), text))

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_FIXED.size, "DELETE_RECORDS", block)
        topic_id, kind, width, text_length, before_seq, removed_bytes, count, zero, first = _FIXED.unpack_from(block)
        require_zero("DELETE_RECORDS", zero)
        if not 1 <= count <= limits.DELETE_RANGES_MAX or width not in _WIDTHS or kind >= len(_KINDS):
            raise CorruptionError(f"DELETE_RECORDS: {count} ranges of width {width}, match {kind}")
        text_at = _FIXED.size + (2 * count - 1) * width
        if len(block) != text_at + text_length or (text_length and not kind):
            raise CorruptionError(f"DELETE_RECORDS: block of {len(block)} bytes, a text of {text_length}")
        distances = np.frombuffer(block[_FIXED.size : text_at], f"<u{width}")
        text = read_text(block[text_at:], "DELETE_RECORDS")
        match_kind = _KINDS[kind]
        return cls(
            TopicId(topic_id),
            _ranges(first, distances.astype(np.uint64), width),
            removed_bytes,
            None if before_seq == U64_MAX else Seq(before_seq),
            None if match_kind is None else TagMatch(match_kind, text),
        )


def _ranges(first: int, distances: npt.NDArray[np.uint64], width: int) -> DeletedSeqs:
    """The set of ranges whose bounds have these distances."""
    if not distances.all() or _width_of(int(distances.max())) != width:
        raise CorruptionError("DELETE_RECORDS: ranges touch or are empty, or their distances are too wide")
    # A Python sum: a 64-bit sum that wraps around would go unnoticed.
    if first + sum(distances.tolist()) >= _SEQ_LIMIT:
        raise CorruptionError("DELETE_RECORDS: a seq does not fit 63 bits")
    bounds = np.concatenate((np.array([first], np.uint64), distances)).cumsum(dtype=np.uint64)
    return DeletedSeqs(bounds.astype(np.int64).reshape(-1, 2), are_merged=True)


def _width_of(distance: int) -> int:
    """The smallest width that a distance fits."""
    return next(width for width in _WIDTHS if distance < 1 << 8 * width)
