"""The work of the sink: tasks stage rows, and the driver commits or aborts what they staged.

A task attempt stages its rows under a client id of its own, so that attempts share nothing, and reports the staged
ranges: whole batches, for each topic in the order of the rows. Readers do not see them. The driver commits the ranges
of the successful attempts, in the order of partitions, with one request under one key.

INV-SINK-ONCE: one commit of each key of a write becomes visible; a repetition changes nothing. The rows that were
staged for a repetition are deleted.
INV-SINK-COUNTED: only ranges of the attempts that the driver counts become visible. An attempt that fails, is killed or
loses against another one deletes its rows if it can; otherwise they expire (`storage.staging_ttl_ms`).

After a crash of a task or of the driver, staged records remain until they expire; the next attempt stages its own. Rows
arrive as Arrow batches, without a Python object per row. This module must not know Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from seawall.api.transactions import StagedCall, Stager
from seawall.client.connection.targets import Target
from seawall.client.remote_log import RemoteLog
from seawall.core.transactions import CommittedTransaction, StagedPart, StagedRange, joined
from seawall.errors import FencedError, InvalidInputError, NotFoundError, SeawallError
from seawall.limits import MIB
from seawall.spark.given_options import ServerOptions
from seawall.spark.reading import target_of
from seawall.spark.write_options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of a topic are buffered up to this size, because a transaction has a limited number of batches.
GATHERED_SIZE: Final = MIB

#: Larger buffers are staged as several batches. If a batch fits into the socket buffer, which holds a few megabytes,
#: a server with many tasks receives it directly into its final memory.
STAGED_SIZE: Final = 2 * MIB

_LOG: Final = logging.getLogger("seawall.spark")


def stage_rows(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], options: WriteOptions, partition: int
) -> tuple[StagedPart, ...]:
    """Stage the rows of one attempt; returns the staged ranges, for each topic in the order of its rows.

    After an error, deletes what was staged if possible.
    """
    rows = iter(batches)
    first = next(rows, None)
    if first is None:
        # Many partitions of a small frame are empty: they need no connection.
        return ()
    with RemoteLog(task_target(options.server, partition)) as log, closing(_StagingTask(log, columns, options)) as task:
        try:
            task.add(first)
            for batch in rows:
                task.add(batch)
            return task.parts()
        except BaseException:
            with suppress(SeawallError, OSError, TimeoutError):
                task.abort()
            raise


def task_target(server: ServerOptions, partition: int) -> Target:
    """The target with its addresses rotated by the partition, so that tasks spread over all servers."""
    target = target_of(server)
    first = partition % len(target.addresses)
    return replace(target, addresses=target.addresses[first:] + target.addresses[:first])


class _StagingTask:
    """Stages the rows of one attempt. They get a staging topic of their own, unless they fit into one buffer."""

    def __init__(self, log: RemoteLog, columns: Sequence[str], options: WriteOptions) -> None:
        self._log = log
        self._stager: Stager | None = None
        self._compression = options.compression
        self._columns = [name for name in columns if name != "topic"]
        self._topic = options.topic
        self._gathered: dict[str, list[pa.RecordBatch]] = {}
        self._sizes: dict[str, int] = {}
        self._calls: dict[str, list[StagedCall]] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        for topic, rows in self._by_topic(batch):
            if rows.num_rows:
                self._gather(topic, rows)

    def parts(self) -> tuple[StagedPart, ...]:
        """Send the buffered rows, wait until everything is staged, and return the ranges."""
        for topic in self._gathered:
            self._send(topic, is_last=True)
        return tuple(StagedPart(topic, staged) for topic, calls in self._calls.items() for staged in _ranges(calls))

    def abort(self) -> None:
        """Delete what was staged."""
        if self._stager is not None:
            self._stager.abort()

    def close(self) -> None:
        """Stage nothing more."""
        if self._stager is not None:
            self._stager.close()

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        from pyarrow import compute

        rows = batch.select(self._columns)
        if self._topic is not None:
            yield self._topic, rows
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidInputError("the topic of a row is null: name a topic for every row, or give option topic")
        names = compute.unique(topics)
        for name in names:
            yield name.as_py(), rows if len(names) == 1 else rows.filter(compute.equal(topics, name))

    def _gather(self, topic: str, rows: pa.RecordBatch) -> None:
        if topic not in self._gathered:
            find_topic(self._log, topic)
            self._gathered[topic], self._sizes[topic], self._calls[topic] = [], 0, []
        self._gathered[topic].append(rows)
        self._sizes[topic] += rows.nbytes
        if self._sizes[topic] >= GATHERED_SIZE:
            self._send(topic)

    def _send(self, topic: str, *, is_last: bool = False) -> None:
        rows, self._gathered[topic], self._sizes[topic] = self._gathered[topic], [], 0
        if not rows:
            return
        if self._stager is None:
            self._stager = self._log.stage(own_partition=not is_last, compression=self._compression)
        self._calls[topic] += [self._stager.publish(part) for part in _parts(_needed(_one_batch(rows)))]


def find_topic(log: RemoteLog, topic: str) -> None:
    """Check that a topic exists; raises `NotFoundError` if not."""
    try:
        log.topic_named(topic)
    except NotFoundError as error:
        raise NotFoundError(
            f"there is no topic {topic!r} on {log.target}: create it, or correct the option or column topic"
        ) from error


def require_topic(server: ServerOptions, topic: str) -> None:
    """Connect to a server and check that a topic exists; raises the error that prevents writing to it."""
    with RemoteLog(target_of(server)) as log:
        find_topic(log, topic)


def _ranges(calls: Iterable[StagedCall]) -> list[StagedRange]:
    """Wait for calls and return their staged ranges, merged where possible."""
    return joined(each for call in calls for each in call.ranges())


def _one_batch(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches; a single one is not copied."""
    import pyarrow as pa

    return rows[0] if len(rows) == 1 else pa.concat_batches(rows)


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slice rows into parts of about `STAGED_SIZE`, without copies."""
    step = max(1, -(-rows.num_rows // max(1, round(rows.nbytes / STAGED_SIZE))))
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def _needed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Drop columns with only nulls: records with only a value need no envelope."""
    names = [name for name in rows.schema.names if name == "value" or rows.column(name).null_count < rows.num_rows]
    return rows.select(names)


def commit_parts(server: ServerOptions, key: tuple[str, int], parts: Sequence[StagedPart]) -> None:
    """Make staged parts visible, atomically and once per key (INV-SINK-ONCE)."""
    if not parts:
        return
    with RemoteLog(target_of(server)) as log:
        try:
            committed = log.commit_staged(*key, parts)
        except FencedError as error:
            raise FencedError(
                f"another run has advanced past this one, or a checkpoint was restored to an earlier state: {error}. "
                "Use a checkpoint in one run only; after restoring one, use a new checkpointLocation"
            ) from error
        if committed.is_repeated:
            _compare(committed, parts)
            with suppress(SeawallError, OSError, TimeoutError):
                # The rows were staged again in vain. If only the response was lost, nothing is left to delete.
                log.abort_staged([part.staged for part in parts])


def _compare(committed: CommittedTransaction, parts: Sequence[StagedPart]) -> None:
    """Warn if a repetition has another number of records than the original: then the query is not deterministic."""
    counts: dict[str, int] = {}
    for topic, staged in parts:
        counts[topic] = counts.get(topic, 0) + staged.record_count
    before = {span.topic: span.record_count for span in committed.spans}
    if counts != before:
        _LOG.warning(
            "transaction %d of %r was committed before with %s records, but this repetition has %s: the first commit "
            "stands. Does the query depend on the time or on random values?",
            committed.epoch,
            committed.owner,
            before,
            counts,
        )


def abort_parts(server: ServerOptions, parts: Sequence[StagedPart]) -> None:
    """Delete staged parts that are not committed; if the server is unreachable, they expire."""
    if not parts:
        return
    with suppress(SeawallError, OSError, TimeoutError), RemoteLog(target_of(server)) as log:
        log.abort_staged([part.staged for part in parts])
