"""Stores the catalog in sections of a metadata snapshot, and loads it.

| section  | content                                                                                              |
|----------|------------------------------------------------------------------------------------------------------|
| CATALOG  | JSON: next_topic_id, term                                                                            |
| TOPICS   | JSON: topics, an array of objects with every number of a topic, its config and its loss ranges       |
| CURSORS  | JSON: cursors, an array of [topic_id, owner, epoch, next_seq, offset or null]                        |
| KEYS     | JSON: keys, an array of [topic_id, key in hex, first_seq, last_seq, at_ms], oldest first in a topic  |
| DELETED  | for each topic with deleted records: topic_id u32, count u32, then count × (first u64, last u64)     |
| SKIPS    | for each: topic_id u32, count u32, position u64, client_id u64, first client_seq u64; by topic, then |
|          | position; the first row of a topic with count 0, client 0 and seq 0 gives the position below which   |
|          | it has forgotten SKIPs                                                                               |
| TRANSACTIONS | JSON: transactions, an array of [owner, epoch, position, timestamp_ns, spans], oldest first; a   |
|          | span is [topic name, first_seq, record_count]                                                        |
| LEASES   | for each queue that keeps leases: topic_id u32, count u32, then count rows of a LEASES control        |
| ROUTERS  | JSON: routers, an array of [name, source_id, dest_id, next_seq, forwarded, settings], oldest first   |

Tags are not stored here: they are in the records. Inconsistent sections (an unknown topic, a floor above the head, a
wrong number of live records) raise `CorruptionError`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from seawall.core.identifiers import check_router_name, check_stored_name
from seawall.core.transactions import CommittedTransaction, TopicSpan
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, Term, TimestampNs, TopicEpoch, TopicId
from seawall.errors import CorruptionError, InvalidInputError, InvariantError, ProtocolError
from seawall.limits import JOBS_MAX
from seawall.storage.control.codec import require_unsigned
from seawall.storage.control.queues import LEASE_ROW, Leases
from seawall.storage.control.transactions import check_key
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.topics.catalog import Cursor, TopicCatalog
from seawall.topics.config import stored_config
from seawall.topics.gaps import Gap
from seawall.topics.keys import KeyedAppend
from seawall.topics.ranges import SeqRanges
from seawall.topics.routers import Router, stored_settings
from seawall.topics.skips import Skip
from seawall.topics.state import TopicState
from seawall.wire.format.codes import GapReason
from seawall.wire.format.fields import JsonObject, JsonValue, json_object, json_text, json_unsigned, write_json

_DELETED: Final = Struct("<II")
_RANGE: Final = Struct("<QQ")
_SKIP: Final = Struct("<IIQQQ")

#: Seqs fit 63 bits, so that arrays of them can be signed.
_SEQ_LIMIT: Final = 1 << 63

_REASONS: Final = {int(reason): reason for reason in GapReason}

#: The plain numbers of a topic: the JSON keys are the field names.
_NUMBERS: Final = (
    *("head_seq", "end_offset", "last_timestamp_ns", "ceiling", "segment_first_seq", "floor", "cap_floor"),
    *("ttl_floor", "live_records", "live_bytes", "created_ms", "dead_lettered"),
)


def catalog_sections(catalog: TopicCatalog) -> dict[SectionKind, bytes]:
    """The catalog as snapshot sections."""
    cursors: list[JsonValue] = []
    keys: list[JsonValue] = []
    for topic in catalog:
        for owner, cursor in catalog.cursors(topic.topic_id).items():
            cursors.append([topic.topic_id, owner, cursor.epoch, cursor.next_seq, cursor.offset])
        for key, append in topic.keys:
            keys.append([topic.topic_id, key.hex(), append.first_seq, append.last_seq, append.at_ms])
    topics: list[JsonValue] = [_topic_document(topic) for topic in catalog]
    transactions: list[JsonValue] = [_transaction_row(each) for each in catalog.transactions]
    return {
        SectionKind.CATALOG: write_json({"next_topic_id": catalog.next_topic_id, "term": catalog.term}),
        SectionKind.TOPICS: write_json({"topics": topics}),
        SectionKind.CURSORS: write_json({"cursors": cursors}),
        SectionKind.KEYS: write_json({"keys": keys}),
        SectionKind.DELETED: b"".join(_deleted_bytes(topic) for topic in catalog if len(topic.deleted)),
        SectionKind.SKIPS: b"".join(_skip_bytes(topic) for topic in catalog),
        SectionKind.TRANSACTIONS: write_json({"transactions": transactions}),
        SectionKind.LEASES: b"".join(_lease_bytes(topic) for topic in catalog if len(topic.durable_leases)),
        SectionKind.ROUTERS: write_json({"routers": [_router_row(each) for each in catalog.routers]}),
    }


def load_catalog(snapshot: Snapshot) -> TopicCatalog:
    """Load the catalog that `catalog_sections` stored in a snapshot."""
    catalog = TopicCatalog()
    try:
        _load(snapshot, catalog)
    except (ProtocolError, InvalidInputError, InvariantError) as error:
        raise CorruptionError(f"snapshot at position {snapshot.position}: {error}") from error
    return catalog


def _load(snapshot: Snapshot, catalog: TopicCatalog) -> None:
    deleted = _parse_deleted(snapshot.section(SectionKind.DELETED))
    for document in _rows(snapshot, SectionKind.TOPICS, "topics"):
        if not isinstance(document, dict):
            raise CorruptionError("TOPICS: a topic is an object")
        topic = _parse_topic(document)
        topic.deleted = SeqRanges(deleted.pop(topic.topic_id, ()))
        topic.check_invariants()
        catalog.restore(topic)
    if deleted:
        raise CorruptionError(f"DELETED: topics {sorted(deleted)} do not exist")
    for row in _rows(snapshot, SectionKind.CURSORS, "cursors"):
        match row:
            case [int(topic_id), str(owner), int(epoch), int(next_seq), int() | None as offset]:
                require_unsigned(epoch, next_seq, offset or 0)
                v1_offset = None if offset is None else Offset(offset)
                catalog.set_cursor(
                    owner, _known(catalog, topic_id).topic_id, Cursor(TopicEpoch(epoch), Seq(next_seq), v1_offset)
                )
            case _:
                raise CorruptionError(f"CURSORS: {row} is not a cursor")
    for row in _rows(snapshot, SectionKind.KEYS, "keys"):
        match row:
            case [int(topic_id), str(key), int(first_seq), int(last_seq), int(at_ms)]:
                require_unsigned(first_seq, last_seq, at_ms)
                append = KeyedAppend(Seq(first_seq), Seq(last_seq), at_ms)
                _known(catalog, topic_id).keys.remember(_parse_key(key), append)
            case _:
                raise CorruptionError(f"KEYS: {row} is not a key")
    _load_skips(snapshot.section(SectionKind.SKIPS), catalog)
    if snapshot.section(SectionKind.TRANSACTIONS):
        for row in _rows(snapshot, SectionKind.TRANSACTIONS, "transactions"):
            catalog.transactions.remember(_parse_transaction(row))
    _load_leases(snapshot.section(SectionKind.LEASES), catalog)
    if snapshot.section(SectionKind.ROUTERS):
        for row in _rows(snapshot, SectionKind.ROUTERS, "routers"):
            catalog.routers.restore(_parse_router(row, catalog))
    numbers = snapshot.document(SectionKind.CATALOG)
    next_topic_id = TopicId(json_unsigned(numbers, "next_topic_id", "CATALOG", 32))
    if next_topic_id < catalog.next_topic_id:
        raise CorruptionError(f"CATALOG: the next topic id is {next_topic_id}, {catalog.next_topic_id - 1} is in use")
    catalog.next_topic_id = next_topic_id
    catalog.term = Term(json_unsigned(numbers, "term", "CATALOG", 32))
    catalog.next_position = snapshot.position


def _topic_document(topic: TopicState) -> JsonValue:
    losses: list[JsonValue] = [[gap.first_seq, gap.last_seq, int(gap.reason)] for gap in topic.losses]
    document: dict[str, JsonValue] = {"topic_id": topic.topic_id, "name": topic.name, "epoch": topic.epoch}
    document |= {name: getattr(topic, name) for name in _NUMBERS}
    return document | {"config": topic.config.to_json(), "losses": losses}


def _parse_topic(document: JsonObject) -> TopicState:
    what = "TOPICS"
    name = check_stored_name(json_text(document, "name", what))
    topic_id = TopicId(json_unsigned(document, "topic_id", what, 32))
    epoch = TopicEpoch(json_unsigned(document, "epoch", what))
    config = stored_config(json_object(document, "config", what))
    topic = TopicState(topic_id, name, epoch, config)
    # Snapshots of early versions do not have these.
    document = {"created_ms": 0, "dead_lettered": 0, **document}
    for number in _NUMBERS:
        setattr(topic, number, json_unsigned(document, number, what, 63))
    losses = document.get("losses")
    for row in losses if isinstance(losses, list) else [None]:
        match row:
            case [int(first_seq), int(last_seq), int(reason)] if reason in _REASONS and last_seq < _SEQ_LIMIT:
                topic.losses.add(Gap(Seq(first_seq), Seq(last_seq), _REASONS[reason]))
            case _:
                raise CorruptionError(f"{what}: {row} is not a loss of topic {name}")
    return topic


def _rows(snapshot: Snapshot, kind: SectionKind, key: str) -> list[JsonValue]:
    rows = snapshot.document(kind).get(key)
    if not isinstance(rows, list):
        raise CorruptionError(f"{kind.name}: {key} must be an array")
    return rows


def _known(catalog: TopicCatalog, topic_id: int) -> TopicState:
    topic = catalog.find(TopicId(topic_id))
    if topic is None:
        raise CorruptionError(f"topic {topic_id} does not exist")
    return topic


def _parse_key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise CorruptionError(f"KEYS: {text!r} is not hexadecimal") from error


def _transaction_row(committed: CommittedTransaction) -> JsonValue:
    spans: list[JsonValue] = [list(span) for span in committed.spans]
    return [committed.owner, committed.epoch, committed.position, committed.timestamp_ns, spans]


def _parse_transaction(row: JsonValue) -> CommittedTransaction:
    match row:
        case [str(owner), int(epoch), int(position), int(timestamp_ns), list(spans)]:
            check_key(owner, epoch)
            require_unsigned(position, timestamp_ns)
            found = tuple(_parse_span(span) for span in spans)
            return CommittedTransaction(owner, epoch, Position(position), TimestampNs(timestamp_ns), found)
        case _:
            raise CorruptionError(f"TRANSACTIONS: {row} is not a transaction")


def _parse_span(row: JsonValue) -> TopicSpan:
    match row:
        case [str(topic), int(first_seq), int(record_count)]:
            require_unsigned(first_seq, record_count)
            return TopicSpan(topic, Seq(first_seq), record_count)
        case _:
            raise CorruptionError(f"TRANSACTIONS: {row} is not a span of a topic")


def _router_row(router: Router) -> JsonValue:
    settings: dict[str, JsonValue] = {**router.settings.document()}
    return [router.name, router.source_id, router.dest_id, router.next_seq, router.forwarded, settings]


def _parse_router(row: JsonValue, catalog: TopicCatalog) -> Router:
    match row:
        case [str(name), int(source_id), int(dest_id), int(next_seq), int(forwarded), dict(settings)]:
            check_router_name(name)
            require_unsigned(next_seq, forwarded)
            topics = (_known(catalog, source_id).topic_id, _known(catalog, dest_id).topic_id)
            return Router(name, *topics, stored_settings(settings), Seq(next_seq), forwarded)
        case _:
            raise CorruptionError(f"ROUTERS: {row} is not a router")


def _deleted_bytes(topic: TopicState) -> bytes:
    ranges = b"".join(_RANGE.pack(first, last) for first, last in topic.deleted)
    return _DELETED.pack(topic.topic_id, len(topic.deleted)) + ranges


def _skip_bytes(topic: TopicState) -> bytes:
    skips, topic_id = topic.skips, topic.topic_id
    forgotten = _SKIP.pack(topic_id, 0, skips.forgotten_below, 0, 0) if skips.forgotten_below else b""
    rows = (_SKIP.pack(topic_id, each.count, each.position, each.client_id, each.first_client_seq) for each in skips)
    return b"".join((forgotten, *rows))


def _load_skips(data: bytes, catalog: TopicCatalog) -> None:
    if len(data) % _SKIP.size:
        raise CorruptionError("SKIPS: the section is truncated")
    for topic_id, count, position, client_id, first in _SKIP.iter_unpack(data):
        skips = _known(catalog, topic_id).skips
        if count:
            skips.add(Skip(Position(position), ClientId(client_id), ClientSeq(first), count))
        else:
            skips.forgotten_below = Position(position)


def _lease_bytes(topic: TopicState) -> bytes:
    rows = topic.lease_rows()
    return b"".join(
        Leases(topic.topic_id, rows[first : first + JOBS_MAX]).encode() for first in range(0, len(rows), JOBS_MAX)
    )


def _load_leases(data: bytes, catalog: TopicCatalog) -> None:
    at = 0
    while at < len(data):
        if at + _DELETED.size > len(data):
            raise CorruptionError("LEASES: the section is truncated")
        topic_id, count = _DELETED.unpack_from(data, at)
        end = at + _DELETED.size + count * LEASE_ROW.itemsize
        _known(catalog, topic_id).durable_leases.add(Leases.parse(data[at:end]).rows)
        at = end


def _parse_deleted(data: bytes) -> dict[TopicId, list[tuple[int, int]]]:
    deleted: dict[TopicId, list[tuple[int, int]]] = {}
    at = 0
    while at < len(data):
        if at + _DELETED.size > len(data):
            raise CorruptionError("DELETED: the section is truncated")
        topic_id, count = _DELETED.unpack_from(data, at)
        at += _DELETED.size
        end = at + count * _RANGE.size
        if end > len(data) or topic_id in deleted:
            raise CorruptionError(f"DELETED: {count} ranges of topic {topic_id} do not fit")
        deleted[topic_id] = list(_RANGE.iter_unpack(data[at:end]))
        if any(last >= _SEQ_LIMIT for _, last in deleted[topic_id]):
            raise CorruptionError(f"DELETED: a seq of topic {topic_id} does not fit 63 bits")
        at = end
    return deleted
