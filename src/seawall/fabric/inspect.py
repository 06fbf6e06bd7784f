"""Reports the state of a fabric: control block, frontiers, rings, vectors and checkpoints.

It reads counts and tokens by atomic loads, copies checkpoints and verifies their checksums; read-only memory is enough,
and the pod keeps running. The report is not one atomic snapshot, but it is consistent: of two counts that only grow, it
reads the lower one first (durable before committed, completed before claimed), so that never exceeds the other.

It writes nothing and takes no lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from seawall.fabric import records
from seawall.fabric.arrays import Counters
from seawall.fabric.checkpoint import read_checkpoint
from seawall.fabric.layout import CHECKPOINT_ROW_SIZE, CHECKPOINT_SLOTS
from seawall.fabric.mapping import Fabric
from seawall.kernels.runtime.slots import load_words, ready_slots

_HALF = 0xFFFF_FFFF
_WORD = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class ControlReport:
    """Leader, brokers and frontiers of the pod; all counts are exclusive."""

    term: int
    leader: int
    lease_ns: int
    broker_mask: int
    broker_count: int
    durable: int
    committed: int
    #: The end of the order without a hole.
    ordered: int


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """The ring of one broker, in slots: completed, claimed, and how many from `completed` on are ready and decided."""

    broker: int
    completed: int
    claimed: int
    pending: int
    ready: int
    decided: int
    entries: int
    blog_claimed: int


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The progress of a replica; no age if it never sent a heartbeat."""

    replica: int
    durable: int
    view: int
    heartbeat_ns: int
    age_ns: int | None


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A valid checkpoint, with the number of its rows."""

    slot: int
    generation: int
    position: int
    term: int
    clients: int
    topics: int


@dataclass(frozen=True, slots=True)
class FabricReport:
    """The complete report, without replicas that never wrote anything and slots without a valid checkpoint."""

    control: ControlReport
    brokers: tuple[BrokerReport, ...]
    replicas: tuple[ReplicaReport, ...]
    checkpoints: tuple[CheckpointReport, ...]


def report(fabric: Fabric, now_ns: int) -> FabricReport:
    """Report the state of a fabric; `now_ns` is the monotonic clock, which heartbeats of replicas use."""
    return FabricReport(
        _control(fabric), tuple(_brokers(fabric)), tuple(_replicas(fabric, now_ns)), tuple(_checkpoints(fabric))
    )


def _word(words: Counters, at: int) -> int:
    """A word as a signed number: no count reaches the sign bit, and any value of a damaged fabric fits a kernel."""
    target = np.zeros(1, np.int64)
    load_words(words.view(np.int64), at, target)
    return int(target[0])


def _control(fabric: Fabric) -> ControlReport:
    words = fabric.arrays.control_words
    durable = _word(words, records.CONTROL_DURABLE)
    committed = _word(words, records.CONTROL_COMMITTED)
    uncommitted = ready_slots(fabric.arrays.goi_words, records.GOI_TOKEN, committed, fabric.layout.sizes.goi_entries)
    # Mask and count are halves of one word: one load reads both consistently.
    brokers = _word(words, records.CONTROL_BROKERS)
    return ControlReport(
        term=_word(words, records.CONTROL_TERM),
        leader=_word(words, records.CONTROL_LEADER) & _WORD,
        lease_ns=_word(words, records.CONTROL_LEASE),
        broker_mask=brokers & _HALF,
        broker_count=brokers >> 32 & _HALF,
        durable=durable,
        committed=committed,
        ordered=committed + uncommitted,
    )


def _brokers(fabric: Fabric) -> Iterator[BrokerReport]:
    arrays = fabric.arrays
    for broker in range(fabric.layout.sizes.brokers):
        completed = _word(arrays.completion_words[broker], records.COMPLETION_COMPLETED)
        claimed = _word(arrays.tail_words[broker], records.TAIL_CLAIMED)
        pending = claimed - completed
        yield BrokerReport(
            broker,
            completed=completed,
            claimed=claimed,
            pending=pending,
            ready=ready_slots(arrays.pbr_words[broker], records.PBR_TOKEN, completed, pending),
            decided=ready_slots(arrays.result_words[broker], records.RESULT_TOKEN, completed, pending),
            entries=fabric.layout.sizes.pbr_entries,
            blog_claimed=_word(arrays.tail_words[broker], records.TAIL_BLOG_CLAIMED),
        )


def _replicas(fabric: Fabric, now_ns: int) -> Iterator[ReplicaReport]:
    for replica, words in enumerate(fabric.arrays.replica_words):
        durable, view = _word(words, records.REPLICA_DURABLE), _word(words, records.REPLICA_VIEW)
        heartbeat_ns = _word(words, records.REPLICA_HEARTBEAT)
        age_ns = max(0, now_ns - heartbeat_ns) if heartbeat_ns else None
        if durable or view or heartbeat_ns:
            yield ReplicaReport(replica, durable, view, heartbeat_ns, age_ns)


def _checkpoints(fabric: Fabric) -> Iterator[CheckpointReport]:
    for slot in range(CHECKPOINT_SLOTS):
        found = read_checkpoint(fabric.arrays, slot)
        if found is not None:
            yield CheckpointReport(
                slot,
                generation=found.generation,
                position=found.position,
                term=found.term,
                clients=found.clients.size // CHECKPOINT_ROW_SIZE,
                topics=found.topics.size // CHECKPOINT_ROW_SIZE,
            )
