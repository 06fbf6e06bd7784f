"""What `seawall serve` says when nothing can be written any more: enough to find out why."""

from seawall.cli.serve import _why
from seawall.errors import SyncError


def test_what_was_foreseen_is_one_line() -> None:
    expected = "seawall: nothing can be written any more (the disk is gone): it ends"
    assert _why(SyncError("the disk is gone")) == expected
    assert _why(OSError("the disk is gone")) == expected


def test_a_defect_tells_where_it_was() -> None:
    def commit() -> None:
        raise KeyError(4)

    try:
        commit()
    except KeyError as error:
        said = _why(error).splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert any("in commit" in line for line in said)
    assert said[-1] == "seawall: nothing can be written any more (KeyError(4), a defect of Seawall): it ends"
