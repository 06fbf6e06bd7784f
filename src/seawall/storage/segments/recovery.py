"""Recovers the directory of one topic when the log is opened.

Input: for each unsealed segment, by its first seq, the entries of the batches that must be in it, from snapshot and
write-ahead log; the last of these segments is the one that is written next. Other batches were never acknowledged.
Without that input (`expected=None`: there is no log) the files decide, and bytes after the last valid batch of an
active segment count as an interrupted write.

Steps, each idempotent, so that a crash may interrupt recovery at any point:
1. Remove debris of replacements, indexes of unsealed segments, and sidecars of segments that no longer exist.
2. Load the index of each sealed segment, or rebuild it from the data and store it.
3. Compare each active segment with what is expected, or scan it, and truncate it after its last batch. Seal every one
   but the last, unless an older one is still pending: segments are sealed in their order, and readers rely on it.
   Remove a segment without expected batches, or without a first batch. Create an expected segment that is missing, with
   all its batches reported as damage.
4. Remove an active segment next to a sealed one of the same seq if the sealed one is sound and has all its batches;
   otherwise keep both and report the pair.

Bytes that should be a batch and are not are reported, and stay as they are. An older active segment with damage stays
unsealed unless `seal_damaged`, so that the caller can fill it from the log first. A second run changes no byte and
reports the same.

Unknown names are reported and left unchanged, and so is a file whose preface names another segment. This module must
not know the write-ahead log.
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
    """The segments of a topic after recovery, and everything that is wrong with them."""

    #: Sealed segments by rising seq.
    sealed: tuple[SealedSegment, ...]
    #: The segment that is written next, if there is one.
    active: SegmentWriter | None
    #: Older segments that are not sealed yet, because they are damaged or have unflushed batches.
    pending: tuple[SegmentWriter, ...]
    #: Deleted records by first seq of their segment; a segment whose sidecar is damaged is in `damages` instead.
    deletes: Mapping[Seq, DeletedSeqs]
    damages: tuple[SegmentDamage, ...]
    #: Pairs of conflicting files: the one in use, and the one that is ignored.
    conflicts: tuple[tuple[str, str], ...]
    unknown: tuple[str, ...]


def recover_topic(
    home: TopicDirectory,
    expected: Mapping[Seq, Entries] | None = None,
    *,
    seal_damaged: bool = False,
    unflushed: Collection[Seq] = (),
) -> TopicRecovery:
    """Recover one topic's directory; the caller holds the lock of the data directory.

    `unflushed` are segments, by first seq, that the caller will fill from the log. They stay unsealed even if they look
    complete, because pages that a failed sync left in the page cache look complete, too.
    """
    recovery = _Recovery(home, expected, seal_damaged, unflushed)
    return recovery.run()


@dataclass(slots=True)
class _Recovery:
    """One recovery run."""

    home: TopicDirectory
    expected: Mapping[Seq, Entries] | None
    seal_damaged: bool
    unflushed: Collection[Seq]
    sealed: dict[Seq, SealedSegment] = field(default_factory=dict)
    active: SegmentWriter | None = None
    pending: list[SegmentWriter] = field(default_factory=list)
    deletes: dict[Seq, DeletedSeqs] = field(default_factory=dict)
    damages: list[SegmentDamage] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    removed: set[Seq] = field(default_factory=set)
    names_changed: bool = False

    def run(self) -> TopicRecovery:
        """Recover the topic; after any error all files are closed, and the caller may try again."""
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
        # Names rise: of several sealed segments of one seq the last has the highest last seq. Which is right is
        # unknown.
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
        """Load the deletes of every segment; remove those of segments that no longer exist."""
        active = {*names.active} - self.removed
        existing = {name.first_seq for name in names.sealed} | active | {*(self.expected or ())}
        for first_seq in names.deletes:
            path = self.home.path(deletes_name(first_seq))
            if first_seq not in existing:
                self._unlink(deletes_name(first_seq))
                continue
            try:
                self.deletes[first_seq] = load_deletes(self.home.files, path, self.home.preface(first_seq))
            except CorruptionError:
                self._report_whole(self.home.files.open(path, read_only=True), first_seq)

    def _report_missing(self) -> None:
        """Report batches that are expected in a segment that was sealed without them."""
        for first_seq, entries in (self.expected or {}).items():
            sealed, index = self.sealed.get(first_seq), BatchIndex(entries)
            if sealed is not None and len(index) and sealed.name.last_seq < index.last_seq:
                end, next_seq = sealed.load_index().end, Seq(sealed.name.last_seq + 1)
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
        """Handle an active segment next to a sealed one, which was complete before it got its name."""
        sealed = self.sealed[first_seq]
        name = active_name(first_seq)
        file = self.home.files.open(self.home.path(name), read_only=True)
        try:
            found = scan_segment(file, self.home.topic_id, first_seq).index.entries
        finally:
            file.close()
        kept = sealed.load_index().entries[: len(found)]
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
            exists, is_last = first_seq in names.active, first_seq == last
            if first_seq in self.sealed:
                if exists:
                    self._resolve_pair(first_seq)
            elif exists:
                self._recover_active(first_seq, is_last=is_last)
            elif is_last or len(expected[first_seq]):
                self._recreate(first_seq, is_last=is_last)

    def _recreate(self, first_seq: Seq, *, is_last: bool) -> None:
        """Create a lost segment again, so that its batches can be copied from the log."""
        SegmentWriter.create(self.home, first_seq, TimestampNs(0)).close()
        self._recover_active(first_seq, is_last=is_last)

    def _recover_active(self, first_seq: Seq, *, is_last: bool) -> None:
        file = self.home.open_segment(active_name(first_seq))
        try:
            self._check_active(file, first_seq, is_last=is_last)
        except BaseException:
            file.close()
            raise

    def _check_active(self, file: File, first_seq: Seq, *, is_last: bool) -> None:
        try:
            preface = read_segment_preface(file, self.home, first_seq)
        except CorruptionError:
            self._report_whole(file, first_seq)
            return
        index, damages = self._content(file, first_seq)
        if not len(index) and (preface is None or not is_last):
            self._remove_empty(file, first_seq, preface)
            if is_last and self.expected is not None:
                self._recreate(first_seq, is_last=True)
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
        elif self.pending or first_seq in self.unflushed or (damages and not self.seal_damaged):
            self.pending.append(segment)
        else:
            try:
                self.sealed[first_seq] = segment.seal()
            except BaseException:
                segment.close()
                raise

    def _content(self, file: File, first_seq: Seq) -> tuple[BatchIndex, list[SegmentDamage]]:
        """The entries that an active segment must have, or shows, and the damage among them."""
        if self.expected is not None:
            index = BatchIndex(self.expected.get(first_seq))
            return index, find_damage(file, index.entries, self.home.topic_id)
        scan = scan_segment(file, self.home.topic_id, first_seq)
        return scan.index, list(scan.damages)

    def _remove_empty(self, file: File, first_seq: Seq, preface: Preface | None) -> None:
        """Remove a segment without batches; without a log, only if it holds nothing but zeros."""
        if self.expected is None and not _is_blank(file, 0 if preface is None else DATA_START):
            self._report_whole(file, first_seq)
            return
        file.close()
        self._unlink(active_name(first_seq))
        self.removed.add(first_seq)

    def _report_whole(self, file: File, first_seq: Seq) -> None:
        """Report a file that is unusable as a whole; it stays as it is."""
        self.damages.append(SegmentDamage(file.path, 0, file.size(), first_seq, None))
        file.close()


def _is_blank(file: File, start: int) -> bool:
    """True if a file holds only zeros from `start` on, like one that was preallocated and never written."""
    pieces = (file.read(limits.COPY_BUFFER_SIZE, at) for at in range(start, file.size(), limits.COPY_BUFFER_SIZE))
    return not any(piece.strip(b"\0") for piece in pieces)
