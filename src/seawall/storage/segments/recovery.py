"""Bringing the directory of one topic back in order when it is opened.

What it is told: for each segment that is not sealed, by its first seq, the entries of the batches that must be in it,
as snapshot and write-ahead log give them; the last of these segments is the one to be written on. What is not among
them was never promised to anybody. Without (`expected=None`: there is no log to ask) it goes by what the files show,
and bytes behind the last valid batch of an active segment count as a write that was cut off.

What it does, each step leading to the same state however often a crash cuts it off and it starts again:
1. Debris of replacements, indexes of segments that are not sealed and sidecars of segments that are gone are removed.
2. Each sealed segment gets its index: the stored one, or one made from the data and stored again.
3. Each active one is held against what is expected, or scanned, and cut behind its last batch. One that is not the last
   is sealed, unless an older one waits: segments are sealed in their order, and readers rely on it. One in which
   nothing is expected, or that never got its first batch, is removed. One that is expected and gone is made anew, with
   everything in it missing.
4. An active segment beside a sealed one of the same seq is removed if the sealed one is sound and has all its batches;
   otherwise both stay and the pair is reported.

Bytes that should be a batch and are not are reported, and stay where they are. An older active segment with damage is
not sealed unless asked for, so that the caller can fill its places from the log first. A second run changes no byte and
reports the same.

Names that mean nothing here are reported and left alone, and so is a file that says it is another segment. This module
must not know the write-ahead log.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from seawall import limits
from seawall.core.types import Seq, TimestampNs
from seawall.errors import CorruptionError
from seawall.io.interfaces import File
from seawall.storage.preface import DATA_START, Preface
from seawall.storage.segments.batch_index import BatchIndex, Entries
from seawall.storage.segments.delete_sidecar import DeletedSeqs, load_deletes
from seawall.storage.segments.names import SealedName, TopicFiles, active_name, deletes_name, index_name, sort_names
from seawall.storage.segments.scan import SegmentDamage, find_damage, scan_segment
from seawall.storage.segments.segment import SealedSegment, SegmentWriter
from seawall.storage.segments.topic_directory import TopicDirectory, read_segment_preface

__all__ = ["TopicRecovery", "recover_topic"]


@dataclass(frozen=True, slots=True)
class TopicRecovery:
    """The segments of a topic as they are now, and everything that is wrong with them."""

    #: Sealed segments by rising seq.
    sealed: tuple[SealedSegment, ...]
    #: The segment to write on, if there is one.
    active: SegmentWriter | None
    #: Older segments that wait to be sealed, because places in them are damaged or to be filled.
    pending: tuple[SegmentWriter, ...]
    #: Deleted records by first seq of their segment; a segment whose sidecar is damaged is in `damages` instead.
    deletes: Mapping[Seq, DeletedSeqs]
    damages: tuple[SegmentDamage, ...]
    #: Pairs of files that contradict each other: the one that serves, the one that is left alone.
    conflicts: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]


def recover_topic(
    home: TopicDirectory,
    expected: Mapping[Seq, Entries] | None = None,
    *,
    seal_damaged: bool = False,
    unfilled: Collection[Seq] = (),
) -> TopicRecovery:
    """Put one topic's directory in order; the caller holds the lock of the data directory.

    `unfilled` are segments, by first seq, that the caller will fill from the log: they are left open, however whole
    they look, because what a failed sync has left in the page cache looks whole, too.
    """
    recovery = _Recovery(home, expected, seal_damaged, unfilled)
    return recovery.run()


@dataclass(slots=True)
class _Recovery:
    """One run."""

    home: TopicDirectory
    expected: Mapping[Seq, Entries] | None
    seal_damaged: bool
    unfilled: Collection[Seq]
    sealed: dict[Seq, SealedSegment] = field(default_factory=dict)
    active: SegmentWriter | None = None
    pending: list[SegmentWriter] = field(default_factory=list)
    deletes: dict[Seq, DeletedSeqs] = field(default_factory=dict)
    damages: list[SegmentDamage] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    removed: set[Seq] = field(default_factory=set)
    names_changed: bool = False

    def run(self) -> TopicRecovery:
        """Recover the topic; whatever fails, it may be tried again, and no file stays open."""
        try:
            return self._run()
        except BaseException:
            for sealed in self.sealed.values():
                sealed.close()
            for segment in (*self.pending, *([] if self.active is None else [self.active])):
                segment.close()
            raise

    def _run(self) -> TopicRecovery:
        names = sort_names(self.home.names())
        self._clear_debris(names)
        # Names rise: of several sealed segments of one seq the last reaches furthest. Which is right nobody knows.
        furthest = {name.first_seq: name for name in names.sealed}
        for name in names.sealed:
            if name == furthest[name.first_seq]:
                self._recover_sealed(name)
            else:
                self.conflicts.append((self.home.path(str(furthest[name.first_seq])), self.home.path(str(name))))
        self._recover_unsealed(names)
        self._report_missing()
        self._settle_deletes(names)
        if self.names_changed:
            self.home.files.sync_directory(self.home.directory)
        return TopicRecovery(
            tuple(self.sealed[first_seq] for first_seq in sorted(self.sealed)),
            self.active,
            tuple(self.pending),
            self.deletes,
            tuple(self.damages),
            tuple(self.conflicts),
            names.unknown,
        )

    # --- names -------------------------------------------------------------------------------------------------

    def _clear_debris(self, names: TopicFiles) -> None:
        sealed = {name.first_seq for name in names.sealed}
        for name in names.debris:
            self._unlink(name)
        for first_seq in names.indexes:
            if first_seq not in sealed:
                self._unlink(index_name(first_seq))

    def _unlink(self, name: str) -> None:
        self.home.files.unlink(self.home.path(name))
        self.names_changed = True

    def _settle_deletes(self, names: TopicFiles) -> None:
        """Load the deletes of every segment; those of a segment that is gone go, too."""
        there = ({name.first_seq for name in names.sealed} | {*names.active} - self.removed) | {*(self.expected or ())}
        for first_seq in names.deletes:
            path = self.home.path(deletes_name(first_seq))
            if first_seq not in there:
                self._unlink(deletes_name(first_seq))
                continue
            try:
                self.deletes[first_seq] = load_deletes(self.home.files, path, self.home.preface(first_seq))
            except CorruptionError:
                self._report_whole(self.home.files.open(path, read_only=True), first_seq)

    def _report_missing(self) -> None:
        """Batches that are expected in a segment that was sealed without them."""
        for first_seq, entries in (self.expected or {}).items():
            sealed, index = self.sealed.get(first_seq), BatchIndex(entries)
            if sealed is not None and len(index) and sealed.name.last_seq < index.last_seq:
                end, next_seq = sealed.index.end, Seq(sealed.name.last_seq + 1)
                self.damages.append(SegmentDamage(sealed.path, end, end, next_seq, index.last_seq))
                sealed.close()

    # --- sealed segments ---------------------------------------------------------------------------------------

    def _recover_sealed(self, name: SealedName) -> None:
        segment = SealedSegment(self.home, name)
        try:
            segment.repair_index()
        except CorruptionError:
            self._report_whole(self.home.files.open(segment.path, read_only=True), name.first_seq)
            return
        self.damages.extend(segment.damages())
        self.sealed[name.first_seq] = segment
        # The indexes of a whole topic need not fit in memory at once.
        segment.close()

    def _resolve_pair(self, first_seq: Seq) -> None:
        """An active segment beside a sealed one: the sealed one was complete before it got its name."""
        sealed = self.sealed[first_seq]
        name = active_name(first_seq)
        file = self.home.files.open(self.home.path(name), read_only=True)
        try:
            found = scan_segment(file, self.home.topic_id, first_seq).index.entries
        finally:
            file.close()
        kept = sealed.index.entries[: len(found)]
        if len(kept) == len(found) and (kept == found).all() and not sealed.verify():
            self._unlink(name)
        else:
            self.conflicts.append((sealed.path, self.home.path(name)))
        sealed.close()

    # --- active segments ---------------------------------------------------------------------------------------

    def _recover_unsealed(self, names: TopicFiles) -> None:
        expected = dict.fromkeys(names.active, ()) if self.expected is None else self.expected
        last = max(expected, default=None)
        for first_seq in sorted({*names.active, *expected}):
            is_there, is_last = first_seq in names.active, first_seq == last
            if first_seq in self.sealed:
                if is_there:
                    self._resolve_pair(first_seq)
            elif is_there:
                self._recover_active(first_seq, is_last=is_last)
            elif is_last or len(expected[first_seq]):
                self._make_anew(first_seq, is_last=is_last)

    def _make_anew(self, first_seq: Seq, *, is_last: bool) -> None:
        """Give the batches of a lost segment, which may be in the log, a place to be copied to."""
        SegmentWriter.create(self.home, first_seq, TimestampNs(0)).close()
        self._recover_active(first_seq, is_last=is_last)

    def _recover_active(self, first_seq: Seq, *, is_last: bool) -> None:
        file = self.home.open_segment(active_name(first_seq))
        try:
            self._judge_active(file, first_seq, is_last=is_last)
        except BaseException:
            file.close()
            raise

    def _judge_active(self, file: File, first_seq: Seq, *, is_last: bool) -> None:
        try:
            preface = read_segment_preface(file, self.home, first_seq)
        except CorruptionError:
            self._report_whole(file, first_seq)
            return
        index, damages = self._content(file, first_seq)
        if not len(index) and (preface is None or not is_last):
            self._remove_empty(file, first_seq, preface)
            if is_last and self.expected is not None:
                self._make_anew(first_seq, is_last=True)
            return
        if preface is None:
            damages.insert(0, SegmentDamage(file.path, 0, DATA_START, first_seq, Seq(first_seq - 1)))
            preface = self.home.preface(first_seq)
        if file.size() > index.end:
            file.truncate(index.end)
            file.sync()
        self.damages.extend(damages)
        segment = SegmentWriter(self.home, preface, file, index)
        if is_last:
            self.active = segment
        elif self.pending or first_seq in self.unfilled or (damages and not self.seal_damaged):
            self.pending.append(segment)
        else:
            try:
                self.sealed[first_seq] = segment.seal()
            except BaseException:
                segment.close()
                raise

    def _content(self, file: File, first_seq: Seq) -> tuple[BatchIndex, list[SegmentDamage]]:
        """The entries an active segment must have, or shows, and what of them is damaged."""
        if self.expected is not None:
            index = BatchIndex(self.expected.get(first_seq))
            return index, find_damage(file, index.entries, self.home.topic_id)
        scan = scan_segment(file, self.home.topic_id, first_seq)
        return scan.index, list(scan.damages)

    def _remove_empty(self, file: File, first_seq: Seq, preface: Preface | None) -> None:
        """Remove a segment without batches, unless it holds something that nobody said may go."""
        if self.expected is None and not _is_blank(file, 0 if preface is None else DATA_START):
            self._report_whole(file, first_seq)
            return
        file.close()
        self._unlink(active_name(first_seq))
        self.removed.add(first_seq)

    def _report_whole(self, file: File, first_seq: Seq) -> None:
        """A file of which nothing can be used; it stays as it is."""
        self.damages.append(SegmentDamage(file.path, 0, file.size(), first_seq, None))
        file.close()


def _is_blank(file: File, start: int) -> bool:
    """Whether a file holds nothing but zeros from `start` on, as one does that was preallocated and never written."""
    pieces = (file.read(limits.COPY_BUFFER_SIZE, at) for at in range(start, file.size(), limits.COPY_BUFFER_SIZE))
    return not any(piece.strip(b"\0") for piece in pieces)
