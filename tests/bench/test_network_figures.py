"""The figures of suites `publish` and `fetch`: they run with a real node, and fail if records are missing.

All figures run in the slow test of `test_bench_figures.py`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from seawall.api.received import Item
from seawall.bench import registry as suites
from seawall.bench.harness import BenchContext, Subject
from seawall.bench.subjects import bare, second_process
from seawall.bench.suites import disk, fetch, publish
from seawall.client.remote_log import RemoteLog
from seawall.errors import InvariantError
from seawall.io.network.sockets import parse_address
from seawall.kernels.runtime import jit
from seawall.limits import KIB, MIB

needs_kernels = pytest.mark.skipif(jit.PYTHON_MODE, reason="a node in plain Python takes minutes for a megabyte")


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "WARM_SIZE", MIB)
    monkeypatch.setattr(publish, "IDLE_CONNECTIONS", 20)


def subject_of(suite: str, name: str, directory: Path) -> Subject:
    context = BenchContext(seconds=0.01, rounds=5, directory=directory)
    return next(each.subject for each in suites.load(suite)(context) if each.name == name)


@needs_kernels
def test_publishing_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    name = "1 KiB records in bulk, class ephemeral, beside 20 idle connections"
    with subject_of("publish", name, tmp_path)() as run:
        assert run(0.0) > 0
        assert run(0.01) > 0
    assert list(tmp_path.iterdir()) == []


@needs_kernels
def test_reading_is_measured_and_leaves_nothing(tmp_path: Path) -> None:
    with fetch.reading(tmp_path, fetch.pushed, stored_size=2 * MIB)() as run:
        assert run(0.0) > 0
        assert run(0.01) > 0
    assert list(tmp_path.iterdir()) == []


@needs_kernels
def test_a_reader_that_misses_records_is_an_error_and_no_figure(tmp_path: Path) -> None:
    """INV-BENCH-OK."""

    def nothing(_log: RemoteLog, _count: int) -> Iterator[list[Item]]:
        return iter(())

    with (
        pytest.raises(InvariantError, match="read 0 of 1024 records"),
        fetch.reading(tmp_path, nothing, stored_size=MIB)(),
    ):
        pytest.fail("the subject opened")


def test_the_bare_store_answers_after_a_record_is_written(tmp_path: Path) -> None:
    with publish.bare_store(tmp_path, 50)() as run:
        assert run(0.0) > 0
        assert run(0.01) > 0
    assert list(tmp_path.iterdir()) == []


@needs_kernels
def test_the_baselines_of_two_processes_are_measured(tmp_path: Path) -> None:
    for subject in (bare.publishing, bare.fetching(tmp_path, 2 * MIB)):
        with subject() as run:
            assert run(0.0) > 0
            assert run(0.01) > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", ["keep", "give"])
def test_a_baseline_whose_peer_disconnects_is_an_error_and_no_figure(part: str) -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(InvariantError, match=f"the {part} process closed the connection"):
        bare._answers(ours) if part == "keep" else bare._receiving(ours)(0.0)


@needs_kernels
def test_the_keep_process_answers_frame_by_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second_process, "KEPT_SIZE", 8)

    def report_address(_descriptor: int, address: str) -> None:
        client.connect(parse_address(address))
        client.sendall(b"abcdefghijkl")
        client.shutdown(socket.SHUT_WR)

    monkeypatch.setattr(second_process, "report_address", report_address)
    with socket.socket() as client:
        second_process.keep("4", "0")
        assert client.recv(KIB, socket.MSG_WAITALL) == bytes(3)


def test_the_give_process_sends_a_file_until_the_peer_disconnects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tmp_path / "stored"
    stored.write_bytes(b"stored")
    received: list[bytes] = []

    def report_address(_descriptor: int, address: str) -> None:
        client.connect(parse_address(address))
        reader.start()

    def read() -> None:
        received.append(client.recv(12, socket.MSG_WAITALL))
        client.close()

    monkeypatch.setattr(second_process, "report_address", report_address)
    reader = threading.Thread(target=read)
    with socket.socket() as client:
        second_process.give(str(stored), "0")
        reader.join()
    assert received == [b"storedstored"]


def test_a_store_that_disconnects_is_an_error_and_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It waits for more than is sent, until the connection is shut down.
    monkeypatch.setattr(socket.socket, "sendall", lambda self, _record: self.shutdown(socket.SHUT_WR))
    with publish.bare_store(tmp_path, 50)() as run, pytest.raises(InvariantError, match="closed the connection"):
        run(0.0)


def test_the_store_writes_frames_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    monkeypatch.setattr(disk, "write_then_sync", lambda _file, block, at: written.append(bytes(block) + b"%d" % at))
    addresses: list[str] = []

    def report_address(_descriptor: int, address: str) -> None:
        addresses.append(address)
        client.connect(parse_address(address))
        client.sendall(b"abcdefgh")
        client.shutdown(socket.SHUT_WR)

    monkeypatch.setattr(second_process, "report_address", report_address)
    with socket.socket() as client:
        second_process.store(str(tmp_path), "4", "0")
        assert client.recv(KIB, socket.MSG_WAITALL) == 2 * second_process.STORED
    assert written == [b"abcd0", b"efgh4"]
    assert len(addresses) == 1


def test_a_child_that_ends_before_it_listens_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(ChildProcessError, match="store exited before it listened"),
        second_process.listening_child("store", str(tmp_path / "missing"), "4"),
    ):
        pass
