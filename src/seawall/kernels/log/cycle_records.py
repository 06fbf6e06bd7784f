"""The records of the commit cycle kernels: arguments and results, needs of topics, batches, rows, and result codes.

All input and output of a cycle is a field of `CYCLE`, or of an array whose address is a field of it. The caller that
sets an address keeps the array alive.
"""

from __future__ import annotations

import numpy as np

#: What a cycle needs of one topic (`records`, `size`); what the caller granted: records, bytes, expiry time, and
#: whether they must be durable; and what cycles have used of the grant. `is_reserved`: the grant covers the need.
NEED_ROW = np.dtype(
    [
        *((name, np.int64) for name in ("topic_id", "records", "size")),
        *((name, np.int64) for name in ("records_left", "bytes_left", "until_ns", "is_durable")),
        *((name, np.int64) for name in ("taken_records", "taken_size", "is_reserved")),
    ]
)

#: Rows of the log that are not yet applied to catalog and index: how many are pending, the next free row (after those
#: of commits in flight), and the number of commits in flight.
PENDING_NUMBERS = np.dtype([(name, np.int64) for name in ("count", "next", "in_flight")])

#: A batch in the receive buffer: its connection, offset and size, its ack level, and the offset and number of its
#: frames; then its outcome: whether it is staged, and the fields of its ACK. `status` is UNDECIDED if there is no
#: outcome. Batches of one connection are adjacent, in the order of arrival.
RECEIVED_ROW = np.dtype(
    [
        ("connection", np.int64),
        ("at", np.int64),
        ("size", np.int64),
        ("is_strong", np.int64),
        ("level", np.int64),
        ("frames_at", np.int64),
        ("frames", np.int64),
        ("is_staged", np.int64),
        ("status", np.int64),
        ("reason", np.int64),
        ("position", np.int64),
        ("base_seq", np.int64),
        ("base_offset", np.int64),
        ("timestamp_ns", np.int64),
    ]
)

#: A block of a local orderer that becomes a batch of the receive buffer: its length, and the fields of its header. The
#: blocks are in the buffer, each after space for its header.
DRAFT_ROW = np.dtype(
    [
        *((name, np.int64) for name in ("length", "record_count", "topic_id", "client_id", "client_seq")),
        *((name, np.int64) for name in ("session_epoch", "raw_length", "choices")),
    ]
)

#: The arrays of a cycle: `CYCLE` has the fields `<name>_at` (address) and `<name>_count` (length) for each.
CYCLE_ARRAYS = (
    *("keys", "values", "used", "topics", "numbers", "admitted", "staged"),
    *("order_table", "order_clients", "order_sides", "order_slots", "order_results"),
    *("store_table", "store_clients", "store_sides", "store_slots", "store_results"),
    *("control", "counters", "replica", "tails", "completion", "worker", "collected"),
    *(
        "slots",
        "blogs",
        "results",
        "needs",
        "ends",
        "received",
        "buffer",
        "log",
        "pending",
        "reached",
        "applier_progress",
    ),
    *("answers", "drafts"),
)

#: Arguments: the ring to start with, the number of batches in the receive buffer, the time, and whether batches without
#: a grant are left out.
ARGUMENTS = ("first_ring", "received", "wall_ns", "is_granted")
#: Constants: whether a sequencer orders, the term, positions between checkpoints of the order, the maximal bytes of a
#: cycle, and the bytes that must stay free after it in a log file.
CONSTANTS = ("is_sequenced", "term", "checkpoint_after", "size_max", "headroom")
#: Results: surveyed batches of the receive buffer; topics, bytes and batches of the cycle; how many of the batches came
#: from rings; whether the epoch must be durable; whether the last batch was decided; the first row and first position
#: of the cycle, and position and time of its last batch.
RESULTS = (
    *("surveyed", "needed", "size", "count", "of_rings", "is_durable", "is_decided", "first_row"),
    *("first_position", "position", "timestamp_ns"),
)
CYCLE = np.dtype(
    [
        *((name, np.int64) for name in (*ARGUMENTS, *CONSTANTS, *RESULTS)),
        *((f"{name}_{what}", np.int64) for name in CYCLE_ARRAYS for what in ("at", "count")),
    ]
)

#: The batch, or the whole cycle, was not staged.
NOT_STAGED = -1

#: Why `stage_arrived` staged nothing: the surveyed batches need reservations that are not granted; there are not enough
#: free rows, so the pending ones must be applied first; or the batches must take the general path.
LACKS_GRANTS = 1
LACKS_ROWS = 2
NOT_ELIGIBLE = 3

#: The status of a batch that neither a window nor the frontier has decided.
UNDECIDED = -1

#: A batch of this size or larger is written directly to its segment.
LARGE_SIZE = 65_536
