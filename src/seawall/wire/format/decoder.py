"""From received bytes, in any chunking, to whole and checked frames of either protocol version.

    decoder = FrameDecoder()
    decoder.feed(chunk)                 # or: n = socket.recv_into(decoder.buffer()); decoder.received(n)
    for frame in decoder.frames(): ...  # raises ProtocolError once a bad frame is reached

One kernel call splits and checks everything that is complete (`kernels/codec/frames.py` has the rules and their order).
The version of the first frame fixes the version of the connection. Complete frames ahead of a bad one are returned
first; after the error the decoder stays failed.

A large frame has memory of its own, of the size it says, and is received up to its end: what it carries is not moved
again, and the memory is used again when nobody looks at it any more (`read_buffers`). Small ones share memory. Stored
batches in a large frame are verified as they arrive (`chunks`); what comes of that goes with the frame.

INV-DECODER-BOUND: a peer that claims a length takes no memory before it sends the bytes, and never more than the bound
of a frame. The buffer is never larger than one frame of the agreed size plus one receive, or what was fed at once,
rounded up to a size that is kept. A header that claims more is refused before any byte of its payload is awaited. Space
for a whole frame is reserved when its header is there and not touched before its bytes are.

A frame's bytes stay as they are for as long as someone holds the frame: what was handed out is never written again, the
rest goes on behind it or moves to another buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from seawall import limits
from seawall.core.types import TimestampNs, TopicId
from seawall.errors import InvalidInputError, ProtocolError
from seawall.kernels.codec import frames as kernel
from seawall.wire.format.chunks import ArrivingChunks
from seawall.wire.format.codes import VERSION_1, VERSION_2, Command, ErrorCode, Kind
from seawall.wire.format.fields import Buffer
from seawall.wire.format.frames import FrameHeader, parse_frame_header
from seawall.wire.format.read_buffers import READ_BUFFERS, Bytes

#: Bytes that a receive has room for at the least, where it is not known what comes.
_ROOM_MIN: Final = limits.RECEIVE_SIZE // 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One checked frame: its header, its payload, and the whole of it (a version 2 batch is stored as this)."""

    header: FrameHeader
    payload: memoryview
    whole: memoryview
    #: Of a large frame of data: its batches, verified as they came.
    chunks: ArrivingChunks | None = None


class FrameDecoder:
    """The receiving side of one connection."""

    def __init__(self, payload_max: int = limits.PAYLOAD_SIZE_MIN) -> None:
        self._buffer: Bytes = np.empty(limits.RECEIVE_SIZE, np.uint8)
        #: Bytes from the first to the last index are of no whole frame yet.
        self._start = self._end = 0
        #: How many bytes from the first on the next frame has, as far as that is known.
        self._needed = 0
        #: Whether frames that were handed out lie in the buffer.
        self._is_lent = False
        #: The batches of a large frame of data that is arriving.
        self._chunks: ArrivingChunks | None = None
        #: Memory for small frames, kept while a large one arrives.
        self._spare: Bytes | None = None
        self._rows = np.zeros(limits.DECODER_ROWS, kernel.FRAME_ROW)
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)
        self._failure: ProtocolError | None = None
        self.agree(payload_max)

    @property
    def version(self) -> int:
        """Protocol version of the connection: 0 before its first whole frame."""
        return int(self._state[kernel.STATE_VERSION])

    @property
    def pending_size(self) -> int:
        """Bytes of an incomplete frame; what is lost if the peer is gone now."""
        return self._end - self._start

    @property
    def awaited_size(self) -> int:
        """Bytes that are missing of a large frame whose header is there; 0 if there is none."""
        return max(0, self._needed - self.pending_size) if self._needed > limits.RECEIVE_SIZE else 0

    def agree(self, payload_max: int) -> None:
        """Set the payload bound that both peers of version 2 accept; version 1 keeps its own."""
        if not limits.PAYLOAD_SIZE_MIN <= payload_max <= limits.PAYLOAD_SIZE_MAX:
            allowed = f"{limits.PAYLOAD_SIZE_MIN} to {limits.PAYLOAD_SIZE_MAX}"
            raise InvalidInputError(f"payload bound of {payload_max} bytes: {allowed} is allowed")
        self._payload_max = payload_max

    def buffer(self) -> memoryview:
        """Room to receive into, at least one byte; report what arrived with `received`."""
        awaited = self.awaited_size
        if awaited:
            return self._buffer.data[self._end : self._end + awaited]
        self._make_space(_ROOM_MIN)
        return self._buffer.data[self._end :]

    def received(self, count: int) -> None:
        """Take the first `count` bytes of the last `buffer` as arrived."""
        if not 0 <= count <= len(self._buffer) - self._end:
            raise InvalidInputError(f"{count} bytes received into a buffer of {len(self._buffer) - self._end}")
        self._end += count
        self._look()

    @property
    def arriving(self) -> ArrivingChunks | None:
        """The large frame of data whose rest is awaited, which can receive it; report that with `received`."""
        return self._chunks if self.awaited_size else None

    def feed(self, data: Buffer) -> None:
        """Copy bytes in: for callers that have them already."""
        self._make_space(len(data))
        self._buffer.data[self._end : self._end + len(data)] = data
        self._end += len(data)
        self._look()

    def beginning(self) -> tuple[FrameHeader, memoryview] | None:
        """Header and first bytes of the payload of a large frame that is still arriving; good until more arrives."""
        if not self.awaited_size:
            return None
        view = self._buffer.data[self._start : self._end].toreadonly()
        return parse_frame_header(view), view[limits.FRAME_HEADER_SIZE :]

    def frames(self) -> list[Frame]:
        """Every frame that is complete now, in order. Raises when the next one can never be."""
        if self._failure is not None:
            raise self._failure
        if self.awaited_size:
            return []
        found: list[Frame] = []
        at = self._start
        code = kernel.SPLIT_FULL
        view = self._buffer.data.toreadonly()
        bound = -1
        # The first frame decides the version, and that the bound of those behind it.
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
            # The frame that they arrived with was the first.
            found[0], self._chunks = replace(found[0], chunks=self._chunks), None
        self._start = at
        self._is_lent |= bool(found)
        self._await(int(self._state[kernel.STATE_NEEDED]) if code == kernel.SPLIT_MORE else 0)
        return found

    def _bound(self) -> int:
        return limits.V1_PAYLOAD_SIZE_MAX if self.version == VERSION_1 else self._payload_max

    def _await(self, needed: int) -> None:
        """The next frame has so many bytes, as far as that is known. A large one has room for its rest; what it carries
        is verified as it comes, if it is data."""
        self._needed = needed
        if not self.awaited_size:
            return
        self._make_space(self.awaited_size)
        header = parse_frame_header(self._buffer.data[self._start : self._end])
        if header.kind == Kind.CONTROL and header.command in (Command.FETCH_DATA, Command.DATA):
            self._chunks = ArrivingChunks(
                self._buffer[self._start + limits.FRAME_HEADER_SIZE : self._start + self._needed]
            )
            self._look()

    def _look(self) -> None:
        """Verify what has arrived of a large frame of data."""
        if self._chunks is not None:
            self._chunks.has_arrived(min(self.pending_size, self._needed) - limits.FRAME_HEADER_SIZE)

    def _make_space(self, count: int) -> None:
        """Have room for so many bytes behind those that wait: behind them, or in another buffer."""
        if self._buffer.size - self._end >= count:
            return
        rest = self._buffer[self._start : self._end]
        self._buffer = self._memory(rest.size + count)
        self._buffer[: rest.size] = rest
        self._start, self._end = 0, rest.size
        self._is_lent = False
        # It looks at the memory that was left.
        self._chunks = None

    def _memory(self, size: int) -> Bytes:
        """Memory that nobody looks at; not cleared: what nothing has arrived for is not touched."""
        if not self._is_lent and self._buffer.size == limits.RECEIVE_SIZE:
            self._spare = self._buffer
        if size > limits.RECEIVE_SIZE:
            return READ_BUFFERS.take(size)
        spare, self._spare = self._spare, None
        return np.empty(limits.RECEIVE_SIZE, np.uint8) if spare is None else spare


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


#: What a peer did wrong, its wire code, and whether it is told: nothing is sent to one whose header cannot be trusted.
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
    """What a stop code of the split means for the connection."""
    message, wire_code, answered = _FAILURES[code]
    # Published version 1 clients reconnect and resend on a close, and take an error for the answer to their batch.
    silent = code == kernel.SPLIT_PAYLOAD_CRC and version == VERSION_1
    return ProtocolError(message, code=wire_code, closes=True, answered=answered and not silent)
