"""Version 2 payloads of subscriptions: batches pushed as they come, within credit.

| frame            | bytes     | payload                                                                               |
|------------------|-----------|---------------------------------------------------------------------------------------|
| SUBSCRIBE        | 48        | topic u32, by u8, flags u8, 0 u16, start u64, consumer u64, credit_bytes u64,         |
|                  |           | credit_records u64, max_frame u32, linger_us u32                                      |
| SUBSCRIBED       | 40        | topic u32, 0 u32, start_seq u64, end_seq u64, floor_seq u64, topic_epoch u64          |
| CREDIT           | 16        | bytes_total u64, records_total u64, both since SUBSCRIBE and never less than before   |
| UNSUBSCRIBE      | 0         |                                                                                       |
| UNSUBSCRIBED     | 16        | next_seq u64, bytes_sent u64                                                          |
| CAUGHT_UP        | 16        | next_seq u64, next_position u64                                                       |

The id of SUBSCRIBE names the subscription; every frame about it carries that id. Its batches come as DATA and its
losses as GAP (`lwp2_reading`).

Valid is what has exactly this length, 0 where it says 0, and known flags and codes. All topics at once and a committed
start follow the rules of FETCH, with the consumer in its own field. What is not valid is refused with error 04 and the
connection goes on. That totals of CREDIT never decrease is for the keeper of the subscription to check.

This module must not know which subscriptions exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final

from seawall.core.types import Position, Seq, TopicEpoch, TopicId
from seawall.errors import InvalidInputError
from seawall.wire.format.codes import Command, ReadBy, ReadFlags
from seawall.wire.format.fields import Buffer, malformed, pack, read_enum, read_flags, require_exact, require_zero
from seawall.wire.lwp2.reading import start_problem

_SUBSCRIBE: Final = Struct("<IBBHQQQQII")
_SUBSCRIBED: Final = Struct("<IIQQQQ")
_PAIR: Final = Struct("<QQ")

assert (_SUBSCRIBE.size, _SUBSCRIBED.size) == (48, 40)


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Ask for batches as they come, within credit; the id of the frame names the subscription."""

    COMMAND: ClassVar[Command] = Command.SUBSCRIBE
    topic_id: TopicId
    by: ReadBy
    start: int
    credit_bytes: int
    credit_records: int
    max_frame: int
    linger_us: int = 0
    consumer: int = 0
    flags: ReadFlags = ReadFlags.NONE

    def encode(self) -> bytes:
        """The payload."""
        if problem := _subscribe_problem(self):
            raise InvalidInputError(f"SUBSCRIBE: {problem}")
        return pack(
            _SUBSCRIBE,
            "SUBSCRIBE",
            self.topic_id,
            self.by,
            self.flags,
            0,
            self.start,
            self.consumer,
            self.credit_bytes,
            self.credit_records,
            self.max_frame,
            self.linger_us,
        )


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Where a subscription starts, and what there is."""

    COMMAND: ClassVar[Command] = Command.SUBSCRIBED
    topic_id: TopicId
    start_seq: Seq
    end_seq: Seq
    floor_seq: Seq
    topic_epoch: TopicEpoch

    def encode(self) -> bytes:
        """The payload."""
        return pack(
            _SUBSCRIBED,
            "SUBSCRIBED",
            self.topic_id,
            0,
            self.start_seq,
            self.end_seq,
            self.floor_seq,
            self.topic_epoch,
        )


@dataclass(frozen=True, slots=True)
class Credit:
    """How much a subscription may send in all since it began."""

    COMMAND: ClassVar[Command] = Command.CREDIT
    bytes_total: int
    records_total: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_PAIR, "CREDIT", self.bytes_total, self.records_total)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End the subscription that the id of the frame names."""

    COMMAND: ClassVar[Command] = Command.UNSUBSCRIBE

    def encode(self) -> bytes:
        """The payload."""
        return b""


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """How far a subscription got; nothing follows under its id."""

    COMMAND: ClassVar[Command] = Command.UNSUBSCRIBED
    next_seq: Seq
    bytes_sent: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_PAIR, "UNSUBSCRIBED", self.next_seq, self.bytes_sent)


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A subscription has reached the end."""

    COMMAND: ClassVar[Command] = Command.CAUGHT_UP
    next_seq: Seq
    next_position: Position

    def encode(self) -> bytes:
        """The payload."""
        return pack(_PAIR, "CAUGHT_UP", self.next_seq, self.next_position)


def parse_subscribe(payload: Buffer) -> Subscribe:
    """The wish to be sent batches."""
    require_exact(_SUBSCRIBE, "SUBSCRIBE", payload)
    topic_id, by, flags, reserved, start, consumer, *rest = _SUBSCRIBE.unpack(payload)
    credit_bytes, credit_records, max_frame, linger_us = rest
    require_zero("SUBSCRIBE", reserved)
    subscribe = Subscribe(
        topic_id,
        read_enum(ReadBy, by, "SUBSCRIBE by"),
        start,
        credit_bytes,
        credit_records,
        max_frame,
        linger_us,
        consumer,
        read_flags(ReadFlags, flags, "SUBSCRIBE"),
    )
    if problem := _subscribe_problem(subscribe):
        raise malformed(f"SUBSCRIBE: {problem}")
    return subscribe


def parse_subscribed(payload: Buffer) -> Subscribed:
    """The answer to SUBSCRIBE."""
    require_exact(_SUBSCRIBED, "SUBSCRIBED", payload)
    topic_id, reserved, *rest = _SUBSCRIBED.unpack(payload)
    require_zero("SUBSCRIBED", reserved)
    return Subscribed(topic_id, *rest)


def parse_credit(payload: Buffer) -> Credit:
    """New totals of a subscription."""
    require_exact(_PAIR, "CREDIT", payload)
    return Credit(*_PAIR.unpack(payload))


def parse_unsubscribe(payload: Buffer) -> Unsubscribe:
    """The wish to be sent nothing more."""
    if len(payload):
        raise malformed(f"UNSUBSCRIBE: payload has {len(payload)} bytes, must have 0")
    return Unsubscribe()


def parse_unsubscribed(payload: Buffer) -> Unsubscribed:
    """The answer to UNSUBSCRIBE."""
    require_exact(_PAIR, "UNSUBSCRIBED", payload)
    return Unsubscribed(*_PAIR.unpack(payload))


def parse_caught_up(payload: Buffer) -> CaughtUp:
    """The end is reached."""
    require_exact(_PAIR, "CAUGHT_UP", payload)
    return CaughtUp(*_PAIR.unpack(payload))


def _subscribe_problem(subscribe: Subscribe) -> str | None:
    """What is wrong with a subscription, for writer and reader alike."""
    return start_problem(subscribe.topic_id, subscribe.by, subscribe.consumer)
