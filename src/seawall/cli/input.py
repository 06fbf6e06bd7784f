"""The input of `seawall pub`: a stream of bytes cut into pieces of whole lines, and lines into records, in bulk.

No Python code runs for a plain line: line ends are found and taken out by numpy and `bytes`, and what is left is an
Arrow array, which the engine encodes by one kernel call. JSON lines are read one by one, since each is checked.

A piece ends after so many lines, or 16 MiB, or where the input has nothing more at the moment: lines that are here are
never held back for others that may come much later. So input of any length takes bounded memory.
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

    from seawall.engine.api.read_results import OneRecord, Publishable


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, and where the end of each stands."""

    data: bytes
    ends: npt.NDArray[np.int64]

    def to_arrow(self) -> pa.RecordBatch:
        """The lines without their ends, as values."""
        import numpy as np
        import pyarrow as pa

        data, ends = self.data, self.ends
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
            ends = _ends(data)
        offsets = np.zeros(len(ends) + 1, np.int64)
        # Each end that is taken out moves what follows by one.
        np.subtract(ends, np.arange(len(ends)), out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data.replace(b"\n", b""))]
        values = pa.Array.from_buffers(pa.large_binary(), len(ends), buffers)
        return pa.RecordBatch.from_arrays([values], ["value"])


def record_batches(
    source: io.BufferedIOBase, form: str, key_field: str | None, count: int
) -> Iterator[tuple[Publishable, int]]:
    """What is to be published, in order, and how many bytes of the input each is."""
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
    """The lines of the input, at most `count` at a time; the last one gets an end where it has none."""
    is_ready = _readiness(source)
    pending = _Pending()
    # What a pipe holds is taken at once.
    while piece := source.read1(COPY_BUFFER_SIZE):
        pending.add(piece)
        is_pressing = pending.size >= BLOCK_SIZE_MAX or not is_ready()
        if is_pressing or pending.line_count >= count:
            yield from pending.take(count, all_lines=is_pressing)
    if not pending.is_at_line_end:
        pending.add(b"\n")
    yield from pending.take(count, all_lines=True)


class _Pending:
    """Input that was read and not given out."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._ends: list[npt.NDArray[np.int64]] = []
        self.size = 0
        self.line_count = 0
        #: Bytes of the last line, which has no end yet.
        self._begun = 0

    @property
    def is_at_line_end(self) -> bool:
        """Whether there is no line without an end."""
        return not self._begun

    def add(self, piece: bytes) -> None:
        """Take what was read."""
        ends = _ends(piece)
        self._pieces.append(piece)
        self._ends.append(ends + self.size)
        self.line_count += len(ends)
        self.size += len(piece)
        self._begun = len(piece) - int(ends[-1]) - 1 if len(ends) else self._begun + len(piece)
        if self._begun > RECORD_VALUE_SIZE_MAX:
            raise LimitError(f"a line is larger than a record may be, {RECORD_VALUE_SIZE_MAX} bytes; split it")

    def take(self, count: int, *, all_lines: bool) -> Iterator[Lines]:
        """Give out as many runs of `count` lines as there are, and with `all_lines` the shorter one behind them."""
        import numpy as np

        data, ends = b"".join(self._pieces), np.concatenate([np.zeros(0, np.int64), *self._ends])
        first = 0
        for index in range(0, len(ends), count):
            run = ends[index : index + count]
            if len(run) == count or all_lines:
                end = int(run[-1]) + 1
                yield Lines(data[first:end], run - first)
                first = end
        self._pieces, self._ends, self.size, self.line_count, self._begun = [], [], 0, 0, 0
        if first < len(data):
            self.add(data[first:])


def _ends(data: bytes) -> npt.NDArray[np.int64]:
    """Where line ends stand."""
    import numpy as np

    return np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))


def _readiness(source: io.BufferedIOBase) -> Callable[[], bool]:
    """Whether reading would not wait. What is no file of the operating system never does."""
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
    """Lines as JSON records, blank ones passed over; `number` is that of the last line so far, and of the last now."""
    records = []
    for line in lines[:-1].split(b"\n"):
        number += 1
        if line.strip():
            records.append(_json_record(line, key_field, number))
    return records, number


def _json_record(line: bytes, key_field: str | None, number: int) -> OneRecord:
    from seawall.engine.api.read_results import Message
    from seawall.wire.format.fields import write_text

    try:
        value = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"line {number} is not JSON: {error}") from error
    if key_field is None:
        if not isinstance(value, dict | list):
            raise InvalidInputError(f"line {number} is a JSON {type(value).__name__}: an object or array is needed")
        return value
    if not isinstance(value, dict) or value.get(key_field) is None:
        raise InvalidInputError(f"line {number} has no field {key_field!r} to be its key")
    key = value[key_field]
    text = key if isinstance(key, str) else json.dumps(key, separators=(",", ":"), ensure_ascii=False)
    return Message(value, key=write_text(text, RECORD_VALUE_SIZE_MAX, f"line {number}: key"))


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is no JSON")
