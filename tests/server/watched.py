"""Lets tests observe a server in their own process: its sockets, and what its publish thread owns and commits."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seawall.engine.commit.resident_commit import ResidentCommit
from seawall.engine.serving.served_log import ServedLog
from seawall.server.publish.producer_session import ProducerSession
from seawall.server.publish.publish_thread import Attachment, PublishThread, Returned, V1Topic


def _open_files() -> list[tuple[int, str]]:
    """The descriptors of this process, and what they refer to."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found


def accepted_socket(client_address: Any) -> socket.socket:
    """A duplicate of the socket that a server in this process accepted from a client. Close it soon."""
    for descriptor, target in _open_files():
        if target.startswith("socket:"):
            with suppress(OSError):
                made = socket.socket(fileno=os.dup(descriptor))
                try:
                    if made.getpeername() == client_address:
                        return made
                except OSError:
                    pass
                made.close()
    raise AssertionError(f"no socket is connected to {client_address}")


def make_wal_unwritable(data: Path) -> None:
    """Make every later write to the open log files of a data directory fail."""
    for descriptor, target in _open_files():
        if target.startswith(f"{data}/wal/"):
            unwritable = os.open(target, os.O_RDONLY)
            os.dup2(unwritable, descriptor)
            os.close(unwritable)


class Commits(list[int]):
    """The number of batches that each call of the commit kernel committed, and the cycles of all calls."""

    cycles = 0

    def watch(self, resident: ResidentCommit, publishers: npt.NDArray[np.void]) -> None:
        """Count the commits of a kernel; `publishers` are its arguments, which have its counters."""
        commit = resident.commit

        def counted(count: int) -> None:
            cycles, batches = (int(publishers[name][0]) for name in ("cycles", "batches"))
            commit(count)
            staged = resident.received.rows["is_staged"][: resident.unanswered] != 0
            self.cycles += int(publishers["cycles"][0]) - cycles
            self.append(int(publishers["batches"][0]) - batches + int(staged.sum()))

        vars(resident)["commit"] = counted


class WatchedLog(ServedLog):
    """A log that counts what its publish thread commits."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.commits = Commits()

    def resident(self, publishers: npt.NDArray[np.void], interrupt: Callable[[], None]) -> ResidentCommit:
        made = super().resident(publishers, interrupt)
        self.commits.watch(made, publishers)
        return made


class WatchedThread(PublishThread):
    """A publish thread that lists the connections it owns; one is listed until its loop has taken it back."""

    def __init__(self, log: ServedLog) -> None:
        self.attachments: set[Attachment] = set()
        self._has_changed = asyncio.Event()
        super().__init__(log)

    def attach(
        self,
        descriptor: int,
        producer: ProducerSession,
        payload_max: int,
        loop: asyncio.AbstractEventLoop,
        returned: Callable[[Returned], None],
        v1_topic: V1Topic | None = None,
    ) -> Attachment | None:
        def listed_return(result: Returned) -> None:
            assert made is not None, "only an attached connection returns"
            self.attachments.discard(made)
            self._has_changed.set()
            returned(result)

        made = super().attach(descriptor, producer, payload_max, loop, listed_return, v1_topic)
        if made is not None:
            self.attachments.add(made)
            self._has_changed.set()
        return made

    async def until(self, count: int) -> None:
        """Wait until the thread owns so many connections."""
        while len(self.attachments) != count:
            self._has_changed.clear()
            await self._has_changed.wait()
