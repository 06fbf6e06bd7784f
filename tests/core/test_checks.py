"""`check` raises for what does not hold, and only then."""

import pytest

from seawall.core.checks import check
from seawall.errors import InvariantError


def test_a_holding_invariant_is_silent() -> None:
    check(True, "INV-ANY", "never shown")


def test_a_broken_invariant_is_named_with_what_was_seen() -> None:
    with pytest.raises(InvariantError, match=r"^INV-SEQ-DENSE violated: 7 follows 5$") as caught:
        check(False, "INV-SEQ-DENSE", "7 follows 5")
    assert caught.value.name == "INV-SEQ-DENSE"
