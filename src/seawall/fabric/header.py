"""The header of a fabric: identifies the boot and the data directory that it belongs to, and records its sizes.

| at  | size | field           | notes                                                                       |
|-----|------|-----------------|-----------------------------------------------------------------------------|
| 0   | 8    | magic           | `SEAFABR` and a zero byte; written last: zeros mean an unfinished creation     |
| 8   | 4    | version         | 1                                                                           |
| 12  | 4    | crc             | CRC-32C of bytes 0–11 and 16–255                                            |
| 16  | 16   | boot_id         | of the boot in which it was created                                         |
| 32  | 16   | directory_id    | of the data directory                                                       |
| 48  | 8    | size            | size of the file in bytes                                                   |
| 56  | 8    | created_ns      | informational                                                               |
| 64  | 4    | brokers         | then 4 zero bytes; this and the next four are the sizes of `layout`         |
| 72  | 8    | goi_entries     |                                                                             |
| 80  | 8    | pbr_entries     |                                                                             |
| 88  | 8    | checkpoint_size |                                                                             |
| 96  | 8    | blog_size       |                                                                             |
| 104 | 152  | zero            |                                                                             |

Valid: magic, checksum, version, sizes within their ranges, and a matching file size; checked in this order. The first
48 bytes and the range of the checksum are the same in every version, so the owner of a fabric of any version can be
read.

The header is at byte 128 of the file (`layout.HEADER_AT`). This module must not know mappings.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from seawall.errors import ChecksumError, CorruptionError, InvalidInputError, UnsupportedError
from seawall.fabric.layout import HEADER_SIZE, FabricLayout, FabricSizes
from seawall.wire.format.fields import Buffer, pack
from seawall.wire.format.frames import checksum

MAGIC: Final = b"SEAFABR\0"
VERSION: Final = 1
ID_SIZE: Final = 16

_PREFIX: Final = Struct("<8sII16s16s")
_SIZES: Final = Struct("<QQIIQQQQ")
_CRC_AT: Final = 12
_CRC: Final = Struct("<I")

assert _PREFIX.size + _SIZES.size <= HEADER_SIZE


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a fabric: one boot of the machine, and one data directory."""

    boot_id: bytes
    directory_id: bytes

    def __post_init__(self) -> None:
        if len(self.boot_id) != ID_SIZE or len(self.directory_id) != ID_SIZE:
            raise InvalidInputError(
                f"ids of {len(self.boot_id)} and {len(self.directory_id)} bytes; boot and directory have {ID_SIZE} each"
            )

    def mismatch(self, other: Identity) -> str:
        """Why a fabric of `other` is not ours; empty if it is."""
        if self.boot_id != other.boot_id:
            return "it is from before the last reboot"
        if self.directory_id != other.directory_id:
            return f"it belongs to the data directory {other.directory_id.hex()}"
        return ""


@dataclass(frozen=True, slots=True)
class FabricHeader:
    """The fields of the header."""

    identity: Identity
    sizes: FabricSizes
    created_ns: int

    def encode(self) -> bytes:
        """The encoded header."""
        sizes = self.sizes
        prefix = pack(
            _PREFIX, "fabric header", MAGIC, VERSION, 0, self.identity.boot_id, self.identity.directory_id
        ) + pack(
            _SIZES,
            "fabric header",
            FabricLayout.of(sizes).size,
            self.created_ns,
            sizes.brokers,
            0,
            sizes.goi_entries,
            sizes.pbr_entries,
            sizes.checkpoint_size,
            sizes.blog_size,
        )
        data = bytearray(prefix.ljust(HEADER_SIZE, b"\0"))
        _CRC.pack_into(data, _CRC_AT, header_checksum(data))
        return bytes(data)

    @classmethod
    def parse(cls, data: Buffer, path: str) -> FabricHeader:
        """Decode a header; `path` is for messages."""
        identity = parse_identity(data, path)
        version = _PREFIX.unpack_from(data)[1]
        if version != VERSION:
            raise UnsupportedError(
                f"{path}: a fabric of version {version}, this build uses version {VERSION}; start and stop its pod "
                "once with the build that created it, or remove the file to start from storage"
            )
        size, created_ns, brokers, _, *counts = _SIZES.unpack_from(data, _PREFIX.size)
        try:
            sizes = FabricSizes(brokers, *counts)
        except InvalidInputError as error:
            raise CorruptionError(f"{path}: the header has invalid sizes: {error}") from error
        if size != FabricLayout.of(sizes).size:
            raise CorruptionError(
                f"{path}: the header has size {size}, its regions need {FabricLayout.of(sizes).size} bytes; "
                "remove the file to start from storage"
            )
        return cls(identity, sizes, created_ns)


def is_unfinished(data: Buffer) -> bool:
    """True if the creation of a fabric was interrupted: it was never used then."""
    return bytes(data[: len(MAGIC)]) == bytes(len(MAGIC))


def parse_identity(data: Buffer, path: str) -> Identity:
    """The owner of a fabric of any version."""
    magic, _, crc, boot_id, directory_id = _PREFIX.unpack_from(data)
    if is_unfinished(data):
        raise CorruptionError(f"{path}: its creation was not finished; start its pod again")
    if magic != MAGIC:
        raise CorruptionError(f"{path}: not a Seawall fabric: it starts with {magic!r} instead of {MAGIC!r}")
    if crc != header_checksum(data):
        raise ChecksumError(
            f"{path}: the checksum of the header does not match; stop its pod and remove the file to start from storage"
        )
    return Identity(boot_id, directory_id)


def header_checksum(data: Buffer) -> int:
    """The checksum of all bytes except its own."""
    return checksum(bytes(data[:_CRC_AT]) + bytes(data[_CRC_AT + _CRC.size : HEADER_SIZE]))
