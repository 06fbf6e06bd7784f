"""The idempotency keys of one topic: maps each key to its append, within the topic's window.

A key is kept as a digest of what the client sent, 16 bytes of BLAKE2b with the top bit set. A keyed batch carries it in
its header, so a key is in the log with its records: the first eight bytes are the client id, where the top bit means
that there is no session, the others are the client seq, both little-endian. Times are those of the batches, in
milliseconds, so the same log gives the same keys on every machine. Batch times of a topic never fall, so the keys are
sorted by age as they arrive, oldest first.

Keys are remembered in the order of their seqs. Their number is limited: a topic with `IDEMPOTENCY_KEYS_MAX` keys in its
window refuses appends with keys (`FullError`) until some expire. Forgetting one early would store a repetition twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final

from seawall import limits
from seawall.core.checks import check
from seawall.core.identifiers import synthetic_client_id
from seawall.core.types import ClientId, ClientSeq, Seq
from seawall.errors import FullError, InvalidInputError
from seawall.wire.lwp2.keyed import key_bytes

#: Bytes of a key's digest: 127 bits, so that different keys never collide by chance.
KEY_SIZE = 16

_DIGEST: Final = Struct("<QQ")
_LOW_63_BITS: Final = (1 << 63) - 1


def digest_of(key: str | bytes) -> tuple[ClientId, ClientSeq]:
    """The digest of a client's key, as the client id and client seq of its batch header."""
    data = key_bytes(key)
    high, low = _DIGEST.unpack(blake2b(data, digest_size=KEY_SIZE).digest())
    return synthetic_client_id(high & _LOW_63_BITS), ClientSeq(low)


def key_of(client_id: ClientId, client_seq: ClientSeq) -> bytes:
    """The digest in the header of a keyed batch, as `IdempotencyKeys` stores it."""
    return _DIGEST.pack(client_id, client_seq)


@dataclass(frozen=True, slots=True)
class KeyedAppend:
    """The seqs of an append with a key, and its time."""

    first_seq: Seq
    last_seq: Seq
    at_ms: int


class IdempotencyKeys:
    """The keys of one topic that have not expired."""

    __slots__ = ("_appends",)

    def __init__(self) -> None:
        # Insertion order is age, which a dict keeps.
        self._appends: dict[bytes, KeyedAppend] = {}

    def __len__(self) -> int:
        return len(self._appends)

    def __iter__(self) -> Iterator[tuple[bytes, KeyedAppend]]:
        """Keys and appends, oldest first."""
        return iter(self._appends.items())

    def find(self, key: bytes, now_ms: int, window_ms: int) -> KeyedAppend | None:
        """The append of a key, if it is within the window."""
        found = self._appends.get(key)
        return found if found is not None and now_ms - found.at_ms <= window_ms else None

    def require_space(self, now_ms: int, window_ms: int) -> None:
        """Refuse an append with a key before it is ordered, if there is no space to remember the key."""
        self.expire(now_ms, window_ms)
        if len(self._appends) >= limits.IDEMPOTENCY_KEYS_MAX:
            raise FullError(
                f"{len(self._appends)} idempotency keys within {window_ms} ms, at most {limits.IDEMPOTENCY_KEYS_MAX}; "
                "send again later, or give the topic a shorter window"
            )

    def remember(self, key: bytes, append: KeyedAppend) -> None:
        """Remember the key of a logged append."""
        if len(key) != KEY_SIZE:
            raise InvalidInputError(f"a key is a digest of {KEY_SIZE} bytes, not {len(key)}")
        # A key may be used again after its window; then its new age counts.
        self._appends.pop(key, None)
        newest = next(reversed(self._appends.values()), None)
        check(
            newest is None or newest.last_seq < append.first_seq,
            "INV-SEQ-ONCE",
            f"{append.first_seq} after {newest}",
        )
        self._appends[key] = append

    def expire(self, now_ms: int, window_ms: int) -> None:
        """Forget the keys whose window has passed."""
        expired = []
        for key, append in self._appends.items():
            if now_ms - append.at_ms <= window_ms:
                break
            expired.append(key)
        for key in expired:
            del self._appends[key]
