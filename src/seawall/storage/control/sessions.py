"""The control batch that retires sessions: the log then forgets their publishers.

| command             | block                                                                                       |
|---------------------|---------------------------------------------------------------------------------------------|
| 19 SESSIONS_RETIRED | epoch floor u64, seq floor u64, then a client_id u64 for each session, rising                |

No retired session had an epoch above the epoch floor, or used a client seq above the seq floor: the next session of an
unknown client begins above both (`engine.store.sessions`).

What a crash does: the same as to any batch. This module must not know what happens to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Final, Self

import numpy as np

from seawall import limits
from seawall.core.types import ClientId, ClientSeq, SessionEpoch, TopicId
from seawall.errors import InvalidInputError
from seawall.storage.control.codec import ControlCommand
from seawall.wire.format.fields import Buffer, pack, require_at_least

_FLOORS: Final = Struct("<QQ")
_CLIENT_ID: Final = np.dtype("<u8")
_NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SessionsRetired:
    """Sessions that end and are forgotten; the floors cover all sessions that were ever retired."""

    COMMAND: ClassVar = ControlCommand.SESSIONS_RETIRED
    client_ids: tuple[ClientId, ...]
    epoch_floor: SessionEpoch
    seq_floor: ClientSeq

    def __post_init__(self) -> None:
        if not 1 <= len(self.client_ids) <= limits.SESSIONS_RETIRED_MAX:
            raise InvalidInputError(
                f"{len(self.client_ids)} sessions to retire, allowed are 1 to {limits.SESSIONS_RETIRED_MAX} at once"
            )
        if not (0 <= self.epoch_floor <= _NUMBER_MAX and 0 <= self.seq_floor <= _NUMBER_MAX):
            raise InvalidInputError(f"floors {self.epoch_floor} and {self.seq_floor}: from 0 to 2^63 - 1")
        before = 0
        for client_id in self.client_ids:
            if not before < client_id <= _NUMBER_MAX:
                raise InvalidInputError(f"client id {client_id} after {before}: they rise, from 1 to 2^63 - 1")
            before = client_id

    @property
    def topic_id(self) -> TopicId:
        """No topic: sessions span them."""
        return TopicId(0)

    def encode(self) -> bytes:
        """The block."""
        floors = pack(_FLOORS, "SESSIONS_RETIRED", self.epoch_floor, self.seq_floor)
        return floors + np.array(self.client_ids, _CLIENT_ID).tobytes()

    @classmethod
    def parse(cls, block: Buffer) -> Self:
        """Parse a block."""
        require_at_least(_FLOORS.size + _CLIENT_ID.itemsize, "SESSIONS_RETIRED", block)
        epoch_floor, seq_floor = _FLOORS.unpack_from(block)
        rest = bytes(block[_FLOORS.size :])
        if len(rest) % _CLIENT_ID.itemsize:
            raise InvalidInputError(f"SESSIONS_RETIRED: {len(rest)} bytes are not a whole number of client ids")
        client_ids = tuple(ClientId(number) for number in np.frombuffer(rest, _CLIENT_ID).tolist())
        return cls(client_ids, SessionEpoch(epoch_floor), ClientSeq(seq_floor))
