"""Payloads about routers: they round-trip, and malformed ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.routers import Guarantee, RouterInfo, RouterSettings
from seawall.errors import InvalidInputError, LimitError, ProtocolError
from seawall.limits import TOPIC_SETTINGS_SIZE_MAX
from seawall.wire.format.codes import Command, ErrorCode
from seawall.wire.lwp1 import requests as lwp1_requests
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.routers import RouterDelete, RouterDescribe, RouterList, RouterPut, RoutersReply

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
texts = st.none() | st.text(st.characters(codec="utf-8"), max_size=20)
settings = st.builds(
    lambda tag, is_prefix, node, *flags: RouterSettings(
        None if is_prefix else tag, tag if is_prefix else None, node, *flags
    ),
    *(texts, st.booleans(), texts, st.booleans(), st.booleans(), st.booleans(), st.sampled_from(Guarantee)),
)
routers = st.builds(RouterInfo, names, names, names, settings, st.integers(0, 2**62), st.integers(0, 2**62), texts)


@given(names, names, names, settings, st.booleans(), st.integers(1, 2**32 - 1))
def test_requests_round_trip(name: str, source: str, dest: str, chosen: RouterSettings, create: bool, n: int) -> None:
    for request in (
        RouterPut(name, source, dest, chosen, create),
        RouterDescribe(name),
        RouterList(name, n),
        RouterList("", n),
        RouterDelete(name),
    ):
        assert lwp2.parse_request(request.COMMAND, request.encode()) == request


@given(st.lists(routers, max_size=4).map(tuple))
def test_replies_round_trip(found: tuple[RouterInfo, ...]) -> None:
    reply = RoutersReply(found)
    assert lwp2.parse_answer(Command.ROUTERS, reply.encode()) == reply


def test_payloads_have_the_documented_bytes() -> None:
    put = RouterPut("a>b", "a", "bc", RouterSettings(tag="x"), create_dest=False).encode()
    assert put[:14] == bytes.fromhex("0000 0300 0100 0200") + b"a>babc"
    assert json.loads(put[14:]) == {
        "tag": "x",
        "tag_prefix": None,
        "node": None,
        "preserve_node": True,
        "preserve_tag": True,
        "allow_cycle": False,
        "guarantee": "at_least_once",
    }
    assert lwp2.parse_request(Command.ROUTER_PUT, b"\1\0\1\0\1\0\1\0rsd") == RouterPut("r", "s", "d", RouterSettings())
    assert RouterList("r", 2).encode() == bytes.fromhex("02000000 00000000") + b"r"
    assert RouterDescribe("r").encode() == RouterDelete("r").encode() == b"r"
    assert [int(code) for code in (Command.ROUTER_PUT, Command.ROUTERS)] == [0x71, 0x75]
    reply = RoutersReply((RouterInfo("r", "s", "d", RouterSettings(), 3, 7, "full"),))
    (found,) = json.loads(reply.encode())["routers"]
    assert {key: found[key] for key in ("name", "source", "dest", "forwarded", "next_seq", "blocked")} == {
        "name": "r",
        "source": "s",
        "dest": "d",
        "forwarded": 3,
        "next_seq": 7,
        "blocked": "full",
    }


def test_senders_check_names() -> None:
    with pytest.raises(InvalidInputError, match="router name"):
        RouterDescribe("").encode()
    with pytest.raises(LimitError, match="router name"):
        RouterDelete("r" * 256).encode()
    with pytest.raises(InvalidInputError, match="topic name"):
        RouterPut("r", "", "d", RouterSettings()).encode()


@pytest.mark.parametrize(
    ("command", "payload", "code"),
    [
        (Command.ROUTER_PUT, bytes(7), ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b"\1\1\1\0\1\0\1\0rsd", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b"\2\0\1\0\1\0\1\0rsd", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b"\1\0\1\0\1\0\1\0rs", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b"\1\0\0\0\1\0\1\0sd", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b"\1\0\1\0\0\0\1\0rd", ErrorCode.TOPIC_NAME),
        (Command.ROUTER_PUT, b"\1\0\1\0\1\0\1\0rs\xff", ErrorCode.TOPIC_NAME),
        (Command.ROUTER_PUT, b"\1\0\1\0\1\0\1\0\xffsd", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b"\1\0\1\0\1\0\1\0rsd[]", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b'\1\0\1\0\1\0\1\0rsd{"tag":7}', ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_PUT, b'\1\0\1\0\1\0\1\0rsd{"guarantee":[]}', ErrorCode.INVALID_PAYLOAD),
        (
            Command.ROUTER_PUT,
            b'\1\0\1\0\1\0\1\0rsd{"tag":"' + b"x" * TOPIC_SETTINGS_SIZE_MAX + b'"}',
            ErrorCode.INVALID_PAYLOAD,
        ),
        (Command.ROUTER_DESCRIBE, b"", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_DESCRIBE, b"r" * 256, ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_LIST, bytes(7), ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_LIST, bytes(8), ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_LIST, b"\1\0\0\0\1\0\0\0", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_LIST, b"\1\0\0\0\0\0\0\0\xff", ErrorCode.INVALID_PAYLOAD),
        (Command.ROUTER_DELETE, b"", ErrorCode.INVALID_PAYLOAD),
    ],
)
def test_malformed_requests_are_refused(command: Command, payload: bytes, code: ErrorCode) -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(command, payload)
    assert (refused.value.code, refused.value.closes) == (code, False)


@pytest.mark.parametrize(
    "payload",
    [b"", b"[]", b"{}", b'{"routers":[7]}', b'{"routers":[{"name":"r"}]}', b'{"routers":[{"colour":1}]}'],
)
def test_malformed_replies_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        lwp2.parse_answer(Command.ROUTERS, payload)


def test_version_1_refuses_router_commands() -> None:
    for command in (Command.ROUTER_PUT, Command.ROUTER_DESCRIBE, Command.ROUTER_LIST, Command.ROUTER_DELETE):
        with pytest.raises(ProtocolError):
            lwp1_requests.parse_request(command, bytes(16))
