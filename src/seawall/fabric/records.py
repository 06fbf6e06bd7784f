"""The record formats of the fabric's regions: little-endian, at fixed offsets, sizes asserted at import.

`docs/fabric.md` has the same tables with the meaning of each field.

Rules
- Counts are exclusive, so zero means none. Slot indexes are absolute: u64, never reduced modulo the ring.
- A token is the absolute index of its entry + 1, and is written last: zeroed memory and the previous lap are not ready.
- Words that several processes access at once are naturally aligned, and accessed only through `kernels.runtime.atomics`
  or `kernels.runtime.slots`. `blog_offset` of a GOI entry is not aligned: it is plain data, published by the token.
- Fields called `zero…` stay zero, reserved for future use.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seawall.fabric import layout

Records: TypeAlias = npt.NDArray[np.void]
Words: TypeAlias = npt.NDArray[np.int64]


def _record(size: int, /, **fields: tuple[int, str]) -> np.dtype[Any]:
    """A record of `size` bytes with fields by name as (offset, type), which must be adjacent."""
    record = np.dtype(
        {
            "names": list(fields),
            "offsets": [at for at, _ in fields.values()],
            "formats": [kind for _, kind in fields.values()],
            "itemsize": size,
        }
    )
    at = 0
    for offset, kind in fields.values():
        assert offset == at, f"a field at {offset}, expected at {at}"
        at += np.dtype(kind).itemsize
    assert at == size, f"fields of {at} bytes in a record of {size}"
    return record


CONTROL: Final = _record(
    layout.CONTROL_SIZE,
    term=(0, "<u8"),
    leader=(8, "<u8"),
    lease_ns=(16, "<u8"),
    broker_mask=(24, "<u4"),
    broker_count=(28, "<u4"),
    committed=(32, "<u8"),
    durable=(40, "<u8"),
    zero=(48, "V80"),
)

TAIL: Final = _record(
    layout.TAIL_SIZE, claimed=(0, "<u8"), blog_claimed=(8, "<u8"), blog_wanted=(16, "<u8"), zero=(24, "V40")
)

REPLICA: Final = _record(
    layout.REPLICA_SIZE, durable=(0, "<u8"), view=(8, "<u8"), heartbeat_ns=(16, "<u8"), zero=(24, "V40")
)

COMPLETION: Final = _record(layout.COMPLETION_SIZE, completed=(0, "<u8"), zero=(8, "V120"))

GOI_ENTRY: Final = _record(
    layout.GOI_ENTRY_SIZE,
    token=(0, "<u8"),
    topic_id=(8, "<u4"),
    block_crc=(12, "<u4"),
    broker=(16, "<u2"),
    term=(18, "<u2"),
    blog_offset=(20, "<u8"),
    size=(28, "<u4"),
    record_count=(32, "<u4"),
    zero=(36, "<u4"),
    client_id=(40, "<u8"),
    client_seq=(48, "<u8"),
    pbr_index=(56, "<u4"),
    flags=(60, "<u4"),
)

PBR_ENTRY: Final = _record(
    layout.PBR_ENTRY_SIZE,
    blog_offset=(0, "<u8"),
    size=(8, "<u4"),
    record_count=(12, "<u4"),
    topic_id=(16, "<u4"),
    block_crc=(20, "<u4"),
    broker=(24, "<u2"),
    term=(26, "<u2"),
    flags=(28, "<u4"),
    client_id=(32, "<u8"),
    client_seq=(40, "<u8"),
    session_epoch=(48, "<u4"),
    zero=(52, "<u4"),
    token=(56, "<u8"),
)

RESULT: Final = _record(
    layout.RESULT_SIZE,
    position=(0, "<u8"),
    base_seq=(8, "<u8"),
    timestamp_ns=(16, "<u8"),
    original_position=(24, "<u8"),
    status=(32, "u1"),
    zero_status=(33, "u1"),
    reason=(34, "<u2"),
    zero=(36, "V20"),
    token=(56, "<u8"),
)

SIDE_ENTRY: Final = _record(
    layout.SIDE_ENTRY_SIZE,
    topic_id=(0, "<u4"),
    status=(4, "u1"),
    zero=(5, "u1"),
    reason=(6, "<u2"),
    base_seq=(8, "<u8"),
    base_offset=(16, "<u8"),
    timestamp_ns=(24, "<u8"),
)

CHECKPOINT_HEADER: Final = _record(
    layout.CHECKPOINT_ROW_SIZE,
    generation=(0, "<u8"),
    position=(8, "<u8"),
    term=(16, "<u8"),
    timestamp_ns=(24, "<u8"),
    client_rows=(32, "<u4"),
    topic_rows=(36, "<u4"),
    rows_crc=(40, "<u4"),
    header_crc=(44, "<u4"),
    zero=(48, "V16"),
)

HEADER: Final = _record(
    layout.HEADER_SIZE,
    magic=(0, "S8"),
    version=(8, "<u4"),
    crc=(12, "<u4"),
    boot_id=(16, "V16"),
    directory_id=(32, "V16"),
    size=(48, "<u8"),
    created_ns=(56, "<u8"),
    brokers=(64, "<u4"),
    zero_brokers=(68, "<u4"),
    goi_entries=(72, "<u8"),
    pbr_entries=(80, "<u8"),
    checkpoint_size=(88, "<u8"),
    blog_size=(96, "<u8"),
    zero=(104, "V152"),
)

#: The word of a slot that holds its token: the last of a pending batch and of a result, the first of a GOI entry.
SLOT_WORDS: Final = 8
PBR_TOKEN: Final = 7
RESULT_TOKEN: Final = 7
GOI_TOKEN: Final = 0

#: Indexes into vectors and control block, for atomic access to them as arrays of u64.
CONTROL_TERM: Final = 0
CONTROL_LEADER: Final = 1
CONTROL_LEASE: Final = 2
CONTROL_BROKERS: Final = 3  # mask in the lower half, count in the upper
CONTROL_COMMITTED: Final = 4
CONTROL_DURABLE: Final = 5
TAIL_CLAIMED: Final = 0
TAIL_BLOG_CLAIMED: Final = 1
TAIL_BLOG_WANTED: Final = 2
REPLICA_DURABLE: Final = 0
REPLICA_VIEW: Final = 1
REPLICA_HEARTBEAT: Final = 2
COMPLETION_COMPLETED: Final = 0

#: Flags of pending batches and of GOI entries. A SKIP with RANGE skips `record_count` client seqs. A pending batch that
#: is a NOP has no bytes. A CONTROL is a state change that takes effect at its position.
FLAG_STRONG_ORDER: Final = 1 << 0
FLAG_RECOVERED: Final = 1 << 2
FLAG_SKIP: Final = 1 << 3
FLAG_SKIP_RANGE: Final = 1 << 4
FLAG_NOP: Final = 1 << 5
FLAG_CONTROL: Final = 1 << 6
FLAG_REFUSED: Final = 1 << 7
#: The flags of a refused batch hold the reason, as on the wire, from this bit on.
REFUSED_REASON_SHIFT: Final = 16

#: The broker of an entry that belongs to no slot: a SKIP or a CONTROL.
NO_BROKER: Final = 0xFFFF

for _token, _dtype in ((PBR_TOKEN, PBR_ENTRY), (RESULT_TOKEN, RESULT), (GOI_TOKEN, GOI_ENTRY)):
    assert _dtype.fields is not None
    assert _dtype.fields["token"][1] == _token * 8
