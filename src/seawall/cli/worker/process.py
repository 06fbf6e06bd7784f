"""One worker process: `python -m seawall.cli.worker.process SPEC`, started by the supervisor in a fresh interpreter.

SIGTERM, or the end of the supervisor, stops it in order: no more claims, running tasks finish within the grace period,
the jobs of the others are returned. A second SIGTERM, or one before it claims jobs, ends it at once; then leases end by
themselves. SIGINT does nothing here, since a terminal may send it to all processes, and the supervisor decides.

Exit codes: 0 stopped · 1 failed, a new process may do better · 2 the caller's mistake: the module cannot be imported,
or the target is no queue of tasks, or its log cannot be shared.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import attrgetter
from threading import Thread
from typing import TYPE_CHECKING, Final

from seawall.cli.worker.log_lines import configure_logging
from seawall.cli.worker.spec import WorkerSpec
from seawall.config import TOKEN_VARIABLE
from seawall.errors import CallerError, ConfigError, SeawallError

if TYPE_CHECKING:
    from seawall.tasks import TaskQueue, Worker

LOG: Final = logging.getLogger("seawall.worker")

EXIT_FAILED: Final = 1
EXIT_CALLER: Final = 2


def main() -> None:
    """Run the worker process that the argument describes."""
    spec = WorkerSpec.from_text(sys.argv[1])
    configure_logging(spec.number, spec.log_level, as_json=spec.json_logs)
    signals = _SignalPipe()
    try:
        tasks = find_tasks(spec)
        os.write(spec.imported, b"imported\n")
        os.close(spec.imported)
        worker = tasks.worker(threads=spec.threads, grace_s=spec.grace_s)
        signals.is_working = True
        worker.start()
    except (SeawallError, OSError) as error:
        LOG.error("cannot start: %s", error)
        sys.exit(EXIT_CALLER if isinstance(error, CallerError) else EXIT_FAILED)
    LOG.info("works on queue %s: %d tasks, %d threads", tasks.topic, len(tasks.tasks), spec.threads)
    _wait_and_stop(tasks, worker, signals, spec)


def find_tasks(spec: WorkerSpec) -> TaskQueue:
    """Import the queue of tasks that a spec names; `ConfigError` if that is not possible."""
    from seawall.tasks import TaskQueue

    module, _, attribute = spec.target.partition(":")
    try:
        imported = import_module(module)
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        raise ConfigError(f"module {module!r} cannot be imported: {error}\n{trace}") from error
    try:
        tasks = attrgetter(attribute)(imported)
    except AttributeError as error:
        raise ConfigError(f"module {module!r} has no {attribute!r}: name the TaskQueue, as in MODULE:ATTR") from error
    if not isinstance(tasks, TaskQueue):
        raise ConfigError(f"{spec.target} is of type {type(tasks).__name__}, not a seawall.tasks.TaskQueue")
    tasks.use(spec.location, token=os.environ.get(TOKEN_VARIABLE))
    if spec.processes > 1 and tasks.location is not None and not tasks.location.is_remote:
        raise ConfigError(
            f"{spec.target} uses the data directory {tasks.location.text}, which one process at a time can open: use "
            "--processes 1, or serve the directory (`seawall serve`) and give its URL with --url"
        )
    return tasks


class _SignalPipe:
    """Makes SIGTERM a byte in a pipe, so that the main thread can wait for it and for other things."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        #: False while the process starts, which may wait long for a server: it has nothing to return yet.
        self.is_working = False
        signal.signal(signal.SIGTERM, lambda _number, _frame: self.terminate())
        signal.signal(signal.SIGINT, lambda _number, _frame: None)
        # A task may fork: a signal to its child is not meant for this process.
        os.register_at_fork(after_in_child=_restore_signals)

    def terminate(self) -> None:
        """Wake the main thread; exit at once if there is no work yet."""
        if not self.is_working:
            _exit_now(0)
        os.write(self.write_end, b".")


def _restore_signals() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _wait_and_stop(tasks: TaskQueue, worker: Worker, signals: _SignalPipe, spec: WorkerSpec) -> None:
    """Wait for a signal or the end of the supervisor, then stop; exits at once on a second signal."""
    select.select([signals.read_end, spec.lifeline], [], [])
    _drain(signals.read_end)
    stopped_end, stopping_end = os.pipe()
    outcome: list[int] = []
    Thread(target=partial(_stop, worker, outcome, stopping_end), daemon=True).start()
    ready, _, _ = select.select([signals.read_end, stopped_end], [], [])
    if stopped_end not in ready:
        LOG.warning("stops at once: the leases of its jobs end by themselves")
        _exit_now(EXIT_FAILED)
    with suppress(SeawallError, OSError):
        tasks.close()
    LOG.info("has stopped; %d tasks did not finish and their jobs were returned", outcome[0])
    if outcome[0]:
        _exit_now(0)  # without their threads, which may be in a call that never returns


def _stop(worker: Worker, outcome: list[int], stopping_end: int) -> None:
    try:
        outcome.append(worker.stop())
    finally:
        os.close(stopping_end)


def _drain(descriptor: int) -> None:
    """Forget the first signal, if it was one."""
    if select.select([descriptor], [], [], 0)[0]:
        os.read(descriptor, 1)


def _exit_now(code: int) -> None:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
