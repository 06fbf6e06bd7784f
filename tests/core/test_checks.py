"""`check` raises for what does not hold, and only then."""

import pytest

from seawall.core.checks import check
from seawall.errors import InvariantError


def test_a_holding_invariant_is_silent() -> None:
    check(True, "INV-SEQ-ONCE", "never shown")


def test_a_broken_invariant_is_named_with_what_was_seen() -> None:
    with pytest.raises(InvariantError, match=r"^INV-SEQ-ONCE violated: 5 follows 7$") as caught:
        check(False, "INV-SEQ-ONCE", "5 follows 7")
    assert caught.value.name == "INV-SEQ-ONCE"
