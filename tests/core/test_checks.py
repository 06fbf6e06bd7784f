"""`check` raises if its condition is false, and only then."""

import pytest

from seawall.core.checks import check
from seawall.errors import InvariantError


def test_a_true_condition_does_nothing() -> None:
    check(True, "INV-SEQ-ONCE", "never shown")


def test_a_violated_invariant_is_named_with_its_detail() -> None:
    with pytest.raises(InvariantError, match=r"^INV-SEQ-ONCE violated: 5 follows 7$") as caught:
        check(False, "INV-SEQ-ONCE", "5 follows 7")
    assert caught.value.name == "INV-SEQ-ONCE"
