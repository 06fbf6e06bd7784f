"""The bytes of a job are those of the documentation, what was sent arrives, and what does not fit is refused."""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.errors import CorruptionError, InvalidInputError, UnsupportedError
from seawall.tasks import JsonCodec, MsgpackCodec, TaskCall
from seawall.tasks.job_format import JSON, job_call, job_message

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
NAMES = TEXTS.filter(lambda name: 1 <= len(name) <= 128)


class Reversed:
    """A codec of a user."""

    content_type = "application/x-reversed"

    def encode(self, call: TaskCall) -> bytes:
        return JSON.encode(call)[::-1]

    def decode(self, value: bytes) -> TaskCall:
        return JSON.decode(value[::-1])


def test_the_bytes_are_those_of_the_documentation() -> None:
    assert JSON.encode(TaskCall("send_mail", ("ada",), {"urgent": True})) == (
        b'{"task":"send_mail","args":["ada"],"kwargs":{"urgent":true}}'
    )
    assert JSON.encode(TaskCall("a", tick_ms=17)) == b'{"task":"a","args":[],"kwargs":{},"tick_ms":17}'
    message = job_message(TaskCall("tägl", ("ü",)), JSON)
    assert message.value == '{"task":"tägl","args":["ü"],"kwargs":{}}'.encode()
    assert message.headers == [("content-type", "application/json")]


@given(NAMES, st.lists(VALUES, max_size=3), st.dictionaries(TEXTS, VALUES, max_size=3), st.none() | st.integers(0))
def test_what_is_sent_arrives(name: str, args: list[Any], kwargs: dict[str, Any], tick_ms: int | None) -> None:
    call = TaskCall(name, args, kwargs, tick_ms)
    assert JSON.decode(JSON.encode(call)) == call


def test_a_tuple_arrives_as_a_list() -> None:
    assert JSON.decode(JSON.encode(TaskCall("a", ((1, (2,)),)))).args == [[1, [2]]]


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((datetime(2026, 1, 1, tzinfo=UTC),), {}, "argument 1 is of type datetime"),
        ((1, b"raw"), {}, "argument 2 is of type bytes"),
        ((), {"when": {1, 2}}, "argument 'when' is of type set"),
        (({"rows": [{1: 2}]},), {}, "argument 1['rows'][0] has the key 1"),
        (([1.0, math.nan],), {}, "argument 1[1] is nan"),
        ((math.inf,), {}, "argument 1 is inf"),
        ((CYCLE,), {}, "contains itself"),
        (("\ud800",), {}, "surrogates not allowed"),
        ((10**5000,), {}, "Exceeds the limit"),
    ],
)
def test_arguments_that_do_not_fit_are_named(args: tuple[Any, ...], kwargs: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        JSON.encode(TaskCall("send_mail", args, kwargs))
    assert complaint in str(caught.value)
    assert "'send_mail'" in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[1]",
        b'"task"',
        b'{"task":"a"}',
        b'{"task":1,"args":[],"kwargs":{}}',
        b'{"task":"","args":[],"kwargs":{}}',
        b'{"task":"' + b"a" * 129 + b'","args":[],"kwargs":{}}',
        b'{"task":"a","args":{},"kwargs":{}}',
        b'{"task":"a","args":[],"kwargs":[]}',
        b'{"task":"a","args":[],"kwargs":{},"tick_ms":"1"}',
        b'{"task":"a","args":[],"kwargs":{},"tick_ms":true}',
        b"[" * 100_000,
    ],
)
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        JSON.decode(value)


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_a_call_or_refused(value: bytes) -> None:
    try:
        call = JSON.decode(value)
    except CorruptionError:
        return
    assert isinstance(call, TaskCall)


def test_unknown_members_are_ignored() -> None:
    assert JSON.decode(b'{"task":"a","args":[],"kwargs":{},"new":1}') == TaskCall("a", [], {})


def test_the_content_type_chooses_the_codec() -> None:
    call = TaskCall("a", [1], {})
    own = job_message(call, Reversed())
    assert isinstance(own.value, bytes)
    headers = [(b"other", b"x"), (b"content-type", b"application/x-reversed")]
    assert job_call(own.value, headers, Reversed()) == call
    assert job_call(JSON.encode(call), [(b"content-type", b"application/json")], Reversed()) == call
    assert job_call(JSON.encode(call), [], Reversed()) == call
    with pytest.raises(CorruptionError, match="application/x-reversed"):
        job_call(own.value, headers, JsonCodec())


# --- MessagePack ------------------------------------------------------------------------------------------------------

MSGPACK = MsgpackCodec()


def test_the_bytes_of_a_call_as_message_pack() -> None:
    assert MSGPACK.encode(TaskCall("a", (b"x", 1), {"b": None}, 17)).hex() == (
        "84" + "a4" + b"task".hex() + "a161" + "a4" + b"args".hex() + "92c4017801"
        "a6" + b"kwargs".hex() + "81a162c0" + "a7" + b"tick_ms".hex() + "11"
    )


PACKABLE = VALUES.filter(lambda value: not re.search(r"\d{19}", repr(value)))


@given(NAMES, st.lists(PACKABLE, max_size=3), st.dictionaries(TEXTS, PACKABLE, max_size=3))
def test_what_is_sent_as_message_pack_arrives(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    call = TaskCall(name, [*args, b"raw", {1: "one"}], kwargs)
    encoded = MSGPACK.encode(call)
    assert job_call(encoded, [(b"content-type", b"application/vnd.msgpack")], MSGPACK) == call


@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((datetime(2026, 1, 1, tzinfo=UTC),), {}, "argument 1 is of type datetime"),
        ((), {"when": {1, 2}}, "argument 'when' is of type set"),
        (({"rows": [{1.5: 2}]},), {}, "argument 1['rows'][0] has the key 1.5"),
        ((1, 1 << 64), {}, "argument 2 is an integer of more than 64 bits"),
        ((CYCLE,), {}, "contains itself"),
        (("\ud800",), {}, "surrogates not allowed"),
    ],
)
def test_arguments_that_have_no_message_pack_are_named(
    args: tuple[Any, ...], kwargs: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        MSGPACK.encode(TaskCall("send_mail", args, kwargs))
    assert complaint in str(caught.value)
    assert "'send_mail'" in str(caught.value)
    with pytest.raises(InvalidInputError, match="surrogates not allowed"):
        MSGPACK.encode(TaskCall("\ud800"))


@given(st.binary())
def test_any_bytes_are_a_call_of_message_pack_or_refused(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        MSGPACK.decode(value)


@pytest.mark.parametrize("value", ["d4 0500", "d6 ff 00000000", "c7 00 05", "91" * 2000, "81 9100 01", "00 00"])
def test_message_pack_that_is_no_plain_value_is_refused(value: str) -> None:
    head = "83" + "a4" + b"task".hex() + "a161" + "a6" + b"kwargs".hex() + "80" + "a4" + b"args".hex() + "91"
    assert MSGPACK.decode(bytes.fromhex(head + "05")) == TaskCall("a", [5], {})
    with pytest.raises(CorruptionError):
        MSGPACK.decode(bytes.fromhex(head + value))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'seawall\[msgpack\]'"):
        MsgpackCodec()


def test_names_of_arguments_are_texts() -> None:
    with pytest.raises(CorruptionError, match="kwargs"):
        MSGPACK.decode(bytes.fromhex("83a47461736ba161a46172677390a66b77617267738101c0"))
