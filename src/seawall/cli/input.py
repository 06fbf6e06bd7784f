"""Read the input of `seawall pub`: split a byte stream into groups of whole lines, and lines into records, in bulk.

No Python code runs per plain line: numpy and `bytes` find and remove the line ends, and the result is an Arrow array,
which the engine encodes with one kernel call. JSON lines are parsed one by one, since each is validated.

A group ends after a given number of lines, after 16 MiB, or when the input has nothing more to read at the moment: no
line waits for later input. So input of any length takes bounded memory.
"""

from __future__ import annotations

import io
import json
import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seawall.errors import InvalidInputError, LimitError
from seawall.limits import BLOCK_SIZE_MAX, COPY_BUFFER_SIZE, RECORD_VALUE_SIZE_MAX

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from seawall.engine.read.read_results import OneRecord, Publishable


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, and the offset of each line end."""

    data: bytes
    ends: npt.NDArray[np.int64]

    def to_arrow(self) -> pa.RecordBatch:
        """The lines without their line ends, as a batch of values."""
        import numpy as np
        import pyarrow as pa

        data, ends = self.data, self.ends
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
            ends = _ends(data)
        offsets = np.zeros(len(ends) + 1, np.int64)
        # Each line end that is removed shifts the following bytes by one.
        np.subtract(ends, np.arange(len(ends)), out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))]
        values = pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)
        return pa.RecordBatch.from_arrays([values], ["value"])


def record_batches(
    source: io.BufferedIOBase, form: str, key_field: str | None, count: int
) -> Iterator[tuple[Publishable, int]]:
    """Yield the records to publish, in order, with the number of input bytes that each group took."""
    if form == "raw":
        value = _whole(source)
        yield value, len(value)
        return
    number = 0
    for lines in line_batches(source, count):
        if form == "lines":
            yield lines.to_arrow(), len(lines.data)
            continue
        records, number = _json_records(lines.data, key_field, number)
        if records:
            yield records, len(lines.data)


def line_batches(source: io.BufferedIOBase, count: int) -> Iterator[Lines]:
    """Yield the lines of the input, at most `count` at a time; a line end is added to the last line if it has none."""
    is_ready = _readiness(source)
    pending = _Pending()
    # `read1` returns what a pipe holds, without waiting for more.
    while piece := source.read1(COPY_BUFFER_SIZE):
        pending.add(piece)
        must_flush = pending.size >= BLOCK_SIZE_MAX or not is_ready()
        if must_flush or pending.line_count >= count:
            yield from pending.take(count, all_lines=must_flush)
    if not pending.is_at_line_end:
        pending.add(b"\n")
    yield from pending.take(count, all_lines=True)


class _Pending:
    """Input that was read and not yet yielded."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self.size = 0
        self.line_count = 0
        #: Bytes of the last line, if it has no line end yet.
        self._partial = 0

    @property
    def is_at_line_end(self) -> bool:
        """True if there is no line without a line end."""
        return not self._partial

    def add(self, piece: bytes) -> None:
        """Append bytes that were read."""
        ends = _ends(piece)
        self._pieces.append(piece)
        self._ends.append(ends + self.size)
        self.line_count += len(ends)
        self.size += len(piece)
        self._partial = len(piece) - int(ends[-1]) - 1 if len(ends) else self._partial + len(piece)
        if self._partial > RECORD_VALUE_SIZE_MAX:
            raise LimitError(f"a line is larger than a record may be, {RECORD_VALUE_SIZE_MAX} bytes; split it")

    def take(self, count: int, *, all_lines: bool) -> Iterator[Lines]:
        """Yield every full run of `count` lines, and with `all_lines` also the shorter last one."""
        import numpy as np

        data, ends = b"".join(self._pieces), np.concatenate([np.zeros(0, np.int64), *self._ends])
        first = 0
        for index in range(0, len(ends), count):
            run = ends[index : index + count]
            if len(run) == count or all_lines:
                end = int(run[-1]) + 1
                yield Lines(data[first:end], run - first)
                first = end
        self._pieces, self._ends, self.size, self.line_count, self._partial = [], [], 0, 0, 0
        if first < len(data):
            self.add(data[first:])


def _ends(data: bytes) -> npt.NDArray[np.int64]:
    """The offsets of the line ends."""
    import numpy as np

    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))


def _readiness(source: io.BufferedIOBase) -> Callable[[], bool]:
    """A function that returns True if a read would not block. A stream without a descriptor never blocks."""
    try:
        descriptor = source.fileno()
    except OSError:
        return lambda: True
    return lambda: bool(select.select([descriptor], [], [], 0)[0])


def _whole(source: io.BufferedIOBase) -> bytes:
    value = source.read(RECORD_VALUE_SIZE_MAX + 1)
    if len(value) > RECORD_VALUE_SIZE_MAX:
        raise LimitError(f"the input is larger than a record may be, {RECORD_VALUE_SIZE_MAX} bytes; split it")
    return value


# --- JSON --------------------------------------------------------------------------------------------------------


def _json_records(lines: bytes, key_field: str | None, number: int) -> tuple[list[OneRecord], int]:
    """Lines as JSON records, without blank lines; takes and returns the number of the last line read so far."""
    records = []
    for line in lines[:-1].split(b"\n"):
        number += 1
        if line.strip():
            records.append(_json_record(line, key_field, number))
    return records, number


def _json_record(line: bytes, key_field: str | None, number: int) -> OneRecord:
    from seawall.engine.read.read_results import Message
    from seawall.wire.format.fields import write_text

    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"line {number} is not JSON: {error}") from error
    if key_field is None:
        if not isinstance(value, dict | list):
            raise InvalidInputError(f"line {number} is a JSON {type(value).__name__}: it must be an object or array")
        return value
    if not isinstance(value, dict) or value.get(key_field) is None:
        raise InvalidInputError(f"line {number} has no field {key_field!r} for its key")
    key = value[key_field]
    text = key if isinstance(key, str) else json.dumps(key, separators=(",", ":"), ensure_ascii=False)
    return Message(value, key=write_text(text, RECORD_VALUE_SIZE_MAX, f"line {number}: key"))


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
