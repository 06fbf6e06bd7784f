"""FILES and its reply: both round-trip, and malformed ones are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from seawall.core.types import Seq, TopicId
from seawall.errors import ProtocolError
from seawall.wire.format.codes import Command, GapReason
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp2 import frames as lwp2
from seawall.wire.lwp2.files import FilesReply, FilesRequest, parse_files_reply, parse_files_request

REQUEST = FilesRequest(TopicId(7), Seq(3), Seq(1 << 40))
REPLY = FilesReply(
    "/data",
    bytes(range(16)),
    Seq(90),
    ("a.sealed", "b.sealed"),
    ((Seq(3), Seq(10)), (Seq(12), Seq(89))),
    (Gap(Seq(11), Seq(11), GapReason.CAP),),
)


def test_requests_and_replies_round_trip() -> None:
    assert lwp2.parse_request(Command.FILES, REQUEST.encode()) == REQUEST
    assert lwp2.parse_answer(Command.FILES_REPLY, REPLY.encode()) == REPLY
    empty = FilesReply("", bytes(16), Seq(3), (), (), ())
    assert parse_files_reply(empty.encode()) == empty


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        REQUEST.encode() + b"\0",
        FilesRequest(TopicId(7), Seq(0), Seq(5)).encode(),
        FilesRequest(TopicId(7), Seq(6), Seq(5)).encode(),
        REQUEST.encode()[:4] + b"\1" + REQUEST.encode()[5:],
    ],
)
def test_a_bad_request_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_files_request(payload)


@pytest.mark.parametrize(
    "change",
    [
        {"directory_id": "zz"},
        {"directory_id": "00"},
        {"segments": "a"},
        {"segments": [1]},
        {"end": -1},
        {"live": None},
        {"live": [5]},
        {"live": [[1, 2, 3]]},
        {"live": [[5, 4]]},
        {"live": [[1, 5], [5, 6]]},
        {"live": [[1, True]]},
        {"live": [[1, 1 << 63]]},
        {"gaps": [[1, 2, 99]]},
        {"gaps": [[1, 2]]},
    ],
    ids=str,
)
def test_a_bad_reply_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(REPLY.encode()) | change
    with pytest.raises(ProtocolError):
        parse_files_reply(json.dumps(document).encode())
