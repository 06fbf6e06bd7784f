"""Arbitrary bytes into the parsers of control batches and snapshots: a result or a `SeawallError`."""

import random
import struct
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fuzz_mutation import mutate

from seawall.core.routers import RouterSettings
from seawall.core.transactions import CommittedTransaction, TopicSpan
from seawall.errors import SeawallError
from seawall.storage.control.batches import Compound, SimpleControl, parse_control
from seawall.storage.control.codec import (
    Ceiling,
    Checkpoint,
    ClientRow,
    CursorCommit,
    Reference,
    RouterStep,
    SegmentRoll,
)
from seawall.storage.control.deletes import DeleteRecords, MatchKind, TagMatch
from seawall.storage.control.documents import (
    FloorRaise,
    Loss,
    RouterChange,
    TermStart,
    TopicConfigure,
    TopicCreate,
    TopicDelete,
)
from seawall.storage.control.transactions import TransactionMark
from seawall.storage.segments.delete_sidecar import DeletedSeqs
from seawall.storage.snapshots import SectionKind, Snapshot
from seawall.topics.catalog import Cursor, TopicCatalog
from seawall.topics.config import TopicConfig
from seawall.topics.keys import KeyedAppend
from seawall.topics.persistence import catalog_sections, load_catalog
from seawall.wire.format.batches import BatchHeader, batch_header
from seawall.wire.format.codes import GapReason
from seawall.wire.format.frames import checksum

Target = Callable[[bytes], None]
_KINDS = list(SectionKind)
DIRECTORY_ID = bytes(range(16))


def read_control_block(data: bytes) -> None:
    """The first byte is the command; whatever parses must encode to the same bytes."""
    command, block = (data[0], data[1:]) if data else (0, b"")
    if parse_control(command, block).encode() != block:
        raise AssertionError("a control changed on its way")


def with_checksum(data: bytes) -> bytes:
    """The bytes with a correct checksum, so that mutations reach the checks after it."""
    return data[:-4] + struct.pack("<I", checksum(data[:-4])) if len(data) > 4 else data


def read_snapshot(data: bytes) -> None:
    data = with_checksum(data)
    snapshot = Snapshot.parse(data, directory_id=DIRECTORY_ID)
    if snapshot.encode(DIRECTORY_ID) != data:
        raise AssertionError("a snapshot changed on its way")


def read_catalog(data: bytes) -> None:
    """A section by the number in the first byte, the others as they were written."""
    kind = _KINDS[data[0] % len(_KINDS)] if data else _KINDS[0]
    load_catalog(Snapshot(9, 0, 0, {**_SECTIONS, kind: data[1:]}))


def typed_errors_only(parse: Target) -> Target:
    def run(data: bytes) -> None:
        try:
            parse(data)
        except SeawallError:
            return

    return run


TARGETS: dict[str, Target] = {
    "control": typed_errors_only(read_control_block),
    "snapshot": typed_errors_only(read_snapshot),
    "catalog": typed_errors_only(read_catalog),
}


def _catalog() -> TopicCatalog:
    catalog = TopicCatalog()
    catalog.apply(catalog.create("events", TopicConfig()), 0)
    topic = catalog.named("events")
    topic.apply(Loss(1, 1, 9, GapReason.CRASH))
    catalog.apply_append(_header(position=1, base_seq=10))
    topic.apply(DeleteRecords(1, DeletedSeqs.between(10, 10), 15, 11))
    topic.deleted.add(12, 12)
    topic.live_records -= 1
    catalog.set_cursor("reader", 1, Cursor(1, 5))
    topic.keys.remember(bytes(16), KeyedAppend(1, 2, 3))
    spans = (TopicSpan("events", 10, 4),)
    catalog.transactions.remember(CommittedTransaction("job", 7, 1, 9, spans))
    catalog.apply(catalog.create("copies", TopicConfig()), 2)
    catalog.apply(catalog.put_router("a->b", "events", "copies", RouterSettings(tag="x")), 3)
    return catalog


def _header(*, position: int, base_seq: int) -> BatchHeader:
    header = batch_header(
        bytes(60), topic_id=1, client_id=7, client_seq=1, session_epoch=3, record_count=4, timestamp_ns=9
    )
    return replace(header, position=position, base_seq=base_seq)


_CONTROLS: tuple[SimpleControl, ...] = (
    Reference(_header(position=7, base_seq=10), 4, 4096),
    TopicCreate(3, "events", 3, TopicConfig().to_json()),
    TopicDelete(3, "events", 3, {"ttl_ms": 5}),
    TopicConfigure(3, {"ttl_ms": 5}, {"ttl_ms": 6}),
    Ceiling(3, 2000, 1000),
    DeleteRecords(3, DeletedSeqs.of(np.array([4, 5, 9, 700])), 99, 50, TagMatch(MatchKind.PREFIX, "user-")),
    FloorRaise(3, GapReason.CAP, 20, 1, 4096),
    Loss(3, 5, 9, GapReason.CRASH),
    CursorCommit("worker", 3, 3, 12, 8, 90),
    SegmentRoll(3, 101, 1),
    ClientRow(9, bytes(64), bytes(64)),
    TermStart(4, 2, 1000),
    Checkpoint(9000, 70, 8000),
    TransactionMark("job", 7, 0, 0),
    RouterChange("a->b", 1, 2, 7, None, RouterSettings(tag="x").document()),
    RouterStep("a->b", 9, 7, 12),
)
_SECTIONS = catalog_sections(_catalog())

#: Valid inputs that mutations start from.
CORPUS: dict[str, list[bytes]] = {
    "control": [bytes([control.COMMAND]) + control.encode() for control in (*_CONTROLS, Compound(_CONTROLS))],
    "snapshot": [Snapshot(9, 100, 5, sections).encode(DIRECTORY_ID) for sections in ({}, _SECTIONS)],
    "catalog": [bytes([_KINDS.index(kind)]) + content for kind, content in _SECTIONS.items()],
}


def test_every_target_has_a_corpus() -> None:
    assert TARGETS.keys() == CORPUS.keys()


def test_the_corpus_is_valid() -> None:
    for data in CORPUS["control"]:
        read_control_block(data)
    for data in CORPUS["snapshot"]:
        read_snapshot(data)
    for data in CORPUS["catalog"]:
        read_catalog(data)


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_give_only_typed_errors(name: str) -> None:
    random_source = random.Random(f"seawall {name}")
    target = TARGETS[name]
    target(b"")
    for _ in range(400):
        target(mutate(random_source, random_source.choice(CORPUS[name])))
