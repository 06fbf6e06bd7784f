"""Payloads about sessions: they round-trip, and malformed ones are refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seawall.core.sessions import SessionInfo
from seawall.core.types import ClientId, ClientSeq, SessionEpoch
from seawall.errors import ProtocolError
from seawall.wire.format.codes import Command, ErrorCode
from seawall.wire.lwp1 import requests as lwp1_requests
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.sessions import SessionList, SessionRetire, SessionsReply

ids = st.integers(1, 2**63 - 1)
sessions = st.builds(
    SessionInfo,
    ids.map(ClientId),
    ids.map(SessionEpoch),
    st.integers(0, 2**62).map(ClientSeq),
    st.integers(0, 2**48),
    st.booleans(),
)


@given(st.integers(0, 2**63 - 1), st.integers(1, 2**32 - 1), ids)
def test_requests_round_trip(after: int, count: int, client_id: int) -> None:
    request = SessionList(after, count)
    assert lwp2.parse_request(Command.SESSION_LIST, request.encode()) == request
    retire = SessionRetire(ClientId(client_id))
    assert lwp2.parse_request(Command.SESSION_RETIRE, retire.encode()) == retire


@given(st.lists(sessions, max_size=5).map(tuple))
def test_replies_round_trip(found: tuple[SessionInfo, ...]) -> None:
    reply = SessionsReply(found)
    assert lwp2.parse_answer(Command.SESSIONS, reply.encode()) == reply


def test_payloads_have_the_documented_bytes() -> None:
    assert SessionList(7, 2).encode().hex() == "07000000000000000200000000000000"
    assert SessionRetire(ClientId(9)).encode().hex() == "0900000000000000"
    reply = SessionsReply((SessionInfo(ClientId(7), SessionEpoch(2), ClientSeq(3), 5, True),))
    assert json.loads(reply.encode()) == {
        "sessions": [{"client_id": 7, "session_epoch": 2, "next_client_seq": 3, "last_seen_ms": 5, "live": True}]
    }


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        (Command.SESSION_LIST, bytes(15)),
        (Command.SESSION_LIST, bytes(16)),
        (Command.SESSION_LIST, bytes(8) + b"\1\0\0\0\1\0\0\0"),
        (Command.SESSION_LIST, b"\xff" * 8 + b"\1\0\0\0\0\0\0\0"),
        (Command.SESSION_RETIRE, bytes(7)),
        (Command.SESSION_RETIRE, bytes(8)),
        (Command.SESSION_RETIRE, b"\xff" * 8),
    ],
)
def test_malformed_requests_are_refused(command: Command, payload: bytes) -> None:
    with pytest.raises(ProtocolError) as refused:
        lwp2.parse_request(command, payload)
    assert (refused.value.code, refused.value.closes) == (ErrorCode.INVALID_PAYLOAD, False)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"sessions":[7]}', b'{"sessions":[{"live":1}]}'])
def test_malformed_replies_are_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        lwp2.parse_answer(Command.SESSIONS, payload)


def test_version_1_refuses_session_commands() -> None:
    for command in (Command.SESSION_LIST, Command.SESSION_RETIRE):
        with pytest.raises(ProtocolError):
            lwp1_requests.parse_request(command, bytes(16))
