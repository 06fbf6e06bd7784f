"""A store whose batches are ordered by brokers and a sequencer in the same process (`pod`).

The same changes and questions as of any store. What differs is who gives positions: appends get theirs from the order
of the pod, and so do all other changes that somebody asked for. What the store logs by itself (ceilings, rolls,
evictions, terms) takes no position (INV-FOLLOW-ASIDE).

The fabric is made when the store opens and goes when it closes; one that a killed process left is removed. Whatever was
ordered in there and had not come to the log is lost with the process, as any append that was not written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from threading import Lock
from typing import TypeVar

from seawall import limits
from seawall.config import FabricConfig
from seawall.core.transactions import CommittedTransaction, StagedRange, WantedTransaction
from seawall.core.types import ClientId, ClientSeq, Offset, Seq, SessionEpoch, TopicId
from seawall.engine.appends import Append, Commit
from seawall.engine.following import Follower
from seawall.engine.opening import open_store_as
from seawall.engine.pod import Pod
from seawall.engine.reading import ReadPlan
from seawall.engine.settings import Machine, StoreSettings
from seawall.engine.staging import find_staging, staging_config
from seawall.engine.store import Store
from seawall.engine.transactions import Unlocked
from seawall.errors import LimitError, SeawallError
from seawall.fabric.header import Identity
from seawall.fabric.layout import FabricSizes
from seawall.fabric.mapping import Fabric
from seawall.fabric.naming import TOKEN_SIZE, fabric_path, forget_fabric, record_fabric, remove_left_fabric
from seawall.io.interfaces import ReadableBuffer, SharedMemory
from seawall.sequencer.frontier import Numbered
from seawall.sequencer.pod_sequencer import SequencerSettings
from seawall.storage.control_deletes import TagMatch
from seawall.topics.config import TopicConfig
from seawall.topics.state import TopicState
from seawall.wire.fields import JsonObject

R = TypeVar("R")


class OrderedStore(Store):
    """An open data directory behind a pod. Made by `open_ordered_store`."""

    #: None before it is made: an opening that fails closes the store without it.
    _fabric: Fabric | None = None
    pod: Pod

    def start(
        self,
        memory: SharedMemory,
        boot_id: bytes,
        config: FabricConfig,
        settings: SequencerSettings | None = None,
        networks: int = 0,
    ) -> None:
        """Make the fabric, and begin to order; before anything is changed. The last rings are the network's."""
        self.controls.begin_change()
        identity, sizes = Identity(boot_id, self.parts.directory.directory_id), FabricSizes.of(config)
        self._fabric = fabric = self._new_fabric(memory, config, sizes, identity)
        arrays = fabric.arrays
        #: A topic by its id, for who needs no look at what it holds.
        self.topic_of = self._catalog.find
        self.pod = Pod(
            arrays,
            self.parts.writer.frontier,
            Follower(self.parts, self.maintenance, goi_entries=len(arrays.goi), blog_size=sizes.blog_size),
            self._committer,
            self._pending,
            self.sessions,
            self._machine.clock,
            self.parts.term,
            topic_of=self.topic_of,
            settings=settings,
            networks=networks,
        )

    def close(self) -> None:
        """End in order, and let the fabric go."""
        try:
            if self._fabric is not None:
                # By name only, and under the lock of the directory: the mapping goes with the last array of it.
                self._fabric.remove()
                forget_fabric(self._machine.files, self.parts.directory.path)
        finally:
            super().close()

    def _new_fabric(self, memory: SharedMemory, config: FabricConfig, sizes: FabricSizes, identity: Identity) -> Fabric:
        """A fabric of this process alone; one that a killed process left is removed."""
        files, directory = self._machine.files, self.parts.directory.path
        remove_left_fabric(files, memory, directory)
        path = fabric_path(files, config, directory, self._machine.random_bytes(TOKEN_SIZE))
        record_fabric(files, directory, path)
        return Fabric.create(memory, path, sizes, identity, created_ns=self._machine.clock.wall_ns())

    def plan_ordered(self, name: str, from_seq: Seq, *, size_max: int, records_max: int | None = None) -> ReadPlan:
        """What a reader at `from_seq` gets next, with what is ordered and still being written."""
        plan = self.plan_read(name, from_seq, size_max=size_max, records_max=records_max)
        # What is ordered when writing fails is not stored: nobody is shown it any more.
        if plan.end_seq >= plan.next_seq and not self.guard.is_failed:
            plan.tail = self.pod.ahead_of(self.catalog.named(name).topic_id, from_seq, size_max)
        return plan

    def ordered_end(self, topic_id: TopicId) -> Seq:
        """The seq that the next record of a topic gets, whatever of those before is stored yet."""
        return self.parts.writer.frontier.topic(topic_id).next_seq

    # --- changes at a position -----------------------------------------------------------------------------------

    def create_topics(self, wanted: Sequence[tuple[str, TopicConfig]]) -> list[TopicState | SeawallError]:
        """Create topics at one position; durable when this returns."""
        return self._ordered(partial(super().create_topics, wanted))

    def delete_topic(self, name: str) -> None:
        """Delete a topic, with its records."""
        self._ordered(partial(super().delete_topic, name), self.catalog.named(name).topic_id)

    def configure_topic(self, name: str, changes: JsonObject) -> TopicState:
        """Change settings of a topic."""
        return self._ordered(partial(super().configure_topic, name, changes), self.catalog.named(name).topic_id)

    def commit_cursor(self, owner: str, name: str, next_seq: Seq, offset: Offset | None = None) -> None:
        """Keep how far an owner has read; durable when this returns."""
        commit = partial(super().commit_cursor, owner, name, next_seq, offset)
        self._ordered(commit, self.catalog.named(name).topic_id)

    def delete_records(self, name: str, *, before_seq: int | None = None, match: TagMatch | None = None) -> int:
        """Delete records below a seq, or with a tag, or both: of those that were ordered before."""
        delete = partial(super().delete_records, name, before_seq=before_seq, match=match)
        return self._ordered(delete, self.catalog.named(name).topic_id)

    def _staging(self, berth: int) -> TopicState:
        found = find_staging(self.catalog, berth)
        if found is not None and found.config == staging_config(self._settings.staging_ttl_ms):
            return found
        return self._ordered(partial(super()._staging, berth))

    def commit_transaction(self, wanted: WantedTransaction, unlocked: Unlocked = nullcontext) -> CommittedTransaction:
        """Publish what was staged, at its position in the order; durable when this returns."""
        known = self._transactions.repeated(wanted.owner, wanted.epoch)
        if known is not None:
            return known
        # What evicts takes no position, and must not take that of the transaction.
        self._transactions.check(wanted)
        return self._ordered(partial(self._transactions.commit, wanted, unlocked))

    def abort_staged(self, ranges: Sequence[StagedRange]) -> int:
        """Delete what was staged and will not be published."""
        return self._ordered(partial(super().abort_staged, ranges))

    def open_session(
        self,
        client_id: ClientId,
        start_seq: ClientSeq,
        *,
        is_drawn: bool = False,
        gap_ns: int = 0,
        abandons: bool = False,
    ) -> tuple[SessionEpoch, ClientSeq]:
        """Begin a session of a publisher, at its position: what comes behind it of an older one is refused.

        With a `gap_ns` what is missing between its batches is given up after so long, of order 5. If it `abandons`,
        everything undecided below `start_seq` is given up at once, by SKIPs behind that position.
        """
        self.guard.require_usable()
        self._make_session_space(client_id)
        epoch, next_seq, _ = self.sessions.open(client_id, start_seq, is_drawn=is_drawn)
        if abandons and start_seq - next_seq > limits.SESSION_ABANDONED_MAX:
            raise LimitError(
                f"client {client_id:016x} gives up batches {next_seq} to {start_seq - 1}: at most "
                f"{limits.SESSION_ABANDONED_MAX} at once; publish under another client id"
            )
        order = partial(self.pod.order_session, client_id, epoch, next_seq, gap_ns)
        opened = self.pod.change(order, partial(self._log_session, client_id, start_seq, is_drawn))
        if abandons and opened[1] < start_seq:
            self.pod.abandon(client_id, start_seq)
            return opened[0], start_seq
        return opened

    def _retire(self, client_ids: Sequence[ClientId]) -> Sequence[ClientId]:
        self.guard.require_usable()
        return self.pod.retire(client_ids, self._log_retired)

    def _ordered(self, make: Callable[[], R], topic_id: TopicId | None = None) -> R:
        self.guard.require_usable()
        return self.pod.change(partial(self.pod.sequencer.order_control, topic_id), make)

    # --- appends -------------------------------------------------------------------------------------------------

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Order and stage appends; each has its numbers or its error. Without any, what has arrived."""
        if not appends and self.controls.began_at is not None:
            self.guard.require_usable()
            # As `changing`, which would cost as much as the kernels of a cycle.
            try:
                commit = self.pod.begin_cycle()
            except BaseException as error:
                self.guard.refuse(error)
                raise
            if commit is not None:
                return commit
        self.controls.begin_change()
        with self.guard.changing():
            return self.pod.begin(appends)

    def begin_ahead(self, _appends: Sequence[Append]) -> Commit | None:
        """Nothing begins before the commit under way is finished."""
        return None

    def commit_lone(self, _id: TopicId, _block: ReadableBuffer, _record_count: int, _state: Lock) -> Numbered | None:
        """Everything goes through the order."""
        return None

    def finish(self, commit: Commit) -> bool:
        """The commit is written: its appends are stored. Whether `tidy_up` is due."""
        try:
            self.pod.finish(commit)
        except BaseException as error:
            self.guard.refuse(error)
            raise
        return self.maintenance.is_due_behind(commit)


def open_ordered_store(
    machine: Machine,
    path: str,
    memory: SharedMemory,
    boot_id: bytes,
    config: FabricConfig,
    settings: StoreSettings,
    sequencing: SequencerSettings | None = None,
    networks: int = 0,
) -> OrderedStore:
    """Open a data directory, and a pod in front of it, of whose rings some are for the network."""
    store = open_store_as(OrderedStore, machine, path, settings)
    try:
        store.start(memory, boot_id, config, sequencing, networks)
    except BaseException:
        Store.close(store)
        raise
    return store
