"""Version 2 payloads of subscriptions: the server pushes batches as they arrive, within the client's credit.

| frame            | bytes     | payload                                                                               |
|------------------|-----------|---------------------------------------------------------------------------------------|
| SUBSCRIBE        | 48        | topic u32, by u8, flags u8, 0 u16, start u64, consumer u64, credit_bytes u64,         |
|                  |           | credit_records u64, max_frame u32, linger_us u32                                      |
| SUBSCRIBED       | 40        | topic u32, 0 u32, start_seq u64, end_seq u64, floor_seq u64, topic_epoch u64          |
| CREDIT           | 16        | bytes_total u64, records_total u64, both since SUBSCRIBE and never less than before   |
| UNSUBSCRIBE      | 0         |                                                                                       |
| UNSUBSCRIBED     | 16        | next_seq u64, bytes_sent u64                                                          |
| CAUGHT_UP        | 16        | next_seq u64, next_position u64                                                       |

The id of SUBSCRIBE identifies the subscription; every frame of it carries that id. Its batches are sent as DATA and its
gaps as GAP (`reading.py`).

A payload is valid if it has exactly this length, zeros in fields specified as 0, and known flags and codes. A read of
all topics and a committed start follow the rules of FETCH, with the consumer in its own field. Other payloads are
refused with error 04; the connection stays open. The subscription, not this module, checks that the totals of CREDIT
never decrease.

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
    """Request batches as they arrive, within credit; the id of the frame identifies the subscription."""

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
    """The start of a subscription, and the bounds of its topic."""

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
    """The total that a subscription may send since its start."""

    COMMAND: ClassVar[Command] = Command.CREDIT
    bytes_total: int
    records_total: int

    def encode(self) -> bytes:
        """The payload."""
        return pack(_PAIR, "CREDIT", self.bytes_total, self.records_total)


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End the subscription identified by the id of the frame."""

    COMMAND: ClassVar[Command] = Command.UNSUBSCRIBE

    def encode(self) -> bytes:
        """The payload."""
        return b""


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The final position of a subscription; no frame with its id follows."""

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
    """Parse SUBSCRIBE."""
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
    """Parse the answer to SUBSCRIBE."""
    require_exact(_SUBSCRIBED, "SUBSCRIBED", payload)
    topic_id, reserved, *rest = _SUBSCRIBED.unpack(payload)
    require_zero("SUBSCRIBED", reserved)
    return Subscribed(topic_id, *rest)


def parse_credit(payload: Buffer) -> Credit:
    """Parse CREDIT, the new totals of a subscription."""
    require_exact(_PAIR, "CREDIT", payload)
    return Credit(*_PAIR.unpack(payload))


def parse_unsubscribe(payload: Buffer) -> Unsubscribe:
    """Parse UNSUBSCRIBE."""
    if len(payload):
        raise malformed(f"UNSUBSCRIBE: payload has {len(payload)} bytes, must have 0")
    return Unsubscribe()


def parse_unsubscribed(payload: Buffer) -> Unsubscribed:
    """Parse the answer to UNSUBSCRIBE."""
    require_exact(_PAIR, "UNSUBSCRIBED", payload)
    return Unsubscribed(*_PAIR.unpack(payload))


def parse_caught_up(payload: Buffer) -> CaughtUp:
    """Parse CAUGHT_UP."""
    require_exact(_PAIR, "CAUGHT_UP", payload)
    return CaughtUp(*_PAIR.unpack(payload))


def _subscribe_problem(subscribe: Subscribe) -> str | None:
    """What is wrong with a subscription, or None; for encoding and parsing."""
    return start_problem(subscribe.topic_id, subscribe.by, subscribe.consumer)
