"""Names and numbers that tell things apart: topic names, client ids, 128-bit ids.

Rules
- A topic name is 1 to 255 characters of A–Z a–z 0–9 . _ : - and starts with a letter or a digit. It is therefore its
  own file name, URL part and log word on every system, and is never "." or "..".
- Names that begin with _ are Seawall's own: topics that nobody else can create and that no list shows.
- A client id is a u64 and not 0 (on the wire 0 asks the server to assign one). Its text form is 16 hex digits.
- The top bit of a client id is set exactly for synthetic clients, that is for connections that cannot open a session. A
  publisher can never pick such an id, so the two kinds never meet in one window.
- A unique id is 128 bits and not all zero, as 32 lower-case hex digits.

Nothing here draws a random number or keeps a counter: whoever makes an id passes in the bytes.
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
_RESERVED_PREFIX = "_"
_CLIENT_ID_TEXT = re.compile(r"[0-9A-Fa-f]{16}")
_UNIQUE_ID_TEXT = re.compile(r"[0-9A-Fa-f]{32}")


def check_topic_name(name: str) -> str:
    """Return the name, or raise `InvalidInputError` (`LimitError` where it is too long)."""
    if len(name) > limits.TOPIC_NAME_SIZE_MAX:
        raise LimitError(
            f"topic name {name[:32]!r}… has {len(name)} characters; at most {limits.TOPIC_NAME_SIZE_MAX} are allowed"
        )
    if _TOPIC_CHARACTERS.fullmatch(name) is None:
        raise InvalidInputError(
            f"topic name {name!r} is not allowed: use letters, digits and . _ : - and start with a letter or a digit"
        )
    return name


def is_reserved_name(name: str) -> bool:
    """Whether a topic of this name is Seawall's own."""
    return name.startswith(_RESERVED_PREFIX)


def check_stored_name(name: str) -> str:
    """`check_topic_name` of a name that the log holds, which may be one of Seawall's own."""
    check_topic_name(name.removeprefix(_RESERVED_PREFIX))
    return name


def check_client_id(number: int) -> ClientId:
    """Return the number as the id of a publisher, which is not 0 and has the top bit clear."""
    if not 0 < number < _SYNTHETIC_BIT:
        raise InvalidInputError(f"client id {number} is not allowed: a publisher's id is from 1 to 2^63 - 1")
    return ClientId(number)


def client_id_from(random_bytes: bytes) -> ClientId:
    """The id of a new publisher, from 8 random bytes."""
    number = int.from_bytes(_exactly(random_bytes, CLIENT_ID_SIZE), "little") & ~_SYNTHETIC_BIT
    # One drawing in 2^63 is 0, which is no id; another number is as good as a second drawing.
    return ClientId(number or 1)


def synthetic_client_id(number: int) -> ClientId:
    """The id of a connection without a session, from a number its broker gives to one connection only."""
    if not 0 <= number < _SYNTHETIC_BIT:
        raise InvalidInputError(f"connection number {number} is not allowed: it is from 0 to 2^63 - 1")
    return ClientId(_SYNTHETIC_BIT | number)


def is_synthetic(client_id: ClientId) -> bool:
    """Whether the id belongs to a connection without a session."""
    return bool(client_id & _SYNTHETIC_BIT)


def format_client_id(client_id: ClientId) -> str:
    """16 lower-case hex digits."""
    return f"{client_id:016x}"


def parse_client_id(text: str) -> ClientId:
    """The id, of either kind, that `format_client_id` wrote."""
    if _CLIENT_ID_TEXT.fullmatch(text) is None or not int(text, 16):
        raise InvalidInputError(f"client id {text!r} is not allowed: it is 16 hex digits, not all 0")
    return ClientId(int(text, 16))


def unique_id_from(random_bytes: bytes) -> UniqueId:
    """A new unique id, from 16 random bytes."""
    return parse_unique_id(_exactly(random_bytes, UNIQUE_ID_SIZE).hex())


def parse_unique_id(text: str) -> UniqueId:
    """The id in its one written form, from 32 hex digits in either case."""
    if _UNIQUE_ID_TEXT.fullmatch(text) is None or not int(text, 16):
        raise InvalidInputError(f"id {text!r} is not allowed: it is 32 hex digits, not all 0")
    return UniqueId(text.lower())


def unique_id_bytes(unique_id: UniqueId) -> bytes:
    """The 16 bytes of the id, in the order of its digits."""
    return bytes.fromhex(unique_id)


def _exactly(random_bytes: bytes, size: int) -> bytes:
    if len(random_bytes) != size:
        raise InvalidInputError(f"an id is made from exactly {size} random bytes, not {len(random_bytes)}")
    return random_bytes


def check_names(names: Sequence[str]) -> None:
    """Refuse one string where a sequence of names is expected: its characters would be taken for names."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"topic names are a list of strings, not {names!r:.80}")
