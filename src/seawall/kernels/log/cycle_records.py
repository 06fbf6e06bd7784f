"""The records that the kernels of a commit cycle work on: arguments and results, needs, batches, rows, and reasons.

Everything that a cycle is given and leaves is a field of `CYCLE`, or of an array whose address is a field of it.
Whoever sets an address keeps the array alive.
"""

from __future__ import annotations

import numpy as np

#: What a cycle needs of one topic; what is granted, by the caller: records, bytes, up to which time, and whether they
#: have to be durable; and what cycles have taken of it. `is_reserved` says whether the need is granted.
NEED_ROW = np.dtype(
    [
        *((name, np.int64) for name in ("topic_id", "records", "size")),
        *((name, np.int64) for name in ("records_left", "bytes_left", "until_ns", "is_durable")),
        *((name, np.int64) for name in ("taken_records", "taken_size", "is_reserved")),
    ]
)

#: Rows of the log that catalog and index have not applied: how many are pending, the next one to use, behind those of
#: commits that are under way, and how many of these there are.
PENDING_NUMBERS = np.dtype([(name, np.int64) for name in ("count", "next", "under_way")])

#: A batch in the receive buffer: whose it is, where it lies, its ack level, and where the frames lie that it came in;
#: then what became of it: whether it is staged, and what an ACK says. `status` is UNDECIDED if nothing did. Batches of
#: one connection are in one stretch, in the order in which they came.
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

#: A block of a local orderer, to be a batch of the receive buffer: its length, and the fields of its header. The blocks
#: lie in the buffer, each behind space for its header.
DRAFT_ROW = np.dtype(
    [
        *((name, np.int64) for name in ("length", "record_count", "topic_id", "client_id", "client_seq")),
        *((name, np.int64) for name in ("session_epoch", "raw_length", "choices")),
    ]
)

#: Arrays by the names of their fields in `CYCLE`: each has an address there, and a length.
CYCLE_ARRAYS = (
    *("keys", "values", "used", "topics", "numbers", "admitted", "staged"),
    *("order_places", "order_clients", "order_sides", "order_slots", "order_results"),
    *("store_places", "store_clients", "store_sides", "store_slots", "store_results"),
    *("control", "counters", "replica", "tails", "completion", "worker", "collected"),
    *("slots", "blogs", "results", "needs", "ends", "received", "buffer", "log", "pending", "reached", "following"),
    *("answers", "drafts"),
)

#: Arguments: which ring comes first, how many batches the receive buffer has, the time, and whether what is not granted
#: is left out.
ARGUMENTS = ("first_ring", "received", "wall_ns", "is_granted")
#: What no cycle changes: whether a sequencer orders, the term, when a checkpoint of the order is due, how many bytes a
#: cycle may take, and how many have to stay free behind it in a file of the log.
CONSTANTS = ("is_sequenced", "term", "checkpoint_after", "size_max", "headroom")
#: Results: batches of the receive buffer that were surveyed, topics, bytes and batches of the cycle, how many of these
#: were in rings, whether it has to be durable, whether the last batch was decided, its first row, its first position,
#: and position and time of its last batch.
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

#: A batch, or all that has arrived, is not staged.
PASSES_ON = -1

#: Why nothing is staged, as `stage_arrived` says: what is surveyed needs reservations that are not granted; there are
#: not enough rows, so those that are pending have to be applied; or it has to be committed another way.
LACKS_GRANTS = 1
LACKS_ROWS = 2
NOT_ELIGIBLE = 3

#: The status of a batch that no window and no frontier has decided.
UNDECIDED = -1

#: Bytes of a batch from which on it is written to its segment at once.
LARGE_SIZE = 65_536
