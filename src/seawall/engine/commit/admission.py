"""Admits appends: their topic exists and has space, their keys are new, and their seqs are below a durable ceiling.

An append that is refused gets an error of its own; the others are not affected. Nothing is numbered here, so a refused
append changes nothing, except for evictions that make space and raised ceilings, which are logged immediately.

A crash loses nothing here. This module must not know how appends are numbered or staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from seawall import limits
from seawall.core.types import Offset, Position, Seq, TimestampNs, TopicId
from seawall.engine.commit.appends import Append, Commit
from seawall.engine.commit.reserver import Need
from seawall.engine.store.parts import StoreParts
from seawall.engine.store.write_guard import refusal_of
from seawall.errors import (
    CallerError,
    ConflictError,
    FencedError,
    FullError,
    NotFoundError,
    RetryableError,
    SeawallError,
)
from seawall.sequencer.frontier import Numbered
from seawall.storage.control.codec import Ceiling
from seawall.topics.keys import KeyedAppend, key_of
from seawall.topics.state import TopicState
from seawall.wire.format.codes import AckStatus, BatchFlags, ErrorCode

_NS_PER_MS: Final = 1_000_000
_BATCH_HEADER: Final = limits.BATCH_HEADER_SIZE


class Admission:
    """Admits or refuses the appends of one store."""

    def __init__(self, parts: StoreParts) -> None:
        self._catalog = parts.catalog
        self._frontier = parts.writer.frontier
        self._controls = parts.controls
        self._cleaner = parts.cleaner
        self._window = parts.sessions.window
        self._ceiling_step = parts.settings.ceiling_step

    def screen(self, appends: Sequence[Append], commit: Commit, now: int) -> list[Append]:
        """The appends that may be numbered: admitted, with new keys. The others have their numbers or errors then."""
        appends = self.without_known_keys(appends, now)
        self.admit_all(appends, TimestampNs(now))
        return [
            append
            for append in appends
            if append.error is None
            and not (
                append.flags & BatchFlags.KEYED and self.is_repeated(append, self.topic(append.topic_id), commit, now)
            )
        ]

    def has_space(self, topic: TopicState, need: Need, now_ns: TimestampNs) -> bool:
        """True if the caps of a topic allow this much more."""
        try:
            self._cleaner.check_space(topic, need.records, need.plain_size, now_ns)
        except (CallerError, RetryableError):
            return False
        return True

    def admit_all(self, appends: Sequence[Append], now_ns: TimestampNs) -> list[list[Append]]:
        """Group appends by topic, and admit each group: the groups that were admitted."""
        by_topic: dict[TopicId, list[Append]] = {}
        for append in appends:
            by_topic.setdefault(append.topic_id, []).append(append)
        return [group for group in by_topic.values() if self.attempt(group, partial(self._admit, group, now_ns))]

    def attempt(self, group: Sequence[Append], step: Callable[[], None]) -> bool:
        """Run a step that precedes numbering; False if it was refused, and then its error is that of the group."""
        try:
            step()
        except (CallerError, RetryableError) as error:
            refuse(group, error)
            return False
        except OSError as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            refuse(group, refusal)
            return False
        return True

    def _admit(self, group: Sequence[Append], now_ns: TimestampNs) -> None:
        """Check the caps of a topic, and make sure of enough seqs below a durable ceiling."""
        topic, need = self.topic(group[0].topic_id), need_of(group)
        self._cleaner.check_space(topic, need.records, need.plain_size, now_ns)
        self._raise_ceiling(topic, need.records)

    def topic(self, topic_id: TopicId) -> TopicState:
        """The topic of an append; `NotFoundError` if it has been deleted."""
        topic = self._catalog.find(topic_id)
        if topic is None:
            raise NotFoundError(f"topic {topic_id} was deleted before its records were stored; publish anew")
        return topic

    def _raise_ceiling(self, topic: TopicState, wanted: int) -> None:
        """Log a higher ceiling before it is needed: `wanted` seqs and some more must be below a durable one."""
        left = self._frontier.seqs_left(topic.topic_id)
        if left - wanted < self._ceiling_step // 4:
            ceiling = Seq(topic.next_seq + left)
            self._controls.commit(Ceiling(topic.topic_id, Seq(topic.next_seq + wanted + self._ceiling_step), ceiling))

    # --- sessions and keys ----------------------------------------------------------------------------------------

    def without_ended_sessions(self, appends: Sequence[Append]) -> Sequence[Append]:
        """The appends without those of ended sessions, which are refused."""
        fenced = [each for each in appends if each.has_session and each.client_id not in self._window]
        for append in fenced:
            append.error = _refusal(append, ErrorCode.FENCED)
        return [append for append in appends if append.error is None] if fenced else appends

    def without_known_keys(self, appends: Sequence[Append], now: int) -> Sequence[Append]:
        """The appends without those of known keys, which get the numbers of the original and need no space."""
        if not any(append.flags & BatchFlags.KEYED for append in appends):
            return appends
        return [append for append in appends if not (append.flags & BatchFlags.KEYED and self._is_known(append, now))]

    def remember_key(self, append: Append, numbered: Numbered) -> None:
        """Remember the key of a stored append."""
        topic = self.topic(append.topic_id)
        last_seq = Seq(numbered.base_seq + numbered.record_count - 1)
        keyed = KeyedAppend(numbered.base_seq, last_seq, numbered.timestamp_ns // _NS_PER_MS)
        topic.keys.remember(key_of(append.client_id, append.client_seq), keyed)

    def _is_known(self, append: Append, now: int) -> bool:
        topic = self._catalog.find(append.topic_id)
        if topic is None:
            return False
        key = key_of(append.client_id, append.client_seq)
        found = topic.keys.find(key, now // _NS_PER_MS, topic.config.idempotency_window_ms)
        if found is not None:
            append.numbered = _stored_before(topic.topic_id, found)
        return found is not None

    def is_repeated(self, append: Append, topic: TopicState, commit: Commit, now: int) -> bool:
        """True if the append must not be stored, and has its answer.

        Either an earlier append of this commit has the same key, and gives its numbers, or the topic has no space for
        another key, and the append gets that error.
        """
        key = key_of(append.client_id, append.client_seq)
        first = commit.keyed.get((topic.topic_id, key))
        if first is not None:
            if first.numbered is not None:
                append.numbered = first.numbered._replace(status=AckStatus.DUPLICATE)
            return True
        try:
            topic.keys.require_space(now // _NS_PER_MS, topic.config.idempotency_window_ms)
        except FullError as error:
            append.error = error
            return True
        commit.keyed[topic.topic_id, key] = append
        return False


def need_of(group: Sequence[Append]) -> Need:
    """What the appends of one topic need together."""
    records = sum(append.record_count for append in group)
    plain_size = sum(append.raw_length or len(append.block) for append in group)
    return Need(records, plain_size, sum(_BATCH_HEADER + len(append.block) for append in group))


def record_outcome(append: Append, numbered: Numbered) -> bool:
    """Set the numbers of an append, or its error; True if it is new and will be stored."""
    append.numbered = numbered
    if numbered.status is AckStatus.REJECTED:
        append.error = _refusal(append, numbered.reason)
    elif numbered.status is AckStatus.DUPLICATE and numbered.base_seq == 0:
        # A duplicate whose numbers are no longer remembered: report them as unknown.
        append.numbered = numbered._replace(position=Position(0))
    return numbered.status is AckStatus.OK


def refuse(appends: Sequence[Append], error: SeawallError) -> None:
    """Refuse appends, all with the same error."""
    for append in appends:
        append.error = error


def _stored_before(topic_id: TopicId, found: KeyedAppend) -> Numbered:
    """The numbers of an append whose key is known: its seqs and its time; the rest is not remembered."""
    count = found.last_seq - found.first_seq + 1
    when = TimestampNs(found.at_ms * _NS_PER_MS)
    return Numbered(AckStatus.DUPLICATE, 0, Position(0), topic_id, found.first_seq, Offset(0), when, count, 0, 0)


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
