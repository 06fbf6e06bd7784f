"""Version 2 payloads of watches: one subscription to many topics, by names and prefixes.

| code | frame   | bytes  | payload                                                                                    |
|------|---------|--------|--------------------------------------------------------------------------------------------|
| 76   | WATCH   | 40 + … | flags u8 (0 or 2, as of FETCH), options u8 (1 from the end, 2 strong), 0 u16,              |
|      |         |        | later_from u32, credit_bytes u64, credit_records u64, max_frame u32, name count u32,       |
|      |         |        | position count u32, 0 u32; then each name: length u8, text; then each position: epoch u64, |
|      |         |        | next_seq u64, after_position u64, name length u8, name                                     |
| 77   | WATCHED | 16 + … | flags u8 (1 begun), 0 u8, 0 u16, later_from u32, event count u32, 0 u32; then each event:  |
|      |         |        | topic u32, kind u8 (1 joined, 2 recreated, 3 caught up, 4 deleted), name length u8, 0 u16, |
|      |         |        | epoch u64, seq u64, end_seq u64, name                                                      |

The id of WATCH identifies the watch; every frame of it carries that id. Batches are sent as DATA and gaps as GAP
(`reading.py`), each of one topic, after the event with which the topic joined; CREDIT and UNSUBSCRIBE are those of
subscriptions (`subscriptions.py`). The topics that match when the watch begins are reported by one or more WATCHED; the
last of them is *begun*, and has the id from which on topics appear later. No other frame of the watch precedes it.

A name that ends with `*` is a prefix. A position of epoch 0 applies to any topic of its name; `later_from` is 0 unless
the positions are those of an earlier watch (`core/watches.py`).

A payload is valid if it has exactly this length, zeros in fields specified as 0, known flags, options and kinds, at
least one name, at most `WATCH_NAMES_MAX` names and `WATCH_TOPICS_MAX` positions, no seq 0, and distinct positions.
Other payloads are refused with error 04, a name that no topic can have with error 12; the connection stays open.

This module must not know which topics exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from struct import Struct
from typing import ClassVar, Final

from seawall import limits
from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.core.watches import TopicEvent, TopicEventKind, TopicPatterns, WatchPosition, WatchSpec
from seawall.errors import InvalidInputError, LimitError
from seawall.wire.format.codes import Command, ErrorCode, ReadFlags
from seawall.wire.format.fields import (
    Buffer,
    malformed,
    pack,
    read_enum,
    read_flags,
    read_text,
    require_at_least,
    require_zero,
    write_text,
)

_WATCH: Final = Struct("<BBHIQQIIII")
_NOT_BEGUN: Final = TopicId(0)

_LENGTH: Final = Struct("<B")
_POSITION: Final = Struct("<QQQB")
_WATCHED: Final = Struct("<BBHIII")
_EVENT: Final = Struct("<IBBHQQQ")

assert (_WATCH.size, _WATCHED.size, _EVENT.size) == (40, 16, 32)


class _Options(IntFlag):
    """What a watch wants besides its topics."""

    FROM_END = 0x01
    STRONG = 0x02


class _WatchedFlags(IntFlag):
    """What a WATCHED says besides its events."""

    BEGUN = 0x01


@dataclass(frozen=True, slots=True)
class Watch:
    """Request batches of all topics that match, within credit; the id of the frame identifies the watch."""

    COMMAND: ClassVar[Command] = Command.WATCH
    spec: WatchSpec
    credit_bytes: int
    credit_records: int
    max_frame: int
    flags: ReadFlags = ReadFlags.NONE

    def encode(self) -> bytes:
        """The payload."""
        spec = self.spec
        options = (_Options.FROM_END if spec.from_end else 0) | (_Options.STRONG if spec.is_strong else 0)
        if len(spec.positions) > limits.WATCH_TOPICS_MAX:
            raise LimitError(f"a watch of {len(spec.positions)} positions, at most {limits.WATCH_TOPICS_MAX}")
        fixed = pack(
            _WATCH,
            "WATCH",
            self.flags,
            options,
            0,
            spec.later_from,
            self.credit_bytes,
            self.credit_records,
            self.max_frame,
            len(spec.patterns.texts),
            len(spec.positions),
            0,
        )
        pieces = [fixed]
        for text in spec.patterns.texts:
            pieces += _named(_LENGTH, text)
        for name, position in spec.positions.items():
            pieces += _named(_POSITION, name, *position)
        return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Watched:
    """Events of topics, in order with their batches."""

    COMMAND: ClassVar[Command] = Command.WATCHED
    events: tuple[TopicEvent, ...]
    #: The id from which on topics appear later, if this is the last frame of those with which the watch begins; else 0.
    later_from: TopicId = _NOT_BEGUN

    def encode(self) -> bytes:
        """The payload."""
        flags = _WatchedFlags.BEGUN if self.later_from else 0
        pieces = [pack(_WATCHED, "WATCHED", flags, 0, 0, self.later_from, len(self.events), 0)]
        for kind, topic_id, epoch, seq, end_seq, name in self.events:
            encoded = name.encode()
            pieces += (pack(_EVENT, "WATCHED", topic_id, kind, len(encoded), 0, epoch, seq, end_seq), encoded)
        return b"".join(pieces)


def parse_watch(payload: Buffer) -> Watch:
    """Parse a client's WATCH."""
    what = "WATCH"
    require_at_least(_WATCH.size, what, payload)
    flags, options, reserved, later_from, credit_bytes, credit_records, max_frame, *counts = _WATCH.unpack_from(payload)
    names, count, also_reserved = counts
    require_zero(what, reserved, also_reserved)
    chosen, accepted = read_flags(_Options, options, what), read_flags(ReadFlags, flags, what)
    if accepted & ReadFlags.NOT_YET_DURABLE:
        raise malformed(f"{what}: records that are not durable yet are read by subscriptions only")
    if names > limits.WATCH_NAMES_MAX or count > limits.WATCH_TOPICS_MAX:
        raise malformed(
            f"{what}: {names} names and {count} positions, at most {limits.WATCH_NAMES_MAX} and "
            f"{limits.WATCH_TOPICS_MAX}"
        )
    rest = _Rest(what, payload, _WATCH.size)
    patterns = _patterns([rest.named(_LENGTH)[1] for _ in range(names)])
    positions: dict[str, WatchPosition] = {}
    for _ in range(count):
        (epoch, next_seq, after_position), name = rest.named(_POSITION)
        positions[name] = WatchPosition(TopicEpoch(epoch), Seq(next_seq), Position(after_position))
        if not next_seq:
            raise malformed(f"{what}: seq 0 of topic {name!r}, seqs begin at 1")
    rest.end()
    if len(positions) != count:
        raise malformed(f"{what}: {count - len(positions)} of {count} positions repeat a topic")
    is_strong, from_end = bool(chosen & _Options.STRONG), bool(chosen & _Options.FROM_END)
    spec = WatchSpec(patterns, from_end, positions, TopicId(later_from), is_strong)
    return Watch(spec, credit_bytes, credit_records, max_frame, accepted)


def parse_watched(payload: Buffer) -> Watched:
    """Parse a server's WATCHED."""
    what = "WATCHED"
    require_at_least(_WATCHED.size, what, payload)
    flags, *reserved, later_from, count, also_reserved = _WATCHED.unpack_from(payload)
    require_zero(what, *reserved, also_reserved)
    is_begun = bool(read_flags(_WatchedFlags, flags, what))
    if is_begun != bool(later_from):
        raise malformed(f"{what}: flags {flags:#04x} with later topics from {later_from}")
    rest = _Rest(what, payload, _WATCHED.size)
    events = tuple(rest.event() for _ in range(count))
    rest.end()
    return Watched(events, TopicId(later_from))


class _Rest:
    """Reads what follows the fixed fields of a payload."""

    def __init__(self, what: str, payload: Buffer, at: int) -> None:
        self._what = what
        self._payload = memoryview(payload)
        self._at = at

    def named(self, layout: Struct) -> tuple[tuple[int, ...], str]:
        """Numbers, and the name whose length is the last of them."""
        *numbers, length = self._unpack(layout)
        return tuple(numbers), self._text(length)

    def event(self) -> TopicEvent:
        """One event."""
        topic_id, kind, length, reserved, epoch, seq, end_seq = self._unpack(_EVENT)
        require_zero(self._what, reserved)
        found = read_enum(TopicEventKind, kind, f"{self._what} kind")
        seqs = Seq(seq), Seq(end_seq)
        return TopicEvent(found, TopicId(topic_id), TopicEpoch(epoch), *seqs, self._text(length))

    def end(self) -> None:
        """Refuse a payload that is longer."""
        if self._at != len(self._payload):
            raise malformed(f"{self._what}: payload has {len(self._payload)} bytes, must have {self._at}")

    def _unpack(self, layout: Struct) -> tuple[int, ...]:
        start, self._at = self._at, self._at + layout.size
        require_at_least(self._at, self._what, self._payload)
        return layout.unpack_from(self._payload, start)

    def _text(self, length: int) -> str:
        start, self._at = self._at, self._at + length
        require_at_least(self._at, self._what, self._payload)
        return read_text(self._payload[start : self._at], f"{self._what} name", ErrorCode.TOPIC_NAME)


def _named(layout: Struct, name: str, *numbers: int) -> tuple[bytes, bytes]:
    encoded = write_text(name, limits.TOPIC_NAME_SIZE_MAX, "WATCH name")
    return pack(layout, "WATCH", *numbers, len(encoded)), encoded


def _patterns(texts: list[str]) -> TopicPatterns:
    try:
        return TopicPatterns.parse(texts)
    except (InvalidInputError, LimitError) as error:
        raise malformed(f"WATCH: {error}", ErrorCode.TOPIC_NAME) from error
