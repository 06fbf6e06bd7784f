"""The second process of a measurement: it does its part and never outlives its parent."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from seawall.bench.subjects import second_process
from seawall.bench.suites import processes
from seawall.errors import UnsupportedError

needs_eventfd = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="only Linux has eventfd")

#: A parent that opens a child, prints its process id, and then waits to be killed.
PARENT = """
import sys
from seawall.bench.subjects.second_process import child
with child("send", "127.0.0.1", sys.argv[1]) as process:
    print(process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.settimeout(60)
        yield listening


def receive_until_end(connection: socket.socket) -> None:
    connection.settimeout(60)
    try:
        while connection.recv(1 << 20):
            pass
    except ConnectionResetError:
        pass


def test_the_sender_sends_until_the_listener_disconnects(listener: socket.socket) -> None:
    address, port = listener.getsockname()
    pipe = io.BytesIO()
    sender = threading.Thread(target=second_process.main, args=(["send", address, str(port)], pipe), daemon=True)
    watched: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(second_process, "exit_with_parent", watched.append)
        sender.start()
        connection, _ = listener.accept()
        with closing(connection):
            received = connection.recv(3 * second_process.SEND_SIZE, socket.MSG_WAITALL)
        sender.join(60)
    assert not sender.is_alive()
    assert watched == [pipe]
    assert len(received) == 3 * second_process.SEND_SIZE
    assert (
        received[: second_process.SEND_SIZE]
        == received[second_process.SEND_SIZE : 2 * second_process.SEND_SIZE]
        != bytes(second_process.SEND_SIZE)
    )


def test_a_child_exits_when_the_pipe_of_its_parent_ends() -> None:
    left: list[int] = []
    second_process.exit_with_parent(io.BytesIO(b"still here"), left.append)
    assert left == [0]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_child_is_killed_when_its_context_is_left(listener: socket.socket, error: type[BaseException]) -> None:
    address, port = listener.getsockname()
    started: list[subprocess.Popen[bytes]] = []

    def interrupted() -> None:
        with second_process.child("send", address, str(port)) as process:
            started.append(process)
            raise error

    with pytest.raises(error):
        interrupted()
    [process] = started
    assert process.returncode == -signal.SIGKILL


def test_a_child_ends_when_its_parent_is_killed(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    command = [sys.executable, "-c", PARENT, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        connection, _ = listener.accept()
        parent.kill()
    with closing(connection):
        receive_until_end(connection)  # returns only when the child has closed its side, because it has exited


def test_loopback_receives_from_another_process() -> None:
    with processes.loopback_bandwidth() as run:
        assert run(0.0) > 0
        assert run(0.01) > 0


def test_a_sender_that_disconnects_is_an_error_and_no_figure(listener: socket.socket) -> None:
    with closing(socket.create_connection(listener.getsockname())) as sender:
        connection, _ = listener.accept()
        with closing(connection):
            sender.sendall(b"short")
            sender.shutdown(socket.SHUT_WR)
            with pytest.raises(ConnectionError, match="closed the connection"):
                processes.receiving(connection)(0.0)


@needs_eventfd
def test_eventfd_round_trips_are_measured() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with processes.eventfd_round_trip() as run:
        assert run(0.0) > 0
        assert run(0.01) > 0
    assert set(os.listdir("/proc/self/fd")) <= before


@needs_eventfd
def test_the_echo_answers_every_wake_up() -> None:
    # A non-blocking semaphore with three wake-ups: the fourth read raises.
    there, back = os.eventfd(3, os.EFD_SEMAPHORE | os.EFD_NONBLOCK), os.eventfd(0)
    try:
        with pytest.raises(BlockingIOError):
            second_process.echo(str(there), str(back))
        assert os.eventfd_read(back) == 3
    finally:
        os.close(there)
        os.close(back)


def test_without_eventfd_the_figure_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    with pytest.raises(UnsupportedError, match="no eventfd"), processes.eventfd_round_trip():
        pass


def test_a_command_is_timed_and_its_failure_is_an_error() -> None:
    with processes.command_time("-c", "pass")() as run:
        assert run(0.0) > 0
    with (
        processes.command_time("-c", "raise SystemExit('it broke')")() as run,
        pytest.raises(ChildProcessError, match="exited with 1: it broke"),
    ):
        run(0.0)


def test_the_guard_kills_what_still_runs_when_its_parent_is_gone() -> None:
    killed: list[tuple[int, int]] = []
    second_process.guard(io.BytesIO(b"11\n12\n-11\n13\n"), lambda group, number: killed.append((group, number)))
    assert sorted(killed) == [(12, signal.SIGKILL), (13, signal.SIGKILL)]


def test_the_guard_passes_over_a_process_that_has_ended() -> None:
    def gone(_group: int, _number: int) -> None:
        raise ProcessLookupError

    second_process.guard(io.BytesIO(b"11\n"), gone)
