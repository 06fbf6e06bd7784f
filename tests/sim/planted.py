"""Planted bugs of the ordering protocol, and the first seed of the simulated pod that finds each.

Each bug replaces one function of a role, or the arguments of its kernel, so that a guarantee breaks. The tests check
the seed; `make sim` searches for each bug again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from seawall.errors import SeawallError
from seawall.fabric import records
from seawall.kernels.ordering import goi_frontier as frontier_kernels
from seawall.kernels.ordering import goi_recovery as recovery_kernels
from seawall.kernels.runtime.atomics import store_release_u64
from seawall.sequencer import order_worker, pod_sequencer, recovery
from seawall.sequencer.collector import Collector
from seawall.sequencer.goi_frontier import GoiFrontier
from seawall.sequencer.order_worker import OrderWorker
from seawall.testing.checkers.order_state import OrderingViolationError
from seawall.testing.pod.owner import PodOwner
from seawall.testing.pod.run import PodRun

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """How a bug is planted, and the first seed that finds it."""

    plant: Callable[[Patch], None]
    seed: int


def _ready_by_any_token(patch: Patch) -> None:
    """A flag instead of a token: an entry of any lap counts as ready."""

    def ready(words: Any, token: int, first: int, count: int) -> int:
        entries = words.size // 8
        found = 0
        while found < count and int(words[((first + found) & (entries - 1)) * 8 + token]) != 0:
            found += 1
        return found

    patch.setattr(recovery, "ready_slots", ready)


def _window_dropped(patch: Patch) -> None:
    """Recovery does not restore the state of clients after the checkpoint."""
    patch.setattr(pod_sequencer.PodSequencer, "_restore_clients", lambda *_: None)


def _freed_while_held(patch: Patch) -> None:
    """Slots are freed as soon as they were collected, even if held."""

    def advance(self: GoiFrontier) -> int:
        for broker in range(len(self._fabric.pbr)):
            tail = int(self._fabric.tail_words[broker][0])
            completed = int(self._fabric.completion_words[broker][0])
            if completed < tail and int(self._fabric.pbr[broker][completed % 64]["token"]) == completed + 1:
                store_release_u64(self._fabric.completion_words[broker], records.COMPLETION_COMPLETED, completed + 1)
        return 0

    patch.setattr(GoiFrontier, "advance_completion", advance)


def _ceiling_ignored(patch: Patch) -> None:
    """Seqs are assigned above the durable ceiling."""

    def raise_ceilings(self: PodOwner) -> None:
        for need in self.frontier.needs_ceiling():
            self.frontier.set_ceiling(need.topic_id, need.wanted)

    patch.setattr(PodOwner, "raise_ceilings", raise_ceilings)


def _result_before_commit(patch: Patch) -> None:
    """Results are written for entries that are not committed yet."""
    step = GoiFrontier.step

    def early(self: GoiFrontier, now_ns: int, wall_ns: int) -> Any:
        done = step(self, now_ns, wall_ns)
        self._fabric.side["status"][self.committed % len(self._fabric.goi)] = 0
        frontier_kernels.write_results(
            *(int(self.committed), int(self.reserved), self._goi, self._side, self._completion, self._results),
            *(len(self._fabric.pbr[0]), 1),
        )
        return done

    patch.setattr(GoiFrontier, "step", early)


def _duplicate_not_compared(patch: Patch) -> None:
    """A duplicate is acked without comparing its content."""
    write = order_worker.order_entries.write_entries

    def forgiving(start: int, term: int, *rest: Any) -> None:
        write(start, term, *rest)
        goi = rest[2].view(records.GOI_ENTRY)
        position = start
        while int(goi[position & (goi.size - 1)]["token"]) == position + 1:
            entry = goi[position & (goi.size - 1)]
            is_nop = int(entry["flags"]) & records.FLAG_NOP
            if is_nop and int(entry["record_count"]) == 2 | 0x28 << 8:
                entry["record_count"] = 1
                rest[3].reshape(-1, 2)[position & (goi.size - 1)] = (1, 1)
                entry["blog_offset"] = 0
            position += 1

    patch.setattr(order_worker.order_entries, "write_entries", forgiving)


def _no_scrub(patch: Patch) -> None:
    """Entries after the first hole are kept."""
    patch.setattr(recovery_kernels, "scrub_from", lambda *_: 0)
    patch.setattr(recovery.kernels, "scrub_from", lambda *_: 0)


def _taken_again(patch: Patch) -> None:
    """After a recovery, slots that have an entry are collected again."""
    resume = Collector.resume
    patch.setattr(
        Collector, "resume", lambda self, broker, cursor, _: resume(self, broker, cursor, np.zeros(0, np.int64))
    )


def _late_after_skip(patch: Patch) -> None:
    """An abandoned batch is accepted if it arrives later."""
    expire = OrderWorker._expire

    def forgetful(self: OrderWorker, now_ns: int) -> None:
        before = self._clients[:, 2].copy()
        skipped = self.skipped
        expire(self, now_ns)
        if self.skipped > skipped:
            changed = np.flatnonzero(self._clients[:, 2] != before)
            self._clients[changed, 2] = before[changed]

    patch.setattr(OrderWorker, "_expire", forgetful)


def _fencing_ignored(patch: Patch) -> None:
    """A newer session does not fence the previous one: workers see every batch with the epoch of the open session."""
    drain = OrderWorker._drain

    def unfenced(self: OrderWorker, queue: Any, limit: int, now_ns: int) -> None:
        slots = self._arrays.pbr_all_words.view(records.PBR_ENTRY)
        epochs = slots["session_epoch"].copy()
        for client in (7, 8, 9):
            if client in self.window:
                slots["session_epoch"][slots["client_id"] == client] = self.window.state(client).session_epoch
        drain(self, queue, limit, now_ns)
        slots["session_epoch"] = epochs

    patch.setattr(OrderWorker, "_drain", unfenced)


def _durable_before_sync(patch: Patch) -> None:
    """The replica reports committed entries as durable, written or not."""

    def report_durable(self: PodOwner) -> None:
        committed = int(self._fabric.control["committed"][0])
        store_release_u64(self._fabric.replica_words[0], records.REPLICA_DURABLE, committed)

    patch.setattr(PodOwner, "report_durable", report_durable)


PLANTED = {
    "flag instead of a token": Bug(_ready_by_any_token, 13),
    "window dropped at recovery": Bug(_window_dropped, 2),
    "slot freed while held": Bug(_freed_while_held, 0),
    "ceiling ignored": Bug(_ceiling_ignored, 3),
    "result written before commit": Bug(_result_before_commit, 20),
    "duplicate acked without comparing": Bug(_duplicate_not_compared, 0),
    "scrub forgotten at recovery": Bug(_no_scrub, 399),
    "taken slots collected again": Bug(_taken_again, 2),
    "late batch after a SKIP accepted": Bug(_late_after_skip, 0),
    "fencing ignored": Bug(_fencing_ignored, 0),
    "durable counted before the sync": Bug(_durable_before_sync, 15),
}

#: Errors that a planted bug may cause, besides a broken guarantee.
ERRORS = (SeawallError, AssertionError, ValueError, KeyError, IndexError)


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug for the duration of a context."""
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[name].plant(patch)
        yield


def caught_by(name: str, seed: int) -> str | None:
    """The message with which the run of a seed finds a planted bug, or None."""
    with planted(name):
        try:
            PodRun(seed).run()
        except OrderingViolationError as error:
            return str(error).splitlines()[0]
        except ERRORS as error:
            return f"{type(error).__name__}: {error}"
    return None


def seeds_until_caught(name: str, limit: int) -> tuple[int, str] | None:
    """The first seed that finds a planted bug, and its message."""
    for seed in range(limit):
        said = caught_by(name, seed)
        if said is not None:
            return seed, said
    return None


__all__ = ["PLANTED", "caught_by", "planted", "seeds_until_caught"]
