"""Applies committed entries of the global order index to the log: writes them as stored batches, many per call.

An entry (64 bytes) and its side entry (32 bytes) are at position & mask of their rings; the kernels read:

    entry   0  token u64 = position + 1     18 term u16           32 record_count u32     48 client_seq u64
            8  topic_id u32                 20 blog_offset u64    40 client_id u64        60 flags u32
            12 block_crc u32                28 size u32
            16 broker u16
    side    0  topic_id u32    4 status u8    6 reason u16    8 base_seq u64    16 base_offset u64    24 time u64

An admitted batch is copied from its BLog and stamped in the copy: position, base seq, base offset, time, term and
header checksum. Any other entry becomes a control batch (`storage.control.order` has the blocks): a NOP, a refused
batch, a SKIP. So the written positions are dense, whatever the entries are.

An entry has the low half of its term; the full term is the newest one with this half that is not above the applier's.

The kernels verify that a batch in a BLog is the entry's own: they compare token, size, topic and block checksum, and
stop before an entry that differs (APPLY_BAD). They never write the BLog. Every written control batch can be read back:
values that no control batch can have are APPLY_BAD too.

Rows (`WAL_ROW`) are filled for entries that take effect: admitted batches (command 0), SKIPs, and refusals that decide
a client seq. The caller provides the space: `count` rows, and in the lane for every entry that is not stored apart.

Batches stored *apart*, directly in a segment, are not copied (`apply_direct`): their stamped headers are collected, the
lane gets a reference to each, and the caller writes headers and blocks to the segment from their separate buffers.
"""

from __future__ import annotations

from seawall.kernels.admission.client_window import CLIENT_SEQ_MAX
from seawall.kernels.codec.batch_header import (
    BLOCK_CRC_AT,
    COMMAND_AT,
    FRAME_HEADER_SIZE,
    HEADER_SIZE,
    LENGTH_AT,
    POSITION_AT,
    RECORD_COUNT_AT,
    TIMESTAMP_AT,
    TOPIC_AT,
    stamp_header,
)
from seawall.kernels.log.epochs import WAL_ROW, WalRows, list_batch
from seawall.kernels.log.staging import write_header
from seawall.kernels.runtime.jit import bytes_in, bytes_out, int64, int64_out, kernel, record_array, void
from seawall.kernels.runtime.memory import (
    Bytes,
    as_int64,
    copy_bytes,
    load_i64,
    load_u16,
    load_u32,
    store_u16,
    store_u32,
    store_u64,
)
from seawall.kernels.runtime.tables import Values

#: Why a run stopped. APPLY_DIRECT: at a batch that the caller stores apart. APPLY_BAD: at an inconsistent entry.
APPLY_DONE = 0
APPLY_DIRECT = 1
APPLY_BAD = 2

#: Indexes into `progress`. Out: entries applied, bytes written, rows filled. In and out: the newest time of any batch.
PROGRESS_ENTRIES = 0
PROGRESS_BYTES = 1
PROGRESS_ROWS = 2
PROGRESS_TIME = 3
PROGRESS_SIZE = 4

FLAG_SKIP = 1 << 3
FLAG_NOP = 1 << 5
FLAG_CONTROL = 1 << 6

COMMAND_REFERENCE = 1
COMMAND_NOP = 15
COMMAND_SKIP = 16

#: Bytes of the control batches.
NOP_SIZE = 96 + 40
SKIP_SIZE = 96 + 24
REFERENCE_SIZE = 96 + 96 + 16

_ENTRY = 64
_SIDE = 32
_MAGIC = 0x434E414C
_AS_TOPIC = 0xFFFF
_OK = 0
_DUPLICATE = 1
_REJECTED = 2
_RETRY = 4

_rows = record_array(WAL_ROW)


@kernel(int64(int64, int64))
def full_term(term: int, low: int) -> int:
    """The newest term not above `term` with these low 16 bits."""
    return term - ((term - low) & 0xFFFF)


@kernel(void(bytes_out, int64, int64, int64, int64, int64, int64, int64))
def _seal_control(
    lane: Bytes, at: int, size: int, command: int, topic_id: int, position: int, time_ns: int, term: int
) -> None:
    """Write the header of a control batch after its block."""
    block = at + HEADER_SIZE
    write_header(lane, at, lane, block, at + size, 0, topic_id, 0, 0, 0, size - HEADER_SIZE, _AS_TOPIC)
    store_u16(lane, at + COMMAND_AT, command)
    stamp_header(lane, at, position, 0, 0, time_ns, term)


@kernel(int64(bytes_in, int64, bytes_in, int64, bytes_out, int64, int64, int64, int64))
def _write_nop(
    goi: Bytes, entry: int, side: Bytes, side_at: int, lane: Bytes, at: int, position: int, time_ns: int, term: int
) -> int:
    """Write a NOP or a refused batch; returns its size, or 0 if the values are not possible."""
    status = as_int64(side[side_at + 4])
    if status not in (_DUPLICATE, _REJECTED, _RETRY):
        return 0
    block = at + HEADER_SIZE
    is_batch = (load_u32(goi, entry + 60) & FLAG_NOP) == 0
    if is_batch and status != _REJECTED:
        return 0
    topic_id = load_u32(goi, entry + 8)
    lane[block] = status
    lane[block + 1] = as_int64(is_batch)
    store_u16(lane, block + 2, load_u16(side, side_at + 6))
    store_u32(lane, block + 4, topic_id)
    store_u64(lane, block + 8, load_i64(goi, entry + 40))
    store_u64(lane, block + 16, load_i64(goi, entry + 48))
    # A refused batch is no repetition; for a NOP the field is the position of the original.
    store_u64(lane, block + 24, -1 if is_batch else load_i64(goi, entry + 20))
    store_u32(lane, block + 32, load_u32(goi, entry + 12))
    store_u32(lane, block + 36, 0)
    _seal_control(lane, at, NOP_SIZE, COMMAND_NOP, topic_id, position, time_ns, term)
    return NOP_SIZE


@kernel(int64(bytes_in, int64, bytes_out, int64, int64, int64, int64))
def _write_skip(goi: Bytes, entry: int, lane: Bytes, at: int, position: int, time_ns: int, term: int) -> int:
    """Write a SKIP; returns its size, or 0 if the values are not possible."""
    client_id, first = load_i64(goi, entry + 40), load_i64(goi, entry + 48)
    count = load_u32(goi, entry + 32)
    if client_id < 1 or first < 1 or count < 1 or first > CLIENT_SEQ_MAX - count + 1:
        return 0
    block = at + HEADER_SIZE
    topic_id = load_u32(goi, entry + 8)
    store_u32(lane, block, topic_id)
    store_u32(lane, block + 4, count)
    store_u64(lane, block + 8, client_id)
    store_u64(lane, block + 16, first)
    _seal_control(lane, at, SKIP_SIZE, COMMAND_SKIP, topic_id, position, time_ns, term)
    return SKIP_SIZE


@kernel(int64(bytes_in, int64, int64, int64, int64, int64, int64, int64))
def batch_in_blog(
    blogs: Bytes, blog_size: int, broker: int, offset: int, size: int, count: int, crc: int, topic_id: int
) -> int:
    """The index, in the array of all BLogs, of a broker's batch at an offset; -1 if that batch is not there."""
    first = broker * blog_size
    if offset < 0 or size < HEADER_SIZE or first + blog_size > blogs.size:
        return -1
    offset %= blog_size
    if size > blog_size - offset:
        return -1
    at = first + offset
    is_same = (
        load_u32(blogs, at) == _MAGIC
        and load_u16(blogs, at + COMMAND_AT) == 0
        and load_u32(blogs, at + RECORD_COUNT_AT) == count
        and FRAME_HEADER_SIZE + load_u32(blogs, at + LENGTH_AT) == size
        and load_u32(blogs, at + BLOCK_CRC_AT) == crc
        and load_u32(blogs, at + TOPIC_AT) == topic_id
    )
    return at if is_same else -1


@kernel(int64(bytes_in, int64, bytes_in, int64))
def batch_at(goi: Bytes, entry: int, blogs: Bytes, blog_size: int) -> int:
    """The index, in the array of all BLogs, of the batch of an entry; -1 if it is not there."""
    broker, offset, size = load_u16(goi, entry + 16), load_i64(goi, entry + 20), load_u32(goi, entry + 28)
    count, crc, topic_id = load_u32(goi, entry + 32), load_u32(goi, entry + 12), load_u32(goi, entry + 8)
    return batch_in_blog(blogs, blog_size, broker, offset, size, count, crc, topic_id)


@kernel(
    int64(
        *(bytes_in, bytes_in, int64, int64, int64, bytes_in, bytes_in, int64),
        *(bytes_out, int64, int64, int64, _rows, int64_out),
    )
)
def apply_run(
    goi: Bytes,
    side: Bytes,
    mask: int,
    first: int,
    count: int,
    apart: Bytes,
    blogs: Bytes,
    blog_size: int,
    lane: Bytes,
    start: int,
    address: int,
    term: int,
    rows: WalRows,
    progress: Values,
) -> int:
    """Write the entries from position `first` on into `lane[start:]`; `address` is the log address of its first byte.

    At most `count`, up to the first that is marked in `apart`. Rows begin at row 0.
    """
    at = start
    filled = 0
    time_ns: int = progress[PROGRESS_TIME]
    code = APPLY_DONE
    taken = 0
    while taken < count:
        position = first + taken
        entry = (position & mask) * _ENTRY
        side_at = (position & mask) * _SIDE
        flags = load_u32(goi, entry + 60)
        if load_i64(goi, entry) != position + 1 or flags & FLAG_CONTROL:
            code = APPLY_BAD
            break
        if apart[taken]:
            code = APPLY_DIRECT
            break
        entry_term = full_term(term, load_u16(goi, entry + 18))
        takes_effect = 1
        if flags & FLAG_SKIP:
            size = _write_skip(goi, entry, lane, at, position, time_ns, entry_term)
        elif flags & FLAG_NOP or as_int64(side[side_at + 4]) != _OK:
            size = _write_nop(goi, entry, side, side_at, lane, at, position, time_ns, entry_term)
            takes_effect = as_int64((flags & FLAG_NOP) == 0)
        else:
            source = batch_at(goi, entry, blogs, blog_size)
            size = 0
            if source >= 0:
                size = load_u32(goi, entry + 28)
                copy_bytes(lane, at, blogs, source, size)
                stamped = load_i64(side, side_at + 24)
                time_ns = max(time_ns, stamped)
                base_seq, base_offset = load_i64(side, side_at + 8), load_i64(side, side_at + 16)
                stamp_header(lane, at, position, base_seq, base_offset, stamped, entry_term)
        if size == 0:
            code = APPLY_BAD
            break
        if takes_effect:
            list_batch(lane, at, address + at - start, size, rows, filled)
            filled += 1
        at += size
        taken += 1
    progress[PROGRESS_ENTRIES] = taken
    progress[PROGRESS_BYTES] = at - start
    progress[PROGRESS_ROWS] = filled
    progress[PROGRESS_TIME] = time_ns
    return code


@kernel(void(bytes_in, int64, bytes_out, int64, int64, int64, int64))
def write_reference(
    headers: Bytes, header: int, lane: Bytes, at: int, first_seq: int, segment_at: int, term: int
) -> None:
    """Write a reference to the batch with this header at a segment position; both 0 if it is only in memory."""
    block = at + HEADER_SIZE
    copy_bytes(lane, block, headers, header, HEADER_SIZE)
    store_u64(lane, block + HEADER_SIZE, first_seq)
    store_u64(lane, block + HEADER_SIZE + 8, segment_at)
    topic_id, position = load_u32(headers, header + TOPIC_AT), load_i64(headers, header + POSITION_AT)
    time_ns = load_i64(headers, header + TIMESTAMP_AT)
    _seal_control(lane, at, REFERENCE_SIZE, COMMAND_REFERENCE, topic_id, position, time_ns, term)


@kernel(
    int64(
        *(bytes_in, bytes_in, int64, int64, int64, bytes_in, int64, bytes_out, int64_out),
        *(bytes_out, int64, int64, int64, int64, int64, _rows, int64_out),
    )
)
def apply_direct(
    goi: Bytes,
    side: Bytes,
    mask: int,
    first: int,
    count: int,
    blogs: Bytes,
    blog_size: int,
    headers: Bytes,
    sources: Values,
    lane: Bytes,
    start: int,
    first_seq: int,
    segment_at: int,
    term: int,
    log_term: int,
    rows: WalRows,
    progress: Values,
) -> int:
    """Stamp the headers of `count` admitted batches from position `first` on; writes their BLog indexes to `sources`.

    Writes references to `lane[start:]`, in the term of the log: to adjacent positions from `segment_at` on in the
    segment that begins at `first_seq`, or, if that is 0, to memory only. Rows have no address.
    """
    time_ns: int = progress[PROGRESS_TIME]
    code = APPLY_DONE
    taken = 0
    while taken < count:
        position = first + taken
        entry = (position & mask) * _ENTRY
        side_at = (position & mask) * _SIDE
        source = batch_at(goi, entry, blogs, blog_size)
        if load_i64(goi, entry) != position + 1 or source < 0:
            code = APPLY_BAD
            break
        size = load_u32(goi, entry + 28)
        header = taken * HEADER_SIZE
        copy_bytes(headers, header, blogs, source, HEADER_SIZE)
        stamped = load_i64(side, side_at + 24)
        time_ns = max(time_ns, stamped)
        base_seq, base_offset = load_i64(side, side_at + 8), load_i64(side, side_at + 16)
        stamp_header(
            headers, header, position, base_seq, base_offset, stamped, full_term(term, load_u16(goi, entry + 18))
        )
        write_reference(headers, header, lane, start + taken * REFERENCE_SIZE, first_seq, segment_at, log_term)
        list_batch(headers, header, 0, size, rows, taken)
        sources[taken] = source
        if first_seq != 0:
            segment_at += size
        taken += 1
    progress[PROGRESS_ENTRIES] = taken
    progress[PROGRESS_BYTES] = taken * REFERENCE_SIZE
    progress[PROGRESS_ROWS] = taken
    progress[PROGRESS_TIME] = time_ns
    return code
