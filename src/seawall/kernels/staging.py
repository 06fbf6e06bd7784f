"""A writer's batch gets its header and its numbers in one call.

`write_header` puts the 96 bytes of a header (`wire.batches` has its table) before or apart from a block, with the
block's checksum and without those fields that the frontier stamps. `number_batch` and `number_client_batch` do that and
then what `frontier` and `client_frontier` do with a batch that has come from outside. The header may lie in another
array than the block: large blocks are never copied.

`stage_epoch` does it for a whole epoch of the log: batches without sessions whose blocks lie in the lane already, each
behind room for its header, behind room for the epoch's.

INV-BLOCK-UNTOUCHED: a block is read, never written.
"""

from __future__ import annotations

from numba.core import types

from seawall.kernels.checksum import crc32c
from seawall.kernels.client_frontier import admit_client_batch
from seawall.kernels.client_window import WINDOW_RESULT, Words
from seawall.kernels.epochs import EPOCH_HEADER, EPOCH_MAGIC, WAL_ROW, WalRows
from seawall.kernels.frontier import (
    ADMISSION_ROW,
    LAST_TIMESTAMP,
    NEXT_POSITION,
    RUN_DONE,
    STATUS_OK,
    TOPIC_ROW,
    Rows,
    admit_batch,
)
from seawall.kernels.jit import (
    bytes_in,
    bytes_out,
    int64,
    int64_out,
    kernel,
    record_array,
    uint64_out,
    void,
)
from seawall.kernels.memory import Bytes, as_int64, load_u32, store_u32, store_u64
from seawall.kernels.tables import Keys, Values

#: Columns of a draft: what a writer says of a batch. All but the last are the arguments of `write_header`.
DRAFT_RECORD_COUNT = 0
DRAFT_TOPIC_ID = 1
DRAFT_CLIENT_ID = 2
DRAFT_CLIENT_SEQ = 3
DRAFT_SESSION_EPOCH = 4
DRAFT_RAW_LENGTH = 5
DRAFT_CHOICES = 6
DRAFT_BLOCK_LENGTH = 7
DRAFT_COLUMNS = 8

#: What `stage_epoch` answers if a batch could not be admitted, which its caller has ruled out.
STAGE_REFUSED = -1

_PROLOGUE = 52
_BATCH_HEADER = 96
#: `LANC`, version 2, kind 4, command 0, as one number of 8 bytes.
_START = int.from_bytes(b"LANC\x02\x04\x00\x00", "little")

_topics = record_array(TOPIC_ROW)
_rows = record_array(ADMISSION_ROW)
_words = types.Array(types.uint64, 2, "C")
_results = record_array(WINDOW_RESULT)
_wal_rows = record_array(WAL_ROW)
_drafts = types.Array(types.int64, 2, "C")


@kernel(void(bytes_out, int64, bytes_in, int64, int64, int64, int64, int64, int64, int64, int64, int64))
def write_header(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    record_count: int,
    topic_id: int,
    client_id: int,
    client_seq: int,
    session_epoch: int,
    raw_length: int,
    choices: int,
) -> None:
    """The header of `block[start:end]`, at `header[at:at + 96]`; its checksum and numbers come with the stamp.

    Client id and seq are bit patterns; `choices` are order, ack level, codec and flags, a byte each from the lowest.
    """
    store_u64(header, at, _START)
    store_u32(header, at + 8, 0)
    store_u64(header, at + 12, client_seq)
    store_u64(header, at + 20, 0)
    store_u32(header, at + 28, record_count)
    store_u32(header, at + 32, _PROLOGUE + end - start)
    store_u32(header, at + 36, crc32c(block, start, end, 0))
    store_u32(header, at + 40, topic_id)
    store_u32(header, at + 44, 0)
    store_u64(header, at + 48, client_id)
    store_u64(header, at + 56, 0)
    store_u64(header, at + 64, 0)
    store_u64(header, at + 72, 0)
    store_u32(header, at + 80, raw_length)
    store_u32(header, at + 84, 0)
    store_u32(header, at + 88, session_epoch)
    store_u32(header, at + 92, choices)


@kernel(
    int64(
        *(bytes_out, int64, bytes_in, int64, int64),
        *(int64, int64, int64, int64, int64, int64, int64, int64, int64),
        *(uint64_out, int64_out, bytes_out, _topics, int64_out, _rows),
    )
)
def number_batch(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    record_count: int,
    topic_id: int,
    client_id: int,
    client_seq: int,
    session_epoch: int,
    raw_length: int,
    choices: int,
    term: int,
    wall_ns: int,
    keys: Keys,
    values: Values,
    used: Bytes,
    topics: Rows,
    numbers: Values,
    rows: Rows,
) -> int:
    """Write the header of a block and admit it; `rows[0]` says what became of it; the code is that of `admit_batch`."""
    write_header(
        header,
        at,
        block,
        start,
        end,
        record_count,
        topic_id,
        client_id,
        client_seq,
        session_epoch,
        raw_length,
        choices,
    )
    return admit_batch(header, at, term, wall_ns, keys, values, used, topics, numbers, rows, 0)


@kernel(
    int64(
        *(bytes_out, int64, bytes_in, int64, int64),
        *(int64, int64, int64, int64, int64, int64, int64, int64, int64),
        *(uint64_out, int64_out, bytes_out, _topics, int64_out),
        *(uint64_out, int64_out, bytes_out, _words, _words, _words, _results, _results),
        _rows,
    )
)
def number_client_batch(
    header: Bytes,
    at: int,
    block: Bytes,
    start: int,
    end: int,
    record_count: int,
    topic_id: int,
    client_id: int,
    client_seq: int,
    session_epoch: int,
    raw_length: int,
    choices: int,
    term: int,
    wall_ns: int,
    keys: Keys,
    values: Values,
    used: Bytes,
    topics: Rows,
    numbers: Values,
    client_keys: Keys,
    client_values: Values,
    client_used: Bytes,
    clients: Words,
    sides: Words,
    slots: Words,
    results: Rows,
    answers: Rows,
    rows: Rows,
) -> int:
    """`number_batch` behind a client window."""
    write_header(
        header,
        at,
        block,
        start,
        end,
        record_count,
        topic_id,
        client_id,
        client_seq,
        session_epoch,
        raw_length,
        choices,
    )
    return admit_client_batch(
        header,
        at,
        term,
        wall_ns,
        keys,
        values,
        used,
        topics,
        numbers,
        client_keys,
        client_values,
        client_used,
        clients,
        sides,
        slots,
        results,
        answers,
        rows,
        0,
    )


@kernel(void(_rows, int64, int64_out, bytes_out, int64, int64, int64, _wal_rows, int64))
def _describe(
    rows: Rows, index: int, draft: Values, lane: Bytes, at: int, address: int, term: int, staged: WalRows, place: int
) -> None:
    """A batch as a row of the log."""
    row = rows[index]
    described = staged[place]
    described["at"] = address
    described["position"] = row["position"]
    described["base_seq"] = row["base_seq"]
    described["base_offset"] = row["base_offset"]
    described["timestamp_ns"] = row["timestamp_ns"]
    described["client_id"] = draft[DRAFT_CLIENT_ID]
    described["client_seq"] = draft[DRAFT_CLIENT_SEQ]
    described["size"] = row["size"]
    described["count"] = row["record_count"]
    described["raw_length"] = draft[DRAFT_RAW_LENGTH]
    described["topic_id"] = row["topic_id"]
    described["term"] = term
    described["session_epoch"] = draft[DRAFT_SESSION_EPOCH]
    described["block_crc"] = load_u32(lane, at + 36)
    described["command"] = 0
    described["codec"] = as_int64(lane[at + 94])
    described["flags"] = as_int64(lane[at + 95])


@kernel(
    int64(
        *(bytes_out, _drafts, int64, int64, int64, int64, int64, int64, int64),
        *(uint64_out, int64_out, bytes_out, _topics, int64_out, _rows, _wal_rows),
    )
)
def stage_epoch(
    lane: Bytes,
    drafts: Values,
    count: int,
    salt: int,
    epoch: int,
    synced_through: int,
    address: int,
    term: int,
    wall_ns: int,
    keys: Keys,
    values: Values,
    used: Bytes,
    topics: Rows,
    numbers: Values,
    rows: Rows,
    staged: WalRows,
) -> int:
    """Make the first `count` drafts one epoch at the beginning of the lane, for an address of the log; its size.

    `rows` says what became of each, `staged` describes each as the log's reader will.
    """
    first_position = numbers[NEXT_POSITION]
    at = EPOCH_HEADER
    for index in range(count):
        draft = drafts[index]
        after = at + _BATCH_HEADER + draft[DRAFT_BLOCK_LENGTH]
        write_header(
            lane,
            at,
            lane,
            at + _BATCH_HEADER,
            after,
            draft[DRAFT_RECORD_COUNT],
            draft[DRAFT_TOPIC_ID],
            draft[DRAFT_CLIENT_ID],
            draft[DRAFT_CLIENT_SEQ],
            draft[DRAFT_SESSION_EPOCH],
            draft[DRAFT_RAW_LENGTH],
            draft[DRAFT_CHOICES],
        )
        code = admit_batch(lane, at, term, wall_ns, keys, values, used, topics, numbers, rows, index)
        if code != RUN_DONE or rows[index]["status"] != STATUS_OK:
            return STAGE_REFUSED
        _describe(rows, index, draft, lane, at, address + at, term, staged, index)
        at = after
    store_u32(lane, 0, EPOCH_MAGIC)
    store_u64(lane, 8, salt)
    store_u64(lane, 16, epoch)
    store_u64(lane, 24, at - EPOCH_HEADER)
    store_u64(lane, 32, synced_through)
    store_u64(lane, 40, first_position)
    store_u32(lane, 48, count)
    store_u32(lane, 52, 0)
    store_u64(lane, 56, numbers[LAST_TIMESTAMP])
    store_u32(lane, 4, crc32c(lane, 8, EPOCH_HEADER, 0))
    return at
