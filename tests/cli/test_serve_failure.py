"""The message of `seawall serve` when a failed write makes it read-only."""

from seawall.cli.serve import _read_only_message
from seawall.errors import SyncError


def test_a_known_failure_is_one_line() -> None:
    message = "seawall: read-only, because a write failed (the disk failed): reads continue."
    expected = f"{message} Repair the disk and restart the server"
    assert _read_only_message(SyncError("the disk failed")) == expected
    assert _read_only_message(OSError("the disk failed")) == expected


def test_a_defect_is_reported_with_its_traceback() -> None:
    def commit() -> None:
        raise KeyError(4)

    try:
        commit()
    except KeyError as error:
        message = _read_only_message(error).splitlines()
    assert message[0] == "Traceback (most recent call last):"
    assert any("in commit" in line for line in message)
    assert message[-1].startswith("seawall: read-only, because a write failed (KeyError(4), a bug in Seawall): ")
