"""Looking at a data directory without opening it: no lock, not a byte written, beside a writer or without one.

A view is made of *pictures*. A picture is what an opening would see, kept in memory: the newest snapshot, the log
behind it (`replay` changes no file), and the segments those name. A process that writes meanwhile moves files under a
picture; `refresh` takes a new one where there is something new.

What is seen: everything that has been written to files, in whole commits. That is all a writer has acknowledged, and
may be a little more: a commit is seen between its write and its sync. The log ends at the first commit that is not
whole, whether it is being written or was torn by a crash. What the next opening will say of that (a gap by crash) is
not said here.

Why it is right beside a writer
- Bytes do not change under their name: commits are only added behind the end, places are filled before anything says
  so, files are replaced and renamed as a whole. So what is found is right, and the only trouble is not to find it.
- INV-VIEW-MOVED: a view beside a writer reads again when files moved, and reports damage only if two attempts agree. A
  file that is not there was renamed, absorbed or dropped since the picture was taken; a new picture knows where it
  went. A writer that runs ahead of a reading leaves what looks like damage where the reading took the log to end, and
  deletes whose segments are gone before their batches were read leave what looks like a hole; both are elsewhere, or
  gone, in the next picture.
- Each question is asked a bounded number of times; then `LockedError` says that the writer is too fast.

One owner at a time: nothing here takes a lock. A crash of the viewer leaves no trace.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from errno import ENOENT
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from seawall.api.topic_info import TopicInfo
from seawall.core.sessions import SessionInfo
from seawall.core.types import Position, Seq, TimestampNs, TopicId
from seawall.engine.api.embedded import READ_SIZE, Start, info_of
from seawall.engine.api.read_results import Item, PositionItem, seq_after, told
from seawall.engine.read.position_reading import plan_positions
from seawall.engine.read.reading import ReadItem, plan_read
from seawall.engine.store.replay import Replayed, ReplayedSegment, replay, still_needed
from seawall.engine.store.topic_log import ActiveSegment, TopicLog, topic_home
from seawall.errors import CorruptionError, InvalidInputError, LockedError, UnsupportedError
from seawall.io.disk.files import OsFiles
from seawall.io.interfaces import File, Files
from seawall.io.process.descriptors import descriptor_limit, segment_file_share
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

#: How often a question is asked before the writer counts as too fast; each time costs the reading of a log.
_ATTEMPTS: Final = 20

_Answer = TypeVar("_Answer")


class ReadOnlyLog:
    """A data directory as readers see it. Made by `open_view`."""

    def __init__(self, files: Files, directory: DataDirectory) -> None:
        self._files = files
        self._directory = directory
        self._picture = self._take()

    # --- questions -----------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._picture.catalog.names()

    def describe(self, name: str) -> TopicInfo:
        """A topic as it was when the picture was taken."""
        return info_of(self._picture.catalog.named(name))

    def sessions(self) -> list[SessionInfo]:
        """The sessions of all publishers as the picture has them; who has a connection is not in any file."""
        return self._picture.replayed.sessions.infos()

    def committed(self, owner: str, topic: str) -> int | None:
        """What `owner` reads next, as it committed it; None if it never did."""
        catalog = self._picture.catalog
        cursor = catalog.cursor(owner, catalog.named(topic).topic_id)
        return None if cursor is None else cursor.next_seq

    def start_seq(self, topic: str, start: Start, owner: str | None = None) -> Seq:
        """Where a reader begins: `start` is earliest, latest, committed, a seq, or a time.

        "earliest" is the first seq that can be read; so is "committed" where the owner has not committed yet.
        """
        info = self.describe(topic)
        if isinstance(start, datetime):
            timestamp_ns = TimestampNs(int(start.timestamp() * 1e6) * 1_000)
            found = self._ask(lambda picture: picture.log(info.topic_id).seq_at(timestamp_ns), _no_doubt)
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
        """Batches from `from_seq` on, and in order with them the gaps a reader has to know of.

        Ends at a batch boundary after `max_bytes`, or once `limit` records are there; an empty list is the end of what
        the picture holds.
        """
        if from_seq < 1:
            raise InvalidInputError(f"seqs begin at 1, not at {from_seq}")
        found = self._ask(lambda picture: picture.read(topic, Seq(from_seq), max_bytes, limit), _lost_runs)
        return told(topic, found, limit)

    def read_positions(
        self, from_position: int = 0, *, limit: int | None = None, max_bytes: int = READ_SIZE
    ) -> list[PositionItem]:
        """Everything that is ordered from a position on, of all topics that have files, in the one order.

        Ends as `read` does; reading goes on at `next_position` of the last item.
        """
        if from_position < 0:
            raise InvalidInputError(f"positions begin at 0, not at {from_position}")
        return self._ask(lambda picture: picture.read_positions(Position(from_position), max_bytes, limit), _lost_runs)

    def follow(self, topic: str, from_seq: int = 1) -> Iterator[Item]:
        """Everything from `from_seq` to the end of what the picture holds, piece by piece."""
        seq = from_seq
        while items := self.read(topic, seq):
            yield from items
            seq = seq_after(items[-1])

    # --- life ----------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take a new picture if the log has grown since the last one; whether it had."""
        if not self._picture.is_outdated():
            return False
        self._renew()
        return True

    def close(self) -> None:
        """Give all files back; closing twice is fine."""
        self._picture.close()
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- pictures ------------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[_Picture], _Answer], doubts: Callable[[_Answer], list[Gap]]) -> _Answer:
        """The answer of a picture that was not moved under the question (INV-VIEW-MOVED)."""
        before: object = None
        for _ in range(_ATTEMPTS):
            try:
                answer = question(self._picture)
            except FileNotFoundError as error:
                if error.filename == before:
                    raise CorruptionError(
                        f"{before} is missing; seawall verify says what is lost by it, and opening the directory makes "
                        "again what the log still has"
                    ) from error
                before = error.filename
            else:
                doubtful = doubts(answer)
                if not doubtful or doubtful == before or not self._picture.is_outdated():
                    return answer
                before = doubtful
            self._renew()
        raise self._too_fast()

    def _renew(self) -> None:
        picture = self._take()
        self._picture.close()
        self._picture = picture

    def _take(self) -> _Picture:
        """A picture; one that shows damage, or cannot be taken, is believed when the next one shows the same."""
        before: object = None
        for _ in range(_ATTEMPTS):
            try:
                picture = _Picture(self._files, self._directory)
            except FileNotFoundError:
                before = None
                continue
            except CorruptionError as error:
                if str(error) == before:
                    raise
                before = str(error)
                continue
            damages = [damage.from_at for damage in picture.replayed.damages]
            if not damages or damages == before:
                return picture
            before = damages
        raise self._too_fast()

    def _too_fast(self) -> LockedError:
        return LockedError(
            f"{self._directory.path}: its files were moved faster than they could be read, {_ATTEMPTS} times; try "
            "again when its writer does less"
        )


class _Picture:
    """The state of a directory at one moment, and the files it needs, opened as they are asked for."""

    def __init__(self, files: Files, directory: DataDirectory) -> None:
        self._files = files
        self._directory = directory
        self._open_files = OpenFiles(files, segment_file_share(descriptor_limit()))
        self._wal_files: dict[WalAddress, File] = {}
        self._logs: dict[TopicId, TopicLog] = {}
        snapshot = SnapshotStore(files, directory.meta, directory.directory_id).load().snapshot
        self.replayed: Replayed = replay(files, directory, snapshot)
        self.catalog = self.replayed.catalog
        #: Listed behind the reading: a file that came meanwhile begins at its end or behind it.
        self._starts = wal_addresses(files, directory.wal)

    def read(self, name: str, from_seq: Seq, size_max: int, records_max: int | None) -> list[ReadItem]:
        """Batches, and in order with them the gaps a reader has to know of."""
        topic = self.catalog.named(name)
        if topic.config.durability is Durability.EPHEMERAL:
            raise UnsupportedError(f"topic {name!r} is kept in the memory of the process that writes it alone")
        log = self.log(topic.topic_id)
        return plan_read(topic, log, from_seq, size_max=size_max, records_max=records_max).execute()

    def read_positions(self, position: Position, size_max: int, records_max: int | None) -> list[PositionItem]:
        """What lies at a position and behind it, of all topics that have files."""
        kept = [topic for topic in self.catalog.shown() if topic.config.durability is not Durability.EPHEMERAL]
        while True:
            plan = plan_positions(kept, self.log, position, size_max=size_max, records_max=records_max)
            items = plan.execute()
            if items or plan.is_last:
                return items
            position = plan.end_position

    def is_outdated(self) -> bool:
        """Whether the log has a commit behind the end of this picture, or a file that this picture does not know."""
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
        """The segments of a topic."""
        log = self._logs.get(topic_id)
        if log is None:
            log = self._logs[topic_id] = self._open_log(topic_id)
        return log

    def close(self) -> None:
        """Give all files back."""
        for log in self._logs.values():
            log.close()
        for file in self._wal_files.values():
            file.close()
        self._logs.clear()
        self._wal_files.clear()

    def _open_log(self, topic_id: TopicId) -> TopicLog:
        home = topic_home(self._files, self._directory, topic_id, self._open_files)
        names = sort_names(home.names())
        # Names rise: of several sealed segments of one seq the last reaches furthest, as at an opening.
        sealed = {name.first_seq: SealedSegment(home, name) for name in names.sealed}
        log = TopicLog(home, self._locate, [sealed[first_seq] for first_seq in sorted(sealed)], [])
        try:
            for first_seq, segment in self._unsealed(topic_id).items():
                if first_seq in sealed or not len(segment.index):
                    continue
                # Behind damage in the log a segment has no file yet. Nothing is read from it then: all of it waits.
                is_placed = len(segment.waiting) < len(segment.index)
                path = home.path(active_name(first_seq)) if is_placed else self._directory.format_path
                file = self._open_files.open(path, read_only=True)
                index = BatchIndex(segment.index.entries)
                active = SegmentWriter(home, home.preface(first_seq), file, index, read_only=True)
                log.filling.append(ActiveSegment(active, segment.waiting.copy()))
        except BaseException:
            log.close()
            raise
        return log

    def _unsealed(self, topic_id: TopicId) -> dict[Seq, ReplayedSegment]:
        """Segments that are not sealed, without those that were dropped with their records."""
        topic = self.catalog.find(topic_id)
        return {} if topic is None else still_needed(topic, self.replayed.segments.get(topic_id, {}))

    def _locate(self, at: WalAddress) -> tuple[File, int]:
        """The file an address of the log lies in, and the position there."""
        index = bisect_right(self._starts, at) - 1
        if index < 0:
            # Dropped since, as files of the log are: the oldest first.
            raise FileNotFoundError(ENOENT, "absorbed", wal_path(self._directory.wal, at))
        first_at = self._starts[index]
        file = self._wal_files.get(first_at)
        if file is None:
            file = self._wal_files[first_at] = self._files.open(wal_path(self._directory.wal, first_at), read_only=True)
        return file, DATA_START + at - first_at


def open_view(path: str | Path, files: Files | None = None) -> ReadOnlyLog:
    """Look at a data directory: nothing is locked, nothing is written, and another process may be writing it."""
    files = files or OsFiles()
    return ReadOnlyLog(files, look_at(files, str(path)))


def _no_doubt(_answer: object) -> list[Gap]:
    return []


def _lost_runs(items: Sequence[ReadItem | PositionItem]) -> list[Gap]:
    """What of an answer must be seen twice."""
    return [item for item in items if isinstance(item, Gap) and item.reason is GapReason.CORRUPTION]
