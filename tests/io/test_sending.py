"""Sending pieces of files over real connections, with files that fail or end too early."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from seawall.io.disk.files import OsFile, OsFiles
from seawall.io.network.sending import FilePiece, FileSender, read_piece

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


def sent(sender: FileSender, piece: FilePiece, peer: socket.socket) -> bytes:
    count = sender.send(piece, 70_000)
    assert count is not None
    return peer.recv(count, socket.MSG_WAITALL)


def piece_of(file: OsFile, at: int, size: int, failures: list[int] | None = None) -> FilePiece:
    return FilePiece(file.fileno(), at, size, lambda: None, ([] if failures is None else failures).append)


@pytest.fixture
def sender(pair: Pair) -> Iterator[FileSender]:
    made = FileSender(pair[0])
    yield made
    made.close()


def test_a_piece_of_a_file_arrives_unchanged(file: OsFile, pair: Pair, sender: FileSender) -> None:
    piece = piece_of(file, 5_001, 100_000)
    assert sent(sender, piece, pair[1]) == CONTENT[5_001:75_001]
    piece.at, piece.size = 75_001, 30_000
    assert sent(sender, piece, pair[1]) == CONTENT[75_001:105_001]


def test_send_returns_none_while_the_connection_is_full(file: OsFile, pair: Pair, sender: FileSender) -> None:
    total = 0
    while (count := sender.send(piece_of(file, 0, len(CONTENT)), len(CONTENT))) is not None:
        total += count
    received = b""
    while len(received) < total:
        received += pair[1].recv(total - len(received))
    assert len(received) == total


def test_read_errors_and_short_files_are_reported_and_a_lost_peer_raises(
    file: OsFile, pair: Pair, sender: FileSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sent(sender, piece_of(file, len(CONTENT) - 10, 50), pair[1]) == CONTENT[-10:]
    failures: list[int] = []
    assert sender.send(piece_of(file, len(CONTENT), 40, failures), 40) == 0
    with monkeypatch.context() as patch:
        for call in ("sendfile", "pread"):
            patch.setattr(os, call, failing)
        assert sender.send(piece_of(file, 7, 40, failures), 40) == 0
        assert read_piece(piece_of(file, 8, 40, failures)) == b""
    assert failures == [len(CONTENT), 7, 8]
    assert read_piece(piece_of(file, len(CONTENT) - 10, 11, failures)) == CONTENT[-10:]
    assert failures[3:] == [len(CONTENT)]
    pair[0].shutdown(socket.SHUT_WR)
    with pytest.raises(BrokenPipeError):
        sender.send(piece_of(file, 0, 40), 40)


def failing(*_arguments: object) -> int:
    raise OSError(errno.EIO, "Input/output error")
