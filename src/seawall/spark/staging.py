"""What a task of the sink does, and what the driver does with it: stage rows, then commit or abort what was staged.

A task stages its rows under a client of its own, so that no two attempts share anything, and tells where they lie:
whole batches, for each topic in the order of the rows. Nobody sees them. The driver commits what the attempts that
count have told, in the order of partitions, by one request under one key.

INV-SINK-ONCE: one commit of each key of a write becomes visible; a repetition changes nothing. What was staged for it
again is deleted.
INV-SINK-COUNTED: only ranges of the attempts that the driver counts become visible. Attempts that failed, were killed
or lost against another one are deleted by themselves if they can, by their age (`storage.staging_ttl_ms`) if not.

A crash of a task or of the driver leaves staged records behind, which go by their age; the next attempt stages its own.
Rows come as Arrow batches, and no object is made for one. This module must not know Spark.
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

#: Rows of a topic are gathered until they are so many bytes: a transaction holds only so many batches.
GATHERED_SIZE: Final = MIB

#: Rows that come as more than this are staged as several batches: a server with many tasks receives one right where it
#: is to lie if all of it has come as far as the system's memory, which holds a few megabytes for a connection.
STAGED_SIZE: Final = 2 * MIB

_LOG: Final = logging.getLogger("seawall.spark")


def stage_rows(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], options: WriteOptions, partition: int
) -> tuple[StagedPart, ...]:
    """Stage the rows of one attempt; where they are, for each topic in their order.

    Whatever goes wrong, what was staged is deleted as far as that can be done.
    """
    rows = iter(batches)
    first = next(rows, None)
    if first is None:
        # Many partitions of a small frame are empty: none of them needs a server.
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
    """The servers, beginning with the one whose turn it is for a partition: so all of them take part."""
    target = target_of(server)
    turn = partition % len(target.addresses)
    return replace(target, addresses=target.addresses[turn:] + target.addresses[:turn])


class _StagingTask:
    """The rows of one attempt on their way: apart, unless they are so few that they are sent once."""

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
        """Take some rows."""
        for topic, rows in self._by_topic(batch):
            if rows.num_rows:
                self._gather(topic, rows)

    def parts(self) -> tuple[StagedPart, ...]:
        """Everything, once it is staged; waits."""
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
            self._stager = self._log.stage(is_apart=not is_last, compression=self._compression)
        self._calls[topic] += [self._stager.publish(part) for part in _parts(_needed(_one_batch(rows)))]


def find_topic(log: RemoteLog, topic: str) -> None:
    """See that a topic is there; `NotFoundError` if not."""
    try:
        log.topic_named(topic)
    except NotFoundError as error:
        raise NotFoundError(
            f"there is no topic {topic!r} on {log.target}: create it, or correct the option or column topic"
        ) from error


def require_topic(server: ServerOptions, topic: str) -> None:
    """Ask a server for a topic; raises what stands in the way of writing to it."""
    with RemoteLog(target_of(server)) as log:
        find_topic(log, topic)


def _ranges(calls: Iterable[StagedCall]) -> list[StagedRange]:
    """Where some calls have staged, as few ranges as can be; waits."""
    return joined(each for call in calls for each in call.ranges())


def _one_batch(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Several batches as one; one that is large is not copied."""
    import pyarrow as pa

    return rows[0] if len(rows) == 1 else pa.concat_batches(rows)


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Some rows in parts of about `STAGED_SIZE`, none of them copied."""
    step = max(1, -(-rows.num_rows // max(1, round(rows.nbytes / STAGED_SIZE))))
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def _needed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without columns that say nothing: records of a value alone need no envelope."""
    names = [name for name in rows.schema.names if name == "value" or rows.column(name).null_count < rows.num_rows]
    return rows.select(names)


def commit_parts(server: ServerOptions, key: tuple[str, int], parts: Sequence[StagedPart]) -> None:
    """Make what was staged visible, all of it, once for its key (INV-SINK-ONCE)."""
    if not parts:
        return
    with RemoteLog(target_of(server)) as log:
        try:
            committed = log.commit_staged(*key, parts)
        except FencedError as error:
            raise FencedError(
                f"another run has gone on beyond this one, or a checkpoint was put back to an earlier state: {error}. "
                "Let one run be alone with its checkpoint; after putting one back, take a new checkpointLocation"
            ) from error
        if committed.is_repeated:
            _compare(committed, parts)
            with suppress(SeawallError, OSError, TimeoutError):
                # Staged once more for nothing, unless it was a lost answer that made it a repetition.
                log.abort_staged([part.staged for part in parts])


def _compare(committed: CommittedTransaction, parts: Sequence[StagedPart]) -> None:
    """Warn if a repetition does not hold as many records as what it repeats: then the query does not repeat itself."""
    counts: dict[str, int] = {}
    for topic, staged in parts:
        counts[topic] = counts.get(topic, 0) + staged.record_count
    before = {span.topic: span.record_count for span in committed.spans}
    if counts != before:
        _LOG.warning(
            "transaction %d of %r was committed before with %s records, and this repetition has %s: the first one "
            "stands. Does the query depend on the time or on chance?",
            committed.epoch,
            committed.owner,
            before,
            counts,
        )


def abort_parts(server: ServerOptions, parts: Sequence[StagedPart]) -> None:
    """Delete what was staged and is not committed, if the server can be asked; it goes by its age if not."""
    if not parts:
        return
    with suppress(SeawallError, OSError, TimeoutError), RemoteLog(target_of(server)) as log:
        log.abort_staged([part.staged for part in parts])
