"""Writing `format("seawall")`, exactly once: what Spark calls, batch and streaming.

    frame.write.format("seawall").option("url", "seawall://host:1992").option("topic", "totals").mode("append").save()

Tasks stage (`staging.py`) and answer where; the driver commits what the attempts that count have answered. The key of a
commit is (query id, batch id) for a stream: a batch that Spark does again after any crash has the same, whatever order
its rows have by then. A batch write has one that its driver makes, or the one that it is given.

Writers go to executors as copies, so they hold options, never a connection. Spark makes a writer of a stream anew for
every commit: nothing is kept in it. `docs/spark.md` explains the guarantees. This module must not know how rows become
records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from seawall.core.transactions import StagedPart
from seawall.errors import ConfigError, InvariantError
from seawall.io.process.own_process import random_bytes
from seawall.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class StagedMessage(WriterCommitMessage):
    """What an attempt tells the driver: where its rows are staged, and which streaming query they are of."""

    parts: tuple[StagedPart, ...]
    query_id: str = ""


class SeawallWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query, all or none."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns
        self._key = options.key or (f"spark-write-{random_bytes(16).hex()}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        return StagedMessage(_stage(iterator, self._columns, self._options))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make all rows visible."""
        from seawall.spark.staging import commit_parts

        commit_parts(self._options.server, self._key, _parts(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks that were done have staged."""
        from seawall.spark.staging import abort_parts

        abort_parts(self._options.server, _parts(messages))


class SeawallStreamWriter(DataSourceStreamArrowWriter):
    """Writes the rows of a streaming query, micro-batch by micro-batch."""

    def __init__(self, options: WriteOptions, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
        if not query_id:
            raise InvariantError("INV-SINK-ONCE", f"Spark does not tell which query this is of: {_QUERY_ID} is not set")
        return StagedMessage(_stage(iterator, self._columns, self._options), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Make all rows of a micro-batch visible, once."""
        from seawall.spark.staging import commit_parts

        parts = _parts(messages)
        queries = {message.query_id for message in messages if isinstance(message, StagedMessage)}
        if parts:
            [query_id] = queries
            commit_parts(self._options.server, (f"spark-query-{query_id}", batch_id), parts)

    def abort(self, messages: list[WriterCommitMessage | None], _batch_id: int) -> None:
        """Delete what the tasks that were done have staged."""
        from seawall.spark.staging import abort_parts

        abort_parts(self._options.server, _parts(messages))


def check_mode(overwrite: bool) -> None:
    """Refuse to overwrite."""
    if overwrite:
        raise ConfigError('a topic is appended to and never overwritten: write with mode("append")')


def check_topic(options: WriteOptions) -> None:
    """Ask once for the topic that all rows go to, before any task begins."""
    from seawall.spark.staging import require_topic

    if options.topic is not None:
        require_topic(options.server, options.topic)


def _stage(
    iterator: Iterator[pa.RecordBatch], columns: tuple[str, ...], options: WriteOptions
) -> tuple[StagedPart, ...]:
    from seawall.spark.staging import stage_rows

    context = TaskContext.get()
    return stage_rows(iterator, columns, options, 0 if context is None else context.partitionId())


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPart]:
    """What the attempts that count have staged, by partition, which is Spark's order; None is one that failed."""
    return [part for message in messages if isinstance(message, StagedMessage) for part in message.parts]
