"""What `seawall serve` says when a failed write makes it read-only: enough to find out why."""

from seawall.cli.serve import _read_only_message
from seawall.errors import SyncError


def test_a_known_failure_is_one_line() -> None:
    said = "seawall: read-only, because a write failed (the disk is gone): reads continue."
    expected = f"{said} Repair the disk and restart the server"
    assert _read_only_message(SyncError("the disk is gone")) == expected
    assert _read_only_message(OSError("the disk is gone")) == expected


def test_a_defect_is_reported_with_its_traceback() -> None:
    def commit() -> None:
        raise KeyError(4)

    try:
        commit()
    except KeyError as error:
        said = _read_only_message(error).splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert any("in commit" in line for line in said)
    assert said[-1].startswith("seawall: read-only, because a write failed (KeyError(4), a bug in Seawall): ")
