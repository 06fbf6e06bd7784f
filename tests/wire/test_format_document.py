"""The examples of docs/format.md are what the code reads and writes."""

import re
from pathlib import Path

import pytest

from seawall.wire.format.batches import BatchSource, iter_batches, parse_batch_header, stamp
from seawall.wire.format.envelope import Envelope, parse_envelope
from seawall.wire.format.records import Record, RecordType, decode_block, encode_block

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
EXAMPLES = {
    name: bytes.fromhex(re.sub(r"#.*", "", body))
    for name, body in re.findall(r"```hex ([^\n]+)\n(.*?)```", DOCUMENT, flags=re.DOTALL)
}


def test_all_examples_are_read() -> None:
    assert EXAMPLES.keys() == {"record", "envelope", "batch as sent", "batch as stored"}


def test_record_example() -> None:
    records = [Record(RecordType.RAW, b"hello")]
    assert decode_block(EXAMPLES["record"], 1) == records
    assert encode_block(records) == EXAMPLES["record"]


def test_envelope_example() -> None:
    envelope = Envelope(b"on", key=b"k", headers=((b"src", b"api"),))
    [record] = decode_block(EXAMPLES["envelope"], 1)
    assert record.record_type == RecordType.ENVELOPE
    assert parse_envelope(record.value) == envelope
    assert encode_block([envelope.to_record()]) == EXAMPLES["envelope"]


def test_batch_examples() -> None:
    batch = bytearray(EXAMPLES["batch as sent"])
    header = parse_batch_header(batch, source=BatchSource.CLIENT)
    assert (header.client_id, header.session_epoch, header.topic_id, header.order) == (7, 3, 1, 5)
    assert batch[96:] == EXAMPLES["record"]
    stamp(batch, position=0, base_seq=1, base_offset=0, timestamp_ns=header.timestamp_ns, term=1)
    assert batch == EXAMPLES["batch as stored"]
    assert len(list(iter_batches(batch))) == 1


@pytest.mark.parametrize("field", ["position", "base_seq", "base_offset", "raw_length", "session_epoch", "block_crc"])
def test_batch_table_names_the_fields_of_the_code(field: str) -> None:
    assert re.search(rf"^\| \d+ +\| \d+ +\| {field} +\|", DOCUMENT, flags=re.MULTILINE)
