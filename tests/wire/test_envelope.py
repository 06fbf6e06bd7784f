"""The envelope: every field present, absent and empty, and every malformed encoding."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall import limits
from seawall.errors import CorruptionError, InvalidInputError, LimitError
from seawall.wire.format.envelope import Envelope, parse_envelope
from seawall.wire.format.records import RecordType

BYTES = st.binary(max_size=20)
ENVELOPES = st.builds(
    Envelope,
    data=BYTES,
    timestamp_ns=st.none() | st.integers(0, limits.TIMESTAMP_NS_MAX),
    key=st.none() | BYTES,
    node=st.none() | BYTES,
    tag=st.none() | BYTES,
    meta=st.none() | BYTES,
    headers=st.none() | st.lists(st.tuples(BYTES, BYTES), max_size=3).map(tuple),
)

FULL = Envelope(b"d", 1, b"k", b"n", b"t", b"{}", ((b"h", b"v"), (b"h", b"")))
FULL_BYTES = bytes.fromhex(
    "3F00 0100000000000000 01000000 6B 01000000 6E 01000000 74 02000000 7B7D"
    "0200 0100 68 01000000 76 0100 68 00000000 64"
)


def test_bytes_of_a_full_envelope() -> None:
    assert FULL.encode() == FULL_BYTES
    assert parse_envelope(FULL_BYTES) == FULL
    assert FULL.to_record().record_type == RecordType.ENVELOPE
    assert FULL.to_record().value == FULL_BYTES


def test_absent_and_empty_are_different() -> None:
    assert Envelope(b"").encode() == b"\0\0"
    empty = Envelope(b"", 0, b"", b"", b"", b"", ())
    assert empty.encode() == bytes.fromhex("3F00 0000000000000000 00000000 00000000 00000000 00000000 0000")
    assert parse_envelope(empty.encode()) == empty
    assert parse_envelope(b"\0\0").headers is None
    assert parse_envelope(empty.encode()).headers == ()


@given(ENVELOPES)
def test_round_trip(envelope: Envelope) -> None:
    assert parse_envelope(envelope.encode()) == envelope
    assert parse_envelope(memoryview(envelope.encode())) == envelope


def test_truncated_before_its_data_is_corrupt() -> None:
    for size in range(len(FULL_BYTES) - 1):
        with pytest.raises(CorruptionError):
            parse_envelope(FULL_BYTES[:size])
    assert parse_envelope(FULL_BYTES[:-1]).data == b""


@given(ENVELOPES, st.data())
def test_one_damaged_byte_gives_an_envelope_or_a_typed_error(envelope: Envelope, data: st.DataObject) -> None:
    damaged = bytearray(envelope.encode())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    try:
        parsed = parse_envelope(damaged)
    except CorruptionError:
        return
    assert parsed != envelope
    assert parsed.encode() == damaged


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("4000", "flags 0x0040"),
        ("0080", "flags 0x8000"),
        ("0200 FFFFFFFF", "key needs 4294967295 bytes"),
        ("2000 0104", "1025 headers"),
        ("2000 0100 0500 61", "header name needs 5"),
    ],
)
def test_malformed_envelopes_are_refused(data: str, message: str) -> None:
    with pytest.raises(CorruptionError, match=message):
        parse_envelope(bytes.fromhex(data))


def test_bounds_of_the_fields_are_enforced() -> None:
    headers = ((b"", b""),) * limits.ENVELOPE_HEADERS_MAX
    assert parse_envelope(Envelope(b"", headers=headers).encode()).headers == headers
    with pytest.raises(LimitError, match="1025 headers"):
        Envelope(b"", headers=(*headers, (b"", b""))).encode()
    with pytest.raises(LimitError, match="header name"):
        Envelope(b"", headers=((bytes(65_536), b""),)).encode()
    with pytest.raises(LimitError, match="envelope of"):
        Envelope(bytes(limits.EXTENDED_VALUE_SIZE_MAX - 1)).encode()
    with pytest.raises(InvalidInputError, match="timestamp"):
        Envelope(b"", timestamp_ns=limits.TIMESTAMP_NS_MAX + 1).encode()
    with pytest.raises(CorruptionError, match="timestamp"):
        parse_envelope(b"\x01\0" + (2**63).to_bytes(8, "little"))
