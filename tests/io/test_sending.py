"""Pieces of files over real connections: the pages themselves, or a copy for peers on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from seawall.io import sending
from seawall.io.files import OsFile, OsFiles
from seawall.io.mapped import MappedPart, map_part
from seawall.io.sending import FilePiece, FileSender, is_within_machine

CONTENT = os.urandom(200_000)

Pair: TypeAlias = tuple[socket.socket, socket.socket]


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OsFile]:
    (tmp_path / "file").write_bytes(CONTENT)
    opened = OsFiles().open(str(tmp_path / "file"))
    yield opened
    opened.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as connected,
    ):
        accepted, _ = listening.accept()
        with accepted:
            accepted.setblocking(False)
            yield accepted, connected


class Mapping:
    """A file in memory, and how often somebody has asked for it."""

    def __init__(self, file: OsFile) -> None:
        self.part = map_part(file, 0, len(CONTENT))
        self.asked = 0

    def __call__(self, _end: int) -> MappedPart | None:
        self.asked += 1
        return self.part


def sent(sender: FileSender, piece: FilePiece, peer: socket.socket) -> bytes:
    count = sender.send(piece, 70_000)
    assert count is not None
    return peer.recv(count, socket.MSG_WAITALL)


@pytest.mark.parametrize("is_near", [True, False])
def test_a_peer_on_this_machine_gets_a_copy(
    file: OsFile, pair: Pair, is_near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "is_within_machine", lambda _connected: is_near)
    mapping = Mapping(file)
    sender = FileSender(pair[0])
    piece = FilePiece(file.fileno(), 5_001, 100_000, lambda: None, mapping)
    assert sent(sender, piece, pair[1]) == CONTENT[5_001:75_001]
    assert mapping.asked == is_near
    piece.at, piece.size = 75_001, 30_000
    assert sent(sender, piece, pair[1]) == CONTENT[75_001:105_001]
    sender.close()


def test_what_cannot_be_had_in_memory_is_sent_all_the_same(file: OsFile, pair: Pair) -> None:
    sender = FileSender(pair[0])
    for mapped in (None, lambda _end: None):
        assert sent(sender, FilePiece(file.fileno(), 9, 50, lambda: None, mapped), pair[1]) == CONTENT[9:59]
    sender.close()


@pytest.mark.parametrize("is_near", [True, False])
def test_a_connection_that_is_full_says_so(
    file: OsFile, pair: Pair, is_near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "is_within_machine", lambda _connected: is_near)
    sender = FileSender(pair[0])
    piece = FilePiece(file.fileno(), 0, len(CONTENT), lambda: None, Mapping(file))
    total = 0
    while (count := sender.send(piece, len(CONTENT))) is not None:
        total += count
    assert len(pair[1].recv(total, socket.MSG_WAITALL)) == total
    sender.close()


def test_who_is_on_this_machine(pair: Pair) -> None:
    assert is_within_machine(pair[0])
    local, other = socket.socketpair()
    with local, other:
        assert is_within_machine(local)
    with socket.socket() as unconnected:
        assert not is_within_machine(unconnected)


def test_ends_with_different_addresses_are_on_different_machines() -> None:
    with (
        socket.create_server(("127.0.0.2", 0)) as listening,
        socket.create_connection(listening.getsockname(), source_address=("127.0.0.1", 0)) as connected,
    ):
        assert not is_within_machine(connected)
