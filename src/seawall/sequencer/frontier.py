"""The commit frontier: the single point where a batch becomes part of the log and gets its numbers.

It holds the next position, the hybrid clock, and for each topic the next seq and offset, the ceiling, the last
timestamp and totals. `admit` stamps adjacent batches in a buffer, in place, in one kernel call
(`kernels.admission.frontier` has the layout and the rules, `kernels.admission.client_frontier` adds the client window).
It knows neither files nor connections: an admitted batch is not durable and not acknowledged yet.

Ceilings. A seq that was visible must never be assigned to another record, so seqs are assigned only below a ceiling
that is durable in the log. `needs_ceiling` lists the topics with less than a quarter of a step left; the owner logs a
higher ceiling in advance and calls `set_ceiling` once that is durable. The new ceiling is one step ahead, or as many
seqs as the topic has used since it was added here, up to `CEILING_STEPS_MAX` steps: so waits are rare, and a crash
skips no more seqs than that. A batch that would cross the ceiling stops its run, undecided: nothing overtakes it. After
a crash, topics start at their ceilings.

A deleted topic keeps its row, so that late batches are refused as deleted; when rows run out, the deleted topic with
the lowest id loses its row, and its batches are then refused as unknown.

The kernel module declares the invariants of the numbers. One owner, no lock. A crash loses the arrays; they are rebuilt
from a snapshot and the batches after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from seawall import limits
from seawall.core.checks import check
from seawall.core.clock import HybridClock
from seawall.core.types import Offset, Position, Seq, Term, TimestampNs, TopicId
from seawall.errors import ConflictError, FullError, InvalidInputError, InvariantError, LimitError, NotFoundError
from seawall.kernels.admission import frontier as kernels
from seawall.kernels.admission.client_frontier import admit_client_run
from seawall.kernels.admission.frontier import FrontierArrays, Rows, admit_run
from seawall.kernels.log.staging import number_batch, number_client_batch
from seawall.kernels.log.transactions import admit_transaction
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import ABSENT, table_find, table_put, table_remove
from seawall.sequencer.client_window import ClientWindow, table_slots
from seawall.wire.format.codes import AckStatus

#: Bound of seqs, positions, offsets and timestamps, low enough that arithmetic on them does not overflow.
NUMBER_MAX = 1 << 62
#: How many steps a ceiling can be ahead, for a topic that has used as many seqs.
CEILING_STEPS_MAX: Final = 16

_TERM_MAX = (1 << 32) - 1
_STATUSES: Final = {int(status): status for status in AckStatus}
_FIRST_POSITION = Position(0)
_FIRST_SEQ = Seq(1)
_FIRST_OFFSET = Offset(0)
_NO_TIMESTAMP = TimestampNs(0)


class RunStop(IntEnum):
    """Why a call of `admit` stopped."""

    DONE = kernels.RUN_DONE  #: all batches are decided
    ROWS_FULL = kernels.RUN_FULL  #: there are more batches; call again from `consumed`
    CUT = kernels.RUN_CUT  #: the next batch is incomplete
    NEEDS_CEILING = kernels.RUN_NEEDS_CEILING  #: the next batch needs a higher ceiling of its topic
    UNKNOWN_CLIENT = kernels.RUN_UNKNOWN_CLIENT  #: the row of the next batch's client must be imported first


@dataclass(frozen=True, slots=True)
class Admission:
    """The result of `admit`: a row for each decided batch, valid until the next call."""

    stop: RunStop
    rows: Rows
    consumed: int  #: index of the first undecided byte


class Draft(NamedTuple):
    """The header fields that a writer sets for a batch without a header.

    Client id and seq are the unsigned numbers reinterpreted as signed; `choices` as in `kernels.log.staging`.
    """

    record_count: int
    topic_id: TopicId
    client_id: int
    client_seq: int
    session_epoch: int
    raw_length: int
    choices: int


class Numbered(NamedTuple):
    """The outcome of a draft: its numbers, or the reason of its refusal."""

    status: AckStatus
    reason: int
    position: Position
    topic_id: TopicId
    base_seq: Seq
    base_offset: Offset
    timestamp_ns: TimestampNs
    record_count: int
    raw_length: int
    size: int


@dataclass(frozen=True, slots=True)
class TopicNumbers:
    """The frontier's state of one topic."""

    topic_id: TopicId
    next_seq: Seq = _FIRST_SEQ
    next_offset: Offset = _FIRST_OFFSET
    ceiling: Seq = _FIRST_SEQ
    last_timestamp_ns: TimestampNs = _NO_TIMESTAMP
    record_total: int = 0
    byte_total: int = 0
    is_deleted: bool = False
    is_full: bool = False
    is_strong: bool = False  #: batches keep each client's own order; used only by the frontier of a pod


@dataclass(frozen=True, slots=True)
class CeilingNeed:
    """A topic that runs out of seqs, and the ceiling that would give it one step or several."""

    topic_id: TopicId
    ceiling: Seq
    wanted: Seq


@dataclass(frozen=True, slots=True)
class FrontierSnapshot:
    """A copy of the frontier's state; `CommitFrontier(**…)` of its fields restores it."""

    next_position: Position
    last_timestamp_ns: TimestampNs
    topics: tuple[TopicNumbers, ...]


class CommitFrontier:
    """Assigns numbers to the batches of one data directory; ceilings rise by `ceiling_step` seqs."""

    __slots__ = (
        *("_ceiling_step", "_counts", "_high_water", "_initial_seqs", "_keys", "_numbers", "_progress", "_rows"),
        *("_state", "_topics", "_used", "_values"),
    )

    def __init__(
        self,
        *,
        next_position: Position = _FIRST_POSITION,
        last_timestamp_ns: TimestampNs = _NO_TIMESTAMP,
        topics: Iterable[TopicNumbers] = (),
        ceiling_step: int = limits.CEILING_STEP,
        topics_max: int = limits.TOPICS_MAX,
        rows_max: int = limits.ADMISSION_ROWS,
    ) -> None:
        if ceiling_step < 4 or topics_max < 1 or rows_max < 1:
            raise InvalidInputError(
                f"a ceiling step of {ceiling_step}, {topics_max} topics, {rows_max} rows: at least 4, 1 and 1"
            )
        _check_number("next position", next_position)
        _check_number("last timestamp", last_timestamp_ns)
        self._ceiling_step = ceiling_step
        # Zeros cost no memory until they are touched, so the arrays have their maximal size.
        table = table_slots(topics_max)
        self._keys = np.zeros(table, np.uint64)
        self._values = np.zeros(table, np.int64)
        self._used = np.zeros(table, np.uint8)
        self._counts = np.zeros(1, np.int64)
        self._topics = np.zeros(topics_max, kernels.TOPIC_ROW)
        #: The next seq of each topic when it was added, by row.
        self._initial_seqs = np.zeros(topics_max, np.uint64)
        self._high_water = 0
        self._numbers = np.zeros(kernels.NUMBERS_SIZE, np.int64)
        self._numbers[kernels.NEXT_POSITION] = next_position
        self._numbers[kernels.LAST_TIMESTAMP] = last_timestamp_ns
        #: The argument of the kernels.
        self._state = (self._keys, self._values, self._used, self._topics, self._numbers)
        self._rows = np.zeros(rows_max, kernels.ADMISSION_ROW)
        self._progress = np.zeros(kernels.PROGRESS_SIZE, np.int64)
        for topic in topics:
            self.add_topic(topic)

    @property
    def next_position(self) -> Position:
        """The position of the next admitted batch."""
        return Position(int(self._numbers[kernels.NEXT_POSITION]))

    @property
    def last_timestamp_ns(self) -> TimestampNs:
        """The last timestamp of the hybrid clock."""
        return TimestampNs(int(self._numbers[kernels.LAST_TIMESTAMP]))

    def admit(
        self,
        buffer: Bytes | bytearray | memoryview,
        *,
        term: Term,
        wall_ns: int,
        start: int = 0,
        end: int | None = None,
        window: ClientWindow | None = None,
    ) -> Admission:
        """Decide the adjacent batches in `buffer[start:end]`, and stamp the admitted ones in place.

        Their checksums were verified on arrival. With a window, each batch of a session goes through it.
        """
        view = np.frombuffer(buffer, np.uint8)
        end = view.size if end is None else end
        if not view.flags.writeable or not 0 <= start <= end <= view.size:
            raise InvalidInputError(f"bytes {start} to {end} of a buffer of {view.size}: a writable range is needed")
        if not 0 <= term <= _TERM_MAX:
            raise InvalidInputError(f"term {term} does not fit a batch header: it is from 0 to {_TERM_MAX}")
        _check_number("wall clock", wall_ns)
        given, found = (view, start, end, term, wall_ns, self._state), (self._rows, self._progress)
        if window is None:
            code = admit_run(*given, *found)
        else:
            code = admit_client_run(*given, *window.admission_arrays, *found)
        count, consumed = self._progress.tolist()
        return Admission(RunStop(code), self._rows[:count], consumed)

    def number(
        self,
        draft: Draft,
        header: Bytes,
        at: int,
        block: Bytes,
        start: int,
        end: int,
        term: Term,
        wall_ns: int,
        window: ClientWindow | None = None,
    ) -> Numbered:
        """Write the header of `block[start:end]` into `header[at:at + 96]`, decide the batch, and stamp it if admitted.

        The ceiling must be high enough for it. The header is valid only if the status is OK.
        """
        given = (header, at, block, start, end, draft[:], term, wall_ns, self._state)
        if window is None:
            code = number_batch(*given, self._rows)
        else:
            code = number_client_batch(*given, *window.admission_arrays, self._rows)
        if code != kernels.RUN_DONE:
            raise InvariantError("INV-FRONTIER-CEILING", f"{draft} stopped with {RunStop(code).name}")
        _, position, base_seq, base_offset, timestamp, size, topic, count, reason, status, _ = self._rows[0].item()
        return Numbered(
            _STATUSES[status], reason, position, topic, base_seq, base_offset, timestamp, count, draft.raw_length, size
        )

    @property
    def rows_max(self) -> int:
        """The maximal number of batches per call."""
        return self._rows.size

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The arrays of the frontier, in the order of the parameters of `kernels.log.staging` and similar kernels."""
        return *self._state, self._rows

    @property
    def state(self) -> FrontierArrays:
        """The hash table of topics (keys, values, used), their rows, and the counters that all topics share."""
        return self._state

    def number_control(self, wall_ns: int) -> tuple[Position, TimestampNs]:
        """Assign a position and a timestamp to a control batch."""
        _check_number("wall clock", wall_ns)
        position = self.next_position
        timestamp_ns = HybridClock(self.last_timestamp_ns).now(wall_ns)
        self._numbers[kernels.NEXT_POSITION] = position + 1
        self._numbers[kernels.LAST_TIMESTAMP] = timestamp_ns
        return position, timestamp_ns

    def number_transaction(self, headers: Bytes, term: Term, wall_ns: int) -> tuple[Position, TimestampNs, Rows]:
        """Stamp adjacent headers, all at one position; returns that, its time, and a row for each header.

        Topics and ceilings must allow all of them. Uses a position even without headers.
        """
        _check_number("wall clock", wall_ns)
        rows = np.zeros(headers.size // limits.BATCH_HEADER_SIZE, kernels.ADMISSION_ROW)
        position = self.next_position
        code = admit_transaction(headers, term, wall_ns, self._state, rows)
        check(code == kernels.RUN_DONE, "INV-FRONTIER-CEILING", f"a batch at position {position} stopped with {code}")
        return position, self.last_timestamp_ns, rows

    def add_topic(self, topic: TopicNumbers) -> None:
        """Admit batches of a topic from now on; `ConflictError` if the topic exists, deleted or not."""
        _check_topic(topic)
        if self._row_of(topic.topic_id) is not None:
            raise ConflictError(f"topic {topic.topic_id} already exists in the frontier")
        row = self._free_row()
        table_put(self._keys, self._values, self._used, self._counts, np.uint64(topic.topic_id), row)
        self._topics[row] = (
            *(topic.topic_id, _flags_of(topic), topic.next_seq, topic.next_offset, topic.ceiling),
            *(topic.last_timestamp_ns, topic.record_total, topic.byte_total, 0),
        )
        self._initial_seqs[row] = topic.next_seq

    def remove_topic(self, topic_id: TopicId) -> None:
        """Mark a topic as deleted; its batches are refused from now on."""
        self._topics[self._live_row(topic_id)]["flags"] |= kernels.TOPIC_DELETED

    def set_full(self, topic_id: TopicId, is_full: bool) -> None:
        """Refuse the batches of a topic while it is full or read-only."""
        row = self._live_row(topic_id)
        flags = int(self._topics[row]["flags"]) & ~kernels.TOPIC_FULL
        self._topics[row]["flags"] = flags | (kernels.TOPIC_FULL if is_full else 0)

    def set_ceiling(self, topic_id: TopicId, ceiling: Seq) -> None:
        """Raise the ceiling of a topic; the new one must be durable in the log."""
        row = self._live_row(topic_id)
        _check_number("ceiling", ceiling)
        if ceiling < self._topics[row]["ceiling"]:
            raise ConflictError(
                f"ceiling {ceiling} of topic {topic_id} is below its current one, {self._topics[row]['ceiling']}"
            )
        self._topics[row]["ceiling"] = ceiling
        self._topics[row]["wanted"] = 0

    def seqs_left(self, topic_id: TopicId) -> int:
        """The number of seqs that a topic has left below its ceiling."""
        topic = self._topics[self._live_row(topic_id)]
        return int(topic["ceiling"] - topic["next_seq"])

    def needs_ceiling(self) -> list[CeilingNeed]:
        """Topics with less than a quarter of a step of seqs left or with a waiting batch, by rising topic id."""
        topics = self._topics[: self._high_water]
        left = topics["ceiling"] - topics["next_seq"]
        is_live = (topics["flags"] & (kernels.TOPIC_EXISTS | kernels.TOPIC_DELETED)) == kernels.TOPIC_EXISTS
        short = np.flatnonzero(is_live & ((left < self._ceiling_step // 4) | (topics["wanted"] > 0)))
        return [
            CeilingNeed(
                TopicId(int(topics["topic_id"][row])), Seq(int(topics["ceiling"][row])), self._higher_ceiling(row)
            )
            for row in short[np.argsort(topics["topic_id"][short])].tolist()
        ]

    def _higher_ceiling(self, row: int) -> Seq:
        next_seq, wanted = int(self._topics["next_seq"][row]), int(self._topics["wanted"][row])
        step, used = self._ceiling_step, next_seq - int(self._initial_seqs[row])
        return Seq(max(next_seq, wanted) + min(max(step, used), step * CEILING_STEPS_MAX))

    def topic(self, topic_id: TopicId) -> TopicNumbers:
        """The numbers of a topic, deleted or not."""
        row = self._row_of(topic_id)
        if row is None:
            raise NotFoundError(f"topic {topic_id} is unknown to the frontier")
        return _numbers_of(self._topics[row])

    def export_rows(self) -> Bytes:
        """The rows of all topics, deleted ones too, 64 bytes each, by rising id."""
        topics = self._topics[: self._high_water]
        return topics[np.argsort(topics["topic_id"])].view(np.uint8)

    def import_rows(self, rows: Bytes) -> None:
        """Add the topics of rows from `export_rows`."""
        for row in rows.view(kernels.TOPIC_ROW):
            self.add_topic(_numbers_of(row))

    def snapshot(self) -> FrontierSnapshot:
        """A copy of the state, topics by rising id; to store it, or to start another frontier from it."""
        topics = self._topics[: self._high_water]
        topics = topics[np.argsort(topics["topic_id"])]
        rows = tuple(_numbers_of(topic) for topic in topics)
        return FrontierSnapshot(self.next_position, self.last_timestamp_ns, rows)

    def clear(self) -> None:
        """Clear the arrays in place, so that other users of the arrays see what recovery writes there."""
        for array in (*self._state, self._counts):
            array[:] = np.zeros((), array.dtype)
        self._high_water = 0

    def skip_to(self, topic_id: TopicId, next_seq: Seq) -> None:
        """Assign no seq of a topic below `next_seq` any more; the ceiling must allow it."""
        row = self._live_row(topic_id)
        ceiling = int(self._topics[row]["ceiling"])
        check(next_seq <= ceiling, "INV-FRONTIER-CEILING", f"topic {topic_id} skips to {next_seq}, ceiling {ceiling}")
        self._topics[row]["next_seq"] = max(int(self._topics[row]["next_seq"]), next_seq)

    def _row_of(self, topic_id: TopicId) -> int | None:
        entry = table_find(self._keys, self._used, np.uint64(topic_id))
        return None if entry == ABSENT else int(self._values[entry])

    def _live_row(self, topic_id: TopicId) -> int:
        row = self._row_of(topic_id)
        if row is None or self._topics[row]["flags"] & kernels.TOPIC_DELETED:
            raise NotFoundError(f"topic {topic_id} does not exist, or is deleted")
        return row

    def _free_row(self) -> int:
        """An unused row, else that of the deleted topic with the lowest id."""
        if self._high_water < self._topics.size:
            self._high_water += 1
            return self._high_water - 1
        deleted = np.flatnonzero(self._topics["flags"] & kernels.TOPIC_DELETED)
        if deleted.size == 0:
            raise FullError(f"{self._topics.size} topics exist, no more are possible: delete one first")
        row = int(deleted[np.argmin(self._topics["topic_id"][deleted])])
        table_remove(self._keys, self._values, self._used, self._counts, np.uint64(self._topics[row]["topic_id"]))
        return row


def at_ceiling(topic: TopicNumbers) -> TopicNumbers:
    """The state of a topic after a crash: seqs below its ceiling may have been visible, so they are not reused."""
    check(topic.next_seq <= topic.ceiling, "INV-FRONTIER-CEILING", f"next {topic.next_seq}, ceiling {topic.ceiling}")
    return replace(topic, next_seq=topic.ceiling)


def _flags_of(topic: TopicNumbers) -> int:
    deleted = kernels.TOPIC_DELETED if topic.is_deleted else 0
    full = kernels.TOPIC_FULL if topic.is_full else 0
    strong = kernels.TOPIC_STRONG if topic.is_strong else 0
    return kernels.TOPIC_EXISTS | deleted | full | strong


def _numbers_of(row: np.void) -> TopicNumbers:
    flags = int(row["flags"])
    return TopicNumbers(
        topic_id=TopicId(int(row["topic_id"])),
        next_seq=Seq(int(row["next_seq"])),
        next_offset=Offset(int(row["next_offset"])),
        ceiling=Seq(int(row["ceiling"])),
        last_timestamp_ns=TimestampNs(int(row["last_timestamp_ns"])),
        record_total=int(row["record_total"]),
        byte_total=int(row["byte_total"]),
        is_deleted=bool(flags & kernels.TOPIC_DELETED),
        is_full=bool(flags & kernels.TOPIC_FULL),
        is_strong=bool(flags & kernels.TOPIC_STRONG),
    )


def _check_topic(topic: TopicNumbers) -> None:
    if not 0 <= topic.topic_id < 1 << 32:
        raise InvalidInputError(f"topic id {topic.topic_id} is not allowed: it is a u32")
    for name in ("next_seq", "next_offset", "ceiling", "last_timestamp_ns", "record_total", "byte_total"):
        _check_number(f"{name} of topic {topic.topic_id}", getattr(topic, name))
    if not 1 <= topic.next_seq <= topic.ceiling:
        raise InvalidInputError(
            f"topic {topic.topic_id}: next seq {topic.next_seq} is not from 1 to its ceiling {topic.ceiling}"
        )


def signed(number: int) -> int:
    """The signed number with the same 64 bits, for kernels."""
    return number - (1 << 64) if number >> 63 else number


def _check_number(name: str, value: int) -> None:
    if not 0 <= value <= NUMBER_MAX:
        raise LimitError(f"{name} is {value}: it is from 0 to {NUMBER_MAX}")
