"""What `seawall serve` says when a failed write makes it read-only: enough to find out why."""

from seawall.cli.serve import _why
from seawall.errors import SyncError


def test_a_known_failure_is_one_line() -> None:
    said = "seawall: read-only, because writing failed (the disk is gone): readers go on."
    expected = f"{said} Repair the disk, and start it again"
    assert _why(SyncError("the disk is gone")) == expected
    assert _why(OSError("the disk is gone")) == expected


def test_a_defect_is_reported_with_its_traceback() -> None:
    def commit() -> None:
        raise KeyError(4)

    try:
        commit()
    except KeyError as error:
        said = _why(error).splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert any("in commit" in line for line in said)
    assert said[-1].startswith("seawall: read-only, because writing failed (KeyError(4), a defect of Seawall): ")
