"""Inspection of files: every kind of file, every kind of item, and damage at its position."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, Offset, Position, Seq, Term, TimestampNs, TopicEpoch, TopicId
from seawall.engine.api.open_log import open_log
from seawall.engine.read.read_results import Message
from seawall.engine.store.settings import StoreSettings
from seawall.errors import ChecksumError, CorruptionError
from seawall.io.disk.files import OsFiles
from seawall.storage.control.batches import Control, control_batch
from seawall.storage.control.codec import ClientRow, Reference
from seawall.storage.control.deletes import DeleteRecords, MatchKind, TagMatch
from seawall.storage.control.documents import Loss, TopicCreate
from seawall.storage.inspect import Item, inspect_file, is_zero, type_name
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.segments.delete_sidecar import DeletedSeqs, write_deletes
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, EpochHeader
from seawall.wire.format.batches import BatchSource, batch_header, encode_batch, parse_batch_header, stamp
from seawall.wire.format.codes import BatchFlags, GapReason
from seawall.wire.format.records import EXTENDED_BASE, Record, encode_block

DIRECTORY_ID = bytes(range(16))
SETTINGS = StoreSettings(wal_file_size=limits.WAL_FILE_SIZE_MIN, ballast_size=4096, checkpoint_size=1 << 40)
SALT = 77


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "data"
    with open_log(path, SETTINGS) as log:
        log.create_topic("events", segment_max_records=2)
        log.publish("events", [b"one", "zwölf"])
        log.publish("events", [b"\xff\x00", Message({"n": 4}, key="k")])
        log.checkpoint()
        log.publish("events", [b"five"])
        log.commit("reader", "events", 3)
    return path


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "data")


def items(path: Path, *, records: bool = False) -> list[Item]:
    return list(inspect_file(OsFiles(), str(path), records=records))


def kinds(path: Path, *, records: bool = False) -> list[object]:
    return [item["item"] for item in items(path, records=records)]


def only(directory: Path, pattern: str) -> Path:
    return min(directory.rglob(pattern))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


def batch(records: Sequence[Record] | None = None, *, opaque: bytes = b"", position: int = 1, seq: int = 5) -> bytes:
    block = encode_block(records) if records else opaque
    header = batch_header(
        block,
        topic_id=TopicId(3),
        client_id=ClientId(9),
        client_seq=ClientSeq(1),
        session_epoch=0,
        record_count=len(records) if records else 1,
        timestamp_ns=TimestampNs(0),
        flags=0 if records else BatchFlags.OPAQUE,
    )
    stored = bytearray(encode_batch(header, block))
    stamp(
        stored,
        position=Position(position),
        base_seq=Seq(seq),
        base_offset=Offset(0),
        timestamp_ns=TimestampNs(7),
        term=Term(1),
    )
    return bytes(stored)


def control(change: Control) -> bytes:
    return control_batch(change, position=Position(1), timestamp_ns=TimestampNs(7), term=Term(1))


def log_file(path: Path, *batches: bytes) -> Path:
    """A file of the log with one epoch for each batch, and a page of zeros."""
    pieces = [Preface(FileKind.WAL, DIRECTORY_ID, salt=SALT).encode()]
    for number, each in enumerate(batches):
        header = EpochHeader(SALT, number + 1, len(each), 0, number + 1, 1, 0, 7)
        pieces += (header.encode(), each)
    path.write_bytes(b"".join(pieces) + bytes(limits.PAGE_SIZE))
    return path


# --- every kind of file --------------------------------------------------------------------------------------------


def test_a_directory_file_has_only_a_preface(data: Path) -> None:
    [preface] = items(data / "FORMAT")
    assert preface["kind"] == "directory"
    assert preface["size"] == DATA_START


def test_the_log_is_shown_by_epochs_with_their_batches(data: Path) -> None:
    shown = items(only(data, "*.wal"), records=True)
    assert [shown[0]["kind"], shown[1]["epoch"], shown[1]["address"]] == ["wal", 1, 0]
    commands = [part["command"] for item in shown if item["item"] == "control" for part in item["parts"]]
    assert commands == ["term", "topic_create", "ceiling", "segment_roll", "segment_roll", "cursor"]
    batches = [(item["first_seq"], item["last_seq"]) for item in shown if item["item"] == "batch"]
    assert batches == [(1, 2), (3, 4), (5, 5)]
    # Items are adjacent, and together they cover the file.
    ends = [DATA_START] + [item["to"] for item in shown if item["item"] in ("epoch", "empty")]
    assert ends[:-1] == [item["at"] for item in shown if item["item"] in ("epoch", "empty")]
    assert ends[-1] == shown[0]["size"]
    closing = [item for item in shown if item["item"] == "epoch"][-1]
    assert (closing["clean_close"], closing["batches"]) == (True, 0)
    assert shown[-1]["item"] == "empty"


def test_a_sealed_segment_is_shown_by_batches_and_records(data: Path) -> None:
    path = only(data, "*.sealed")
    assert kinds(path) == ["preface", "batch"]
    records = [item for item in items(path, records=True) if item["item"] == "record"]
    assert [(each["seq"], each["type"], each["value"]) for each in records] == [(1, "raw", "one"), (2, "raw", "zwölf")]


def test_binary_values_are_shown_in_hex(data: Path) -> None:
    records = [item for item in items(only(data, "*3.active"), records=True) if item["item"] == "record"]
    assert (records[0]["hex"], records[0]["size"]) == ("ff00", 2)
    assert (records[1]["type"], "hex" in records[1]) == ("envelope", True)


def test_an_index_is_shown_by_entries(data: Path) -> None:
    [preface, entry] = items(only(data, "*.index"))
    assert (preface["kind"], preface["topic_id"]) == ("index", 1)
    assert (entry["base_seq"], entry["count"], entry["at"]) == (1, 2, DATA_START)


def test_deletes_are_shown_by_ranges(tmp_path: Path) -> None:
    deleted = DeletedSeqs.between(Seq(2), Seq(4)).union(DeletedSeqs.between(Seq(9), Seq(9)))
    segment = Preface(FileKind.SEGMENT, DIRECTORY_ID, first=1, topic_id=3)
    write_deletes(OsFiles(), str(tmp_path / "deletes"), deleted, segment)
    [preface, *ranges] = items(tmp_path / "deletes")
    assert preface["kind"] == "deletes"
    assert [(each["first_seq"], each["last_seq"]) for each in ranges] == [(2, 4), (9, 9)]


def test_a_snapshot_is_shown_by_sections(data: Path) -> None:
    path = only(data, "*.meta")
    [_, snapshot, *sections] = items(path)
    assert snapshot["sections"] == len(sections)
    assert all(set(section) == {"item", "section", "size"} for section in sections)
    documents = {each["section"]: each for each in items(path, records=True)[2:]}
    assert documents["topics"]["document"]["topics"][0]["name"] == "events"
    assert documents["segments"]["hex"]


# --- batches and controls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (Loss(TopicId(3), Seq(1), Seq(9), GapReason.CRASH, 0), {"command": "loss", "reason": "crash", "last_seq": 9}),
        (
            DeleteRecords(TopicId(3), DeletedSeqs.between(Seq(4), Seq(5)), 20, None, TagMatch(MatchKind.PREFIX, "a")),
            {
                "command": "delete_records",
                "removed": [[4, 5]],
                "removed_bytes": 20,
                "before_seq": None,
                "match": {"kind": "prefix", "text": "a"},
            },
        ),
        (
            TopicCreate(TopicId(3), "events", TopicEpoch(1), {"several": ["a", 1, None, 1.5, True]}),
            {"command": "topic_create", "config": {"several": ["a", 1, None, 1.5, True]}},
        ),
        (ClientRow(ClientId(4), b"\x01" * limits.CLIENT_ROW_SIZE), {"command": "client", "row": "01" * 64}),
    ],
)
def test_controls_are_shown_with_their_fields(tmp_path: Path, change: Control, expected: Item) -> None:
    [_, _, shown, _] = items(log_file(tmp_path / "wal", control(change)))
    [part] = shown["parts"]
    assert part | expected == part


def test_a_reference_is_shown_by_what_it_refers_to(tmp_path: Path) -> None:
    header = parse_batch_header(batch([Record(1, b"large")]), source=BatchSource.STORED)
    path = log_file(tmp_path / "wal", control(Reference(header, Seq(5), DATA_START)))
    assert items(path)[2]["parts"] == [
        {
            "command": "reference",
            "header": {"position": 1, "first_seq": 5, "records": 1},
            "segment_first_seq": 5,
            "file_position": DATA_START,
        }
    ]


def test_an_opaque_batch_is_one_record(tmp_path: Path) -> None:
    path = log_file(tmp_path / "wal", batch(opaque=b"anything"))
    assert items(path, records=True)[3] == {
        "item": "record",
        "seq": 5,
        "type": "opaque",
        "size": 8,
        "value": "anything",
    }


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"", {"value": ""}),
        (b"a" * 64, {"value": "a" * 64}),
        (b"a" * 65, {"value": "a" * 64 + "…"}),
        # The cut goes through the last character, which is left out.
        (b"a" * 63 + "é".encode(), {"value": "a" * 63 + "…"}),
        # It is not the cut that spoils this one.
        (b"a" * 62 + b"\xc3", {"hex": "61" * 62 + "c3"}),
        (b"two\nlines", {"hex": b"two\nlines".hex()}),
        (b"\xff" * 70, {"hex": "ff" * 64 + "…"}),
    ],
)
def test_values_are_shortened(tmp_path: Path, value: bytes, shown: Item) -> None:
    record = items(log_file(tmp_path / "wal", batch([Record(1, value)])), records=True)[3]
    assert record | shown == record
    assert record["size"] == len(value)


@pytest.mark.parametrize(
    ("number", "name"), [(1, "raw"), (0xFF, "null"), (EXTENDED_BASE | 1, "envelope"), (0x85, "0x85")]
)
def test_types_have_names(number: int, name: str) -> None:
    assert type_name(number) == name


# --- damage --------------------------------------------------------------------------------------------------------


def test_a_damaged_epoch_header_is_skipped(tmp_path: Path) -> None:
    first, second = batch([Record(1, b"first")]), batch([Record(1, b"second")], position=2, seq=6)
    path = log_file(tmp_path / "wal", first, second)
    flip(path, DATA_START + 20)
    assert kinds(path) == ["preface", "damage", "epoch", "batch", "empty"]
    damage = items(path)[1]
    assert (damage["at"], damage["to"]) == (DATA_START, DATA_START + EPOCH_HEADER_SIZE + len(first))


def test_a_damaged_batch_is_shown_in_its_epoch(tmp_path: Path) -> None:
    first, second = batch([Record(1, b"first")]), batch([Record(1, b"second")], position=2, seq=6)
    path = log_file(tmp_path / "wal", first, second)
    flip(path, DATA_START + EPOCH_HEADER_SIZE + len(first) - 1)
    assert kinds(path) == ["preface", "epoch", "damage", "epoch", "batch", "empty"]
    assert "checksum" in str(items(path)[2]["why"])


def test_a_header_that_promises_more_than_the_file_has_is_damage(tmp_path: Path) -> None:
    path = log_file(tmp_path / "wal")
    long = EpochHeader(SALT, 1, 1_000_000, 0, 1, 1, 0, 7).encode()
    path.write_bytes(path.read_bytes()[:DATA_START] + b"x" + long + bytes(100))
    assert kinds(path) == ["preface", "damage"]


@pytest.mark.parametrize("header_at", [-64, -63, -1, 0, 1_000])
def test_headers_are_found_across_read_boundaries(tmp_path: Path, header_at: int) -> None:
    """The search starts one byte after the damaged header; the next header is so many bytes after its first read."""
    small = len(batch(opaque=b"x")) - 1
    size = limits.WAL_READ_SIZE + 1 + header_at - EPOCH_HEADER_SIZE - small
    first, second = batch(opaque=bytes(size)), batch([Record(1, b"second")], position=2, seq=6)
    path = log_file(tmp_path / "wal", first, second)
    flip(path, DATA_START + 20)
    assert kinds(path) == ["preface", "damage", "epoch", "batch", "empty"]


def test_a_file_that_ends_in_a_header_is_shown_to_its_end(tmp_path: Path) -> None:
    path = log_file(tmp_path / "wal")
    path.write_bytes(path.read_bytes()[:DATA_START] + b"EPOC")
    [_, damage] = items(path)
    assert damage == {"item": "damage", "at": DATA_START, "to": DATA_START + 4}


def test_damage_and_empty_space_of_a_segment_are_distinguished(tmp_path: Path) -> None:
    pieces = [batch([Record(1, b"record")], position=seq, seq=seq) for seq in range(1, 6)]
    pieces[1] = bytes(len(pieces[1]))
    pieces[3] = b"\xff" * len(pieces[3])
    preface = Preface(FileKind.SEGMENT, DIRECTORY_ID, first=1, topic_id=3).encode()
    path = tmp_path / "segment"
    path.write_bytes(preface + b"".join(pieces) + bytes(10))
    assert kinds(path) == ["preface", "batch", "empty", "batch", "damage", "batch", "empty"]
    path.write_bytes(preface + b"".join(pieces) + b"x")
    assert kinds(path)[-1] == "damage"


@pytest.mark.parametrize("pattern", ["*.index", "*.meta"])
def test_damaged_sidecars_and_snapshots_are_refused(data: Path, pattern: str) -> None:
    path = only(data, pattern)
    flip(path, DATA_START + 9)
    with pytest.raises(CorruptionError):
        items(path)


def test_a_damaged_preface_is_refused(data: Path) -> None:
    path = only(data, "*.wal")
    flip(path, 8)
    with pytest.raises(ChecksumError, match="checksum of the preface"):
        items(path)
    (data / "text").write_text("nothing of ours" * 10)
    with pytest.raises(CorruptionError, match="not a file of Seawall"):
        items(data / "text")


def test_a_snapshot_beyond_its_size_limit_is_refused(data: Path) -> None:
    path = only(data, "*.meta")
    os.truncate(path, limits.SNAPSHOT_SIZE_MAX + 1)
    with pytest.raises(CorruptionError, match=f"at most {limits.SNAPSHOT_SIZE_MAX}"):
        items(path)


def test_zeros_are_checked_across_read_boundaries(tmp_path: Path) -> None:
    middle = 2 * limits.COPY_BUFFER_SIZE + 20
    (tmp_path / "file").write_bytes(bytes(middle) + b"x" + bytes(middle))
    file = OsFiles().open(str(tmp_path / "file"), read_only=True)
    assert is_zero(file, 0, middle)
    assert is_zero(file, middle + 1, 2 * middle + 1)
    assert not is_zero(file, 0, middle + 1)
    assert not is_zero(file, middle, 2 * middle + 1)
    file.close()
