"""The exactly-once sink `format("seawall")`: the writers that Spark calls, for batch and streaming queries.

    frame.write.format("seawall").option("url", "seawall://host:1992").option("topic", "totals").mode("append").save()

Tasks stage their rows (`staging.py`) and report the staged ranges; the driver commits the ranges of the successful
attempts. For a stream, the key of a commit is (query id, batch id): a micro-batch that Spark repeats after a crash has
the same key, even if its rows are in another order. For a batch write, the driver generates a key, unless one is given.

Spark pickles writers and sends them to executors, so they hold options, never a connection. Spark creates a new writer
for every commit of a stream, so writers keep no state. `docs/spark.md` explains the guarantees. This module must not
know how rows become records.
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
    """The report of a task attempt to the driver: where its rows are staged, and the id of its streaming query."""

    parts: tuple[StagedPart, ...]
    query_id: str = ""


class SeawallWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query atomically."""

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
        """Delete what the finished tasks have staged."""
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
            raise InvariantError(
                "INV-SINK-ONCE", f"the streaming query of this task is unknown: {_QUERY_ID} is not set"
            )
        return StagedMessage(_stage(iterator, self._columns, self._options), query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
        """Make all rows of a micro-batch visible, exactly once."""
        from seawall.spark.staging import commit_parts

        parts = _parts(messages)
        queries = {message.query_id for message in messages if isinstance(message, StagedMessage)}
        if parts:
            [query_id] = queries
            commit_parts(self._options.server, (f"spark-query-{query_id}", batch_id), parts)

    def abort(self, messages: list[WriterCommitMessage | None], _batch_id: int) -> None:
        """Delete what the finished tasks have staged."""
        from seawall.spark.staging import abort_parts

        abort_parts(self._options.server, _parts(messages))


def check_mode(overwrite: bool) -> None:
    """Raise `ConfigError` for mode overwrite."""
    if overwrite:
        raise ConfigError('a topic cannot be overwritten: write with mode("append")')


def check_topic(options: WriteOptions) -> None:
    """Check that the topic of all rows exists, once, before any task starts."""
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
    """The staged parts of the successful attempts in partition order, which is Spark's order; None is a failed one."""
    return [part for message in messages if isinstance(message, StagedMessage) for part in message.parts]
