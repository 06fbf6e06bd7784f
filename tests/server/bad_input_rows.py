"""Bad input row by row, for both versions: what is sent, the answers, and whether the connection is closed.

Where a row says "healed", the checksums were recomputed after the damage: then it is not the checksum that refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lz4.block
from lwp2_peer import Peer
from v1_clients import BATCH, CONTROL, PythonClient, frame, record
from wire_damage import changed, flipped, healed_1, healed_2, with_sum_behind

from seawall.core.types import TopicId
from seawall.server.connection.access import Access, Right
from seawall.server.connection.session import ConnectionLimits
from seawall.wire.format.codes import Codec, Features, Kind, ReadBy
from seawall.wire.format.frames import checksum, encode_header_v2
from seawall.wire.lwp2.frames import encode_control
from seawall.wire.lwp2.reading import Bounds, Fetch
from seawall.wire.lwp2.session import Hello

MIB = 1 << 20
TOPIC, FULL, ORDERED = 1, 2, 3
COMMIT = struct.Struct("<QHHIII")
KEYED = struct.Struct("<IIII")
WATCH = struct.Struct("<BBHIQQIIII")
OK, DUPLICATE, REJECTED = 0, 1, 2


@dataclass(frozen=True)
class Row:
    """What is sent after something valid, and how it is answered."""

    #: Bytes, or several, each sent when the one before it is answered.
    send: Callable[[Any], bytes | tuple[bytes, ...]]
    answers: tuple[Any, ...] = ()
    #: Whether the server closes the connection.
    closes: bool = False
    #: The values that are stored of it.
    stored: tuple[bytes, ...] = ()
    #: Whether it is the first thing that is sent, before HELLO.
    first: bool = False
    #: What happens then: nothing; or the peer sends EOF, resets or stops reading; or it is fenced; or the node drains.
    then: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def needs_own_node(self) -> bool:
        """Whether the row changes the settings of its node, or its state for good."""
        return self.then == "drain" or bool({"bounds", "access", "idle", "refusing"} & set(self.settings))


# --- version 1 -------------------------------------------------------------------------------------------------------


def ingest(client: PythonClient, payload: bytes = record(b"bad"), topic: int = TOPIC, flags: int = BATCH) -> bytes:
    return client.ingest(payload, topic, flags=flags)


def control(command: int, payload: bytes = b"") -> Callable[[Any], bytes]:
    return lambda _: frame(CONTROL, payload, batch_id=command)


def error(code: int, batch_id: int | None = None) -> tuple[str, int, int | None]:
    return ("error", code, batch_id)


SLOW = {"bounds": ConnectionLimits(frame_time_s=0.2, frame_bytes_per_second=MIB)}
STALLED = {"bounds": ConnectionLimits(stall_s=0.3)}
TOKENS = {"access": Access({"all": Right.ALL, "writer": Right.WRITE_ONLY})}
TLS_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(60)

VERSION_1 = {
    "magic: http": Row(lambda _: b"GET / HTTP/1.1\r\nHost: seawall\r\n\r\n" + bytes(20), closes=True),
    "magic: tls": Row(lambda _: TLS_HELLO, closes=True),
    "magic: noise": Row(lambda _: b"\xff" * 100, closes=True),
    "magic: first bytes of all": Row(lambda _: b"GET / HTTP/1.1\r\n" + bytes(40), closes=True, first=True),
    "magic: one bit, healed": Row(lambda c: healed_1(flipped(ingest(c), 1)), closes=True),
    "version: 3, healed": Row(lambda c: healed_1(changed(ingest(c), 4, b"\3")), (error(0x06),), closes=True),
    "version: 0, healed": Row(lambda c: healed_1(changed(ingest(c), 4, b"\0")), (error(0x06),), closes=True),
    "version: 2 behind 1": Row(lambda _: encode_control(Hello()), (error(0x06),), closes=True),
    "version: 3 first": Row(lambda c: healed_1(changed(ingest(c), 4, b"\3")), (error(0x06),), closes=True, first=True),
    "header checksum": Row(lambda c: flipped(ingest(c), 9), closes=True),
    "header checksum: flags": Row(lambda c: flipped(ingest(c), 5, 4), closes=True),
    "payload checksum": Row(lambda c: flipped(ingest(c), -1), closes=True),
    "payload checksum: 0": Row(lambda c: changed(ingest(c), 36, bytes(4)), closes=True),
    "length: over the limit": Row(
        lambda c: changed(ingest(c), 32, struct.pack("<I", 16 * MIB + 1)), (error(0x03),), closes=True
    ),
    "length: the largest": Row(lambda c: changed(ingest(c), 32, b"\xff" * 4), (error(0x03),), closes=True),
    "truncated: header": Row(lambda c: ingest(c)[:20], closes=True, then="eof"),
    "truncated: payload": Row(lambda c: ingest(c)[:-1], closes=True, then="eof"),
    "truncated: reset": Row(lambda c: ingest(c)[:-1], closes=True, then="reset"),
    "slow sender": Row(lambda c: ingest(c)[:-1], closes=True, settings=SLOW),
    "slow reader": Row(lambda _: b"", closes=True, then="stop reading", settings=STALLED),
    "idle": Row(lambda _: b"", closes=True, settings={"bounds": ConnectionLimits(v1_idle_s=0.3)}),
    "command: unknown": Row(control(0x0B), (error(0x04),)),
    "command: of 64 bits": Row(control(1 << 32 | 3), (error(0x04),)),
    "command: of version 2": Row(control(0x60, b"\2\0ab{}"), (error(0x04),)),
    "command: the server's": Row(control(0x80, b"{}"), (error(0x04),)),
    "command: error": Row(control(0xFF, b"{}"), (error(0x04),)),
    "control: short fetch": Row(control(0x10, bytes(15)), (error(0x04),)),
    "control: short commit": Row(control(0x22, bytes(19)), (error(0x04),)),
    "control: length of a name as u32": Row(control(0x06, b"\2\0\0\0ab" + bytes(16)), (error(0x04),)),
    "control: name that is no text": Row(control(0x01, b"\xff\xfe"), (error(0x12),)),
    "topic: unknown, ingest": Row(lambda c: ingest(c, topic=99), (error(0x10, 2),)),
    "topic: unknown, ingest healed": Row(lambda c: healed_1(changed(ingest(c), 40, b"\xff" * 4)), (error(0x10, 2),)),
    "topic: unknown, fetch": Row(control(0x10, struct.pack("<IQI", 99, 0, 1000)), (error(0x10),)),
    "topic: unknown, get": Row(control(0x04, struct.pack("<I", 99)), (error(0x10),)),
    "ingest: empty": Row(lambda c: ingest(c, b""), (error(0x04, 2),)),
    "ingest: encrypted": Row(lambda c: ingest(c, flags=BATCH | 0x02), (error(0x04, 2),)),
    "ingest: reserved flag": Row(lambda c: ingest(c, flags=BATCH | 0x80), (error(0x04, 2),)),
    "ingest: lz4 that is none": Row(lambda c: ingest(c, b"\xff" * 30, flags=BATCH | 1), (error(0x04, 2),)),
    "ingest: lz4 of nothing": Row(
        lambda c: ingest(c, lz4.block.compress(b"", store_size=False), flags=5), (error(4, 2),)
    ),
    "ingest: lz4 damaged, healed": Row(
        lambda c: healed_1(
            changed(ingest(c, lz4.block.compress(bytes(999), store_size=False), flags=5), 50, b"\xff" * 4)
        ),
        (error(0x04, 2),),
    ),
    "ingest: lz4 beyond the bound": Row(
        lambda c: ingest(c, lz4.block.compress(bytes(17 * MIB), store_size=False), flags=5), (error(0x04, 2),)
    ),
    "no records": Row(lambda c: ingest(c, b"opaque"), (("ack", 2),), stored=(b"opaque",)),
    "no records: cut, healed": Row(
        lambda c: healed_1(ingest(c, record(b"bad"))[:-1], lengths=True), (("ack", 2),), stored=(record(b"bad")[:-1],)
    ),
    "no records: null with a length": Row(
        lambda c: ingest(c, record(b"x", 0xFF)), (("ack", 2),), stored=(record(b"x", 0xFF),)
    ),
    "record count is ignored": Row(
        lambda c: changed(ingest(c, record(b"one")), 28, b"\xff" * 4), (("ack", 2),), stored=(b"one",)
    ),
    "token: none, ingest": Row(
        lambda _: frame(4, record(b"x"), batch_id=1, topic=1), (error(0x40, 1),), first=True, settings=TOKENS
    ),
    "token: none, command": Row(control(0x03), (error(0x40),), first=True, settings=TOKENS),
    "token: not for this": Row(
        lambda _: frame(CONTROL, b"writer", batch_id=8) + frame(CONTROL, batch_id=3),
        (("control", 0x09), error(0x42)),
        first=True,
        settings=TOKENS,
    ),
    "token: the third bad one": Row(
        lambda _: frame(CONTROL, b"wrong", batch_id=8) * 5,
        (("control", 9),) * 3,
        closes=True,
        first=True,
        settings=TOKENS,
    ),
    "storage: topic full": Row(lambda c: (ingest(c, topic=FULL), ingest(c, topic=FULL)), (("ack", 2), error(0x61, 3))),
    "storage: refusing": Row(ingest, (error(0x61, 2),), settings={"refusing": True}),
    "stopping": Row(lambda c: ingest(c, record(b"late")), (("ack", 2),), closes=True, stored=(b"late",), then="drain"),
}

# --- version 2 -------------------------------------------------------------------------------------------------------


def control_v2(command: int, payload: bytes = b"", **named: int) -> bytes:
    crc = checksum(payload) if payload else 0
    named.setdefault("request_id", 5)
    return encode_header_v2(Kind.CONTROL, command, payload_length=len(payload), payload_crc=crc, **named) + payload


def keyed(
    block: bytes = record(b"bad"), *, count: int = 1, topic: int = TOPIC, length: int = 3, reserved: int = 0
) -> bytes:
    """A publish under a key."""
    return control_v2(0x6B, KEYED.pack(topic, count, length, reserved) + b"key" + block)


def refused(code: int, *, closes: bool = False) -> tuple[str, int, bool]:
    return ("error", code, closes)


def rejected(code: int, seq: int = 2) -> tuple[str, int, int, int]:
    return ("ack", seq, REJECTED, code)


def peer_without_session(client_id: int) -> Peer:
    """A peer without a session, for the batches it encodes."""
    made = Peer(None, None)
    made.welcome = type("Welcome", (), {"client_id": client_id, "session_epoch": 1})
    return made


def bad(*damage: tuple[int, bytes], topic: int = TOPIC, **named: Any) -> Callable[[Peer], bytes]:
    """A batch with other bytes at some offsets, healed."""

    def make(peer: Peer) -> bytes:
        data = peer.batch(topic, b"bad", **named)
        for at, value in damage:
            data = changed(data, at, value)
        return healed_2(data)

    return make


def watch(names: int = 1, positions: int = 0, rest: bytes = b"\1*", options: int = 0, reserved: int = 0) -> bytes:
    """A WATCH."""
    return control_v2(0x76, WATCH.pack(0, options, reserved, 0, 9, 9, 0, names, positions, 0) + rest)


CLOSES_04 = {"answers": (refused(0x04, closes=True),), "closes": True}

VERSION_2 = {
    "magic: http": Row(lambda _: b"GET / HTTP/1.1\r\nHost: seawall\r\n\r\n" + bytes(20), closes=True),
    "magic: noise": Row(lambda _: b"\xff" * 100, closes=True),
    "magic: one bit, healed": Row(bad((1, b"\xff")), closes=True),
    "version: 3, healed": Row(bad((4, b"\3")), (refused(0x06, closes=True),), closes=True),
    "version: 1 behind 2": Row(lambda _: frame(0x20), (refused(0x06, closes=True),), closes=True),
    "header checksum": Row(lambda p: flipped(p.batch(TOPIC, b"bad"), 9), closes=True),
    "header checksum: length": Row(lambda p: flipped(p.batch(TOPIC, b"bad"), 33), closes=True),
    "header checksum: prologue": Row(lambda p: flipped(p.batch(TOPIC, b"bad"), 90), closes=True),
    "header checksum: control": Row(lambda _: flipped(control_v2(0x03), 13), closes=True),
    "payload checksum: batch": Row(
        lambda p: flipped(p.batch(TOPIC, b"bad"), -1), (refused(0x05, closes=True),), closes=True
    ),
    "payload checksum: behind a batch": Row(
        lambda p: with_sum_behind(p.batch(TOPIC, b"bad"), crc=1), (refused(0x05, closes=True),), closes=True
    ),
    "payload checksum: none behind a batch": Row(
        lambda p: with_sum_behind(p.batch(TOPIC, b"bad"))[:-48] + bytes(48), **CLOSES_04
    ),
    "truncated: checksum behind a batch": Row(
        lambda p: with_sum_behind(p.batch(TOPIC, b"bad"))[:-1], closes=True, then="eof"
    ),
    "payload checksum: control": Row(
        lambda _: flipped(control_v2(0x01, b"name"), -1), (refused(0x05, closes=True),), closes=True
    ),
    "length: over the limit, healed": Row(
        lambda _: healed_2(changed(control_v2(0x03), 32, struct.pack("<I", 16 * MIB + 1))),
        (refused(0x03, closes=True),),
        closes=True,
    ),
    "length: batch over the limit, healed": Row(
        bad((32, struct.pack("<I", 16 * MIB + 53))), (refused(0x03, closes=True),), closes=True
    ),
    "length: batch without its prologue, healed": Row(bad((32, struct.pack("<I", 51))), closes=True),
    "truncated: header": Row(lambda p: p.batch(TOPIC, b"bad")[:70], closes=True, then="eof"),
    "truncated: block": Row(lambda p: p.batch(TOPIC, b"bad")[:-1], closes=True, then="eof"),
    "truncated: reset": Row(lambda p: p.batch(TOPIC, b"bad")[:-1], closes=True, then="reset"),
    "slow sender": Row(
        lambda p: p.batch(TOPIC, b"bad")[:-1], (refused(0x0A, closes=True),), closes=True, settings=SLOW
    ),
    "slow reader": Row(lambda _: b"", closes=True, then="stop reading", settings=STALLED),
    "idle": Row(lambda _: b"", (("ping",),), closes=True, settings={"idle": True}),
    "command: unknown": Row(lambda _: control_v2(0x7F), (refused(0x07),)),
    "command: of version 1": Row(lambda _: control_v2(0x10, bytes(16)), (refused(0x07),)),
    "command: the server's": Row(lambda _: control_v2(0x41, bytes(80)), (refused(0x07),)),
    "command: error": Row(lambda _: control_v2(0xFF, bytes(24)), (refused(0x07),)),
    "command: changed, healed": Row(lambda _: healed_2(changed(control_v2(0x03), 6, b"\x66\x66")), (refused(0x07),)),
    "kind: ack": Row(lambda _: encode_header_v2(Kind.ACK, 0, request_id=5), (refused(0x07),)),
    "control: short fetch": Row(lambda _: control_v2(0x50, bytes(31)), (refused(0x04),)),
    "control: long subscribe": Row(lambda _: control_v2(0x52, bytes(49)), (refused(0x04),)),
    "watch: cut": Row(lambda _: control_v2(0x76, bytes(39)), (refused(0x04),)),
    "watch: more names than bytes": Row(lambda _: watch(names=2), (refused(0x04),)),
    "watch: too many names": Row(lambda _: watch(names=1 << 31), (refused(0x04),)),
    "watch: too many positions": Row(lambda _: watch(positions=1 << 31), (refused(0x04),)),
    "watch: bytes behind its end": Row(lambda _: watch(rest=b"\5plainx"), (refused(0x04),)),
    "watch: no name": Row(lambda _: watch(names=0, rest=b""), (refused(0x12),)),
    "watch: name that is no text": Row(lambda _: watch(rest=b"\2\xff\xfe"), (refused(0x12),)),
    "watch: name that no topic can have": Row(lambda _: watch(rest=b"\3a/b"), (refused(0x12),)),
    "watch: topic of the server itself": Row(lambda _: watch(rest=b"\2_*"), (refused(0x12),)),
    "watch: unknown option": Row(lambda _: watch(options=4), (refused(0x04),)),
    "watch: reserved field": Row(lambda _: watch(reserved=1), (refused(0x04),)),
    "watch: seq 0": Row(lambda _: watch(positions=1, rest=b"\1*" + bytes(24) + b"\1a"), (refused(0x04),)),
    "watch: unknown topic": Row(lambda _: watch(rest=b"\7nowhere"), (refused(0x10),)),
    "watch: the server's": Row(lambda _: control_v2(0x77, bytes(16)), (refused(0x07),)),
    "control: reserved field": Row(lambda _: control_v2(0x5C, b"\1\0\0\0\1\0\0\0"), (refused(0x04),)),
    "control: router without a name": Row(lambda _: control_v2(0x71, bytes(8)), (refused(0x04),)),
    "control: short router": Row(lambda _: control_v2(0x71, b"\1\0\1\0\1\0\1\0rs"), (refused(0x04),)),
    "control: router with unknown flags": Row(lambda _: control_v2(0x71, b"\2\0\1\0\1\0\1\0rsd"), (refused(0x04),)),
    "control: router from a topic without a name": Row(
        lambda _: control_v2(0x71, b"\1\0\1\0\0\0\1\0rd"), (refused(0x12),)
    ),
    "control: router with unknown settings": Row(
        lambda _: control_v2(0x71, b'\1\0\1\0\1\0\1\0rsd{"colour":1}'), (refused(0x04),)
    ),
    "control: router to its own source": Row(lambda _: control_v2(0x71, b"\1\0\1\0\1\0\1\0rss"), (refused(0x04),)),
    "control: router that does not exist": Row(lambda _: control_v2(0x72, b"r"), (refused(0x10),)),
    "control: no routers": Row(lambda _: control_v2(0x73, bytes(8)), (refused(0x04),)),
    "control: deleting no router": Row(lambda _: control_v2(0x74, b""), (refused(0x04),)),
    "control: settings that are no JSON": Row(lambda _: control_v2(0x60, b"\2\0ab{"), (refused(0x04),)),
    "control: settings that are not there": Row(lambda _: control_v2(0x60, b'\2\0ab{"a":1}'), (refused(0x15),)),
    "control: settings that are fixed": Row(lambda _: control_v2(0x61, b'\1\0\0\0{"order":5}'), (refused(0x16),)),
    "control: delete of nothing": Row(lambda _: control_v2(0x64, b"\1" + bytes(15)), (refused(0x04),)),
    "control: fetch within a topic": Row(lambda _: control_v2(0x50, struct.pack("<I44x", 1)), (refused(0x04),)),
    "control: fetch with part of a position": Row(lambda _: control_v2(0x50, bytes(40)), (refused(0x04),)),
    "transaction: cut": Row(lambda _: control_v2(0x67, bytes(23)), (refused(0x04),)),
    "transaction: more topics than bytes": Row(
        lambda _: control_v2(0x67, COMMIT.pack(1, 0, 9, 0, 0, 0)), (refused(0x04),)
    ),
    "transaction: too many ranges": Row(
        lambda _: control_v2(0x67, COMMIT.pack(1, 0, 0, 1 << 31, 0, 0)), (refused(0x04),)
    ),
    "transaction: without an owner": Row(lambda _: control_v2(0x67, COMMIT.pack(1, 0, 0, 0, 0, 0)), (refused(0x04),)),
    "transaction: of nothing staged": Row(
        lambda _: control_v2(0x67, COMMIT.pack(1, 1, 1, 1, 0, 0) + b"j\1\0a" + struct.pack("<IIQQ", 0, 0, 5, 9)),
        (refused(0x10),),
    ),
    "transaction: of a topic that is not named": Row(
        lambda _: control_v2(0x67, COMMIT.pack(1, 1, 1, 1, 0, 0) + b"j\1\0a" + struct.pack("<IIQQ", 1, 0, 5, 9)),
        (refused(0x04),),
    ),
    "transaction: bytes behind its end": Row(
        lambda _: control_v2(0x67, COMMIT.pack(1, 1, 0, 0, 0, 0) + b"jx"), (refused(0x04),)
    ),
    "transaction: abort of more than is there": Row(lambda _: control_v2(0x69, b"\2" + bytes(23)), (refused(0x04),)),
    "transaction: abort of no range": Row(
        lambda _: (control_v2(0x66, bytes(4)), control_v2(0x69, b"\1" + bytes(7) + struct.pack("<QQ", 5, 4))),
        (("control", 0x80), refused(0x04)),
    ),
    "transaction: staging without a payload": Row(lambda _: control_v2(0x66), (refused(0x04),)),
    "transaction: staging with too long a payload": Row(lambda _: control_v2(0x66, bytes(5)), (refused(0x04),)),
    "transaction: staging with flags that mean nothing": Row(
        lambda _: control_v2(0x66, b"\2" + bytes(3)), (refused(0x04),)
    ),
    "transaction: owner that is no text": Row(lambda _: control_v2(0x6A, b"\xff"), (refused(0x04),)),
    "transaction: the server's": Row(lambda _: control_v2(0x68, bytes(32)), (refused(0x07),)),
    "keyed: cut": Row(lambda _: control_v2(0x6B, bytes(15)), (refused(0x04),)),
    "keyed: without a block": Row(lambda _: control_v2(0x6B, KEYED.pack(TOPIC, 1, 3, 0) + b"key"), (refused(0x04),)),
    "keyed: more key than bytes": Row(lambda _: keyed(length=1 << 31), (refused(0x09),)),
    "keyed: reserved field": Row(lambda _: keyed(reserved=1), (refused(0x04),)),
    "keyed: no records": Row(lambda _: keyed(count=0), (refused(0x04),)),
    "keyed: fewer records than it says": Row(lambda _: keyed(count=2), (refused(0x04),)),
    "keyed: more records than it says": Row(lambda _: keyed(record(b"bad") * 2), (refused(0x04),)),
    "keyed: more records than a batch": Row(lambda _: keyed(count=(1 << 32) - 1), (refused(0x04),)),
    "keyed: half a record": Row(lambda _: keyed(record(b"bad")[:-1]), (refused(0x04),)),
    "keyed: a type of the server's": Row(lambda _: keyed(b"\x7f\3\0\0\0bad"), (refused(0x04),)),
    "keyed: topic unknown": Row(lambda _: keyed(topic=99), (refused(0x10),)),
    "keyed: topic of version 1": Row(lambda _: keyed(topic=0), (refused(0x10),)),
    "keyed: topic full": Row(lambda p: (p.batch(FULL, b"last"), keyed(topic=FULL)), (("ack", 2, OK, 0), refused(0x31))),
    "keyed: more than the topic ever holds": Row(
        lambda _: keyed(record(b"bad") * 2, count=2, topic=FULL), (refused(0x09),)
    ),
    "keyed: the server's": Row(lambda _: control_v2(0x6C, bytes(40)), (refused(0x07),)),
    "control: credit of nothing": Row(lambda _: control_v2(0x55, bytes(16)), (refused(0x08),)),
    "topic: unknown, batch": Row(bad(topic=99), (rejected(0x10),)),
    "topic: unknown, batch healed": Row(bad((40, b"\xff" * 4)), (rejected(0x10),)),
    "topic: unknown, fetch": Row(
        lambda _: encode_control(Fetch(TopicId(99), ReadBy.SEQ, 1, 9, 0), request_id=5), (refused(0x10),)
    ),
    "topic: unknown, bounds": Row(lambda _: encode_control(Bounds(TopicId(99)), request_id=5), (refused(0x10),)),
    "kind: two bits, healed": Row(lambda _: healed_2(changed(control_v2(0x03), 5, b"\x41")), **CLOSES_04),
    "kind: none, healed": Row(lambda _: healed_2(changed(control_v2(0x03), 5, b"\0")), **CLOSES_04),
    "kind: lz4 of version 1, healed": Row(lambda _: healed_2(changed(control_v2(0x03), 5, b"\5")), **CLOSES_04),
    "kind: encrypted, healed": Row(lambda _: healed_2(changed(control_v2(0x03), 5, b"\x42")), **CLOSES_04),
    "batch: control kind, healed": Row(bad((6, b"\1\0")), **CLOSES_04),
    "batch: client seq 0": Row(bad(seq=0), **CLOSES_04),
    "batch: reserved field, healed": Row(bad((44, b"\1")), (rejected(0x04),)),
    "batch: position, healed": Row(bad((56, b"\1")), (rejected(0x04),)),
    "batch: base seq, healed": Row(bad((64, b"\1")), (rejected(0x04),)),
    "batch: base offset, healed": Row(bad((72, b"\1")), (rejected(0x04),)),
    "batch: term, healed": Row(bad((84, b"\1")), (rejected(0x04),)),
    "batch: raw length, healed": Row(bad((80, b"\xff\xff\xff\0")), (rejected(0x04),)),
    "batch: order, healed": Row(bad((92, b"\5")), (rejected(0x27),)),
    "batch: order that is none, healed": Row(bad((92, b"\7")), (rejected(0x27),)),
    "batch: ack level that is none, healed": Row(bad((93, b"\3")), (rejected(0x04),)),
    "batch: codec, healed": Row(bad((94, b"\3")), (rejected(0x04),)),
    "batch: codec that was not agreed": Row(lambda p: p.batch(TOPIC, bytes(999), codec=Codec.LZ4), (rejected(0x04),)),
    "batch: lz4 damaged, healed": Row(
        lambda p: healed_2(changed(p.batch(TOPIC, bytes(999), codec=Codec.LZ4), 98, b"\xff" * 6)),
        (rejected(0x04),),
        settings={"hello": {"features": int(Features.LZ4)}},
    ),
    "batch: more records than lz4 can hold, healed": Row(
        lambda p: healed_2(changed(p.batch(TOPIC, bytes(999), codec=Codec.LZ4), 28, b"\1\x20")),
        (rejected(0x04),),
        settings={"hello": {"features": int(Features.LZ4)}},
    ),
    "batch: zstd damaged, healed": Row(
        lambda p: healed_2(changed(p.batch(TOPIC, bytes(999), codec=Codec.ZSTD), 98, b"\xff" * 6)),
        (rejected(0x04),),
        settings={"hello": {"features": int(Features.ZSTD)}},
    ),
    "batch: flags, healed": Row(bad((95, b"\1")), (rejected(0x04),)),
    "batch: another client, healed": Row(bad((48, b"\x63")), (rejected(0x04),)),
    "batch: another session, healed": Row(bad((88, b"\x63")), (rejected(0x24),)),
    "batch: no block, healed": Row(
        lambda p: healed_2(changed(p.batch(TOPIC, b"bad")[:96], 80, bytes(4)), lengths=True), (rejected(0x04),)
    ),
    "no records: type, healed": Row(bad((96, b"\x7f")), (rejected(0x04),)),
    "no records: length, healed": Row(bad((97, b"\xff")), (rejected(0x04),)),
    "no records: cut, healed": Row(
        lambda p: healed_2(changed(p.batch(TOPIC, b"bad")[:-1], 80, b"\7"), lengths=True), (rejected(0x04),)
    ),
    "no records: flagged opaque, healed": Row(
        bad((95, b"\2"), (97, b"\xff")), (("ack", 2, OK, 0),), stored=(b"\1\xff\0\0\0bad",)
    ),
    "record count, healed": Row(bad((28, b"\2")), (rejected(0x04),)),
    "record count: 0, healed": Row(bad((28, bytes(4))), (rejected(0x04),)),
    "record count: the largest, healed": Row(bad((28, b"\xff" * 4)), (rejected(0x04),)),
    "client seq: repeated": Row(bad(seq=1), (("ack", 1, REJECTED, 0x28),)),
    "client seq: the same again": Row(
        lambda p: p.batch(TOPIC, b"again") + p.batch(TOPIC, b"again", seq=2),
        (("ack", 2, OK, 0), ("ack", 2, DUPLICATE, 0)),
        stored=(b"again",),
    ),
    "client seq: beyond the window": Row(bad(seq=5000), (rejected(0x25, 5000),)),
    "client seq: skipped": Row(
        lambda p: (p.batch(ORDERED, b"4", seq=4), p.batch(ORDERED, b"3", seq=3)),
        (("ack", 4, OK, 0), rejected(0x26, 3)),
        settings={"hello": {"gap_timeout_ms": 20}, "next_seq": 5},
    ),
    "client seq: a hole is waited for": Row(
        lambda p: p.batch(ORDERED, b"3", seq=3) + p.batch(ORDERED, b"2", seq=2),
        (("ack", 2, OK, 0), ("ack", 3, OK, 0)),
        settings={"next_seq": 4},
    ),
    "before HELLO: a batch": Row(
        lambda _: peer_without_session(77).batch(TOPIC, b"bad"), (refused(0x08, closes=True),), closes=True, first=True
    ),
    "before HELLO: a command": Row(lambda _: control_v2(0x03), (refused(0x08, closes=True),), closes=True, first=True),
    "before HELLO: no common version": Row(
        lambda _: healed_2(changed(encode_control(Hello(), request_id=5), 44, b"\3\4")),
        (refused(0x06, closes=True),),
        closes=True,
        first=True,
    ),
    "HELLO twice": Row(lambda _: encode_control(Hello(), request_id=5), (refused(0x08, closes=True),), closes=True),
    "fenced session": Row(lambda _: b"", (refused(0x24, closes=True),), closes=True, then="fence"),
    "token: none": Row(lambda _: encode_control(Hello(), request_id=5), (refused(0x40),), first=True, settings=TOKENS),
    "token: not for this": Row(
        lambda _: control_v2(0x08, b"writer") + control_v2(0x03),
        (("control", 0x09), refused(0x42)),
        settings={**TOKENS, "hello": {"token": "writer"}},
    ),
    "token: the third bad one": Row(
        lambda _: encode_control(Hello(token="wrong"), request_id=5) * 3,
        (refused(0x41), refused(0x41), refused(0x41, closes=True)),
        closes=True,
        first=True,
        settings=TOKENS,
    ),
    "storage: topic full": Row(
        lambda p: (p.batch(FULL, b"last"), p.batch(FULL, b"more")), (("ack", 2, OK, 0), rejected(0x63, 3))
    ),
    "storage: refusing": Row(bad(), (rejected(0x63),), settings={"refusing": True}),
    "stopping": Row(
        lambda p: p.batch(TOPIC, b"late"),
        (("ack", 2, OK, 0), ("control", 0x42)),
        closes=True,
        stored=(b"late",),
        then="drain",
    ),
}
