"""Read stored batches as Arrow tables, without creating an object for each batch.

A read is split into plans, each about as large as an Arrow batch should be, and each plan becomes one record batch.
Plans are made one after the other, under the store's lock. Several are executed in parallel, by the reading thread and
by helper threads, since reads and kernels release the GIL.

Plain records (no envelope, no null, block neither compressed nor opaque) take the fast path: it verifies a piece that
fits the cache and copies its values into the Arrow buffer (`kernels/codec/gather.py`). Files are mapped
(`io/disk/mapped.py`), so that each byte is copied once, from the page cache to the Arrow buffer. If a file cannot be
mapped, or the run is too short to be worth it, each piece is read into memory first. The Arrow buffers are pooled. A
plan with any other records is executed as for any reader and decoded by `wire/format/arrow.py`. Both paths give the
same table.

Each plan is released after it is executed, or after an error before that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from seawall.core.types import Seq
from seawall.engine.read.read_results import received, to_arrow
from seawall.engine.read.reading import ReadPlan
from seawall.engine.read.run_pieces import brought
from seawall.engine.store.topic_log import StoredBatch
from seawall.errors import CorruptionError
from seawall.io.process.topology import discover
from seawall.kernels.codec.gather import GATHER_DONE, GATHER_MALFORMED
from seawall.limits import ARROW_THREADS_MAX, MIB
from seawall.wire.format.arrow import check_columns, empty_table, plain_table
from seawall.wire.format.gathering import PlainColumns

if TYPE_CHECKING:
    import pyarrow as pa

#: Plans the next read of a topic, given the first seq and the approximate size in bytes.
PlanNext: TypeAlias = Callable[[Seq, int], ReadPlan]

#: Bytes of one plan: Spark is fastest with Arrow batches of 4 to 8 MiB.
PLAN_SIZE: Final = 8 * MIB


def read_table(plan_next: PlanNext, topic: str, from_seq: Seq, columns: Sequence[str]) -> pa.Table:
    """Read all records from `from_seq` to the current end of the topic as one table, without rows for gaps."""
    import pyarrow as pa

    check_columns(columns)
    plan = plan_next(from_seq, PLAN_SIZE)
    until = plan.next_seq
    if plan.end_seq >= until:
        batches = gather(plan, topic, columns)
    else:
        batches = list(_gather_all(plan, plan_next, until, topic, columns))
    return pa.Table.from_batches(batches or [empty_table(columns)])


def gather(plan: ReadPlan, topic: str, columns: Sequence[str]) -> list[pa.RecordBatch]:
    """Execute a plan as record batches: one batch if all records are plain."""
    try:
        if not plan.runs:
            return []
        table = _gather_plain(plan, columns)
        if table is not None:
            return [table] if table.num_rows else []
        found = (received(topic, item) for item in plan.execute() if isinstance(item, StoredBatch))
        return list(to_arrow(found, columns))
    finally:
        plan.release()


def _gather_all(
    plan: ReadPlan, plan_next: PlanNext, until: Seq, topic: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Execute all plans and yield their results in order; this thread executes a plan if all helpers are busy."""
    helpers = _helper_count()
    results: deque[Future[list[pa.RecordBatch]]] = deque()
    with ThreadPoolExecutor(max(1, helpers), thread_name_prefix="seawall-arrow") as pool:
        while True:
            try:
                busy = sum(not each.done() for each in results)
                results.append(
                    pool.submit(gather, plan, topic, columns) if busy < helpers else _execute_here(plan, topic, columns)
                )
            except BaseException:
                plan.release()
                raise
            while results and results[0].done():
                yield from results.popleft().result()
            if plan.end_seq >= until:
                break
            plan = plan_next(plan.end_seq, PLAN_SIZE)
        for each in results:
            yield from each.result()


def _execute_here(plan: ReadPlan, topic: str, columns: Sequence[str]) -> Future[list[pa.RecordBatch]]:
    """Execute a plan on this thread; returns a finished future."""
    result: Future[list[pa.RecordBatch]] = Future()
    result.set_result(gather(plan, topic, columns))
    return result


@cache
def _helper_count() -> int:
    return min(ARROW_THREADS_MAX, discover().cpu_count) - 1


def _gather_plain(plan: ReadPlan, columns: Sequence[str]) -> pa.RecordBatch | None:
    """Execute a plan on the fast path; None if it holds a record that is not plain."""
    filled = PlainColumns([run.entries for run in plan.runs], plan.live)
    for run in plan.runs:
        for buffer, at, entries in brought(run, mapped=True):
            code = filled.add(buffer, at, entries)
            if code == GATHER_MALFORMED:
                seq = int(entries[0]["base_seq"])
                raise CorruptionError(f"a batch from seq {seq} on is not a run of as many records as it says")
            if code != GATHER_DONE:
                return None
    return plain_table(filled.seqs, filled.types, filled.values, columns)
