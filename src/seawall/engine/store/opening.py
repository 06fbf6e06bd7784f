"""Opens a data directory: recovers it, whatever the last process left behind, and returns a store that takes appends.

The steps: load the snapshot, replay the log, repair the torn tail, finish or undo adoptions, begin a new term. Every
step reaches the same state however often a crash interrupts and repeats it. Snapshot and replay only read: if a file
that the state depends on is missing, opening fails there, and no byte has changed (`replay`).

After an unclean shutdown every topic resumes at its ceiling, and the seqs in between become an explicit crash gap: a
number that anyone may have seen is never given to another record. Positions jump far ahead for the same reason.

If the order is made elsewhere and outlived this process (`follows`), nothing is skipped: the sequencer still knows the
numbers of what the log lost, and the same entries are applied again from the end of the log. Damage has the usual
effect.

Damage in the log may have destroyed the ceilings themselves. Numbering then resumes after as many records as the
damaged bytes can have held, and the gap has the reason corruption. A checkpoint follows at once, so that the next
opening does not meet the same damage again. Topics that were only in a damaged part of the log are gone from the
catalog. Their files stay, and their ids are not reused: topic ids resume after as many topics as the damaged bytes can
have created.

Segments of a topic are recovered when they are first needed (`topic_logs.py`): opening reads the snapshot and the log,
and touches no topic directory. Only after an unclean shutdown it scans all of them for files that a transaction was
moving.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Final

from seawall import limits
from seawall.core.types import Offset, Position, Seq, Term, TimestampNs, TopicId
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.maintenance.maintenance import Maintenance
from seawall.engine.ordering.local_orderer import LocalOrderer
from seawall.engine.ordering.orderer import OrdererFactory
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.replay import Replayed, replay
from seawall.engine.store.settings import Machine, StoreSettings
from seawall.engine.store.store import Store
from seawall.engine.store.topic_log import remove_segments, topic_home
from seawall.engine.store.topic_logs import TopicLogs
from seawall.errors import RetryableError
from seawall.io.interfaces import Files
from seawall.sequencer.frontier import CommitFrontier, TopicNumbers, at_ceiling
from seawall.storage.control.documents import Loss
from seawall.storage.directory import DataDirectory, open_directory
from seawall.storage.open_files import OpenFiles
from seawall.storage.segments.adoption import noted_segments, put_back, settle
from seawall.storage.snapshots import SnapshotStore
from seawall.storage.wal.epochs import WalAddress
from seawall.storage.wal.lane_types import LaneTrace
from seawall.storage.wal.lanes import Lane
from seawall.storage.wal.reader import Damage, repair_tail
from seawall.storage.wal.writer import WalWriter
from seawall.topics.config import Durability, Order
from seawall.topics.state import TopicState
from seawall.wire.format.codes import GapReason

#: How far positions jump after an unclean shutdown: more than can have been assigned between two syncs.
POSITION_JUMP: Final = 1 << 32

#: The same for offsets of version 1: a lost tail may have used any of them.
OFFSET_JUMP: Final = 1 << 32

_DEFAULTS: Final = StoreSettings()


def open_store(
    machine: Machine,
    path: str,
    settings: StoreSettings = _DEFAULTS,
    *,
    follows: bool = False,
    orderer: OrdererFactory = LocalOrderer,
) -> Store:
    """Open a data directory; create it if it is missing, recover it after an unclean shutdown.

    With `follows`, continue to apply an order that outlived the last process, from the end of the log. `orderer`
    creates the orderer that assigns positions from now on.
    """
    directory = open_directory(
        machine.files,
        path,
        pid=machine.pid,
        now_ns=machine.clock.wall_ns(),
        random_bytes=machine.random_bytes,
        ballast_size=settings.ballast_size,
    )
    try:
        return _recover(machine, settings, directory, orderer, follows=follows)
    except BaseException:
        directory.close()
        raise


def _recover(
    machine: Machine, settings: StoreSettings, directory: DataDirectory, orderer: OrdererFactory, *, follows: bool
) -> Store:
    files = machine.files
    snapshots = SnapshotStore(files, directory.meta, directory.directory_id)
    snapshot = snapshots.load().snapshot
    # The directory is locked and nothing is served yet: the only time at which the log may be mapped (decision 0009).
    replayed = replay(files, directory, snapshot, session_ttl_ms=settings.session_ttl_ms, mapped=True)
    directory.restore_ballast()
    end = repair_tail(files, directory.wal, directory.directory_id, replayed.end)
    wal = WalWriter(
        files,
        directory.wal,
        directory.directory_id,
        start=end,
        file_size=settings.wal_file_size,
        salt=lambda: int.from_bytes(machine.random_bytes(8), "little"),
    )
    catalog = replayed.catalog
    _reserve_topic_ids(files, directory, replayed)
    is_clean = replayed.end.clean and not replayed.damages
    resumed = _resume(replayed, follows=follows)
    frontier = CommitFrontier(
        next_position=Position(max(catalog.next_position, end.position) + (POSITION_JUMP if resumed.is_unclean else 0)),
        last_timestamp_ns=TimestampNs(max([end.timestamp_ns, *(topic.last_timestamp_ns for topic in catalog)])),
        topics=resumed.numbers,
        ceiling_step=settings.ceiling_step,
    )
    if not is_clean:
        _end_adoptions(files, directory, replayed)
    term = Term(catalog.term + 1)
    lane = Lane(0, trace=LaneTrace(run_id=f"{directory.directory_id.hex()}/{term}"), observer=settings.lane_observer)
    writer = LogWriter(wal, frontier, lane, term, machine.clock)
    writer.follows = follows
    logs = TopicLogs(
        files,
        directory,
        OpenFiles(files, settings.segment_files),
        writer.locate,
        {topic.topic_id: topic for topic in catalog if _is_kept(topic)},
        replayed.segments,
    )
    checkpoint_at = WalAddress(0 if snapshot is None else snapshot.wal_from_at)
    resources = (directory, snapshots, wal, writer, catalog, logs, replayed.sessions, term)
    parts = StoreParts(machine, settings, *resources, lost=resumed.lost, checkpoint_at=checkpoint_at)
    maintenance = Maintenance(parts)
    try:
        if resumed.is_unclean or resumed.lost:
            parts.controls.begin_term()
        if replayed.damages:
            with contextlib.suppress(RetryableError):
                maintenance.checkpoint()
        return Store(parts, maintenance, orderer(parts, maintenance))
    except BaseException:
        maintenance.close()
        raise


@dataclass(frozen=True, slots=True)
class _Resumed:
    """The numbers at which topics resume, and what the last shutdown or crash lost."""

    is_unclean: bool
    numbers: list[TopicNumbers]
    lost: list[Loss]


def _resume(replayed: Replayed, *, follows: bool) -> _Resumed:
    """Resume every topic above each number that anyone may have seen, with a loss for the seqs in between."""
    catalog = replayed.catalog
    # Records in memory are gone, even after a clean shutdown.
    lost = [
        Loss(topic.topic_id, topic.floor, topic.head_seq, GapReason.CRASH, topic.live_bytes)
        for topic in catalog
        if not _is_kept(topic) and topic.live_records
    ]
    before = [_numbers_of(topic) for topic in catalog]
    # Damage may have destroyed the newest batches, whose numbers were seen: treat it as an unclean shutdown.
    if not replayed.damages and (replayed.end.clean or not replayed.end.epoch or follows):
        return _Resumed(False, before, lost)
    jump = _batches_in(replayed.damages) * limits.BATCH_RECORDS_MAX
    reason = GapReason.CORRUPTION if replayed.damages else GapReason.CRASH
    after = [
        replace(
            at_ceiling(topic),
            next_seq=Seq(topic.ceiling + jump),
            ceiling=Seq(topic.ceiling + jump),
            # Offsets jump only if seqs do: a version 1 reader takes offsets as dense where seqs are dense.
            next_offset=Offset(topic.next_offset + (OFFSET_JUMP if topic.ceiling + jump > topic.next_seq else 0)),
        )
        for topic in before
    ]
    lost += [
        Loss(old.topic_id, old.next_seq, Seq(new.next_seq - 1), reason, 0)
        for old, new in zip(before, after, strict=True)
        if old.next_seq < new.next_seq
    ]
    return _Resumed(True, after, lost)


def _reserve_topic_ids(files: Files, directory: DataDirectory, replayed: Replayed) -> None:
    """Finish interrupted topic deletes, and never reuse a topic id.

    That includes ids with a directory, and ids of topics that a damaged part of the log may have created.
    """
    catalog = replayed.catalog
    catalog.next_topic_id = TopicId(catalog.next_topic_id + _batches_in(replayed.damages))
    for name in files.list(directory.topics):
        try:
            topic_id = TopicId(int(name, 16))
        except ValueError:
            continue
        catalog.next_topic_id = max(catalog.next_topic_id, TopicId(topic_id + 1))
        if topic_id in replayed.deleted and catalog.find(topic_id) is None:
            remove_segments(topic_home(files, directory, topic_id))


def _end_adoptions(files: Files, directory: DataDirectory, replayed: Replayed) -> None:
    """Finish or undo the adoptions that a crash interrupted, before anything reads the segments of a topic."""
    for topic in filter(_is_kept, replayed.catalog):
        home = topic_home(files, directory, topic.topic_id)
        for first_seq in noted_segments(home):
            if first_seq in replayed.segments.get(topic.topic_id, {}):
                settle(home, first_seq)
            else:
                put_back(home, first_seq)


def _is_kept(topic: TopicState) -> bool:
    return topic.config.durability is not Durability.EPHEMERAL


def _batches_in(damages: list[Damage]) -> int:
    """The most batches that damaged bytes of the log can have held, or topics that they can have created."""
    size = sum(damage.to_at - damage.from_at for damage in damages)
    return -(-size // limits.BATCH_HEADER_SIZE)


def _numbers_of(topic: TopicState) -> TopicNumbers:
    return TopicNumbers(
        topic.topic_id,
        next_seq=topic.next_seq,
        next_offset=topic.end_offset,
        ceiling=max(topic.ceiling, topic.next_seq),
        last_timestamp_ns=topic.last_timestamp_ns,
        record_total=topic.live_records,
        byte_total=topic.live_bytes,
        is_strong=topic.config.order is Order.CLIENT,
    )
