"""Decode received bytes, in any chunking, into whole, verified frames of either protocol version.

    decoder = FrameDecoder()
    decoder.feed(chunk)                 # or: n = socket.recv_into(decoder.buffer()); decoder.received(n)
    for frame in decoder.frames(): ...  # raises ProtocolError once a bad frame is reached

One kernel call splits and verifies all complete frames (`kernels/codec/frames.py` has the rules and their order). The
version of the first frame fixes the version of the connection. Complete frames before a bad one are returned first;
after the error the decoder stays failed.

A large frame gets a buffer of its own, of the size that its header states, so its payload is not moved again; the
buffer is reused once nothing refers to it (`read_buffers.py`). Small frames share a buffer. Stored batches in a large
frame are verified as they arrive (`arriving_chunks.py`); the result is part of the frame.

INV-DECODER-BOUND: a peer that claims a length takes no memory before it sends the bytes, and never more than the bound
of a frame. The buffer is never larger than one frame of the agreed size plus one receive, or what was fed at once,
rounded up to a size of the buffer pool. A header that claims more is refused before any byte of its payload is awaited.
Space for a whole frame is reserved once its header is complete, and is not touched before its bytes arrive.

The bytes of a returned frame never change while something refers to them: later bytes are received after them or into
another buffer.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from seawall import limits
from seawall.core.types import TimestampNs, TopicId
from seawall.errors import InvalidInputError, ProtocolError
from seawall.kernels.codec import frames as kernel
from seawall.wire.format.arriving_chunks import ArrivingChunks
from seawall.wire.format.codes import VERSION_1, VERSION_2, Command, ErrorCode, Kind
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import FrameHeader, parse_frame_header
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes

#: Least space for a receive if the size of the next frame is unknown.
_SPACE_MIN: Final = limits.RECEIVE_SIZE // 4


class Frame(NamedTuple):
    """One verified frame: its header, its payload, and all its bytes (a version 2 batch is stored as these)."""

    header: FrameHeader
    payload: memoryview
    whole: memoryview
    #: For a large data frame: its batches, verified as they arrived.
    chunks: ArrivingChunks | None = None


class FrameDecoder:
    """The receiving side of one connection."""

    def __init__(self, payload_max: int = limits.PAYLOAD_SIZE_MIN) -> None:
        self._buffer: Bytes = np.empty(limits.RECEIVE_SIZE, np.uint8)
        #: Range of received bytes that do not form a whole frame yet.
        self._start = self._end = 0
        #: Size of the frame at `_start`, as far as it is known.
        self._frame_size = 0
        #: True if returned frames are views into the buffer.
        self._has_views = False
        #: The batches of a large data frame that is arriving.
        self._chunks: ArrivingChunks | None = None
        #: The buffer for small frames, kept while a large one arrives.
        self._small_buffer: Bytes | None = None
        self._rows = np.zeros(limits.DECODER_ROWS, kernel.FRAME_ROW)
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)
        self._failure: ProtocolError | None = None
        self.agree(payload_max)

    @property
    def version(self) -> int:
        """Protocol version of the connection; 0 before its first whole frame."""
        return int(self._state[kernel.STATE_VERSION])

    @property
    def pending_size(self) -> int:
        """Bytes of an incomplete frame; they are lost if the connection closes now."""
        return self._end - self._start

    @property
    def awaited_size(self) -> int:
        """Missing bytes of a large frame whose header has arrived; 0 if there is none."""
        return max(0, self._frame_size - self.pending_size) if self._frame_size > limits.RECEIVE_SIZE else 0

    def agree(self, payload_max: int) -> None:
        """Set the payload bound that both peers of version 2 accept; version 1 keeps its own."""
        if not limits.PAYLOAD_SIZE_MIN <= payload_max <= limits.PAYLOAD_SIZE_MAX:
            allowed = f"{limits.PAYLOAD_SIZE_MIN} to {limits.PAYLOAD_SIZE_MAX}"
            raise InvalidInputError(f"payload bound of {payload_max} bytes: {allowed} is allowed")
        self._payload_max = payload_max

    def buffer(self) -> memoryview:
        """Space to receive into, at least one byte; report the received bytes with `received`."""
        awaited = self.awaited_size
        if awaited:
            return self._buffer.data[self._end : self._end + awaited]
        self._make_space(_SPACE_MIN)
        return self._buffer.data[self._end :]

    def received(self, count: int) -> None:
        """Report that the first `count` bytes of the last `buffer` were received."""
        if not 0 <= count <= len(self._buffer) - self._end:
            raise InvalidInputError(f"{count} bytes received into a buffer of {len(self._buffer) - self._end}")
        self._end += count
        self._verify_chunks()

    @property
    def arriving(self) -> ArrivingChunks | None:
        """The large data frame that is arriving; it can receive its rest itself: report that with `received`."""
        return self._chunks if self.awaited_size else None

    def feed(self, data: Buffer) -> None:
        """Copy bytes in, for callers that already have them."""
        self._make_space(len(data))
        self._buffer.data[self._end : self._end + len(data)] = data
        self._end += len(data)
        self._verify_chunks()

    def beginning(self) -> tuple[FrameHeader, memoryview] | None:
        """Header and first payload bytes of a large frame that is still arriving; valid until more arrives."""
        if not self.awaited_size:
            return None
        view = self._buffer.data[self._start : self._end].toreadonly()
        return parse_frame_header(view), view[limits.FRAME_HEADER_SIZE :]

    def frames(self) -> list[Frame]:
        """All complete frames, in order. Raises `ProtocolError` if the next one is invalid."""
        if self._failure is not None:
            raise self._failure
        if self.awaited_size:
            return []
        found: list[Frame] = []
        at = self._start
        code = kernel.SPLIT_FULL
        view = self._buffer.data.toreadonly()
        bound = -1
        # The first frame fixes the version, which sets the payload bound of the later ones.
        while code == kernel.SPLIT_FULL or (code == kernel.SPLIT_MORE and bound != self._bound()):
            bound = self._bound()
            code = kernel.split_frames(self._buffer, at, self._end, bound, self._rows, self._state)
            count = int(self._state[kernel.STATE_FRAMES])
            found.extend(_frame(view, *row) for row in self._rows[:count].tolist())
            at = int(self._state[kernel.STATE_CONSUMED])
        if code != kernel.SPLIT_MORE:
            self._failure = split_failure(code, self.version)
            if not found:
                raise self._failure
        if self._chunks is not None and found:
            # They belong to the first frame.
            found[0], self._chunks = found[0]._replace(chunks=self._chunks), None
        self._start = at
        self._has_views |= bool(found)
        self._expect(int(self._state[kernel.STATE_NEEDED]) if code == kernel.SPLIT_MORE else 0)
        return found

    def _bound(self) -> int:
        return limits.V1_PAYLOAD_SIZE_MAX if self.version == VERSION_1 else self._payload_max

    def _expect(self, size: int) -> None:
        """Set the size of the next frame, as far as it is known. Reserve space for a large one, and verify the batches
        of a data frame from now on."""
        self._frame_size = size
        if not self.awaited_size:
            return
        self._make_space(self.awaited_size)
        header = parse_frame_header(self._buffer.data[self._start : self._end])
        if header.kind == Kind.CONTROL and header.command in (Command.FETCH_DATA, Command.DATA):
            self._chunks = ArrivingChunks(
                self._buffer[self._start + limits.FRAME_HEADER_SIZE : self._start + self._frame_size]
            )
            self._verify_chunks()

    def _verify_chunks(self) -> None:
        """Verify the received bytes of a large data frame."""
        if self._chunks is not None:
            self._chunks.verify_up_to(min(self.pending_size, self._frame_size) - limits.FRAME_HEADER_SIZE)

    def _make_space(self, count: int) -> None:
        """Make space for `count` bytes after the pending ones, in this buffer or in a new one."""
        if self._buffer.size - self._end >= count:
            return
        rest = self._buffer[self._start : self._end]
        self._buffer = self._allocate(rest.size + count)
        self._buffer[: rest.size] = rest
        self._start, self._end = 0, rest.size
        self._has_views = False
        # It refers to the old buffer.
        self._chunks = None

    def _allocate(self, size: int) -> Bytes:
        """A buffer without views into it. It is not cleared: memory is not touched before bytes arrive."""
        if not self._has_views and self._buffer.size == limits.RECEIVE_SIZE:
            self._small_buffer = self._buffer
        if size > limits.RECEIVE_SIZE:
            return READ_BUFFERS.take(size)
        pooled, self._small_buffer = self._small_buffer, None
        return np.empty(limits.RECEIVE_SIZE, np.uint8) if pooled is None else pooled


def _frame(
    view: memoryview,
    at: int,
    size: int,
    identity: int,
    timestamp_ns: int,
    record_count: int,
    payload_length: int,
    payload_crc: int,
    topic_id: int,
    version: int,
    kind: int,
    command: int,
    _header_crc: int,
) -> Frame:
    header = FrameHeader(
        version,
        kind,
        command if version == VERSION_2 else 0,
        identity,
        TimestampNs(timestamp_ns),
        record_count,
        payload_length,
        payload_crc,
        TopicId(topic_id),
    )
    return Frame(header, view[at + limits.FRAME_HEADER_SIZE : at + size], view[at : at + size])


#: The error message, its wire code, and whether the peer gets it: nothing is sent if its header cannot be trusted.
_FAILURES = {
    kernel.SPLIT_MAGIC: ("these bytes are not this protocol: the magic is wrong", ErrorCode.BAD_MAGIC, False),
    kernel.SPLIT_VERSION: (
        "protocol version not supported, or changed on the connection",
        ErrorCode.UNSUPPORTED_VERSION,
        True,
    ),
    kernel.SPLIT_HEADER_CRC: ("checksum of a frame header does not match", ErrorCode.CRC_MISMATCH, False),
    kernel.SPLIT_KIND: ("a frame has no known kind, or several", ErrorCode.INVALID_PAYLOAD, True),
    kernel.SPLIT_TOO_LARGE: ("a frame is larger than agreed", ErrorCode.PAYLOAD_TOO_LARGE, True),
    kernel.SPLIT_SHORT_BATCH: ("a batch is shorter than its own header", ErrorCode.INVALID_PAYLOAD, False),
    kernel.SPLIT_PAYLOAD_CRC: ("checksum of a frame's payload does not match", ErrorCode.CRC_MISMATCH, True),
    kernel.SPLIT_NO_SUM: ("a batch is not followed by the checksum it announces", ErrorCode.INVALID_PAYLOAD, True),
}


def split_failure(code: int, version: int) -> ProtocolError:
    """The protocol error for an error code of `split_frames`."""
    message, wire_code, answered = _FAILURES[code]
    # Published version 1 clients reconnect and resend on a close, but take an error as the answer to their batch.
    silent = code == kernel.SPLIT_PAYLOAD_CRC and version == VERSION_1
    return ProtocolError(message, code=wire_code, closes=True, answered=answered and not silent)
