"""Validate and format topic names, client ids and 128-bit unique ids.

Rules
- A topic name is 1 to 255 characters of A–Z a–z 0–9 . _ : - and starts with a letter or a digit. So it can be used
  unescaped as a file name, in a URL and in a log line on every system, and is never "." or "..".
- A router name is the same, and may also contain >, as in `orders->audit`.
- Names that start with _ are reserved for Seawall's own topics, which users cannot create and lists do not show.
- A client id is a u64 and not 0 (on the wire 0 asks the server to assign one). Its text form is 16 hex digits.
- The top bit of a client id is set exactly for synthetic clients, that is for connections that cannot open a session. A
  publisher cannot choose such an id, so the two kinds never share a window.
- A unique id is 128 bits and not all zero, as 32 lower-case hex digits.

This module draws no random numbers and keeps no counter: the caller passes in the random bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from seawall import limits
from seawall.core.types import ClientId, UniqueId
from seawall.errors import InvalidInputError, LimitError

#: Bytes of randomness that `client_id_from` and `unique_id_from` take.
CLIENT_ID_SIZE = 8
UNIQUE_ID_SIZE = 16

_SYNTHETIC_BIT = 1 << 63
_TOPIC_CHARACTERS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
_ROUTER_CHARACTERS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]*")
_RESERVED_PREFIX = "_"
_CLIENT_ID_TEXT = re.compile(r"[0-9A-Fa-f]{16}")
_UNIQUE_ID_TEXT = re.compile(r"[0-9A-Fa-f]{32}")


def check_topic_name(name: str) -> str:
    """Return the name, or raise `InvalidInputError` (`LimitError` if it is too long)."""
    if len(name) > limits.TOPIC_NAME_SIZE_MAX:
        raise LimitError(
            f"topic name {name[:32]!r}… has {len(name)} characters; at most {limits.TOPIC_NAME_SIZE_MAX} are allowed"
        )
    if _TOPIC_CHARACTERS.fullmatch(name) is None:
        raise InvalidInputError(
            f"topic name {name!r} is not allowed: use letters, digits and . _ : - and start with a letter or a digit"
        )
    return name


def check_router_name(name: str) -> str:
    """Return the name of a router, or raise `InvalidInputError` (`LimitError` if it is too long)."""
    if len(name) > limits.TOPIC_NAME_SIZE_MAX:
        raise LimitError(
            f"router name {name[:32]!r}… has {len(name)} characters; at most {limits.TOPIC_NAME_SIZE_MAX} are allowed"
        )
    if _ROUTER_CHARACTERS.fullmatch(name) is None:
        raise InvalidInputError(
            f"router name {name!r} is not allowed: use letters, digits and . _ : - > and start with a letter or a digit"
        )
    return name


def is_reserved_name(name: str) -> bool:
    """True if the name is reserved for Seawall's own topics."""
    return name.startswith(_RESERVED_PREFIX)


def check_stored_name(name: str) -> str:
    """Like `check_topic_name`, for a name found in the log, which may be a reserved one."""
    check_topic_name(name.removeprefix(_RESERVED_PREFIX))
    return name


def check_client_id(number: int) -> ClientId:
    """Return the number as a publisher's client id: not 0, and the top bit clear."""
    if not 0 < number < _SYNTHETIC_BIT:
        raise InvalidInputError(f"client id {number} is not allowed: a publisher's id must be from 1 to 2^63 - 1")
    return ClientId(number)


def client_id_from(random_bytes: bytes) -> ClientId:
    """Make the id of a new publisher from 8 random bytes."""
    number = int.from_bytes(_exactly(random_bytes, CLIENT_ID_SIZE), "little") & ~_SYNTHETIC_BIT
    # One draw in 2^63 is 0, which is not a valid id; a constant is as good as a second draw.
    return ClientId(number or 1)


def synthetic_client_id(number: int) -> ClientId:
    """Make the id of a connection without a session, from a connection number that is unique in its broker."""
    if not 0 <= number < _SYNTHETIC_BIT:
        raise InvalidInputError(f"connection number {number} is not allowed: it must be from 0 to 2^63 - 1")
    return ClientId(_SYNTHETIC_BIT | number)


def is_synthetic(client_id: ClientId) -> bool:
    """True if the id belongs to a connection without a session."""
    return bool(client_id & _SYNTHETIC_BIT)


def format_client_id(client_id: ClientId) -> str:
    """Format the id as 16 lower-case hex digits."""
    return f"{client_id:016x}"


def parse_client_id(text: str) -> ClientId:
    """Parse an id, of either kind, from the form that `format_client_id` writes."""
    if _CLIENT_ID_TEXT.fullmatch(text) is None or not int(text, 16):
        raise InvalidInputError(f"client id {text!r} is not allowed: it must be 16 hex digits, not all 0")
    return ClientId(int(text, 16))


def unique_id_from(random_bytes: bytes) -> UniqueId:
    """Make a new unique id from 16 random bytes."""
    return parse_unique_id(_exactly(random_bytes, UNIQUE_ID_SIZE).hex())


def parse_unique_id(text: str) -> UniqueId:
    """Return the id in its canonical form, from 32 hex digits in either case."""
    if _UNIQUE_ID_TEXT.fullmatch(text) is None or not int(text, 16):
        raise InvalidInputError(f"id {text!r} is not allowed: it must be 32 hex digits, not all 0")
    return UniqueId(text.lower())


def unique_id_bytes(unique_id: UniqueId) -> bytes:
    """The 16 bytes of the id, in the order of its digits."""
    return bytes.fromhex(unique_id)


def _exactly(random_bytes: bytes, size: int) -> bytes:
    if len(random_bytes) != size:
        raise InvalidInputError(f"an id needs exactly {size} random bytes, not {len(random_bytes)}")
    return random_bytes


def check_names(names: Sequence[str]) -> None:
    """Refuse a single string where a sequence of names is expected: it would be read as one name per character."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"topic names must be a list of strings, not {names!r:.80}")
