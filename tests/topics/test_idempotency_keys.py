"""Idempotency keys: found within their window, removed after it, never removed early."""

import pytest

from seawall import limits
from seawall.core.identifiers import is_synthetic
from seawall.core.types import Seq
from seawall.errors import FullError, InvalidInputError, InvariantError, LimitError
from seawall.topics.keys import KEY_SIZE, IdempotencyKeys, KeyedAppend, digest_of, key_of

WINDOW = 100


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def append(number: int, at_ms: int) -> KeyedAppend:
    return KeyedAppend(Seq(number * 10 + 1), Seq(number * 10 + 10), at_ms)


def test_a_key_is_found_until_its_window_has_passed() -> None:
    keys = IdempotencyKeys()
    keys.remember(key(1), append(1, 1000))
    assert keys.find(key(1), 1100, WINDOW) == append(1, 1000)
    assert keys.find(key(1), 1101, WINDOW) is None
    assert keys.find(key(1), 1101, WINDOW + 1) == append(1, 1000), "a longer window reaches further back"
    assert keys.find(key(2), 1000, WINDOW) is None
    assert keys.find(key(1), 1000, 0) == append(1, 1000)


def test_expiry_removes_only_the_oldest_keys() -> None:
    keys = IdempotencyKeys()
    for number in range(5):
        keys.remember(key(number), append(number, 1000 + number))
    keys.expire(1102, WINDOW)
    assert [each for each, _ in keys] == [key(2), key(3), key(4)]
    keys.expire(2000, WINDOW)
    assert len(keys) == 0


def test_a_repeated_key_expires_by_its_newest_use() -> None:
    keys = IdempotencyKeys()
    for number, at_ms in ((1, 1000), (2, 1001)):
        keys.remember(key(number), append(number, at_ms))
    keys.remember(key(1), append(3, 1200))
    assert [each for each, _ in keys] == [key(2), key(1)]
    assert keys.find(key(1), 1200, WINDOW) == append(3, 1200)


def test_a_full_table_refuses_until_keys_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "IDEMPOTENCY_KEYS_MAX", 2)
    keys = IdempotencyKeys()
    for number in range(2):
        keys.require_space(1000, WINDOW)
        keys.remember(key(number), append(number, 1000))
    with pytest.raises(FullError, match="shorter window"):
        keys.require_space(1100, WINDOW)
    keys.require_space(1101, WINDOW)


def test_malformed_keys_and_repeated_seqs_are_refused() -> None:
    keys = IdempotencyKeys()
    with pytest.raises(InvalidInputError, match="16 bytes"):
        keys.remember(b"short", append(1, 1000))
    keys.remember(key(1), append(1, 1000))
    with pytest.raises(InvariantError, match="INV-SEQ-ONCE"):
        keys.remember(key(2), append(1, 1000))


def test_the_digest_of_a_key_is_stable_and_fits_a_batch_header() -> None:
    """Stored batches contain digests: a changed digest would lose every key at an upgrade."""
    client_id, client_seq = digest_of("order-7")
    assert (client_id, client_seq) == digest_of(b"order-7")
    assert is_synthetic(client_id)
    assert key_of(client_id, client_seq).hex() == "bdbeeb7686a17aab05e0bc0ea6c91696"
    assert len({key_of(*digest_of(str(number))) for number in range(1_000)}) == 1_000
    assert all(len(key_of(*digest_of(key))) == KEY_SIZE for key in (b"", b"\xff", "ä" * 2_048))
    for key in ("ä" * 2_049, bytes(limits.IDEMPOTENCY_KEY_SIZE_MAX + 1)):
        with pytest.raises(LimitError, match="idempotency key"):
            digest_of(key)
