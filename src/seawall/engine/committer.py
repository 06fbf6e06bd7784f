"""Appends of any topics, committed together: rooms, numbers, places, one epoch, and then they take effect.

    begin    1. room     space in segments, lane and log is reserved: a full disk is found before a number is given
             2. number   the frontier stamps position, seq, offset and time, in the order of the appends
             3. place    each batch gets the next file position of its topic's segment
             4. stage    small batches into the lane as they are, references to large ones
    (written by whoever waits: large batches at their places, then the epoch)
    finish   5. publish  catalog and index learn of it: readers may see it, the callers are told

What is wrong with one append (its topic is gone, is full, has no room) is its own error and leaves the others alone.

INV-STORE-ROOM: once a batch has its numbers nothing but a failing disk can keep it out of the log.
INV-REFERENCE-AFTER-DATA: the log refers to a large batch only after the batch is durable at its place.
INV-PUBLISH-IN-ORDER: commits are finished in the order in which they were begun; one is under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Final

from seawall import limits
from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.appends import AS_TOPIC_CHOICES, LARGE_BLOCK_SIZE, NO_SESSION, Append, Commit, logged_size
from seawall.engine.headroom import HEADROOM
from seawall.engine.parts import StoreParts
from seawall.engine.room_making import CONTROL_ROOM, Need
from seawall.engine.rooms import Room
from seawall.engine.write_guard import refusal_of
from seawall.errors import (
    CallerError,
    ConflictError,
    FencedError,
    FullError,
    NotFoundError,
    RetryableError,
    SeawallError,
    WrongStateError,
)
from seawall.io.interfaces import ReadableBuffer
from seawall.sequencer.frontier import Numbered
from seawall.storage.control import Ceiling
from seawall.storage.control_documents import FloorRaise
from seawall.topics.keys import KeyedAppend, key_of
from seawall.topics.state import TopicState
from seawall.wire.codes import AckStatus, BatchFlags, ErrorCode

_NS_PER_MS: Final = 1_000_000
_BATCH_HEADER: Final = limits.BATCH_HEADER_SIZE


class Committer:
    """The appends of one store."""

    def __init__(self, parts: StoreParts) -> None:
        self._catalog = parts.catalog
        self._writer = parts.writer
        self._controls = parts.controls
        self._removal = parts.removal
        self._window = parts.sessions.window
        self._clock = parts.machine.clock
        self._maker = parts.maker
        self._ceiling_step = parts.settings.ceiling_step
        self._rooms = parts.reservations.by_topic
        self._pending = parts.pending
        self._short_way = parts.pending.short_way

    def begin(self, appends: Sequence[Append]) -> Commit:
        """Number and stage what can be stored; the others have their error."""
        if self._writer.follows:
            _refuse(appends, WrongStateError("this store follows an order that others make: publish to who makes it"))
            return Commit()
        now = self._clock.wall_ns()
        if len(appends) == 1:
            append = appends[0]
            if not append.flags and append.client_id == NO_SESSION:
                room = self._short_room(append.topic_id, len(append.block), append.record_count, now)
                if room is not None:
                    return self._short_way.begin(append, now, room.is_durable)
        appends = self._unknown(self._of_sessions(appends), now)
        if not self._fits(appends, now):
            self._pending.apply()
            self._make_rooms(appends, TimestampNs(now))
        self._pending.apply()
        commit = Commit()
        is_written = False
        self._pin_places(appends, commit)
        for append in appends:
            if append.error is None:
                room = self._rooms[append.topic_id]
                if room.ahead or room.is_limited:
                    self._stage_ahead(room, commit, now)
                self._number(append, room, commit, now)
                commit.durable |= room.is_durable
                is_written |= room.is_written
        if is_written or commit.durable:
            commit.epoch = self._writer.begin_flush()
        return commit

    def _pin_places(self, appends: Sequence[Append], commit: Commit) -> None:
        """Have the files open that large batches go to; those that find no descriptor are refused."""
        for append in appends:
            if append.error is None and len(append.block) >= LARGE_BLOCK_SIZE:
                room = self._rooms[append.topic_id]
                if room.is_kept:
                    self._prepare((append,), partial(commit.pins.pin, room.filling.segment.shared))

    def begin_ahead(self, append: Append) -> Commit | None:
        """Begin the commit of one batch before the one under way is finished; None if that cannot be."""
        if append.flags or append.client_id != NO_SESSION or not self._short_way.has_begun:
            return None
        now = self._clock.wall_ns()
        room = self._short_room(append.topic_id, len(append.block), append.record_count, now)
        return None if room is None else self._short_way.begin(append, now, room.is_durable)

    def commit_lone(self, topic_id: TopicId, block: ReadableBuffer, count: int, state: Lock) -> Numbered | None:
        """Commit one plain block on this thread; None if it needs more than its numbers."""
        now, short_way = self._clock.wall_ns(), self._short_way
        with state:
            room = self._short_room(topic_id, len(block), count, now)
            if room is None:
                return None
            plain = (len(block), AS_TOPIC_CHOICES)
            commit, numbered = short_way.begin_block(topic_id, block, count, *plain, now, room.is_durable)
        commit.carry_out()
        with state:
            short_way.finish(commit)
        return numbered

    def finish(self, commit: Commit) -> None:
        """It is written: let it take effect."""
        if commit.goes_short:
            self._short_way.finish(commit)
            return
        commit.pins.unpin_all()
        if commit.epoch is not None:
            self._writer.finish_flush(commit.epoch, durable=commit.durable)
        for effect in commit.effects:
            if isinstance(effect, Append):
                assert effect.numbered is not None
                self._catalog.apply_append(effect.numbered)
                if effect.flags & BatchFlags.KEYED:
                    self._remember_key(effect, effect.numbered)
            else:
                self._catalog.apply(*effect)
                if isinstance(effect[0], FloorRaise):
                    self._removal.evicted(effect[0])

    def _remember_key(self, append: Append, numbered: Numbered) -> None:
        topic = self._topic(append.topic_id)
        last_seq = Seq(numbered.base_seq + numbered.record_count - 1)
        keyed = KeyedAppend(numbered.base_seq, last_seq, numbered.timestamp_ns // _NS_PER_MS)
        topic.keys.remember(key_of(append.client_id, append.client_seq), keyed)

    # --- rooms ---------------------------------------------------------------------------------------------------

    def _short_room(self, topic_id: TopicId, length: int, count: int, now: int) -> Room | None:
        """The room of a batch that may go the short way; then it is counted against it, and there is a row for it."""
        room = self._rooms.get(topic_id)
        writer = self._writer
        if room is None or not room.goes_short or length >= LARGE_BLOCK_SIZE or writer.staged or writer.follows:
            return None
        size = _BATCH_HEADER + length
        if count > room.records_left or size > room.bytes_left or now >= room.until_ns:
            return None
        if not self._writer.has_room(HEADROOM + size):
            return None
        if self._short_way.is_full:
            self._pending.apply()
            if self._short_way.is_full:
                # The rows of a commit that has begun are the last ones.
                return None
        room.records_left -= count
        room.bytes_left -= size
        return room

    def _fits(self, appends: Sequence[Append], now: int) -> bool:
        """Whether all appends fit the rooms there are; then they are counted against them."""
        logged = HEADROOM
        for append in appends:
            length = len(append.block)
            room = self._rooms.get(append.topic_id)
            if room is None or not room.take(append.record_count, _BATCH_HEADER + length, now):
                return False
            logged += logged_size(length)
        return self._writer.has_room(logged)

    def screen(self, appends: Sequence[Append], commit: Commit, now: int) -> list[Append]:
        """Those that others may number: their topics take them, and their keys are new. The rest have their answers."""
        appends = self._unknown(appends, now)
        self._admit_all(appends, TimestampNs(now))
        return [
            append
            for append in appends
            if append.error is None
            and not (
                append.flags & BatchFlags.KEYED and self._is_repeated(append, self._topic(append.topic_id), commit, now)
            )
        ]

    def takes(self, topic: TopicState, need: Need, now_ns: TimestampNs) -> bool:
        """Whether a topic takes so much more, as far as it has a say in that."""
        try:
            self._removal.check_room(topic, need.records, need.plain_size, now_ns)
        except (CallerError, RetryableError):
            return False
        return True

    def _admit_all(self, appends: Sequence[Append], now_ns: TimestampNs) -> list[list[Append]]:
        """Appends by topic, of the topics that take them."""
        by_topic: dict[TopicId, list[Append]] = {}
        for append in appends:
            by_topic.setdefault(append.topic_id, []).append(append)
        return [group for group in by_topic.values() if self._prepare(group, partial(self._admit, group, now_ns))]

    def _make_rooms(self, appends: Sequence[Append], now_ns: TimestampNs) -> None:
        """For each topic the segment that takes its batches, with room for them there and in the log."""
        # First what may log something of its own, which forgets rooms: ceilings, and evictions that make room.
        ready = self._admit_all(appends, now_ns)
        logged = HEADROOM
        for group in ready:
            needed = CONTROL_ROOM + sum(logged_size(len(append.block)) for append in group)
            if self._prepare(group, partial(self._make_room, group, logged + needed, now_ns)):
                logged += needed

    def _prepare(self, group: Sequence[Append], step: Callable[[], None]) -> bool:
        """One step before numbers are given; what is refused in it is the error of the group alone."""
        try:
            step()
        except (CallerError, RetryableError) as error:
            _refuse(group, error)
            return False
        except OSError as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            _refuse(group, refusal)
            return False
        return True

    def _admit(self, group: Sequence[Append], now_ns: TimestampNs) -> None:
        """Whether a topic takes so much more, and seqs for it below a durable ceiling."""
        topic, need = self._topic(group[0].topic_id), need_of(group)
        self._removal.check_room(topic, need.records, need.plain_size, now_ns)
        self._raise_ceiling(topic, need.records)

    def _topic(self, topic_id: TopicId) -> TopicState:
        topic = self._catalog.find(topic_id)
        if topic is None:
            raise NotFoundError(f"topic {topic_id} was deleted before its records were stored; publish anew")
        return topic

    def _make_room(self, group: Sequence[Append], logged: int, now_ns: TimestampNs) -> None:
        """Room for the batches of one topic, in its segment and in the log, and below the ceiling."""
        topic = self._topic(group[0].topic_id)
        room = self._maker.make(topic, need_of(group), logged, now_ns)
        seqs_left = self._writer.frontier.seqs_left(topic.topic_id) - self._ceiling_step // 4
        room.records_left = min(room.records_left, seqs_left - sum(append.record_count for append in group))
        self._rooms[topic.topic_id] = room

    def _raise_ceiling(self, topic: TopicState, wanted: int) -> None:
        """Log a higher ceiling ahead of need: `wanted` seqs must lie below a durable one, and some more."""
        left = self._writer.frontier.seqs_left(topic.topic_id)
        if left - wanted < self._ceiling_step // 4:
            ceiling = Seq(topic.next_seq + left)
            self._controls.commit(Ceiling(topic.topic_id, Seq(topic.next_seq + wanted + self._ceiling_step), ceiling))

    # --- numbers and places --------------------------------------------------------------------------------------

    def _stage_ahead(self, room: Room, commit: Commit, now: int) -> None:
        """What has to be in the log before the first batch of a room."""
        for control in room.ahead:
            commit.effects.append((control, self._writer.stage_control(control, now)))
            # What readers were told to be gone must not come back with a crash, in no class.
            commit.durable |= room.is_kept and isinstance(control, FloorRaise)
        room.ahead = []
        room.goes_short = room.is_written and not self._writer.is_observed
        if room.is_limited and room.topic not in commit.limited:
            commit.limited.append(room.topic)

    def _number(self, append: Append, room: Room, commit: Commit, now: int) -> None:
        """Give one batch its numbers and its place, and stage it."""
        if append.flags & BatchFlags.KEYED and self._is_repeated(append, room.topic, commit, now):
            return
        filling, segment, draft = room.filling, room.filling.segment, append.draft()
        window = self._window if append.has_session else None
        if room.is_kept and len(append.block) < LARGE_BLOCK_SIZE:
            numbered, address = self._writer.stage_batch(draft, append.block, now, window)
            if not is_admitted(append, numbered):
                return
            at = segment.place(numbered.size)
            filling.waiting.add(len(segment.index), address)
        else:
            numbered, header = self._writer.number_apart(draft, append.block, now, window)
            if not is_admitted(append, numbered):
                return
            at = segment.place(numbered.size)
            if room.is_kept:
                commit.add_place(segment.shared, at, [header, append.block], is_uncached=room.is_uncached)
                self._writer.stage_reference(header, segment.first_seq, at)
            else:
                # Memory needs nobody to write it; readers see it when it is published.
                segment.write_at(at, [header, append.block])
                self._writer.stage_reference(header, Seq(0), 0)
        segment.index.append(
            base_seq=numbered.base_seq,
            at=at,
            timestamp_ns=numbered.timestamp_ns,
            base_offset=numbered.base_offset,
            position=numbered.position,
            count=numbered.record_count,
            length=numbered.size,
        )
        commit.effects.append(append)

    def _of_sessions(self, appends: Sequence[Append]) -> Sequence[Append]:
        """Appends but those of sessions that are not there any more: these are refused."""
        strays = [each for each in appends if each.has_session and each.client_id not in self._window]
        for append in strays:
            append.error = _refusal(append, ErrorCode.FENCED)
        return [append for append in appends if append.error is None] if strays else appends

    def _unknown(self, appends: Sequence[Append], now: int) -> Sequence[Append]:
        """Appends but those whose keys are known: these have the numbers of the first, and need no room anywhere."""
        if not any(append.flags & BatchFlags.KEYED for append in appends):
            return appends
        return [append for append in appends if not (append.flags & BatchFlags.KEYED and self._is_known(append, now))]

    def _is_known(self, append: Append, now: int) -> bool:
        topic = self._catalog.find(append.topic_id)
        if topic is None:
            return False
        key = key_of(append.client_id, append.client_seq)
        found = topic.keys.find(key, now // _NS_PER_MS, topic.config.idempotency_window_ms)
        if found is not None:
            append.numbered = _stored_before(topic.topic_id, found)
        return found is not None

    def _is_repeated(self, append: Append, topic: TopicState, commit: Commit, now: int) -> bool:
        """Whether an append of this commit has its key; then it has the numbers of that, or a full topic's error."""
        key = key_of(append.client_id, append.client_seq)
        first = commit.keyed.get((topic.topic_id, key))
        if first is not None:
            if first.numbered is not None:
                append.numbered = first.numbered._replace(status=AckStatus.DUPLICATE)
            return True
        try:
            topic.keys.require_room(now // _NS_PER_MS, topic.config.idempotency_window_ms)
        except FullError as error:
            append.error = error
            return True
        commit.keyed[topic.topic_id, key] = append
        return False


def _refuse(appends: Sequence[Append], error: SeawallError) -> None:
    for append in appends:
        append.error = error


def need_of(group: Sequence[Append]) -> Need:
    """What appends of one topic take together."""
    records = sum(append.record_count for append in group)
    plain_size = sum(append.raw_length or len(append.block) for append in group)
    return Need(records, plain_size, sum(_BATCH_HEADER + len(append.block) for append in group))


def _stored_before(topic_id: TopicId, found: KeyedAppend) -> Numbered:
    """The numbers of an append whose key was seen before: its seqs and its time; the rest is not remembered."""
    count = found.last_seq - found.first_seq + 1
    when = TimestampNs(found.at_ms * _NS_PER_MS)
    return Numbered(AckStatus.DUPLICATE, 0, Position(0), topic_id, found.first_seq, Offset(0), when, count, 0, 0)


def is_admitted(append: Append, numbered: Numbered) -> bool:
    """Whether a batch is new and stored; what the window says of any other goes to its publisher."""
    append.numbered = numbered
    if numbered.status is AckStatus.REJECTED:
        append.error = _refusal(append, numbered.reason)
    elif numbered.status is AckStatus.DUPLICATE and numbered.base_seq == 0:
        # Stored before, and its numbers are not remembered any more: the publisher is told that, and nothing made up.
        append.numbered = numbered._replace(position=Position(0))
    return numbered.status is AckStatus.OK


def _refusal(append: Append, reason: int) -> SeawallError:
    client = f"batch {append.client_seq} of client {append.client_id:016x}"
    if reason == ErrorCode.FENCED:
        return FencedError(f"{client}: a newer session of this client has taken over, or its session was retired")
    if reason == ErrorCode.OUTSIDE_SESSION_WINDOW:
        window = limits.SESSION_WINDOW_BATCHES
        return ConflictError(f"{client} is outside the window of {window} batches, or older than its session: too old")
    if reason == ErrorCode.PAYLOAD_MISMATCH:
        return ConflictError(f"{client} was stored before with other records; a client seq is used once")
    return ConflictError(f"{client} was refused with reason {reason:#04x}")
