"""Bugs that the crash sweep must find: each replaces a part of the engine for the duration of a test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from seawall.core.types import Position, TimestampNs
from seawall.engine.commit import commit_cycle
from seawall.engine.commit.appends import NO_SESSION, Append, Commit
from seawall.engine.commit.commit_cycle import CommitCycle
from seawall.engine.commit.log_writer import LogWriter
from seawall.engine.commit.pending_rows import PendingRows
from seawall.engine.maintenance import maintenance
from seawall.engine.maintenance.retention import LogCleaner
from seawall.engine.ordering.local_orderer import LocalOrderer
from seawall.engine.store import opening, replay
from seawall.engine.store.control_log import ControlLog
from seawall.engine.store.topic_log import TopicLog
from seawall.engine.transactions.compounds import CompoundWriter
from seawall.engine.transactions.transactions import Transactions, adoption
from seawall.io.disk.files import write_all
from seawall.io.interfaces import File
from seawall.kernels.log import epochs
from seawall.kernels.log.epochs import WalRows
from seawall.kernels.network import publish_cycle
from seawall.kernels.runtime.memory import Bytes
from seawall.sequencer.frontier import TopicNumbers
from seawall.storage.control.batches import Compound, Control, SimpleControl
from seawall.storage.control.codec import Reference
from seawall.storage.control.documents import FloorRaise
from seawall.storage.control.transactions import TransactionMark
from seawall.storage.segments import adoption as adopting
from seawall.storage.segments import segment as segments
from seawall.storage.segments.segment import SegmentWriter
from seawall.storage.snapshots import SectionKind, Snapshot, SnapshotStore
from seawall.storage.wal import handles as wal_handles
from seawall.storage.wal import reader as wal_reader
from seawall.storage.wal.epoch_write import EpochWrite
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, FLAG_CONTINUED, WalAddress
from seawall.storage.wal.files import WalEnd, WalFile
from seawall.storage.wal.writer import WalWriter
from seawall.testing import SimDisk
from seawall.topics.catalog import TopicCatalog
from seawall.wire.format.fields import Buffer

Plant = Callable[[pytest.MonkeyPatch], None]


def ack_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-ANSWER-DURABLE: unsynced records are acked."""

    def sync(self: WalWriter) -> int:
        return self.at

    real = EpochWrite.execute
    patch.setattr(WalWriter, "sync", sync)
    patch.setattr(EpochWrite, "execute", lambda self, **_: real(self, durable=False))


def names_not_synced(part: str) -> Plant:
    """No sync of the directories whose path contains a word."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = SimDisk.sync_directory

        def sync_directory(self: SimDisk, path: str) -> None:
            if part not in path:
                real(self, path)

        patch.setattr(SimDisk, "sync_directory", sync_directory)

    return plant


def checksum_skipped(patch: pytest.MonkeyPatch) -> None:
    """Replay trusts the header of an epoch and verifies no checksum of its batches."""

    def verify_epoch(
        data: Bytes, start: int, end: int, shift: int, position: int, count: int, rows: WalRows, first_row: int
    ) -> int:
        at = start
        for index in range(first_row, first_row + count):
            size = 44 + int.from_bytes(bytes(data[at + 32 : at + 36]), "little") if index < count - 1 else end - at
            epochs.list_batch(data, at, at + shift, size, rows, index)
            at += size
        return count

    patch.setattr(wal_reader, "verify_epoch", verify_epoch)


def rotation_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """Files are searched one byte after their start, to be read back or removed."""
    real_path, real_open = wal_handles.wal_path, wal_handles.open_to_read

    def off(first_at: WalAddress) -> WalAddress:
        return WalAddress(first_at + 1 if first_at else first_at)

    patch.setattr(wal_handles, "wal_path", lambda directory, first_at: real_path(directory, off(first_at)))
    patch.setattr(
        wal_handles, "open_to_read", lambda files, directory, first_at: real_open(files, directory, off(first_at))
    )


def continued_before_named(patch: pytest.MonkeyPatch) -> None:
    """A file is marked as continued in one that has no name yet."""
    real = WalWriter._rotate

    def rotate(self: WalWriter, needed: int, timestamp_ns: TimestampNs) -> WalFile:
        current = self._current
        if current is not None and current.first_at < self.at <= current.limit_at - EPOCH_HEADER_SIZE:
            self.sync()
            mark = self._begin_epoch(current, [], 0, self.next_position, 0, FLAG_CONTINUED, timestamp_ns)
            mark.execute(durable=True)
            self._is_poisoned = False
        return real(self, needed, timestamp_ns)

    patch.setattr(WalWriter, "_rotate", rotate)


def begun_before_the_log(patch: pytest.MonkeyPatch) -> None:
    """FORMAT declares a log before it has a file."""
    real = ControlLog.begin_term

    def begin_term(self: ControlLog) -> None:
        self._directory.note_log_begun()
        real(self)

    patch.setattr(ControlLog, "begin_term", begin_term)


def sealed_before_data(patch: pytest.MonkeyPatch) -> None:
    """A segment is given its index and its final name though its data was never synced."""
    patch.setattr(SegmentWriter, "sync", _nothing)
    real = segments.SegmentWriter.seal

    def seal(self: SegmentWriter) -> object:
        with pytest.MonkeyPatch.context() as unsynced:
            unsynced.setattr(type(self.shared.file), "sync", _nothing)
            return real(self)

    patch.setattr(SegmentWriter, "seal", seal)


class Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, file: object) -> None:
        self._file = file

    def sync(self) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def reference_before_data(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-REFERENCE-AFTER-DATA: the log refers to a large batch that was written and not synced."""

    def execute(self: Commit) -> None:
        for write in self.segment_writes:
            write_all(write.file, write.buffers, write.at)
        if self.epoch is not None:
            self.epoch.execute(durable=self.durable)

    patch.setattr(Commit, "execute", execute)


def ceiling_ignored(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-FRONTIER-CEILING: after a crash, numbering continues after the last surviving record."""
    real = opening._numbers_of

    def numbers_of(topic: object) -> TopicNumbers:
        numbers = real(topic)
        return TopicNumbers(numbers.topic_id, numbers.next_seq, numbers.next_offset, numbers.next_seq)

    patch.setattr(opening, "_numbers_of", numbers_of)


def snapshot_skips_log(patch: pytest.MonkeyPatch) -> None:
    """Replay begins later than the snapshot ends."""
    real = SnapshotStore.write

    def write(self: SnapshotStore, snapshot: Snapshot) -> None:
        real(self, Snapshot(snapshot.position, snapshot.wal_from_at + 300, snapshot.created_ns, snapshot.sections))

    patch.setattr(SnapshotStore, "write", write)


def log_dropped_too_early(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint cuts the log before the snapshot is there."""
    real = SnapshotStore.write

    def write(self: SnapshotStore, snapshot: Snapshot) -> None:
        log = self._files.list("/data/wal")
        for name in log[:-1]:
            self._files.unlink(f"/data/wal/{name}")
        self._files.sync_directory("/data/wal")
        real(self, snapshot)

    patch.setattr(SnapshotStore, "write", write)


def batches_not_flushed(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-FLUSH-DURABLE: a checkpoint forgets the unflushed batches, and copies none."""

    def flush_log(log: TopicLog, *_: object) -> None:
        for unsealed in log.unsealed:
            unsealed.unflushed.drop(len(unsealed.unflushed))

    patch.setattr(maintenance, "flush_log", flush_log)


def roll_not_replayed(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-POSITIONS-REPLAY: replay takes the batches of a new segment for batches of the old one."""
    patch.setattr(replay, "SegmentRoll", type("Never", (), {}))


def clean_mark_always(patch: pytest.MonkeyPatch) -> None:
    """Replay takes every end of the log for a clean close."""
    real = wal_reader._Walk._end

    def ended(self: object, at: int) -> WalEnd:
        end = real(self, at)
        return WalEnd(end.at, end.epoch, end.position, True, end.synced_through, end.timestamp_ns)

    patch.setattr(wal_reader._Walk, "_end", ended)


def torn_tail_kept(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-WAL-ZERO-TAIL: recovery leaves torn bytes after the end of the log."""
    patch.setattr(wal_reader, "is_zero", lambda *_: 1)


def delete_before_durable(patch: pytest.MonkeyPatch) -> None:
    """Deletes and evictions are acked, and take effect, before they are synced."""
    real = ControlLog.commit_many

    def commit_many(self: ControlLog, controls: list[SimpleControl], *, durable: bool = True) -> None:
        real(self, controls, durable=False)

    patch.setattr(ControlLog, "commit_many", commit_many)


def floor_not_logged(patch: pytest.MonkeyPatch) -> None:
    """An eviction takes effect, but the log records no eviction."""
    real = LogWriter.stage_control

    def stage_control(self: LogWriter, control: Control, wall_ns: int) -> Position:
        return real(self, _without_floors(control), wall_ns)

    patch.setattr(LogWriter, "stage_control", stage_control)


def _without_floors(control: Control) -> Control:
    if isinstance(control, Compound):
        return Compound(tuple(_without_floors(part) for part in control.parts))
    if isinstance(control, FloorRaise):
        return FloorRaise(control.topic_id, control.reason, control.previous, control.previous, 0)
    return control


def dropped_before_durable(patch: pytest.MonkeyPatch) -> None:
    """An eviction is only as durable as the class of its topic, and segments are deleted before it is synced."""
    real, real_preceding = LogCleaner.drop_dead, LocalOrderer._stage_preceding

    def drop_dead(self: LogCleaner) -> int:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(ControlLog, "sync", _nothing)
            return real(self)

    def stage_preceding(self: LocalOrderer, reservation: object, commit: Commit, now: int) -> None:
        before = commit.durable
        real_preceding(self, reservation, commit, now)
        commit.durable = before

    patch.setattr(LogCleaner, "drop_dead", drop_dead)
    patch.setattr(LocalOrderer, "_stage_preceding", stage_preceding)


def entry_before_data(patch: pytest.MonkeyPatch) -> None:
    """A snapshot lists batches at segment positions that were never synced."""
    patch.setattr(SegmentWriter, "sync", _nothing)


def cycle_acked_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Received batches are acked when they are written."""
    real = CommitCycle._begun

    def begun(self: CommitCycle, size: int) -> Commit:
        self.cycles["is_durable"] = 0
        return real(self, size)

    patch.setattr(CommitCycle, "_begun", begun)


def cycle_settled_before_the_write(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-CYCLE-BEHIND: the window and the order count staged batches."""
    real, settle = CommitCycle.begin, commit_cycle.kernels.settle_cycle

    def begin(self: CommitCycle) -> Commit | None:
        commit = real(self)
        if commit is not None:
            settle(self.cycles, commit.first_row, commit.row_count)
        return commit

    patch.setattr(commit_cycle.kernels, "settle_cycle", lambda *_: None)
    patch.setattr(CommitCycle, "begin", begin)


def cycle_rows_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Catalog and index get only the first batch of each cycle."""
    real = CommitCycle.finish

    def finish(self: CommitCycle, commit: Commit) -> None:
        real(self, commit)
        self._pending.numbers["count"] -= commit.row_count - 1

    patch.setattr(CommitCycle, "finish", finish)


def cycle_rows_stay_where_they_were(patch: pytest.MonkeyPatch) -> None:
    """After rows were applied during the write of a cycle, other rows are taken for its own."""
    real = CommitCycle.finish

    def finish(self: CommitCycle, commit: Commit) -> None:
        commit.first_row = int(self._pending.numbers["count"][0])
        real(self, commit)

    patch.setattr(CommitCycle, "finish", finish)


def cycle_skips_a_position(patch: pytest.MonkeyPatch) -> None:
    """The log continues one position too far after a cycle."""
    real = WalWriter.begin_encoded
    patch.setattr(
        WalWriter,
        "begin_encoded",
        lambda self, buffer, following, *rest, **named: real(self, buffer, following + 1, *rest, **named),
    )


def cycle_rows_applied_twice(patch: pytest.MonkeyPatch) -> None:
    """Catalog and index get a row twice."""
    real = PendingRows.take

    def take(self: PendingRows) -> WalRows:
        rows = real(self)
        return np.concatenate((rows, rows[-1:]))

    patch.setattr(PendingRows, "take", take)


def cycle_claims_that_all_is_synced(patch: pytest.MonkeyPatch) -> None:
    """An epoch declares everything before it durable, although class disk does not wait for that."""
    real = CommitCycle.grant

    def grant(self: CommitCycle) -> None:
        numbers = self._wal.numbers
        numbers["synced_through"] = numbers["at"]
        real(self)

    patch.setattr(CommitCycle, "grant", grant)


def cycle_window_not_updated(patch: pytest.MonkeyPatch) -> None:
    """The client window is not updated with the batches of a cycle."""
    real = CommitCycle.finish

    def finish(self: CommitCycle, commit: Commit) -> None:
        first = commit.first_row
        self._pending.rows["client_id"][first : first + commit.row_count] |= np.uint64(1 << 63)
        real(self, commit)

    patch.setattr(CommitCycle, "finish", finish)


def resident_acked_before_sync(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-ANSWER-DURABLE: the resident kernel acks written batches."""
    real = publish_cycle.stage_received

    def stage_received(publishers: Any, cycles: Any, memory: Any) -> int:
        size = real(publishers, cycles, memory)
        cycles["is_durable"] = 0
        return size

    patch.setattr(publish_cycle, "stage_received", stage_received)


def resident_overwrites_its_last_epoch(patch: pytest.MonkeyPatch) -> None:
    """The log does not grow by the bytes that the resident kernel has written."""
    real = publish_cycle.settle_received
    patch.setattr(publish_cycle, "settle_received", lambda publishers, cycles, _size: real(publishers, cycles, 0))


def resident_leaves_the_log_where_it_was(patch: pytest.MonkeyPatch) -> None:
    """The next commit after the resident kernel writes to where that began."""
    lend, take_back = WalWriter.lend, WalWriter.take_back
    began: dict[WalWriter, int] = {}

    def lend_from_here(self: WalWriter) -> File:
        began[self] = int(self.numbers["next_at"][0])
        return lend(self)

    def back_to_there(self: WalWriter) -> None:
        take_back(self)
        self.numbers["next_at"] = began.pop(self)

    patch.setattr(WalWriter, "lend", lend_from_here)
    patch.setattr(WalWriter, "take_back", back_to_there)


def cycle_skips_the_window(patch: pytest.MonkeyPatch) -> None:
    """A local orderer accepts a batch as new that its session has already stored."""
    real = CommitCycle.begin_appends

    def begin_appends(self: CommitCycle, appends: Sequence[Append], wall_ns: int) -> Commit | None:
        for append in appends:
            append.client_id = NO_SESSION
        return real(self, appends, wall_ns)

    patch.setattr(CommitCycle, "begin_appends", begin_appends)


def cycle_begins_where_another_has(patch: pytest.MonkeyPatch) -> None:
    """A cycle that begins while another is written gets the same log address."""
    real = WalWriter.begin_encoded

    def begin_encoded(self: WalWriter, *arguments: Any, **named: Any) -> EpochWrite:
        write = real(self, *arguments, **named)
        self.numbers["next_at"] = self.numbers["at"]
        return write

    patch.setattr(WalWriter, "begin_encoded", begin_encoded)


PLANTED: dict[str, Plant] = {
    "ack before sync": ack_before_sync,
    "names of the log not synced": names_not_synced("/wal"),
    "names of segments not synced": names_not_synced("/topics/"),
    "names of snapshots not synced": names_not_synced("/meta"),
    "checksum skipped at replay": checksum_skipped,
    "off by one at rotation": rotation_off_by_one,
    "continued before the next file has its name": continued_before_named,
    "log begun before it has a file": begun_before_the_log,
    "sealed before data is synced": sealed_before_data,
    "reference before data": reference_before_data,
    "ceiling ignored": ceiling_ignored,
    "snapshot skips log": snapshot_skips_log,
    "log dropped too early": log_dropped_too_early,
    "batches not flushed": batches_not_flushed,
    "roll not replayed": roll_not_replayed,
    "every end is clean": clean_mark_always,
    "torn tail kept": torn_tail_kept,
    "delete before it is durable": delete_before_durable,
    "floor not logged": floor_not_logged,
    "segment dropped before the eviction is durable": dropped_before_durable,
    "index entry before data": entry_before_data,
}


def transaction_before_data(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-REFERENCE-AFTER-DATA: the log has a transaction whose batches were written and not synced."""

    def unsynced(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def without_sync(self: object, *arguments: object) -> None:
            with pytest.MonkeyPatch.context() as inside:
                inside.setattr(SegmentWriter, "sync", _nothing)
                real(self, *arguments)

        patch.setattr(kind, name, without_sync)

    unsynced(Transactions, "_copy")
    unsynced(CompoundWriter, "write_headers")


def transaction_half_applied(patch: pytest.MonkeyPatch) -> None:
    """Breaks INV-TRANSACTION-WHOLE: replay stops in the middle of a transaction, as if each batch were a commit."""
    real = TopicCatalog.apply

    def apply(self: TopicCatalog, control: Control, position: Position) -> bool:
        if isinstance(control, Compound) and isinstance(control.parts[0], TransactionMark):
            found = [number for number, part in enumerate(control.parts) if isinstance(part, Reference)]
            if found:
                control = Compound(tuple(part for number, part in enumerate(control.parts) if number != found[-1]))
        return real(self, control, position)

    patch.setattr(TopicCatalog, "apply", apply)


def keys_not_in_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets which transactions were committed."""
    real = maintenance.catalog_sections

    def sections(catalog: TopicCatalog) -> dict[SectionKind, bytes]:
        return {kind: data for kind, data in real(catalog).items() if kind is not SectionKind.TRANSACTIONS}

    patch.setattr(maintenance, "catalog_sections", sections)


def transaction_acked_before_sync(patch: pytest.MonkeyPatch) -> None:
    """A transaction is acked when it is written."""
    real = Transactions._log

    def log(self: Transactions, *arguments: object) -> None:
        flush = LogWriter.flush
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(LogWriter, "flush", lambda writer, **_: flush(writer, durable=False))
            real(self, *arguments)

    patch.setattr(Transactions, "_log", log)


def adopted_without_a_note(patch: pytest.MonkeyPatch) -> None:
    """A staged file is stamped without a note of its former content."""
    patch.setattr(adopting, "replace_file", lambda *_: None)
    patch.setattr(adoption, "settle", lambda *_: None)


def adopted_and_never_put_back(patch: pytest.MonkeyPatch) -> None:
    """An open does not undo the move of a staged file by a commit that was not acked."""
    patch.setattr(opening, "put_back", lambda *_: None)


def adopted_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """A staged file is adopted without a sync of its headers."""
    patch.setattr(adopting, "_stamp", _stamp_without_sync)


def _stamp_without_sync(file: File, preface: bytes, offsets: Sequence[int], headers: Sequence[Buffer]) -> None:
    for offset, data in zip([0, *offsets], [preface, *headers], strict=True):
        write_all(file, [data], offset)


#: Bugs of transactions, which the scripts with transactions must find.
PLANTED_IN_TRANSACTIONS: dict[str, Plant] = {
    "transaction before its data is durable": transaction_before_data,
    "transaction without its last batch": transaction_half_applied,
    "keys not in snapshots": keys_not_in_snapshots,
    "transaction acked before it is synced": transaction_acked_before_sync,
    "adopted without a note": adopted_without_a_note,
    "adopted and never put back": adopted_and_never_put_back,
    "adopted before its headers are durable": adopted_before_it_is_durable,
}


#: Bugs of the commits of small batches in one process.
PLANTED_IN_LOCAL_CYCLES: dict[str, Plant] = {
    "cycle acked before it is synced": cycle_acked_before_sync,
    "cycle forgets its rows": cycle_rows_forgotten,
    "cycle does not move its rows": cycle_rows_stay_where_they_were,
    "cycle skips a position": cycle_skips_a_position,
    "cycle claims that all is synced": cycle_claims_that_all_is_synced,
    "cycle begins where another has begun": cycle_begins_where_another_has,
    "cycle does not check the window": cycle_skips_the_window,
}

#: Bugs of the commits of received batches.
PLANTED_IN_CYCLES: dict[str, Plant] = {
    "cycle acked before it is synced": cycle_acked_before_sync,
    "cycle settled before it is written": cycle_settled_before_the_write,
    "cycle forgets its rows": cycle_rows_forgotten,
    "cycle does not move its rows": cycle_rows_stay_where_they_were,
    "cycle skips a position": cycle_skips_a_position,
    "cycle has rows applied twice": cycle_rows_applied_twice,
    "cycle claims that all is synced": cycle_claims_that_all_is_synced,
    "cycle does not update the window": cycle_window_not_updated,
    "resident cycle acked before it is synced": resident_acked_before_sync,
    "resident cycle overwrites its last epoch": resident_overwrites_its_last_epoch,
    "resident cycle leaves the log where it was": resident_leaves_the_log_where_it_was,
}


def _nothing(self: object) -> None:
    pass
