"""Makes the steps of routers: each copies some records and moves the router on, by one compound control batch.

    plan    1. read       the next batches of the source, up to a gap; records that do not match are left out
            2. reserve    space in the destination and in the log (`compounds`)
    copy    3. write      the batches to their segment positions, while readers continue
    log     4. commit     one compound at one position: references to the copies, and the router's next seq

So a crash leaves the copies of a step with its progress, or neither. A step is durable when it ends, whatever the class
of the destination, and everything that was logged before it is durable as well, its source records included: no crash
repeats copies, and none loses copies that the router counts.

What the source lost before it was copied becomes a loss in the destination: one seq for each, reason SOURCE_TRIM.

If the destination refuses a step (it is full and rejects, or the disk is), the router keeps its position. It tries
again after a pause, and each pause is twice as long as the one before. A change of the destination ends the pause.

One owner at a time, the owner of the store. This module must not know who waits for copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.checks import check
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.core.types import Seq, TimestampNs, TopicId
from seawall.engine.commit.log_writer import Unlocked
from seawall.engine.commit.reserver import CONTROL_SIZE_MAX, Need
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.ordering.orderer import Orderer
from seawall.engine.routing.copies import Copies, make_copies, plan_copies, set_hops
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.topic_creation import plan_creations
from seawall.engine.transactions.compounds import CompoundWriter, restamp
from seawall.engine.transactions.plan import REFERENCE_SIZE, CompoundAppends, TopicWrite
from seawall.errors import CallerError, CorruptionError, FullError, LimitError, RetryableError
from seawall.io.disk.files import write_all
from seawall.storage.control.codec import RouterStep
from seawall.storage.control.documents import Loss, TopicCreate
from seawall.topics.config import TopicConfig
from seawall.topics.routers import Router
from seawall.topics.state import TopicState
from seawall.wire.format.codes import GapReason

_NS_PER_MS: Final = 1_000_000

#: The first pause of a blocked router, and the longest one.
_PAUSE_MS_MIN: Final = 50
_PAUSE_MS_MAX: Final = 10_000

#: What a refusal depends on: the records, the bytes and the settings of the destination.
_Seen: TypeAlias = tuple[int, int, TopicConfig]


@dataclass(frozen=True, slots=True)
class _Pause:
    """Why a router is blocked, how long it pauses, and until when."""

    reason: str
    pause_ms: int
    until_ns: int
    seen: _Seen


class Routing:
    """The routers of one store."""

    def __init__(self, parts: StoreParts, maintenance: Maintenance, orderer: Orderer) -> None:
        self._parts = parts
        self._maintenance = maintenance
        self._orderer = orderer
        self._routers = parts.catalog.routers
        self._compounds = CompoundWriter(parts)
        #: The routers whose last step was refused, by name; in memory only.
        self._pauses: dict[str, _Pause] = {}
        fitting = (parts.settings.commit_size_max - 4 * CONTROL_SIZE_MAX) // REFERENCE_SIZE
        #: The most batches of one step: their references are logged at once.
        self._batches_max = max(1, min(limits.ROUTER_STEP_BATCHES, fitting))

    # --- routers -----------------------------------------------------------------------------------------------------

    @property
    def is_used(self) -> bool:
        """True if there is a router at all."""
        return len(self._routers) > 0

    def put(self, name: str, source: str, dest: str, settings: RouterSettings, *, create_dest: bool) -> None:
        """Create a router, or change its settings; durable when this returns.

        Creates the topics that do not exist, by the same control batch; the destination only with `create_dest`.
        """
        self._parts.guard.require_usable()
        self._orderer.change(partial(self._put, name, source, dest, settings, create_dest))

    def delete(self, name: str) -> None:
        """Delete a router; durable when this returns. Its copies stay."""
        self._routers.named(name)
        self._orderer.change(lambda: self._parts.controls.commit(self._routers.plan_delete(name)))
        self._pauses.pop(name, None)

    def infos(self, after: str = "", count: int | None = None) -> list[RouterInfo]:
        """The routers with names above `after`, by rising name; at most `count` of them."""
        names = sorted(router.name for router in self._routers if router.name > after)
        return [self.info(name) for name in names[:count]]

    def info(self, name: str) -> RouterInfo:
        """One router; `NotFoundError` if it does not exist."""
        pause = self._pauses.get(name)
        return self._parts.catalog.router_info(self._routers.named(name), None if pause is None else pause.reason)

    def _put(self, name: str, source: str, dest: str, settings: RouterSettings, create_dest: bool) -> None:
        parts, catalog = self._parts, self._parts.current_catalog()
        missing = [each for each in dict.fromkeys((source, dest)) if not catalog.has(each)]
        if dest in missing and not create_dest:
            catalog.named(dest)
        now_ms, step = parts.machine.clock.wall_ns() // _NS_PER_MS, parts.settings.ceiling_step
        wanted = [(each, TopicConfig()) for each in missing]
        controls, refused = plan_creations(catalog, wanted, now_ms, step, is_reserved=False)
        for error in refused.values():
            raise error
        planned = {each.name: each for each in controls if isinstance(each, TopicCreate)}
        change = catalog.put_router(name, source, dest, settings, planned)
        if change is not None:
            parts.controls.commit(*controls, change)
            self._pauses.pop(name, None)

    # --- steps -------------------------------------------------------------------------------------------------------

    def upstream(self, topic_id: TopicId | None) -> list[str]:
        """The routers to run before a topic is read, in this order; all of them for None."""
        return self.names() if topic_id is None else [router.name for router in self._routers.upstream(topic_id)]

    @property
    def change_count(self) -> int:
        """How often a router was added or removed."""
        return self._routers.change_count

    def names(self) -> list[str]:
        """All routers, each after those that copy to its source."""
        return [router.name for router in self._routers.in_order()]

    def awaiting(self, topic_ids: Iterable[TopicId]) -> list[str]:
        """The routers that may have a step after these topics have changed, and those whose last step was refused."""
        found = [router.name for topic_id in topic_ids for router in self._routers.of_source(topic_id)]
        # Routers that were deleted with a topic leave their pauses behind.
        for name in [name for name in self._pauses if self._routers.find(name) is None]:
            del self._pauses[name]
        return [*found, *self._pauses]

    def priority(self, name: str) -> int:
        """The priority of the copies of a router: that of their topic."""
        router = self._routers.find(name)
        return 0 if router is None else self._topic(router.dest_id).priority_at(self._now_ns())

    def due(self, name: str) -> range | None:
        """The seqs of the source that a router has to copy, if a step is due; None if not."""
        if self._parts.guard.is_failed:
            return None
        catalog = self._parts.current_catalog()
        router = self._routers.find(name)
        source = None if router is None else catalog.find(router.source_id)
        if router is None or source is None or router.next_seq > source.head_seq:
            return None
        pause = self._pauses.get(name)
        is_waiting = pause is not None and self._now_ns() < pause.until_ns and pause.seen == self._seen(router)
        return None if is_waiting else range(router.next_seq, source.next_seq)

    @property
    def retry_s(self) -> float | None:
        """The time until the next blocked router tries again; None if none is blocked."""
        if self._parts.guard.is_failed:
            return None
        # Routers that were deleted with a topic leave their pauses behind.
        ends = [pause.until_ns for name, pause in self._pauses.items() if self._routers.find(name) is not None]
        return max(0, min(ends) - self._now_ns()) / 1e9 if ends else None

    def step(self, name: str, unlocked: Unlocked = nullcontext) -> None:
        """Make the next step of a router, if one is due; durable when this returns, unless it copied nothing.

        `unlocked` lets readers use the store while batches are read and written.
        """
        self._parts.controls.begin_change()
        batches_max = self._batches_max
        while self.due(name) is not None:
            router = self._routers.named(name)
            try:
                made = self._next(router, batches_max, unlocked)
            except (CallerError, RetryableError, CorruptionError, OSError) as error:
                # Reading failed, and nothing has changed.
                self._pause(router, error)
                return
            try:
                self._execute(router, made, unlocked)
            except (CallerError, RetryableError) as error:
                if isinstance(error, FullError | LimitError) and len(made.batches) > 1:
                    # Some of them may fit.
                    batches_max = len(made.batches) // 2
                    continue
                self._pause(router, error)
                return
            self._pauses.pop(name, None)
            return

    def _next(self, router: Router, batches_max: int, unlocked: Unlocked) -> Copies:
        source = self._topic(router.source_id)
        planned = plan_copies(router, source, self._parts.logs.get(source.topic_id), batches_max)
        if isinstance(planned, Copies):
            return planned
        with unlocked():
            return make_copies(planned, router.settings)

    def _execute(self, router: Router, made: Copies, unlocked: Unlocked) -> None:
        dest = self._topic(router.dest_id)
        records = sum(each.record_count for each in made.batches)
        onward = f"router {router.name} at {router.next_seq} steps to {made.end_seq}"
        check(made.end_seq > router.next_seq, "INV-ROUTER-ONWARD", onward)
        done = RouterStep(router.name, made.end_seq, router.next_seq, router.forwarded + records)
        if made.batches:
            size, plain_size = sum(each.size for each in made.batches), sum(each.raw_length for each in made.batches)
            write = TopicWrite(dest, numbers=list(range(len(made.batches))), need=Need(records, plain_size, size))
            now = TimestampNs(self._parts.machine.clock.wall_ns())
            # Check first: evictions of the check are logged on their own and must not use the position of the step.
            with self._parts.guard.preparing():
                self._parts.cleaner.check_space(dest, records, plain_size, now)
            self._orderer.change(partial(self._append, write, made, done, unlocked), dest.topic_id)
            self._maintenance.tidy_up([dest] if self._parts.cleaner.is_limited(dest) else [])
        elif made.lost:
            self._orderer.change(partial(self._lose, dest.topic_id, made.lost, done), dest.topic_id)
        else:
            # Nothing matched. A crash may lose this step: the same records do not match again.
            self._orderer.change(partial(self._parts.controls.commit, done, durable=False))

    def _lose(self, dest_id: TopicId, count: int, done: RouterStep) -> None:
        """Log that records of the source are lost: as many seqs of the destination are."""
        self._parts.controls.begin_change()
        first_seq = self._parts.writer.frontier.topic(dest_id).next_seq
        loss = Loss(dest_id, first_seq, Seq(first_seq + count - 1), GapReason.SOURCE_TRIM)
        self._parts.controls.commit(*self._compounds.plan_ceiling(dest_id, count), loss, done)

    def _append(self, write: TopicWrite, made: Copies, done: RouterStep, unlocked: Unlocked) -> None:
        """Append copies to their topic, by one compound with the step."""
        parts, dest = self._parts, write.topic
        parts.controls.begin_change()
        parts.reservations.forget()
        now = parts.machine.clock.wall_ns()
        topic_ids: npt.NDArray[np.uint32] = np.full(len(made.batches), dest.topic_id, np.uint32)
        appends = CompoundAppends.of({dest.topic_id: write}, topic_ids)
        logged = appends.logged_size + CONTROL_SIZE_MAX
        with parts.guard.preparing():
            try:
                self._compounds.reserve_log(logged, now)
                need = write.need
                parts.cleaner.check_space(dest, need.records, need.plain_size, TimestampNs(now), evicts=False)
                lengths = np.array([each.size for each in made.batches], np.uint64)
                self._compounds.reserve(write, appends, lengths, logged, now)
                with unlocked():
                    self._write(write, appends, made)
            except BaseException:
                self._compounds.roll_back(appends)
                raise
        with parts.guard.changing():
            controls = self._compounds.controls_before(appends)
            restamp(appends.headers, appends.topic_ids)
            set_hops(appends.headers, [each.hops for each in made.batches])
            numbers = self._compounds.number(appends, now)
            self._compounds.write_headers(write, appends, numbers.entries)
            self._compounds.commit([*controls, *self._compounds.references(appends), done], numbers)
            self._compounds.settle(controls)
        appends.pins.unpin_all()

    def _write(self, write: TopicWrite, appends: CompoundAppends, made: Copies) -> None:
        """Write the batches, one after the other, to their segment positions; their headers are written again later."""
        data = b"".join(each.header for each in made.batches)
        appends.headers[:] = np.frombuffer(data, np.uint8)
        pieces = [memoryview(piece) for each in made.batches for piece in (each.header, each.block)]
        write_all(write.made_reservation.segment.segment.shared.file, pieces, int(appends.file_positions[0]))

    # --- refused steps -----------------------------------------------------------------------------------------------

    def _pause(self, router: Router, error: Exception) -> None:
        before = self._pauses.get(router.name)
        pause_ms = _PAUSE_MS_MIN
        if before is not None and before.seen == self._seen(router):
            pause_ms = min(2 * before.pause_ms, _PAUSE_MS_MAX)
        until_ns = self._now_ns() + pause_ms * _NS_PER_MS
        self._pauses[router.name] = _Pause(str(error), pause_ms, until_ns, self._seen(router))

    def _seen(self, router: Router) -> _Seen:
        dest = self._topic(router.dest_id)
        return dest.live_records, dest.live_bytes, dest.config

    def _now_ns(self) -> int:
        return self._parts.machine.clock.monotonic_ns()

    def _topic(self, topic_id: TopicId) -> TopicState:
        topic = self._parts.catalog.find(topic_id)
        assert topic is not None, "a router goes with its topics"
        return topic
