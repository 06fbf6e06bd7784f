"""Supervises worker processes: starts them, starts them again when they end, and stops them in order.

The first process starts alone until it has imported the module: if that fails, the command fails once, not once for
each process. A process that ends by itself, or is killed, is started again after a pause that grows while its
successors end soon, too. The processes are sessions of their own, so a signal of the terminal reaches only the
supervisor. They share a pipe with it: if the supervisor is killed, they stop in order.

The first SIGTERM or SIGINT stops all; a second one kills them. With `reload`, changed sources stop the processes in
order and start new ones; a module that cannot be imported is tried again after the next change.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from seawall.api.queues.jobs import Backoff
from seawall.cli.worker.process import EXIT_CALLER
from seawall.cli.worker.sources import Sources
from seawall.cli.worker.spec import WorkerSpec
from seawall.limits import (
    SOURCE_POLL_S,
    TASK_CLAIM_WAIT_S,
    TASK_INTERRUPT_S,
    WORKER_RESTART_S,
    WORKER_RESTART_S_MAX,
    WORKER_STABLE_S,
)

LOG: Final = logging.getLogger("seawall.worker")

_PAUSES: Final = Backoff(WORKER_RESTART_S, 2.0, WORKER_RESTART_S_MAX)
#: Time that a process may take to stop beyond its grace period, before it is killed.
_STOP_MARGIN_S: Final = 5.0 + TASK_CLAIM_WAIT_S + 2 * TASK_INTERRUPT_S


class Supervisor:
    """Keeps the processes of one command."""

    def __init__(self, spec: WorkerSpec, sources: Sources | None) -> None:
        """`sources` are watched for changes, if they are given."""
        self._spec = spec
        self._sources = sources
        self._running: set[Process] = set()
        self._is_stopping = False
        #: Set and replaced whenever processes are told to end: by a stop or by a reload.
        self._turned = asyncio.Event()
        self._signals = 0
        self._exit_code = 0

    async def run(self) -> int:
        """Run until a signal; returns the exit code of the command."""
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, self._on_signal, each)
        lifeline, kept_open = os.pipe()
        watcher = asyncio.create_task(self._watch()) if self._sources is not None else None
        try:
            imported = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep(1, lifeline, imported))
                await imported.wait()
                for number in range(2, self._spec.processes + 1):
                    group.create_task(self._keep(number, lifeline, imported))
        finally:
            if watcher is not None:
                watcher.cancel()
            os.close(lifeline)
            os.close(kept_open)
        return self._exit_code

    async def _keep(self, number: int, lifeline: int, imported: asyncio.Event) -> None:
        """Keep one process running until the command stops. Sets `imported` once the others may start, or need not."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while not self._is_stopping:
                turned, began_s = self._turned, loop.time()
                async with self._started(number, lifeline, imported) as process:
                    if turned.is_set():
                        process.terminate()
                    code = await process.wait()
                if turned.is_set():
                    failures = 0
                    continue
                if code == EXIT_CALLER and self._sources is None:
                    self._exit_code = code
                    self._stop()
                    return
                failures = 1 if loop.time() - began_s > WORKER_STABLE_S else failures + 1
                await self._pause(number, code, failures, turned)
        finally:
            imported.set()

    async def _pause(self, number: int, code: int, failures: int, turned: asyncio.Event) -> None:
        """Wait before a process is started again; a change of sources or a stop ends the wait."""
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        if code == EXIT_CALLER:
            LOG.warning("process %d has ended %s: starts again when a source has changed", number, how)
            await turned.wait()
            return
        pause_s = _PAUSES.delay_s(failures)
        LOG.warning("process %d has ended %s: starts again in %.1f s", number, how, pause_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(turned.wait(), pause_s)

    @asynccontextmanager
    async def _started(self, number: int, lifeline: int, imported: asyncio.Event) -> AsyncIterator[Process]:
        """Start a process; it is known as running until the block ends."""
        read_end, write_end = os.pipe()
        spec = self._spec.for_process(number, lifeline, write_end)
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "seawall.cli.worker.process", spec.to_text()),
                stdin=DEVNULL,
                pass_fds=(lifeline, write_end),
                start_new_session=True,
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self._running.add(process)
        noticed = asyncio.create_task(_notice_line(read_end, imported))
        try:
            yield process
        finally:
            self._running.discard(process)
            noticed.cancel()

    # --- stops and reloads -----------------------------------------------------------------------------------------

    def _on_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals == 1:
            LOG.info("received %s: waits up to %g s for running tasks", number.name, self._spec.grace_s)
            self._stop()
        else:
            LOG.warning("received %s again: kills its processes", number.name)
            self._kill(list(self._running))

    def _stop(self) -> None:
        """End all processes in order, and start none."""
        self._is_stopping = True
        self._turn()

    def _turn(self) -> None:
        """Tell all running processes to end, and kill those that do not end in time."""
        turned, self._turned = self._turned, asyncio.Event()
        turned.set()
        processes = list(self._running)
        for process in processes:
            with suppress(ProcessLookupError):
                process.terminate()
        asyncio.get_running_loop().call_later(self._spec.grace_s + _STOP_MARGIN_S, self._kill, processes)

    def _kill(self, processes: list[Process]) -> None:
        for process in self._running.intersection(processes):
            LOG.error("kills process %d, which has not stopped", process.pid)
            self._exit_code = 1 if self._is_stopping else self._exit_code
            with suppress(ProcessLookupError):
                process.kill()

    async def _watch(self) -> None:
        """Start the processes again whenever sources have changed."""
        assert self._sources is not None, "watched only if there are sources"
        while True:
            await asyncio.sleep(SOURCE_POLL_S)
            changed = self._sources.changed()
            if changed and not self._is_stopping:
                names = ", ".join(path.name for path in changed)
                LOG.info("%s changed: starts its processes again", names)
                self._turn()


async def _notice_line(read_end: int, imported: asyncio.Event) -> None:
    """Set an event when a process sends its line; nothing if it ends before."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            if await reader.readline():
                imported.set()
        finally:
            transport.close()
