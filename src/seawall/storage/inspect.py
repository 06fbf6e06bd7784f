"""Dumps one file of a data directory for people: its preface, then one item for each part of its content.

An item is a flat JSON object; its field `item` names its type, `at` and `to` are positions in the file.

| item       | in                  | what it is                                                                       |
|------------|---------------------|----------------------------------------------------------------------------------|
| `preface`  | every file, first   | the directory that owns the file, its kind and format                            |
| `epoch`    | WAL                 | one group commit; its batches follow                                             |
| `batch`    | WAL, segment        | records of a topic                                                               |
| `control`  | WAL                 | a change of state, with its parts                                                |
| `record`   | after a batch       | one record, its value shortened; only if records are requested                   |
| `entry`    | index               | one row                                                                          |
| `range`    | deletes             | a range of deleted seqs                                                          |
| `snapshot` | snapshot            | the address where replay starts                                                  |
| `section`  | snapshot            | a part of the state; its document only if records are requested                  |
| `empty`    | WAL, segment        | zeros: reserved space, or the range of a batch that is not flushed yet           |
| `damage`   | WAL, segment        | bytes that are none of these                                                     |

This module changes nothing and takes no lock, so it can dump a file while its owner writes it; a write in progress then
shows as damage. Sidecars and snapshots are valid as a whole or not at all: damage in one is a `CorruptionError`. So is
a damaged preface, because without it the type of the file is unknown.

This module does not decide whether missing bytes are a loss; `verify` does.
"""

from __future__ import annotations

import dataclasses
from codecs import getincrementaldecoder
from collections.abc import Generator, Iterator, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np

from seawall import limits
from seawall.core.types import Seq, TopicId
from seawall.errors import CorruptionError, ProtocolError
from seawall.io.disk.files import read_exactly
from seawall.io.interfaces import File, Files
from seawall.kernels.log.epochs import find_epoch
from seawall.storage.control.batches import Control, parts_of, read_control
from seawall.storage.control.codec import ControlCommand
from seawall.storage.preface import DATA_START, FileKind, Preface
from seawall.storage.segments.batch_index import load_sidecar
from seawall.storage.segments.delete_sidecar import DeletedSeqs, load_deletes
from seawall.storage.segments.scan import scan_segment
from seawall.storage.snapshots import Snapshot
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, EpochHeader, WalAddress, parse_epoch_header
from seawall.wire.format.batches import BatchHeader, BatchSource, block_of, parse_batch_header, verify_block
from seawall.wire.format.fields import JsonValue, read_json_object
from seawall.wire.format.records import RecordType, iter_records

__all__ = ["Item", "inspect_file", "is_zero", "type_name"]

Item: TypeAlias = dict[str, JsonValue]

#: How many bytes of a value are shown.
_SHOWN_SIZE: Final = 64

_KIND_AT: Final = 8


def inspect_file(files: Files, path: str, *, records: bool = False) -> Generator[Item, None, None]:
    """The items of a file, the preface first; with `records` also its records and documents."""
    file = files.open(path, read_only=True)
    try:
        preface = _preface(file)
        yield _preface_item(preface, file.size())
        match preface.kind:
            case FileKind.WAL:
                yield from _LogView(file, preface, records).items()
            case FileKind.SEGMENT:
                yield from _segment_items(file, preface, records)
            case FileKind.INDEX:
                yield from _index_items(files, path, preface)
            case FileKind.DELETES:
                yield from _delete_items(files, path, preface)
            case FileKind.SNAPSHOT:
                yield from _snapshot_items(file, preface, records)
            case _:
                # FORMAT, the file of the directory itself, is a preface and nothing else.
                pass
    finally:
        file.close()


def is_zero(file: File, from_at: int, to_at: int) -> bool:
    """True if a file holds only zeros between two positions."""
    for at in range(from_at, to_at, limits.COPY_BUFFER_SIZE):
        if np.frombuffer(file.read(min(limits.COPY_BUFFER_SIZE, to_at - at), at), np.uint8).any():
            return False
    return True


def type_name(record_type: int) -> str:
    """The name of a record type, or its number if it has no name."""
    try:
        return RecordType(record_type).name.lower()
    except ValueError:
        return f"{record_type:#x}"


# --- prefaces ----------------------------------------------------------------------------------------------------


def _preface(file: File) -> Preface:
    data = file.read(DATA_START, 0)
    number = int.from_bytes(data[_KIND_AT : _KIND_AT + 4], "little")
    # Parse an unknown kind as DIRECTORY: the checks before that of the kind then report what is wrong.
    kind = FileKind(number) if number in set(FileKind) else FileKind.DIRECTORY
    return Preface.parse(data, kind=kind, path=file.path)


def _preface_item(preface: Preface, size: int) -> Item:
    return {
        "item": "preface",
        "kind": preface.kind.name.lower(),
        "format": preface.format,
        "directory_id": preface.directory_id.hex(),
        "first": preface.first,
        "salt": preface.salt,
        "created_ns": preface.created_ns,
        "reserved_size": preface.size,
        "topic_id": preface.topic_id,
        "size": size,
    }


def _unparsed_item(file: File, from_at: int, to_at: int) -> Item:
    """The item for bytes that hold no valid content."""
    return {"item": "empty" if is_zero(file, from_at, to_at) else "damage", "at": from_at, "to": to_at}


# --- the log -----------------------------------------------------------------------------------------------------


class _LogView:
    """The epochs of one log file, each checked by itself; it shows epoch numbers that do not follow each other."""

    def __init__(self, file: File, preface: Preface, records: bool) -> None:
        self._file = file
        self._preface = preface
        self._records = records
        self._size = file.size()

    def items(self) -> Iterator[Item]:
        at = DATA_START
        while at < self._size:
            header = self._header(at)
            if header is None:
                next_at = self._next_header(at + 1)
                yield _unparsed_item(self._file, at, next_at)
                at = next_at
                continue
            yield {
                "item": "epoch",
                "at": at,
                "to": at + header.size,
                "epoch": header.epoch,
                "address": self._address(at),
                "synced_through": header.synced_through,
                "first_position": header.first_position,
                "batches": header.batch_count,
                "clean_close": header.is_clean,
                "continued": header.is_continued,
                "timestamp_ns": header.timestamp_ns,
            }
            yield from self._batches(at + EPOCH_HEADER_SIZE, at + header.size)
            at += header.size

    def _address(self, at: int) -> WalAddress:
        return WalAddress(self._preface.first + at - DATA_START)

    def _header(self, at: int) -> EpochHeader | None:
        data = self._file.read(EPOCH_HEADER_SIZE, at)
        header = parse_epoch_header(data, salt=self._preface.salt, at=self._address(at))
        return header if header is not None and at + header.size <= self._size else None

    def _next_header(self, at: int) -> int:
        """Position of the next valid header; the end of the file if there is none."""
        while at + EPOCH_HEADER_SIZE <= self._size:
            window = np.frombuffer(self._file.read(limits.WAL_READ_SIZE, at), np.uint8)
            found = find_epoch(window, 0, len(window), np.uint64(self._preface.salt))
            if found < 0:
                at += len(window) - EPOCH_HEADER_SIZE + 1
            elif self._header(at + found) is not None:
                return at + found
            else:
                at += found + 1
        return self._size

    def _batches(self, at: int, to: int) -> Iterator[Item]:
        data = memoryview(read_exactly(self._file, to - at, at))
        start = 0
        while start < len(data):
            try:
                header, block = _batch_in(data[start:])
                items = list(_batch_items(header, block, at + start, self._records))
            except CorruptionError as error:
                yield {"item": "damage", "at": at + start, "to": to, "why": str(error)}
                return
            yield from items
            start += header.size


# --- segments and what belongs to them ---------------------------------------------------------------------------


def _segment_items(file: File, preface: Preface, records: bool) -> Iterator[Item]:
    scan = scan_segment(file, TopicId(preface.topic_id), Seq(preface.first))
    reached = DATA_START
    for entry in scan.index.entries:
        at, length = int(entry["at"]), int(entry["length"])
        if at > reached:
            yield _unparsed_item(file, reached, at)
        header, block = _batch_in(memoryview(read_exactly(file, length, at)))
        yield from _batch_items(header, block, at, records)
        reached = at + length
    if reached < file.size():
        yield _unparsed_item(file, reached, file.size())


def _index_items(files: Files, path: str, preface: Preface) -> Iterator[Item]:
    entries = load_sidecar(files, path, preface).entries
    for entry in entries:
        yield {"item": "entry", **{name: int(entry[name]) for name in entries.dtype.names or ()}}


def _delete_items(files: Files, path: str, preface: Preface) -> Iterator[Item]:
    for first_seq, end in load_deletes(files, path, preface).ranges.tolist():
        yield {"item": "range", "first_seq": first_seq, "last_seq": end - 1}


# --- snapshots ---------------------------------------------------------------------------------------------------


def _snapshot_items(file: File, preface: Preface, records: bool) -> Iterator[Item]:
    size = file.size()
    if size > limits.SNAPSHOT_SIZE_MAX:
        raise CorruptionError(f"{file.path}: {size} bytes, a snapshot has at most {limits.SNAPSHOT_SIZE_MAX}")
    snapshot = Snapshot.parse(read_exactly(file, size, 0), directory_id=preface.directory_id, path=file.path)
    yield {
        "item": "snapshot",
        "position": snapshot.position,
        "wal_from_at": snapshot.wal_from_at,
        "created_ns": snapshot.created_ns,
        "sections": len(snapshot.sections),
    }
    for kind, content in snapshot.sections.items():
        section: Item = {"item": "section", "section": kind.name.lower(), "size": len(content)}
        if records:
            try:
                section["document"] = read_json_object(content, kind.name)
            except ProtocolError:
                # Not every section is a document; show the beginning of its rows like a value.
                section |= _shown(content)
        yield section


# --- batches -----------------------------------------------------------------------------------------------------


def _batch_in(data: memoryview) -> tuple[BatchHeader, memoryview]:
    """The verified batch at the beginning of some bytes."""
    header = parse_batch_header(data, source=BatchSource.STORED)
    block = data[limits.BATCH_HEADER_SIZE : header.size]
    verify_block(header, block)
    return header, block


def _batch_items(header: BatchHeader, block: memoryview, at: int, records: bool) -> Iterator[Item]:
    numbers: Item = {"at": at, "to": at + header.size, "position": header.position, "term": header.term}
    if header.is_control:
        control = read_control(header, block)
        yield {"item": "control", **numbers, "timestamp_ns": header.timestamp_ns, "parts": _parts(control)}
        return
    yield {
        "item": "batch",
        **numbers,
        "topic_id": header.topic_id,
        "first_seq": header.base_seq,
        "last_seq": header.base_seq + header.record_count - 1,
        "records": header.record_count,
        "timestamp_ns": header.timestamp_ns,
        "client_id": header.client_id,
        "client_seq": header.client_seq,
        "base_offset": header.base_offset,
        "codec": header.codec.name.lower(),
        "opaque": header.is_opaque,
    }
    if records:
        yield from _record_items(header, block)


def _record_items(header: BatchHeader, block: memoryview) -> Iterator[Item]:
    plain = block_of(header, block)
    if header.is_opaque:
        yield {"item": "record", "seq": header.base_seq, "type": "opaque", "size": len(plain), **_shown(bytes(plain))}
        return
    for seq, record in enumerate(iter_records(plain), header.base_seq):
        size = len(record.value)
        yield {
            "item": "record",
            "seq": seq,
            "type": type_name(record.record_type),
            "size": size,
            **_shown(record.value),
        }


def _parts(control: Control) -> list[JsonValue]:
    return [{"command": ControlCommand(part.COMMAND).name.lower(), **_fields(part)} for part in parts_of(control)]


def _fields(value: object) -> Item:
    """The fields of a control, or of a dataclass inside one, by name."""
    assert dataclasses.is_dataclass(value)
    return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def _plain(value: object) -> JsonValue:
    """A field of a control as JSON."""
    match value:
        case IntEnum():
            return value.name.lower()
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case BatchHeader():
            return {"position": value.position, "first_seq": value.base_seq, "records": value.record_count}
        case DeletedSeqs():
            return [[first_seq, end - 1] for first_seq, end in value.ranges.tolist()]
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return _fields(value)


def _shown(value: bytes) -> Item:
    """The beginning of a value: as text if all of it is printable, else in hex."""
    beginning = value[:_SHOWN_SIZE]
    is_whole = len(value) <= _SHOWN_SIZE
    dots = "" if is_whole else "…"
    try:
        # The incremental decoder drops a character that the cut splits.
        text = getincrementaldecoder("utf-8")().decode(beginning, is_whole)
    except UnicodeDecodeError:
        text = "\0"
    return {"value": text + dots} if text.isprintable() else {"hex": beginning.hex() + dots}
