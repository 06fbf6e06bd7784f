"""Reads and verifies the batches of a segment file: those of an index, or all that a scan finds without one.

This module trusts no stored byte: it verifies both checksums of every batch, with one kernel call for a run of batches,
and every batch either equals its index entry or continues the batches before it.

A scan without an index walks from batch to batch. If there is no valid batch at a position, the range up to the next
valid one is damage. The scan looks for that next batch first where the damaged header says it is, since most damage
does not hit the length; only then at every byte. So bytes inside a record that look like a batch are not mistaken for
one as long as either the length in the damaged header or the index has survived.

INV-DAMAGE-NAMED: damage in a segment is reported as a range of bytes and of seqs; it never ends the reading, and
nothing deletes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.errors import SegmentDamageError
from seawall.io.interfaces import File
from seawall.kernels.log.segments import (
    INDEX_ENTRY,
    SCAN_FULL,
    SCAN_MORE,
    STATE_CONSUMED,
    STATE_COUNT,
    STATE_NEEDED,
    STATE_SEQ,
    STATE_SIZE,
    Entries,
    find_header,
    scan_batches,
    verify_entries,
)
from seawall.storage.preface import DATA_START
from seawall.storage.segments.batch_index import BatchIndex

__all__ = ["SegmentDamage", "SegmentScan", "damage_between", "find_damage", "read_batches", "scan_segment"]

_PAYLOAD_LENGTH: Final = Struct("<I")
_PAYLOAD_LENGTH_AT: Final = 32

#: Most entries that one kernel call reports; it is called again while there are more.
_ENTRIES_PER_CALL: Final = 1_024

_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SegmentDamage:
    """Damaged bytes `from_at` up to `to_at` of a file, with the seqs they held; `last_seq` is None if unknown."""

    path: str
    from_at: int
    to_at: int
    first_seq: Seq
    last_seq: Seq | None

    def __str__(self) -> str:
        last = "an unknown one" if self.last_seq is None else str(self.last_seq)
        return f"{self.path}: bytes {self.from_at} to {self.to_at} are damaged: seqs {self.first_seq} to {last}"

    def error(self) -> SegmentDamageError:
        """The damage as an exception."""
        return SegmentDamageError(
            f"{self}; the bytes before and after it are readable",
            path=self.path,
            from_at=self.from_at,
            to_at=self.to_at,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
        )


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """The result of a scan: valid batches, and the damage between them; bytes after the last batch are in neither."""

    index: BatchIndex
    damages: tuple[SegmentDamage, ...]


def read_batches(file: File, entries: Entries, topic_id: TopicId) -> memoryview:
    """Read and verify the batches of consecutive entries, contiguous as stored, with one read.

    Raises `SegmentDamageError` for the first range that does not match the entries.
    """
    if not len(entries):
        return memoryview(b"")
    if len(entries) > 1:
        gaps = entries["at"][1:] != (entries["at"] + entries["length"])[:-1]
        if gaps.any():
            raise damage_between(file.path, entries, int(gaps.argmax()) + 1).error()
    bad, verdicts, stored = _verified(file, entries, topic_id)
    if bad:
        raise _damage_runs(file.path, entries, np.flatnonzero(verdicts))[0].error()
    return stored.data.toreadonly()


def find_damage(file: File, entries: Entries, topic_id: TopicId) -> list[SegmentDamage]:
    """Every run of entries that does not match the file; reads all of it in bounded pieces."""
    verdicts = [_verified(file, entries[first:last], topic_id)[1] for first, last in _pieces(entries)]
    return _damage_runs(file.path, entries, np.flatnonzero(np.concatenate(verdicts))) if verdicts else []


def damage_between(path: str, entries: Entries, index: int) -> SegmentDamage:
    """The bytes between entry `index` and the one before it, which belong to neither."""
    before, after = entries[index - 1], entries[index]
    return SegmentDamage(
        path,
        int(before["at"]) + int(before["length"]),
        int(after["at"]),
        Seq(int(before["base_seq"]) + int(before["count"])),
        Seq(int(after["base_seq"]) - 1),
    )


def scan_segment(file: File, topic_id: TopicId, first_seq: Seq) -> SegmentScan:
    """Find every valid batch of a segment file and the damage between them."""
    scanner = _Scanner(file, topic_id, first_seq)
    scanner.run()
    return SegmentScan(scanner.index, tuple(scanner.damages))


class _Scanner:
    """One scan of a file; `_at` is the current position."""

    def __init__(self, file: File, topic_id: TopicId, first_seq: Seq) -> None:
        self.index = BatchIndex()
        self.damages: list[SegmentDamage] = []
        self._file = file
        self._topic_id = topic_id
        self._size = file.size()
        self._at = DATA_START
        self._state: npt.NDArray[np.int64] = np.zeros(STATE_SIZE, np.int64)
        self._state[STATE_SEQ] = first_seq
        self._entries: Entries = np.zeros(_ENTRIES_PER_CALL, INDEX_ENTRY)

    def run(self) -> None:
        while self._at < self._size:
            self._walk()
            damaged_from, first_seq = self._at, Seq(int(self._state[STATE_SEQ]))
            found = self._next_batch()
            if found is None:
                return
            self._at = found
            last_seq = Seq(self._base_seq(found) - 1)
            self.damages.append(SegmentDamage(self._file.path, damaged_from, found, first_seq, last_seq))

    def _walk(self) -> None:
        """Walk from batch to batch until there is no valid one."""
        wanted = limits.SEGMENT_SCAN_SIZE
        while self._at < self._size:
            window = self._window(self._at, wanted)
            code = self._scan(window)
            needed = int(self._state[STATE_NEEDED])
            wanted = max(limits.SEGMENT_SCAN_SIZE, needed)
            if code != SCAN_FULL and (code != SCAN_MORE or self._at + needed > self._size):
                return

    def _scan(self, window: _Bytes) -> int:
        code = scan_batches(window, 0, len(window), self._at, self._topic_id, self._entries, self._state)
        self.index.extend(self._entries[: int(self._state[STATE_COUNT])])
        self._at += int(self._state[STATE_CONSUMED])
        return code

    def _next_batch(self) -> int | None:
        """Position of the first valid batch after the damage at `_at`; None if there is none."""
        stated = self._file.read(_PAYLOAD_LENGTH.size, self._at + _PAYLOAD_LENGTH_AT)
        if len(stated) == _PAYLOAD_LENGTH.size:
            next_at = self._at + limits.FRAME_HEADER_SIZE + int(_PAYLOAD_LENGTH.unpack(stated)[0])
            if self._is_batch(next_at):
                return next_at
        return next((at for at in self._headers(self._at + 1) if self._is_batch(at)), None)

    def _headers(self, start: int) -> Iterator[int]:
        """Positions of valid headers from `start` on."""
        at = start
        while at + limits.BATCH_HEADER_SIZE <= self._size:
            window = self._window(at, limits.SEGMENT_SCAN_SIZE)
            found = find_header(window, 0, len(window), self._topic_id, self._state)
            if found >= 0:
                yield at + found
                at += found + 1
            else:
                # The last bytes of the window may be the beginning of a header.
                at += len(window) - limits.BATCH_HEADER_SIZE + 1

    def _is_batch(self, at: int) -> bool:
        """True if a complete valid batch at this position may follow the batches so far; does not advance the scan."""
        header = self._window(at, limits.BATCH_HEADER_SIZE)
        if find_header(header, 0, len(header), self._topic_id, self._state) != 0:
            return False
        size = limits.FRAME_HEADER_SIZE + _PAYLOAD_LENGTH.unpack_from(header.data, _PAYLOAD_LENGTH_AT)[0]
        window = self._window(at, size)
        entry: Entries = np.zeros(1, INDEX_ENTRY)
        state = self._state.copy()
        scan_batches(window, 0, len(window), at, self._topic_id, entry, state)
        return bool(state[STATE_COUNT] == 1)

    def _base_seq(self, at: int) -> int:
        return int.from_bytes(self._file.read(8, at + 64), "little")

    def _window(self, at: int, length: int) -> _Bytes:
        return np.frombuffer(self._file.read(min(length, max(0, self._size - at)), at), np.uint8)


def _pieces(entries: Entries) -> Iterator[tuple[int, int]]:
    """Runs of entries, each at most as long as one read of a scan, or one batch if that is longer."""
    first = 0
    while first < len(entries):
        reach = np.uint64(int(entries["at"][first]) + limits.SEGMENT_SCAN_SIZE)
        last = max(first + 1, int(entries["at"].searchsorted(reach)))
        yield first, last
        first = last


def _verified(file: File, entries: Entries, topic_id: TopicId) -> tuple[int, _Bytes, _Bytes]:
    """The number of bad entries, a verdict for each (0 is good), and the bytes from the first entry to the last."""
    first_at = int(entries["at"][0])
    length = int(entries["at"][-1]) + int(entries["length"][-1]) - first_at
    stored: _Bytes = np.empty(length, np.uint8)
    end = file.read_into([stored.data], first_at)
    verdicts: _Bytes = np.empty(len(entries), np.uint8)
    bad = verify_entries(stored, end, first_at, entries, topic_id, verdicts)
    return bad, verdicts, stored


def _damage_runs(path: str, entries: Entries, damaged: npt.NDArray[np.intp]) -> list[SegmentDamage]:
    """One damage for each run of neighbouring damaged entries."""
    runs = np.split(damaged, np.flatnonzero(np.diff(damaged) != 1) + 1) if len(damaged) else []
    return [_damage_of(path, entries[run[0]], entries[run[-1]]) for run in runs]


def _damage_of(path: str, first: np.void, last: np.void) -> SegmentDamage:
    return SegmentDamage(
        path,
        int(first["at"]),
        int(last["at"]) + int(last["length"]),
        Seq(int(first["base_seq"])),
        Seq(int(last["base_seq"]) + int(last["count"]) - 1),
    )
