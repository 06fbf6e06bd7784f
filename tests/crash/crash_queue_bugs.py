"""Bugs of queues that random histories must find: each replaces a part of the engine for the duration of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from seawall.engine.queues import dead_letters, job_store, log_queues
from seawall.engine.queues.dead_letters import DeadLetters
from seawall.engine.queues.job_store import Finished, JobChange, JobStore
from seawall.engine.queues.unique_keys import UniqueKeys
from seawall.storage.control.deletes import DeleteRecords
from seawall.topics.queues.lease_view import LeaseView
from seawall.topics.state import TopicState
from seawall.wire.jobs.option_scan import JobFields

Plant = Callable[[pytest.MonkeyPatch], None]


def ack_without_delete(patch: pytest.MonkeyPatch) -> None:
    """Acked jobs leave the view, and stay in the log."""

    def commit(self: JobStore, changes: Sequence[JobChange], *rest: Any) -> None:
        for each in changes:
            if isinstance(each, Finished) and each.topic.leases is not None:
                each.topic.leases.removed_ranges(np.stack((each.seqs, each.seqs + 1), axis=1))

    patch.setattr(JobStore, "commit", commit)


def ack_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """The delete of acked jobs is written, and not synced."""
    commit = JobStore._commit
    patch.setattr(JobStore, "_commit", lambda self, *given, **_: commit(self, *given, durable=False))


def delete_that_stays_in_the_view(patch: pytest.MonkeyPatch) -> None:
    """A deleted record is still a job."""
    apply = TopicState._apply_removal

    def forget(self: TopicState, control: Any) -> None:
        leases, self.leases = self.leases, None
        try:
            apply(self, control)
        finally:
            self.leases = leases

    patch.setattr(TopicState, "_apply_removal", forget)


def leases_that_do_not_end(patch: pytest.MonkeyPatch) -> None:
    """Nobody notices that leases and delays have ended."""
    patch.setattr(LeaseView, "_expire", lambda *_: -1)


def dead_letter_without_delete(patch: pytest.MonkeyPatch) -> None:
    """A dead letter is appended, and its job stays."""
    patch.setattr(JobStore, "removal_locked", _nothing)


def _nothing(_: JobStore, topic: TopicState, seqs: Any) -> Finished:
    return Finished(topic, seqs[:0], 0)


def dead_letter_in_two_steps(patch: pytest.MonkeyPatch) -> None:
    """A dead letter is appended, and then its job is deleted: a crash in between leaves both."""

    def publish(self: DeadLetters, topic: TopicState, records: Sequence[Any], target: str, *, are_dead: bool) -> None:
        removal = JobStore.removal_locked
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(JobStore, "removal_locked", _nothing)
            real(self, topic, records, target, are_dead=are_dead)
        seqs = np.array([seq for seq, _ in records], np.int64)
        with self._log.changing():
            self._store.commit(
                [removal(self._store, topic, seqs)], log_queues.partial(dead_letters.unlocked, self._log.commits)
            )

    real = DeadLetters._publish
    patch.setattr(DeadLetters, "_publish", publish)


def refused_transaction_that_keeps_jobs(patch: pytest.MonkeyPatch) -> None:
    """After a failed commit its jobs stay finished."""
    patch.setattr(JobStore, "unfinish_locked", lambda *_: None)


def unique_key_that_is_not_released(patch: pytest.MonkeyPatch) -> None:
    """The key of a finished job is taken for ever."""
    patch.setattr(UniqueKeys, "_live", lambda self, key: self._seqs.get(key, ()))


def delayed_job_claimed_early(patch: pytest.MonkeyPatch) -> None:
    """The delay in a record is ignored."""
    scan = job_store.scan_job_options

    def without_delays(*given: Any) -> JobFields:
        fields = scan(*given)
        return fields._replace(not_before_ms=np.zeros_like(fields.not_before_ms))

    patch.setattr(job_store, "scan_job_options", without_delays)


def redrive_without_meta(patch: pytest.MonkeyPatch) -> None:
    """A job that comes back from the dead letters has no meta."""
    source_of = dead_letters._source_of

    def stripped(record: Any) -> Any:
        source = source_of(record)
        return None if source is None else (source[0], replace(source[1], meta=None))

    patch.setattr(dead_letters, "_source_of", stripped)


def leases_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """An old lease of the same worker counts as the current one."""
    arrays_of = log_queues.arrays_of

    def without_ids(node: str, jobs: Any) -> Any:
        seqs, lease_ids = arrays_of(node, jobs)
        return seqs, np.zeros_like(lease_ids)

    patch.setattr(log_queues, "arrays_of", without_ids)


def purge_of_leased_jobs(patch: pytest.MonkeyPatch) -> None:
    """A purge deletes what workers hold."""
    patch.setattr(LeaseView, "unclaimed", _all_jobs)


def _all_jobs(self: LeaseView, now_ms: int) -> Any:
    rows = self.snapshot()["seq"].astype(np.int64)
    return job_store.DeletedSeqs(np.concatenate((self._used_ranges(), np.stack((rows, rows + 1), axis=1)))).ranges


def dead_letters_not_counted(patch: pytest.MonkeyPatch) -> None:
    """The counter of dead letters is not part of the step that moves them."""
    publish = DeadLetters._publish
    patch.setattr(DeadLetters, "_publish", lambda self, *given, **_: publish(self, *given, are_dead=False))


def durable_leases_not_logged(patch: pytest.MonkeyPatch) -> None:
    """A topic with durable leases loses them at a restart."""
    patch.setattr(JobStore, "lease_change_locked", lambda *_: None)


def half_of_an_ack(patch: pytest.MonkeyPatch) -> None:
    """An ack of some jobs deletes all but one of them."""
    deletes_of = JobStore.deletes_of

    def shortened(self: JobStore, finished: Sequence[Finished]) -> list[DeleteRecords]:
        return deletes_of(self, [each._replace(seqs=each.seqs[: max(1, len(each.seqs) - 1)]) for each in finished])

    patch.setattr(JobStore, "deletes_of", shortened)


#: Found by histories without crashes.
PLANTED: dict[str, Plant] = {
    "ack without delete": ack_without_delete,
    "delete that stays in the view": delete_that_stays_in_the_view,
    "leases that do not end": leases_that_do_not_end,
    "dead letter without delete": dead_letter_without_delete,
    "refused transaction that keeps jobs": refused_transaction_that_keeps_jobs,
    "unique key that is not released": unique_key_that_is_not_released,
    "delayed job claimed early": delayed_job_claimed_early,
    "redrive without meta": redrive_without_meta,
    "leases of anybody": leases_of_anybody,
    "purge of leased jobs": purge_of_leased_jobs,
    "dead letters not counted": dead_letters_not_counted,
    "durable leases not logged": durable_leases_not_logged,
    "half of an ack": half_of_an_ack,
}

#: Found by histories with crashes.
PLANTED_FOR_CRASHES: dict[str, Plant] = {
    "ack before it is durable": ack_before_it_is_durable,
    "dead letter in two steps": dead_letter_in_two_steps,
}
