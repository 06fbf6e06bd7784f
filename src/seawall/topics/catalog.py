"""All topics of a data directory, the cursors of their readers, the last transaction of each owner, and all routers.

There are two kinds of methods. The planning ones (`create`, `delete`, `configure`, `commit`, `put_router`) return the
control that would make a change, or refuse; they change nothing. `apply_append`, `apply_run` and `apply` execute what
is in the log, in log order. Nothing else changes the catalog.

Invariants
- INV-TOPIC-ID-ONCE: a topic id is never given twice, and a name belongs to at most one topic. This also holds after the
  topic was deleted. Id 0 means no topic. The epoch of a topic is its id, so a name that is created again gets a higher
  epoch, and old names need not be remembered.
- INV-APPLY-ONCE: a batch of the log takes effect once, in its own topic, however often it is replayed. A batch below
  `next_position` has taken effect already and does nothing. An unpositioned control batch takes no position: it takes
  effect if it is at or after the log address from which replay continues after a snapshot.

A batch that names an unknown topic (deleted before the batch was ordered, or created in a damaged part of the log) does
nothing, and `apply` returns false. A create whose name is still taken ends the older topic: that happens only in a
damaged log, which lost the delete between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from seawall import limits
from seawall.core.checks import check
from seawall.core.identifiers import check_stored_name, check_topic_name, is_reserved_name
from seawall.core.routers import RouterInfo, RouterSettings
from seawall.core.transactions import CommittedTransaction, TopicSpan
from seawall.core.types import NumberedBatch, Offset, Position, Seq, Term, TimestampNs, TopicEpoch, TopicId
from seawall.errors import ConfigError, ConflictError, FullError, NotFoundError
from seawall.kernels.log.epochs import WalRows
from seawall.storage.control.batches import Control, SimpleControl, UnpositionedControl, parts_of
from seawall.storage.control.codec import Checkpoint, ClientRow, CursorCommit, Reference, RouterStep
from seawall.storage.control.documents import (
    Loss,
    RouterChange,
    TermStart,
    TopicConfigure,
    TopicCreate,
    TopicDelete,
)
from seawall.storage.control.order import OrderNop, OrderSkip
from seawall.storage.control.sessions import SessionsRetired
from seawall.storage.control.transactions import TransactionMark
from seawall.topics.changes import TopicChanges
from seawall.topics.config import Durability, TopicConfig, changed_config, stored_config
from seawall.topics.routers import Router, RouterTable
from seawall.topics.skips import Skip
from seawall.topics.state import TopicState
from seawall.topics.transactions import TransactionMemory
from seawall.wire.format.codes import ALL_TOPICS
from seawall.wire.format.fields import JsonObject


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far an owner has read a topic; `offset` is set for a version 1 consumer."""

    epoch: TopicEpoch
    next_seq: Seq
    offset: Offset | None = None


class TopicCatalog:
    """Every topic and cursor, as of `next_position`."""

    __slots__ = (
        "_by_id",
        "_by_name",
        "_cursor_count",
        "_cursors",
        "changes",
        "next_position",
        "next_topic_id",
        "routers",
        "term",
        "transactions",
    )

    def __init__(self) -> None:
        self._by_id: dict[TopicId, TopicState] = {}
        self._by_name: dict[str, TopicState] = {}
        self._cursors: dict[TopicId, dict[str, Cursor]] = {}
        self._cursor_count = 0
        self.next_topic_id = TopicId(1)
        self.next_position = Position(0)
        self.term = Term(0)
        self.transactions = TransactionMemory()
        self.routers = RouterTable()
        #: The topics that were changed last.
        self.changes = TopicChanges()

    def __len__(self) -> int:
        """The number of topics."""
        return len(self._by_id)

    def __iter__(self) -> Iterator[TopicState]:
        """Every topic, in the order of creation."""
        return iter(self._by_id.values())

    # --- queries -----------------------------------------------------------------------------------------------

    def find(self, topic_id: TopicId) -> TopicState | None:
        """The topic with this id, or None."""
        return self._by_id.get(topic_id)

    def named(self, name: str) -> TopicState:
        """The user topic with this name; `NotFoundError` if there is none, or if the name is reserved."""
        topic = self._by_name.get(name)
        if topic is None or is_reserved_name(name):
            raise NotFoundError(f"there is no topic {name!r} here; create it first, or check the data directory")
        return topic

    def has(self, name: str) -> bool:
        """True if there is a user topic with this name."""
        return name in self._by_name and not is_reserved_name(name)

    def find_named(self, name: str) -> TopicState | None:
        """The topic with this name, reserved or not, or None."""
        return self._by_name.get(name)

    def stored(self, name: str) -> TopicState:
        """The topic with this name, reserved or not; it must exist."""
        return self._by_name[name]

    def reserved(self, name: str) -> TopicState | None:
        """The internal topic with this reserved name, or None."""
        return self._by_name.get(name) if is_reserved_name(name) else None

    def names(self) -> list[str]:
        """The names of all user topics, sorted by their bytes."""
        return sorted(name for name in self._by_name if not is_reserved_name(name))

    def shown(self) -> Iterator[TopicState]:
        """Every user topic, in the order of creation."""
        return (topic for topic in self if not is_reserved_name(topic.name))

    def cursor(self, owner: str, topic_id: TopicId) -> Cursor | None:
        """How far an owner has read a topic."""
        return self._cursors.get(topic_id, {}).get(owner)

    def cursors(self, topic_id: TopicId) -> Mapping[str, Cursor]:
        """Every cursor of a topic by its owner."""
        return MappingProxyType(self._cursors.get(topic_id, {}))

    # --- planning ----------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        config: TopicConfig,
        created_ms: int = 0,
        *,
        is_reserved: bool = False,
        planned: Mapping[str, TopicCreate] = MappingProxyType({}),
    ) -> TopicCreate:
        """The control that creates a topic at a time; an internal topic if `is_reserved`.

        `planned` are the creations before it in the same commit, by name.
        """
        (check_stored_name if is_reserved else check_topic_name)(name)
        if name in self._by_name or name in planned:
            raise ConflictError(f"there is a topic {name!r} already")
        count, topic_id = len(self._by_id) + len(planned), TopicId(self.next_topic_id + len(planned))
        if count >= limits.TOPICS_MAX or topic_id >= ALL_TOPICS:
            raise FullError(f"no topic can be added: there are {count}, at most {limits.TOPICS_MAX}; delete some")
        _check_dead_letter(name, config)
        return TopicCreate(topic_id, name, TopicEpoch(topic_id), config.to_json(), created_ms)

    def delete(self, name: str) -> TopicDelete:
        """The control that deletes a topic."""
        topic = self.named(name)
        return TopicDelete(topic.topic_id, name, topic.epoch, topic.config.to_json())

    def configure(self, topic: TopicState, patch: JsonObject) -> TopicConfigure | None:
        """The control that changes settings of a topic; None if nothing would change."""
        config = changed_config(topic.config, patch)
        _check_dead_letter(topic.name, config)
        if config == topic.config:
            return None
        return TopicConfigure(topic.topic_id, topic.config.to_json(), config.to_json())

    def commit(self, owner: str, name: str, next_seq: Seq, offset: Offset | None = None) -> CursorCommit:
        """The control that sets a cursor."""
        topic = self.named(name)
        before = self.cursor(owner, topic.topic_id)
        if before is None and self._cursor_count >= limits.CURSORS_MAX:
            raise FullError(f"no cursor can be added: there are {self._cursor_count} already; delete unused topics")
        previous = Seq(0) if before is None else before.next_seq
        return CursorCommit(owner, topic.topic_id, topic.epoch, next_seq, previous, offset)

    def put_router(
        self,
        name: str,
        source: str,
        dest: str,
        settings: RouterSettings,
        planned: Mapping[str, TopicCreate] = MappingProxyType({}),
    ) -> RouterChange | None:
        """The control that creates a router or changes its settings; None if nothing would change.

        A new one begins at the end of its source. `planned` are the creations before it in the same commit, by name.
        """
        from_topic, to_topic = (planned.get(each) or self.named(each) for each in (source, dest))
        config = stored_config(to_topic.config) if isinstance(to_topic, TopicCreate) else to_topic.config
        if config.durability is Durability.EPHEMERAL:
            raise ConflictError(
                f"topic {dest!r} is kept in memory alone and would lose its copies at a restart, while router {name!r} "
                "would not make them again; route to a topic of another durability class"
            )
        next_seq = from_topic.next_seq if isinstance(from_topic, TopicState) else Seq(1)
        names = {from_topic.topic_id: source, to_topic.topic_id: dest}
        ids = (from_topic.topic_id, to_topic.topic_id)
        return self.routers.plan_put(name, *ids, settings, next_seq, lambda each: names.get(each) or self.name_of(each))

    def router_info(self, router: Router, blocked: str | None = None) -> RouterInfo:
        """The public description of a router."""
        names = (router.name, self.name_of(router.source_id), self.name_of(router.dest_id))
        return RouterInfo(*names, router.settings, router.forwarded, router.next_seq, blocked)

    def name_of(self, topic_id: TopicId) -> str:
        """The name of a topic, or its number if it does not exist."""
        topic = self._by_id.get(topic_id)
        return str(topic_id) if topic is None else topic.name

    # --- applying the log --------------------------------------------------------------------------------------

    def apply_append(self, header: NumberedBatch) -> bool:
        """Apply a logged append; false if it had no effect."""
        if not self._advance(header.position):
            return False
        topic = self._by_id.get(header.topic_id)
        if topic is not None:
            self._append(topic, header)
        return topic is not None

    def apply_run(self, rows: WalRows) -> list[tuple[TopicState, WalRows]]:
        """Apply many logged appends, in log order; returns those that had an effect, by topic."""
        topics = []
        self.changes.note_rows(rows["topic_id"])
        for run in by_topic(rows):
            topic = self._by_id.get(TopicId(int(run["topic_id"][0])))
            if topic is not None:
                topic.append_run(run)
                topics.append((topic, run))
        self._advance(Position(int(rows["position"][-1])))
        return topics

    def apply_ordered_run(self, rows: WalRows, next_position: Position) -> list[tuple[TopicState, WalRows]]:
        """Apply the appends of an ordered run that ends at `next_position`, whatever its last entries were."""
        topics = self.apply_run(rows) if len(rows) else []
        self.next_position = max(self.next_position, next_position)
        return topics

    def not_applied(self, rows: WalRows) -> WalRows:
        """The rows of a run that have not taken effect yet (INV-APPLY-ONCE)."""
        if rows["position"][0] >= self.next_position:
            return rows
        return rows.take(np.flatnonzero(rows["position"] >= self.next_position))

    def apply(self, control: Control, position: Position) -> bool:
        """Apply a logged control batch; false if some part of it had no effect."""
        if isinstance(control, UnpositionedControl):
            # It takes no position: the batch after it has this position and is not applied yet.
            if position < self.next_position:
                return False
        elif not self._advance(position):
            return False
        idle = 0
        for part in parts_of(control):
            idle += not self._apply_part(part, position)
        self._remember(parts_of(control), position)
        return not idle

    def apply_skip(self, skipped: OrderSkip, position: Position) -> bool:
        """Apply a SKIP of the order; false if its topic does not exist."""
        topic = self._by_id.get(skipped.topic_id)
        if topic is not None:
            topic.skips.add(Skip(position, skipped.client_id, skipped.first_client_seq, skipped.count))
        return topic is not None

    def _advance(self, position: Position) -> bool:
        """Advance past a position; false if it was applied already (INV-APPLY-ONCE)."""
        if position < self.next_position:
            return False
        self.next_position = Position(position + 1)
        return True

    def _apply_part(self, part: SimpleControl, position: Position) -> bool:
        match part:
            case TopicCreate():
                return self._create(part)
            case TermStart():
                self.term = max(self.term, part.term)
                return True
            case ClientRow() | SessionsRetired() | Checkpoint() | OrderNop() | TransactionMark():
                # No effect here: sessions belong to the store, checkpoints to the log.
                return True
            case RouterChange():
                return self._change_router(part)
            case RouterStep():
                return self.routers.step(part)
            case OrderSkip():
                return self.apply_skip(part, position)
        topic = self._by_id.get(part.topic_id)
        if topic is None:
            return False
        match part:
            case TopicDelete():
                self._remove(topic)
            case CursorCommit():
                self.set_cursor(part.owner, part.topic_id, Cursor(part.epoch, part.next_seq, part.offset))
            case Reference():
                self._append(topic, part.header)
            case Loss():
                self.changes.note(topic.topic_id)
                topic.apply(part)
            case _:
                topic.apply(part)
        return True

    def _change_router(self, change: RouterChange) -> bool:
        if change.source_id not in self._by_id or change.dest_id not in self._by_id:
            return False
        self.routers.change(change)
        return True

    def _remember(self, parts: Sequence[SimpleControl], position: Position) -> None:
        """Remember a transaction, if the parts of a control are one."""
        mark = parts[0]
        if not isinstance(mark, TransactionMark):
            return
        spans: dict[TopicId, TopicSpan] = {}
        timestamp_ns = TimestampNs(0)
        for part in parts:
            if isinstance(part, Reference):
                header, topic = part.header, self._by_id.get(part.topic_id)
                timestamp_ns = max(timestamp_ns, header.timestamp_ns)
                before = spans.get(part.topic_id, TopicSpan("" if topic is None else topic.name, header.base_seq, 0))
                spans[part.topic_id] = before._replace(record_count=before.record_count + header.record_count)
        key = (mark.owner, mark.epoch)
        self.transactions.remember(CommittedTransaction(*key, position, timestamp_ns, tuple(spans.values())))

    def _create(self, created: TopicCreate) -> bool:
        check(
            created.topic_id >= self.next_topic_id,
            "INV-TOPIC-ID-ONCE",
            f"topic {created.name} gets id {created.topic_id}, the next is {self.next_topic_id}",
        )
        older = self._by_name.get(created.name)
        if older is not None:
            self._remove(older)
        config = stored_config(created.config)
        self.restore(TopicState(created.topic_id, created.name, created.epoch, config, created.created_ms))
        self.changes.note(created.topic_id)
        return older is None

    def _append(self, topic: TopicState, header: NumberedBatch) -> None:
        topic.append(header)
        self.changes.note(topic.topic_id)

    def _remove(self, topic: TopicState) -> None:
        del self._by_id[topic.topic_id]
        del self._by_name[topic.name]
        self._cursor_count -= len(self._cursors.pop(topic.topic_id, {}))
        self.routers.forget_topic(topic.topic_id)
        self.changes.note(topic.topic_id)

    # --- restart -----------------------------------------------------------------------------------------------

    def restore(self, topic: TopicState) -> None:
        """Add a topic from a snapshot or a create."""
        check(topic.name not in self._by_name, "INV-TOPIC-ID-ONCE", topic.name)
        check(topic.topic_id not in self._by_id, "INV-TOPIC-ID-ONCE", f"{topic.name} {topic.topic_id}")
        self._by_id[topic.topic_id] = topic
        self._by_name[topic.name] = topic
        self.next_topic_id = max(self.next_topic_id, TopicId(topic.topic_id + 1))

    def set_cursor(self, owner: str, topic_id: TopicId, cursor: Cursor) -> None:
        """Set a cursor from a snapshot or a commit."""
        cursors = self._cursors.setdefault(topic_id, {})
        self._cursor_count += owner not in cursors
        cursors[owner] = cursor


def by_topic(rows: WalRows) -> list[WalRows]:
    """The rows of each topic, in their order."""
    topic_ids = rows["topic_id"]
    if (topic_ids == topic_ids[0]).all():
        return [rows]
    ordered = rows.take(np.argsort(topic_ids, kind="stable"))
    return np.split(ordered, np.flatnonzero(np.diff(ordered["topic_id"])) + 1)


def _check_dead_letter(name: str, config: TopicConfig) -> None:
    if config.dead_letter == name:
        raise ConfigError(f"dead_letter of topic {name!r} is the topic itself: dead jobs would return forever")
