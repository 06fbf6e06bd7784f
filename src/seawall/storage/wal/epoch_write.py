"""The write of one epoch; the caller executes it, on its own thread or through a disk ring."""

from __future__ import annotations

from dataclasses import dataclass

from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.errors import FatalError
from seawall.io.disk.files import write_all
from seawall.io.interfaces import File, ReadableBuffer
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, WalAddress


@dataclass(frozen=True, slots=True)
class EpochReceipt:
    """The location of a written epoch, maybe not durable yet. Its batches are contiguous, `batches_at` to `end_at`."""

    epoch: LaneEpoch
    at: WalAddress
    end_at: WalAddress

    @property
    def batches_at(self) -> WalAddress:
        """Address of its first batch."""
        return WalAddress(self.at + EPOCH_HEADER_SIZE)


@dataclass(slots=True)
class EpochWrite:
    """An epoch to write: `buffers` go to position `file_at` of `file`."""

    file: File
    buffers: list[ReadableBuffer]
    file_at: int
    size: int
    #: True if everything before it is durable, so that making this write durable is enough.
    follows_synced: bool
    at: WalAddress
    epoch: int
    next_position: Position
    timestamp_ns: TimestampNs
    flags: int

    @property
    def batches_at(self) -> WalAddress:
        """Address of its first batch."""
        return WalAddress(self.at + EPOCH_HEADER_SIZE)

    @property
    def end_at(self) -> WalAddress:
        """Address of the first byte after it."""
        return WalAddress(self.at + self.size)

    def execute(self, *, durable: bool) -> None:
        """Write the epoch; with `durable`, make it and everything before it durable."""
        in_one_call = durable and self.follows_synced
        try:
            written = (self.file.write_durably if in_one_call else self.file.write)(self.buffers, self.file_at)
            if written < self.size:
                # A signal, or more buffers than one call takes: rare enough to copy the epoch.
                rest = memoryview(b"".join(self.buffers))[written:]
                write_all(self.file, [rest], self.file_at + written, durable=in_one_call)
        except OSError as error:
            raise FatalError(
                f"{self.file.path}: writing epoch {self.epoch} at address {self.at} failed ({error.strerror}); "
                "what the file holds there is unknown: stop, start again and recover"
            ) from error
        if durable and not in_one_call:
            self.file.sync()
