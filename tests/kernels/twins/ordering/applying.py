"""Applying of entries: unpacks one after another and assembles every batch from its fields."""

from __future__ import annotations

import struct

import numpy as np

from seawall.kernels.log.epochs import WalRows
from seawall.kernels.ordering import applying as kernels
from seawall.kernels.runtime.memory import Bytes
from seawall.kernels.runtime.tables import Values
from twins.codec.checksum import crc32c_portable
from twins.log.epochs import verify_epoch

_ENTRY = struct.Struct("<QIIHHQIIIQQII")
_SIDE = struct.Struct("<IBxHQQQ")
_HEADER = struct.Struct("<4sBBHIQQIIIIIQQQQIIIBBBB")
_NOP = struct.Struct("<BBHIQQQII")
_SKIP = struct.Struct("<IIQQ")
_UNKNOWN = (1 << 64) - 1


def full_term(term: int, low: int) -> int:
    """The newest term not above `term` with these low 16 bits."""
    return max(each for each in range(term - 0xFFFF, term + 1) if each & 0xFFFF == low)


def batch_in_blog(
    blogs: Bytes, blog_size: int, broker: int, offset: int, size: int, count: int, crc: int, topic_id: int
) -> int:
    """The index, in the array of all BLogs, of a broker's batch at an offset; -1 if that batch is not there."""
    blog = blogs[broker * blog_size : (broker + 1) * blog_size].tobytes()
    if offset >> 63 or len(blog) < blog_size or size < _HEADER.size:
        return -1
    batch = blog[offset % blog_size :][:size]
    if len(batch) < size:
        return -1
    magic, _, _, command, _, _, _, found_count, length, found_crc, found_topic, *_ = _HEADER.unpack_from(batch)
    found = (magic, command, found_count, length, found_crc, found_topic)
    return broker * blog_size + offset % blog_size if found == (b"LANC", 0, count, size - 44, crc, topic_id) else -1


def batch_at(goi: Bytes, entry: int, blogs: Bytes, blog_size: int) -> int:
    """The index, in the array of all BLogs, of the batch of an entry; -1 if it is not there."""
    _, topic_id, block_crc, broker, _, offset, size, count, *_ = _ENTRY.unpack(goi[entry : entry + 64].tobytes())
    return batch_in_blog(blogs, blog_size, broker, offset, size, count, block_crc, topic_id)


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
    """Write the entries from position `first` on into `lane[start:]`, up to the first that is stored apart."""
    at, filled, taken, code = start, 0, 0, kernels.APPLY_DONE
    time_ns = int(progress[kernels.PROGRESS_TIME])
    for position in range(first, first + count):
        slot = position & mask
        token, *_, low_term, _, size, _, _, _, _, _, flags = _ENTRY.unpack(goi[slot * 64 :][:64].tobytes())
        _, status, _, base_seq, base_offset, stamped = _SIDE.unpack(side[slot * 32 :][:32].tobytes())
        if token != position + 1 or flags & kernels.FLAG_CONTROL:
            code = kernels.APPLY_BAD
            break
        if apart[taken]:
            code = kernels.APPLY_DIRECT
            break
        entry_term = full_term(term, low_term)
        if flags & (kernels.FLAG_SKIP | kernels.FLAG_NOP) or status:
            batch = _control(goi, side, slot, position, time_ns, entry_term)
        else:
            source = batch_at(goi, slot * 64, blogs, blog_size)
            batch = b""
            if source >= 0:
                batch = _stamped(
                    blogs[source : source + size].tobytes(), (position, base_seq, base_offset), stamped, entry_term
                )
                time_ns = max(time_ns, stamped)
        if not batch:
            code = kernels.APPLY_BAD
            break
        lane[at : at + len(batch)] = np.frombuffer(batch, np.uint8)
        if flags & kernels.FLAG_SKIP or not flags & kernels.FLAG_NOP:
            verify_epoch(lane, at, at + len(batch), address - start, position, 1, rows, filled)
            filled += 1
        at += len(batch)
        taken += 1
    progress[:] = (taken, at - start, filled, time_ns)
    return code


def write_reference(
    headers: Bytes, header: int, lane: Bytes, at: int, first_seq: int, segment_at: int, term: int
) -> None:
    """Write a control batch with the header of the batch and its segment position."""
    stamped = headers[header : header + 96].tobytes()
    (time_ns, topic_id), (position,) = struct.unpack_from("<20xQ12xI", stamped), struct.unpack_from("<56xQ", stamped)
    block = stamped + struct.pack("<QQ", first_seq, segment_at)
    reference = _control_batch(kernels.COMMAND_REFERENCE, block, topic_id, position, time_ns, term)
    lane[at : at + len(reference)] = np.frombuffer(reference, np.uint8)


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
    """Stamp the headers of batches, list their BLog indexes, and write a reference to each."""
    taken, code = 0, kernels.APPLY_DONE
    time_ns = int(progress[kernels.PROGRESS_TIME])
    for position in range(first, first + count):
        slot = position & mask
        token, _, _, _, low_term, _, size, *_ = _ENTRY.unpack(goi[slot * 64 :][:64].tobytes())
        *_, base_seq, base_offset, stamped = _SIDE.unpack(side[slot * 32 :][:32].tobytes())
        source = batch_at(goi, slot * 64, blogs, blog_size)
        if token != position + 1 or source < 0:
            code = kernels.APPLY_BAD
            break
        numbers = (position, base_seq, base_offset)
        header = _stamped(blogs[source : source + 96].tobytes(), numbers, stamped, full_term(term, low_term))
        headers[taken * 96 : (taken + 1) * 96] = np.frombuffer(header, np.uint8)
        at = start + taken * kernels.REFERENCE_SIZE
        write_reference(headers, taken * 96, lane, at, first_seq, segment_at, log_term)
        whole = blogs[source : source + size].copy()
        whole[:96] = np.frombuffer(header, np.uint8)
        verify_epoch(whole, 0, size, 0, position, 1, rows, taken)
        sources[taken] = source
        segment_at += size if first_seq else 0
        time_ns = max(time_ns, stamped)
        taken += 1
    progress[:] = (taken, taken * kernels.REFERENCE_SIZE, taken, time_ns)
    return code


def _stamped(batch: bytes, numbers: tuple[int, int, int], time_ns: int, term: int) -> bytes:
    """A batch with the server's fields."""
    parts = (batch[:8], batch[12:20], struct.pack("<Q", time_ns), batch[28:56], struct.pack("<QQQ", *numbers))
    start, *rest = (*parts, batch[80:84], struct.pack("<I", term), batch[88:96])
    covered = np.frombuffer(start + b"".join(rest), np.uint8)
    crc = crc32c_portable(covered, 0, covered.size, 0)
    return start + struct.pack("<I", crc) + b"".join(rest) + batch[96:]


def _control(goi: Bytes, side: Bytes, slot: int, position: int, time_ns: int, term: int) -> bytes:
    """The control batch of an entry without records; empty if its values are not possible."""
    fields = _ENTRY.unpack(goi[slot * 64 :][:64].tobytes())
    _, topic_id, block_crc, _, _, original, _, count, _, client_id, client_seq, _, flags = fields
    _, status, reason, *_ = _SIDE.unpack(side[slot * 32 :][:32].tobytes())
    is_batch = not flags & kernels.FLAG_NOP
    if flags & kernels.FLAG_SKIP:
        command, block = kernels.COMMAND_SKIP, _SKIP.pack(topic_id, count, client_id, client_seq)
        has_session = 0 < client_id < 1 << 63
        is_possible = has_session and client_seq >= 1 and count >= 1 and client_seq + count <= (1 << 62) + 1
    else:
        block = _NOP.pack(
            *(status, is_batch, reason, topic_id, client_id, client_seq),
            *(_UNKNOWN if is_batch else original, block_crc, 0),
        )
        command, is_possible = kernels.COMMAND_NOP, status in ((2,) if is_batch else (1, 2, 4))
    if not is_possible:
        return b""
    return _control_batch(command, block, topic_id, position, time_ns, term)


def _control_batch(command: int, block: bytes, topic_id: int, position: int, time_ns: int, term: int) -> bytes:
    data = np.frombuffer(block, np.uint8)
    header = _HEADER.pack(
        *(b"LANC", 2, 4, command, 0, 0, 0, 0, 52 + len(block), crc32c_portable(data, 0, data.size, 0), topic_id, 0, 0),
        *(0, 0, 0, len(block), 0, 0, 0xFF, 0xFF, 0, 0),
    )
    return _stamped(header + block, (position, 0, 0), time_ns, term)
