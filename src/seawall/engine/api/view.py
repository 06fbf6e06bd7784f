"""Read a data directory without opening it: takes no lock, writes nothing, works while another process writes.

A view keeps one *directory state* in memory: what an opening would see. It consists of the newest snapshot, the
write-ahead log after it (`replay` changes no file), and the segments that those name. A concurrent writer may move or
drop files that the state refers to; `refresh` loads a new state if the log has grown.

A view sees everything that is written to files, in whole commits: all acknowledged records of classes `fsync` and
`disk`, and possibly a little more, since a commit is visible between its write and its sync. The log ends at the first
incomplete commit, whether it is being written or was torn by a crash. The view does not report the gap that the next
opening will report for a torn commit.

Why this is correct while a writer runs
- Bytes under a file name do not change: commits are appended at the end, segment positions are written before anything
  refers to them, and files are replaced and renamed as a whole. So bytes that a view finds are right; it can only fail
  to find them.
- INV-VIEW-MOVED: a view beside a writer reads again when files moved, and reports damage only if two attempts agree. A
  missing file was renamed, checkpointed or dropped after the state was loaded; a new state has its new location. If the
  writer advances during a read, the end of the log as the state knows it may look damaged. If a delete drops segments
  before the view has read their batches, that looks like a hole. Neither appears in the next state.
- Each query is tried a bounded number of times; then `LockedError` reports that the writer is too fast.

Use a view from one thread at a time: nothing here takes a lock. A crash of the viewer leaves no trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from errno import ENOENT
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from seawall.api.read_options import Start
from seawall.api.topic_info import TopicInfo
from seawall.core.routers import RouterInfo
from seawall.core.sessions import SessionInfo
from seawall.core.types import Position, Seq, TimestampNs, TopicId
from seawall.engine.api.embedded import READ_SIZE, info_of
from seawall.engine.read.position_reading import plan_positions
from seawall.engine.read.read_results import Item, PositionItem, seq_after, to_items
from seawall.engine.read.reading import ReadItem, plan_read
from seawall.engine.store.replay import Replayed, ReplayedSegment, replay, still_needed
from seawall.engine.store.topic_log import ActiveSegment, TopicLog, topic_home
from seawall.errors import CorruptionError, InvalidInputError, LockedError, UnsupportedError
from seawall.io.disk.files import OsFiles
from seawall.io.interfaces import File, Files
from seawall.io.process.clocks import OsClock
from seawall.io.process.descriptors import descriptor_limit, segment_file_limit
from seawall.storage.directory import DataDirectory
from seawall.storage.open_files import OpenFiles
from seawall.storage.preface import DATA_START
from seawall.storage.read_only import look_at
from seawall.storage.segments.batch_index import BatchIndex
from seawall.storage.segments.names import active_name, sort_names
from seawall.storage.segments.segment import SealedSegment, SegmentWriter
from seawall.storage.snapshots import SnapshotStore
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, WalAddress, parse_epoch_header
from seawall.storage.wal.files import open_wal_file, wal_addresses, wal_path
from seawall.topics.config import Durability
from seawall.topics.gaps import Gap
from seawall.wire.format.codes import GapReason

__all__ = ["ReadOnlyLog", "open_view"]

#: How often a query is tried before the writer counts as too fast; each attempt reads the write-ahead log.
_ATTEMPTS: Final = 20

_Result = TypeVar("_Result")


class ReadOnlyLog:
    """A read-only view of a data directory. Create one with `open_view`."""

    def __init__(self, files: Files, directory: DataDirectory) -> None:
        self._files = files
        self._directory = directory
        self._state = self._load()

    # --- queries -------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._state.catalog.names()

    def describe(self, name: str) -> TopicInfo:
        """Describe a topic as it was when the state was loaded."""
        return info_of(self._state.catalog.named(name), OsClock().monotonic_ns())

    def sessions(self) -> list[SessionInfo]:
        """List the sessions of all publishers in the loaded state. No file says which of them are connected."""
        return self._state.replayed.sessions.infos()

    def routers(self) -> list[RouterInfo]:
        """All routers in the loaded state, sorted by name. No file says which of them are blocked."""
        catalog = self._state.catalog
        return [catalog.router_info(each) for each in sorted(catalog.routers, key=lambda each: each.name)]

    def describe_router(self, name: str) -> RouterInfo:
        """Describe a router as it was when the state was loaded."""
        catalog = self._state.catalog
        return catalog.router_info(catalog.routers.named(name))

    def committed(self, owner: str, topic: str) -> int | None:
        """Returns the seq that `owner` reads next, as it last committed it; None if it has not committed."""
        catalog = self._state.catalog
        cursor = catalog.cursor(owner, catalog.named(topic).topic_id)
        return None if cursor is None else cursor.next_seq

    def start_seq(self, topic: str, start: Start, owner: str | None = None) -> Seq:
        """Resolve a start to a seq: `start` is "earliest", "latest", "committed", a seq, or a time.

        "earliest" is the first seq that can be read; so is "committed" if the owner has not committed yet.
        """
        info = self.describe(topic)
        if isinstance(start, datetime):
            timestamp_ns = TimestampNs(int(start.timestamp() * 1e6) * 1_000)
            found = self._query(lambda state: state.log(info.topic_id).seq_at(timestamp_ns), _no_damage)
            return info.next_seq if found is None else max(found, info.floor)
        if isinstance(start, int):
            if start < 1:
                raise InvalidInputError(f"seqs begin at 1, not at {start}")
            return Seq(start)
        if start == "latest":
            return info.next_seq
        if start == "committed":
            if owner is None:
                raise InvalidInputError("to start where an owner committed, name the owner")
            return Seq(self.committed(owner, topic) or info.floor)
        if start != "earliest":
            raise InvalidInputError(f"start {start!r}: give earliest, latest, committed, a seq or a time")
        return info.floor

    def read(
        self, topic: str, from_seq: int = 1, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[Item]:
        """Read batches from `from_seq` on, in order, with a `Gap` wherever records are lost.

        The result ends at a batch boundary, once it holds `max_bytes` bytes or `limit` records. An empty list means
        the end of the loaded state.
        """
        if from_seq < 1:
            raise InvalidInputError(f"seqs begin at 1, not at {from_seq}")
        found = self._query(lambda state: state.read(topic, Seq(from_seq), max_bytes, limit), _damaged_ranges)
        return to_items(topic, found, limit)

    def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Read batches, SKIPs and gaps from a position on, of all topics that have files, in the total order.

        The result ends as that of `read`. Continue at `next_position` of the last item.
        """
        if from_position < 0:
            raise InvalidInputError(f"positions begin at 0, not at {from_position}")
        return self._query(
            lambda state: state.read_positions(Position(from_position), max_bytes, limit), _damaged_ranges
        )

    def follow(self, topic: str, from_seq: int = 1) -> Iterator[Item]:
        """Iterate over everything from `from_seq` to the end of the loaded state, reading as it goes."""
        seq = from_seq
        while items := self.read(topic, seq):
            yield from items
            seq = seq_after(items[-1])

    # --- refreshing and closing ----------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Load a new state if the log has grown since the last one; True if it had."""
        if not self._state.is_outdated():
            return False
        self._reload()
        return True

    def close(self) -> None:
        """Close all files. Closing twice is fine."""
        self._state.close()
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- loading states ------------------------------------------------------------------------------------------

    def _query(self, query: Callable[[_DirectoryState], _Result], damage_in: Callable[[_Result], list[Gap]]) -> _Result:
        """Run a query until no file moved during it (INV-VIEW-MOVED)."""
        before: object = None
        for _ in range(_ATTEMPTS):
            try:
                result = query(self._state)
            except FileNotFoundError as error:
                if error.filename == before:
                    raise CorruptionError(
                        f"{before} is missing; seawall verify reports what is lost, and opening the directory rebuilds "
                        "what the log still has"
                    ) from error
                before = error.filename
            else:
                damage = damage_in(result)
                if not damage or damage == before or not self._state.is_outdated():
                    return result
                before = damage
            self._reload()
        raise self._too_fast()

    def _reload(self) -> None:
        state = self._load()
        self._state.close()
        self._state = state

    def _load(self) -> _DirectoryState:
        """Load a state. Damage, or a failure to load, counts only if two consecutive attempts agree on it."""
        before: object = None
        for _ in range(_ATTEMPTS):
            try:
                state = _DirectoryState(self._files, self._directory)
            except FileNotFoundError:
                before = None
                continue
            except CorruptionError as error:
                if str(error) == before:
                    raise
                before = str(error)
                continue
            damages = [damage.from_at for damage in state.replayed.damages]
            if not damages or damages == before:
                return state
            before = damages
        raise self._too_fast()

    def _too_fast(self) -> LockedError:
        return LockedError(
            f"{self._directory.path}: its writer moved files faster than they could be read, {_ATTEMPTS} times; try "
            "again when it writes less"
        )


class _DirectoryState:
    """The state of a directory at one moment, and the files that reads of it need, opened on first use."""

    def __init__(self, files: Files, directory: DataDirectory) -> None:
        self._files = files
        self._directory = directory
        self._open_files = OpenFiles(files, segment_file_limit(descriptor_limit()))
        self._wal_files: dict[WalAddress, File] = {}
        self._logs: dict[TopicId, TopicLog] = {}
        snapshot = SnapshotStore(files, directory.meta, directory.directory_id).load().snapshot
        self.replayed: Replayed = replay(files, directory, snapshot)
        self.catalog = self.replayed.catalog
        #: Listed after the replay: a file created in the meantime starts at the end of the replay or after it.
        self._starts = wal_addresses(files, directory.wal)

    def read(self, name: str, from_seq: Seq, size_max: int, records_max: int | None) -> list[ReadItem]:
        """Read batches, with the gaps between them."""
        topic = self.catalog.named(name)
        if topic.config.durability is Durability.EPHEMERAL:
            raise UnsupportedError(f"topic {name!r} is ephemeral: only the process that writes it holds its records")
        log = self.log(topic.topic_id)
        return plan_read(topic, log, from_seq, size_max=size_max, records_max=records_max).execute()

    def read_positions(self, position: Position, size_max: int, records_max: int | None) -> list[PositionItem]:
        """Read items at a position and after it, of all topics that have files."""
        stored = [topic for topic in self.catalog.shown() if topic.config.durability is not Durability.EPHEMERAL]
        while True:
            plan = plan_positions(stored, self.log, position, size_max=size_max, records_max=records_max)
            items = plan.execute()
            if items or plan.is_last:
                return items
            position = plan.end_position

    def is_outdated(self) -> bool:
        """True if the log has a commit after the end of this state, or a file that this state does not know."""
        starts = wal_addresses(self._files, self._directory.wal)
        end_at = self.replayed.end.at
        if not starts:
            return False
        if starts[-1:] != self._starts[-1:] or starts[-1] > end_at:
            return True
        try:
            log = open_wal_file(
                self._files, self._directory.wal, starts[-1], self._directory.directory_id, read_only=True
            )
        except (FileNotFoundError, CorruptionError):
            return True
        try:
            header = log.file.read(EPOCH_HEADER_SIZE, log.file_position(end_at))
            return parse_epoch_header(header, salt=log.salt, at=end_at) is not None
        finally:
            log.file.close()

    def log(self, topic_id: TopicId) -> TopicLog:
        """Returns the segments of a topic."""
        log = self._logs.get(topic_id)
        if log is None:
            log = self._logs[topic_id] = self._open_log(topic_id)
        return log

    def close(self) -> None:
        """Close all files."""
        for log in self._logs.values():
            log.close()
        for file in self._wal_files.values():
            file.close()
        self._logs.clear()
        self._wal_files.clear()

    def _open_log(self, topic_id: TopicId) -> TopicLog:
        home = topic_home(self._files, self._directory, topic_id, self._open_files)
        names = sort_names(home.names())
        # Names ascend: of several sealed segments with one first seq, the last reaches furthest and wins.
        sealed = {name.first_seq: SealedSegment(home, name) for name in names.sealed}
        log = TopicLog(home, self._locate, [sealed[first_seq] for first_seq in sorted(sealed)], [])
        try:
            for first_seq, segment in self._unsealed(topic_id).items():
                if first_seq in sealed or not len(segment.index):
                    continue
                # After damage in the log a segment may have no file yet. All its batches are unflushed then, so nothing
                # is read from the file, and any file will do.
                is_flushed = len(segment.unflushed) < len(segment.index)
                path = home.path(active_name(first_seq)) if is_flushed else self._directory.format_path
                file = self._open_files.open(path, read_only=True)
                index = BatchIndex(segment.index.entries)
                active = SegmentWriter(home, home.preface(first_seq), file, index, read_only=True)
                log.unsealed.append(ActiveSegment(active, segment.unflushed.copy()))
        except BaseException:
            log.close()
            raise
        return log

    def _unsealed(self, topic_id: TopicId) -> dict[Seq, ReplayedSegment]:
        """Returns the segments that are not sealed, except those that were dropped with their records."""
        topic = self.catalog.find(topic_id)
        return {} if topic is None else still_needed(topic, self.replayed.segments.get(topic_id, {}))

    def _locate(self, at: WalAddress) -> tuple[File, int]:
        """Returns the log file that holds an address, and the position in it."""
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            # The file was dropped after a checkpoint: log files are dropped oldest first.
            raise FileNotFoundError(ENOENT, "checkpointed", wal_path(self._directory.wal, at))
        first_at = self._starts[index]
        file = self._wal_files.get(first_at)
        if file is None:
            file = self._wal_files[first_at] = self._files.open(wal_path(self._directory.wal, first_at), read_only=True)
        return file, DATA_START + at - first_at


def open_view(path: str | Path, files: Files | None = None) -> ReadOnlyLog:
    """Open a read-only view of a data directory, which another process may be writing. Nothing is locked or written."""
    files = files or OsFiles()
    return ReadOnlyLog(files, look_at(files, str(path)))


def _no_damage(_result: object) -> list[Gap]:
    return []


def _damaged_ranges(items: Sequence[ReadItem | PositionItem]) -> list[Gap]:
    """Returns the damage in a result, which counts only if a second attempt finds it as well."""
    return [item for item in items if isinstance(item, Gap) and item.reason is GapReason.CORRUPTION]
