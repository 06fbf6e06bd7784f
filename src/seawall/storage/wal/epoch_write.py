"""An epoch on its way to the disk: carried out by whoever waits for it, on its own thread or through a ring."""

from __future__ import annotations

from dataclasses import dataclass

from seawall.core.types import LaneEpoch, Position, TimestampNs
from seawall.errors import FatalError
from seawall.io.disk.files import write_all
from seawall.io.interfaces import File, ReadableBuffer
from seawall.storage.wal.epochs import EPOCH_HEADER_SIZE, WalAddress


@dataclass(frozen=True, slots=True)
class EpochReceipt:
    """Where an epoch was put; it is written, not durable. Its batches lie back to back, `batches_at` to `end_at`."""

    epoch: LaneEpoch
    at: WalAddress
    end_at: WalAddress

    @property
    def batches_at(self) -> WalAddress:
        """Address of its first batch."""
        return WalAddress(self.at + EPOCH_HEADER_SIZE)


@dataclass(slots=True)
class EpochWrite:
    """An epoch on its way to the disk: `buffers` belong at position `file_at` of `file`."""

    file: File
    buffers: list[ReadableBuffer]
    file_at: int
    size: int
    #: Whether everything before it is durable, so that making this write durable is enough.
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
        """Address behind it."""
        return WalAddress(self.at + self.size)

    def execute(self, *, durable: bool) -> None:
        """Write it, and with `durable` make it and everything before it durable."""
        at_once = durable and self.follows_synced
        try:
            written = (self.file.write_durably if at_once else self.file.write)(self.buffers, self.file_at)
            if written < self.size:
                # Rare enough to copy the epoch: a signal, or more buffers than one call takes.
                rest = memoryview(b"".join(self.buffers))[written:]
                write_all(self.file, [rest], self.file_at + written, durable=at_once)
        except OSError as error:
            raise FatalError(
                f"{self.file.path}: writing epoch {self.epoch} at address {self.at} failed ({error.strerror}); "
                "what the file holds there is unknown: stop, start again and recover"
            ) from error
        if durable and not at_once:
            self.file.sync()
