"""Reads the range of seqs of one task and yields Arrow batches. Runs in the Python workers of the executors.

A task reads sealed segments directly if it can access their files, and everything else over the network
(`RangeReader._source` chooses; a cold tier would be one more source there). If reading files fails, the task reads the
rest over the network, unless the query insists on files.

INV-READ-RANGE: a task delivers every live record of its range once, by rising seq, from files or over the network.
INV-READ-LOSS: a loss in the range of a task fails the query, or is counted where the query allows it. It becomes a row
if the query asks for gaps. Deleted records are no loss.

A crash of a task leaves nothing to clean up; the next attempt reads the same records. This module must not know Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.api.losses import data_loss
from seawall.client.connection.requests import Requests
from seawall.client.connection.targets import Target, parse_target
from seawall.client.read.prefetch import Prefetch
from seawall.client.read.reading import ReceivedRows, TopicReader
from seawall.core.types import Seq, TopicId
from seawall.errors import CorruptionError, DataLossError, NotFoundError, UnsupportedError
from seawall.kernels.log.segments import INDEX_ENTRY, Entries
from seawall.limits import BATCH_HEADER_SIZE, MIB
from seawall.spark.columns import BatchBytes, ColumnMaker, Rows
from seawall.spark.given_options import ServerOptions
from seawall.spark.options import Clock, ReadFrom, ReadOptions
from seawall.spark.planning import SeqRange
from seawall.spark.segments import FilesError, Piece, open_topic, read_pieces
from seawall.wire.format.codes import GapReason, ReadBy
from seawall.wire.format.gaps import Gap
from seawall.wire.lwp2.files import FilesReply, FilesRequest, parse_files_reply

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of stored batches per Arrow batch. Spark is fastest with about this size.
PIECE_SIZE: Final = 4 * MIB

#: The limit for decompressed batches in one Arrow batch.
_PLAIN_SIZE_MAX: Final = 2 * PIECE_SIZE

_LOG: Final = logging.getLogger("seawall.spark")

#: Records, a gap, or None for no record; and the seq up to which (exclusive) the range is complete now.
Item: TypeAlias = tuple[Rows | Gap | None, int]

Integers = npt.NDArray[np.int64]


def target_of(server: ServerOptions) -> Target:
    """The connection settings of a query."""
    return parse_target(
        server.url,
        token=server.token,
        name="spark",
        timeout_s=server.timeout_s,
        tls=server.tls,
        tls_cert=server.tls_cert,
        tls_key=server.tls_key,
    )


def read_range(wanted: SeqRange, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The Arrow batches of a range."""
    requests = Requests(target_of(options.server))
    try:
        yield from RangeReader(requests, wanted, options).batches()
    finally:
        requests.close()


class RangeReader:
    """Reads one range of seqs."""

    def __init__(self, requests: Requests, wanted: SeqRange, options: ReadOptions) -> None:
        self._requests = requests
        self._range = wanted
        self._options = options
        self._shows_gaps = "gap_reason" in options.columns
        self._uses_files = options.read_from is not ReadFrom.NETWORK
        self._maker = ColumnMaker(
            wanted.topic,
            options.columns,
            virtual_partitions=options.virtual_partitions,
            shows_writers_time=options.clock is Clock.CLIENT,
        )
        self._lost = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The Arrow batches of the range."""
        for item in self._items():
            if isinstance(item, Gap):
                self._lose(item)
                if self._shows_gaps:
                    yield self._maker.gap(item)
            elif len(item):
                yield self._maker.batch(item)
        if self._lost:
            _LOG.warning(
                "topic %s: %d seqs from %d to %d are lost and were skipped (failOnDataLoss=false)",
                *(self._range.topic, self._lost, self._range.first, self._range.end - 1),
            )

    def _items(self) -> Iterator[Rows | Gap]:
        """Records and gaps, in order."""
        seq = self._range.first
        while seq < self._range.end:
            try:
                for item, next_seq in self._source(seq):
                    if item is not None:
                        yield item
                    seq = next_seq
            except FilesError as error:
                if self._options.read_from is ReadFrom.FILES:
                    raise UnsupportedError(
                        f"read=files, but seqs from {seq} on cannot be read from files: {error}; read=auto reads them "
                        "over the network"
                    ) from error
                self._uses_files = False
            except NotFoundError as error:
                raise self._gone(seq, error) from error

    def _source(self, seq: int) -> Iterator[Item]:
        """The items from a seq on, from files or from the network; files may end before the range does."""
        if self._uses_files:
            reply = self._request_files(seq)
            if reply is not None and reply.end > seq:
                return self._from_files(reply, seq)
            # After the last sealed segment there are no more files.
            self._uses_files = False
        return self._from_network(seq)

    # --- files -----------------------------------------------------------------------------------------------------

    def _request_files(self, seq: int) -> FilesReply | None:
        request = FilesRequest(TopicId(self._range.topic_id), Seq(seq), Seq(self._range.end))
        try:
            return parse_files_reply(self._requests.request(request).payload)
        except UnsupportedError:
            # An older server without this request.
            return None

    def _from_files(self, reply: FilesReply, seq: int) -> Iterator[Item]:
        gaps = list(reply.gaps)
        home = open_topic(reply, self._range.topic_id) if reply.live else None
        pieces = read_pieces(home, reply, seq, PIECE_SIZE) if home is not None else iter(())
        for piece in pieces:
            yield from self._with_gaps(piece, gaps)
        for gap in gaps:
            yield gap, gap.last_seq + 1
        yield None, reply.end

    def _with_gaps(self, piece: Piece, gaps: list[Gap]) -> Iterator[Item]:
        """The records of a piece with the gaps between them, in order; removes those gaps from the list."""
        live = piece.live
        while gaps and gaps[0].first_seq < piece.end:
            gap = gaps.pop(0)
            before = live[live[:, 0] < gap.first_seq]
            live = live[len(before) :]
            yield from self._shown(piece, before)
            yield gap, gap.last_seq + 1
        yield from self._shown(piece, live)
        yield None, piece.end

    def _shown(self, piece: Piece, live: Integers) -> Iterator[Item]:
        if not len(live):
            return
        for parts in _split_by_size(piece.parts):
            try:
                rows = self._maker.rows(parts, live)
            except CorruptionError as error:
                raise FilesError(str(error)) from error
            if len(rows):
                yield rows, int(rows.seqs[-1]) + 1

    # --- the network -----------------------------------------------------------------------------------------------

    def _from_network(self, seq: int) -> Iterator[Item]:
        wanted = self._range
        reader = TopicReader(wanted.topic, TopicId(wanted.topic_id), ReadBy.SEQ, seq, until=wanted.end)
        prefetch = Prefetch(self._requests, reader)
        verified_at = 0
        try:
            while reader.next_seq < wanted.end:
                if reader.is_at_end:
                    yield from self._missing(reader.next_seq)
                    return
                item = reader.take_rows(prefetch.receive(reader.fetch(max_bytes=PIECE_SIZE), prefetch_size=PIECE_SIZE))
                if isinstance(item, Gap):
                    gap = item.clipped(Seq(seq), Seq(wanted.end - 1))
                    seq = min(item.last_seq + 1, wanted.end)
                    yield gap, seq
                elif isinstance(item, ReceivedRows):
                    try:
                        for rows in self._received(item):
                            seq = int(rows.seqs[-1]) + 1
                            yield rows, seq
                    except CorruptionError as error:
                        if verified_at == seq:
                            raise
                        verified_at = seq
                        reader.retry_verified(Seq(seq), error)
            yield None, wanted.end
        finally:
            prefetch.cancel()

    def _received(self, item: ReceivedRows) -> Iterator[Rows]:
        """The records of a response; none if all of them are deleted."""
        if not len(item.rows):
            return
        live = np.array([[item.first_seq, self._range.end - 1]], np.int64)
        part = BatchBytes(np.frombuffer(item.payload, np.uint8), 0, _entries(item))
        for parts in _split_by_size([part]):
            rows = self._maker.rows(parts, live)
            if len(rows):
                yield rows

    def _missing(self, seq: int) -> Iterator[Item]:
        """Handle a topic that ends before the range: it has lost records since the range was planned."""
        what = f"topic {self._range.topic!r} ends at seq {seq}, but it had seqs up to {self._range.end - 1} before"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what}: the server has lost them; failOnDataLoss=false continues without them")
        self._lost += self._range.end - seq
        yield None, self._range.end

    # --- loss ------------------------------------------------------------------------------------------------------

    def _lose(self, gap: Gap) -> None:
        """Raise or count a loss (INV-READ-LOSS)."""
        if gap.reason is GapReason.CRASH and not self._range.is_crash_loss:
            return
        if self._options.fail_on_data_loss:
            remedy = "failOnDataLoss=false skips them, and includeGaps=true also shows them as rows"
            raise data_loss(self._range.topic, gap, remedy)
        self._lost += gap.last_seq - gap.first_seq + 1

    def _gone(self, seq: int, error: NotFoundError) -> DataLossError:
        return DataLossError(
            f"topic {self._range.topic!r} was deleted while seqs {seq} to {self._range.end - 1} were being read: "
            f"{error}; start the query again, with a new checkpoint if the topic was created again"
        )


def _split_by_size(parts: Sequence[BatchBytes]) -> Iterator[list[BatchBytes]]:
    """The batches of each Arrow batch: all together, unless their decompressed size is above the limit."""
    chunks = [list(part.split_by_size(_PLAIN_SIZE_MAX)) for part in parts]
    if all(len(each) <= 1 for each in chunks):
        yield list(parts)
    else:
        yield from ([chunk] for each in chunks for chunk in each)


def _entries(item: ReceivedRows) -> Entries:
    """The index entries of received batches; a frame has the same layout as a segment."""
    rows = item.rows
    entries = np.zeros(len(rows), INDEX_ENTRY)
    for name in ("base_seq", "timestamp_ns", "position"):
        entries[name] = rows[name]
    entries["count"] = rows["record_count"]
    entries["at"] = rows["at"] - BATCH_HEADER_SIZE
    entries["length"] = rows["end"] - rows["at"] + BATCH_HEADER_SIZE
    return entries
