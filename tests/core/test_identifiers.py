"""Names and ids: what is allowed, what is refused, and that text and number agree."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seawall import limits
from seawall.core import identifiers
from seawall.core.types import ClientId
from seawall.errors import InvalidInputError, LimitError

RULE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}\Z")


@pytest.mark.parametrize("name", ["a", "7", "orders.eu-1:raw_2", "A" * limits.TOPIC_NAME_SIZE_MAX])
def test_topic_names_allowed(name: str) -> None:
    assert identifiers.check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "_a", ":a", "a/b", "a b", "a\n", "é", "٣", "a\0"])
def test_topic_names_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="is not allowed: use letters"):
        identifiers.check_topic_name(name)


def test_the_error_for_a_long_topic_name_shortens_it() -> None:
    with pytest.raises(LimitError, match="has 256 characters; at most 255") as caught:
        identifiers.check_topic_name("A" * 256)
    assert len(str(caught.value)) < 120


@given(st.text(alphabet=st.one_of(st.sampled_from("aZ09._:-"), st.characters()), max_size=300))
@example("a" * 255 + "\n")
def test_topic_names_follow_the_rule(name: str) -> None:
    if RULE.match(name):
        assert identifiers.check_topic_name(name) == name
    else:
        with pytest.raises(InvalidInputError):
            identifiers.check_topic_name(name)


@pytest.mark.parametrize("number", [1, 2**63 - 1])
def test_client_ids_allowed(number: int) -> None:
    assert identifiers.check_client_id(number) == number


@pytest.mark.parametrize("number", [0, -1, 2**63, 2**64])
def test_client_ids_refused(number: int) -> None:
    with pytest.raises(InvalidInputError, match=f"client id {number} "):
        identifiers.check_client_id(number)


@given(st.binary(min_size=8, max_size=8))
@example(bytes(8))
@example(b"\0" * 7 + b"\x80")
@example(b"\xff" * 8)
def test_a_new_client_id_is_a_publisher(random_bytes: bytes) -> None:
    client_id = identifiers.client_id_from(random_bytes)
    assert identifiers.check_client_id(client_id) == client_id
    assert not identifiers.is_synthetic(client_id)


@given(st.integers(0, 2**63 - 1))
def test_a_synthetic_client_id_is_no_publisher(number: int) -> None:
    client_id = identifiers.synthetic_client_id(number)
    assert identifiers.is_synthetic(client_id)
    assert client_id - 2**63 == number
    with pytest.raises(InvalidInputError):
        identifiers.check_client_id(client_id)


@pytest.mark.parametrize("number", [-1, 2**63])
def test_connection_numbers_refused(number: int) -> None:
    with pytest.raises(InvalidInputError, match=f"connection number {number} "):
        identifiers.synthetic_client_id(number)


@given(st.integers(1, 2**64 - 1))
def test_client_ids_round_trip_as_text(number: int) -> None:
    text = identifiers.format_client_id(ClientId(number))
    assert len(text) == 16
    assert identifiers.parse_client_id(text) == identifiers.parse_client_id(text.upper()) == number


@pytest.mark.parametrize(
    "text", ["", "0" * 16, "1" * 15, "1" * 17, "0x" + "1" * 14, "1_" * 8, "g" * 16, "1" * 16 + "\n"]
)
def test_client_id_texts_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="16 hex digits"):
        identifiers.parse_client_id(text)


@given(st.binary(min_size=16, max_size=16).filter(any))
def test_unique_ids_round_trip_as_text(random_bytes: bytes) -> None:
    unique_id = identifiers.unique_id_from(random_bytes)
    assert identifiers.unique_id_bytes(unique_id) == random_bytes
    assert identifiers.parse_unique_id(unique_id.upper()) == unique_id


@pytest.mark.parametrize("text", ["", "0" * 32, "1" * 31, "1" * 33, "1" * 30 + "-1", "g" * 32])
def test_unique_id_texts_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="32 hex digits"):
        identifiers.parse_unique_id(text)


def test_ids_have_their_exact_size() -> None:
    with pytest.raises(InvalidInputError, match="exactly 8 random bytes, not 7"):
        identifiers.client_id_from(bytes(7))
    with pytest.raises(InvalidInputError, match="exactly 16 random bytes, not 17"):
        identifiers.unique_id_from(bytes(17))
