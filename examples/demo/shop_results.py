"""Reads the results of a run without Spark: topics over the network, checkpoints and Parquet files from the disk.

Spark's file sink lists the valid files in `_spark_metadata`; other files are from attempts that were killed. In a
checkpoint, `offsets` has the end of each micro-batch, and `commits` lists the completed ones.

This module must not know which results are right.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from seawall.client.remote_log import RemoteLog
from seawall.wire.format.gaps import Gap


class Stored(NamedTuple):
    """A record of a topic."""

    seq: int
    position: int
    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    meta: bytes | None = None


class TopicContent(NamedTuple):
    """The content of a topic in order: records, gaps as first and last seq, and the number of SKIPs."""

    records: list[Stored]
    gaps: list[tuple[int, int]]
    skips: int = 0


class LedgerRow(NamedTuple):
    """A row of the ledger, in the topic and in Parquet."""

    topic: str
    offset: int
    event_id: str
    country: str
    amount: Decimal


class InvoiceRow(NamedTuple):
    """What an attempt to send an invoice has published: the seq of its job, and which delivery of it that was."""

    order: str
    cents: int
    job: int
    delivery: int


class DeadLetter(NamedTuple):
    """A job that was given up: the order of its invoice, its seq, how often it was delivered, and why that failed."""

    task: str
    order: str
    job: int
    deliveries: int
    reason: str


def read_topic(log: RemoteLog, topic: str) -> TopicContent:
    """Read a topic from its beginning to its end."""
    content = TopicContent([], [])
    skips = 0
    for item in log.follow(topic):
        if isinstance(item, Gap):
            content.gaps.append((item.first_seq, item.last_seq))
        elif item.is_skip:
            skips += 1
        else:
            content.records.extend(
                Stored(record.seq, item.position, record.value, record.key, record.headers, record.meta)
                for record in item
            )
    return content._replace(skips=skips)


def ledger_rows(content: TopicContent) -> list[LedgerRow]:
    """The rows in topic `ledger`."""
    rows = (json.loads(record.value, parse_float=Decimal, parse_int=int) for record in content.records)
    return [LedgerRow(row["topic"], row["offset"], row["id"], row["country"], Decimal(row["amount"])) for row in rows]


def invoice_rows(content: TopicContent) -> list[InvoiceRow]:
    """The rows in topic `invoices`."""
    return [InvoiceRow(**json.loads(record.value)) for record in content.records]


def dead_letters(content: TopicContent) -> list[DeadLetter]:
    """The dead letters of the queue."""
    found = []
    for record in content.records:
        job, meta = json.loads(record.value), json.loads(record.meta or b"{}")
        seq, deliveries = meta.get("$dead_letter_src_seq", 0), meta.get("$dead_letter_deliveries", 0)
        found.append(DeadLetter(job["task"], job["args"][0], seq, deliveries, meta.get("$dead_letter_reason", "")))
    return found


def parquet_rows(directory: Path) -> tuple[list[LedgerRow], int]:
    """The rows in the valid Parquet files, and the number of those files."""
    names = _valid_files(directory / "_spark_metadata")
    rows: list[LedgerRow] = []
    for name in names:
        columns = pq.read_table(directory / name, partitioning=None).to_pydict()
        rows += map(LedgerRow, *(columns[field] for field in ("topic", "offset", "id", "country", "amount")))
    return rows, len(names)


def batch_ends(checkpoint: Path) -> dict[int, dict[str, int]]:
    """The end of each completed micro-batch, by its number: the next seq of every topic."""
    offsets, done = _numbered(checkpoint / "offsets"), _numbered(checkpoint / "commits")
    return {number: _ends_in(offsets[number]) for number in sorted(offsets.keys() & done.keys())}


def committed_ends(checkpoint: Path) -> dict[str, int]:
    """The progress of a query: the next seq of every topic; empty if no micro-batch is complete."""
    done = max(_numbered(checkpoint / "commits"), default=None)
    return {} if done is None else _ends_in(checkpoint / "offsets" / f"{done}")


def forget_last_commit(checkpoint: Path) -> bool:
    """Change a checkpoint as if the driver had died right after the commit of the sink, so that Spark repeats it.

    False, without a change, if a later micro-batch has started: then Spark repeats that one.
    """
    offsets, done = _numbered(checkpoint / "offsets"), _numbered(checkpoint / "commits")
    if not done or max(offsets) != max(done):
        return False
    last = done[max(done)]
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    return True


def _numbered(directory: Path) -> dict[int, Path]:
    return {int(path.name): path for path in directory.glob("[0-9]*") if path.name.isdigit()}


def _ends_in(offsets: Path) -> dict[str, int]:
    """The next seq of every topic. The file has a version, a line about the micro-batch, and one offset per source."""
    lines = offsets.read_text(encoding="utf-8").splitlines()
    return {topic: offset["0"] for topic, offset in json.loads(lines[-1]).items()}


def _valid_files(metadata: Path) -> list[str]:
    """The names of the files that micro-batches have added. Spark sometimes merges the lists into a `.compact` file."""
    compacts = {int(path.stem): path for path in metadata.glob("[0-9]*.compact")}
    last = max(compacts, default=-1)
    lists = [compacts[last]] if compacts else []
    lists += [path for number, path in sorted(_numbered(metadata).items()) if number > last]
    added = [json.loads(line) for path in lists for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [Path(unquote(urlsplit(entry["path"]).path)).name for entry in added if entry["action"] == "add"]
